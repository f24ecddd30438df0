// AVX2, FMA, F16C: processors since about 2013 (Intel) and 2015 (AMD).
#include "isa_common.h"

#if defined(__AVX2__)
#include <immintrin.h>

namespace quire {
namespace avx2 {
static constexpr const char *kName = "avx2";
#include "simd_avx2.inc"
#include "isa_body.inc"
}  // namespace avx2

const Isa *isa_avx2() { return &avx2::isa_table; }

}  // namespace quire
#else
const quire::Isa *quire::isa_avx2() { return nullptr; }
#endif
