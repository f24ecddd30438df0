// ARM's NEON with the dot product of bytes (ARMv8.2): Apple silicon and most ARM servers and laptops.
#include "isa_common.h"

#if 0
#else
const quire::Isa *quire::isa_neon() { return nullptr; }
#endif
