// Plain C++: what runs where no other file does.
#include "isa_common.h"

#define QK_PORTABLE 1

namespace quire {
namespace portable {
#include "simd_portable.inc"
#include "isa_body.inc"
}  // namespace portable

const Isa *isa_portable() { return &portable::isa_table; }

}  // namespace quire
