// ARM's NEON with the dot product of bytes (ARMv8.2): Apple silicon and most ARM servers and laptops.
#include "isa_common.h"

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>

namespace quire {
namespace neon {
#include "simd_neon.inc"
#include "isa_body.inc"
}  // namespace neon

const Isa *isa_neon() { return &neon::isa_table; }

}  // namespace quire
#else
const quire::Isa *quire::isa_neon() { return nullptr; }
#endif
