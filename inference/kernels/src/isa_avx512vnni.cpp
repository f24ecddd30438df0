// AVX-512 F, BW, DQ, VL and VNNI: Intel's servers since Cascade Lake, AMD since Zen 4.
#include "isa_common.h"

#if defined(__GNUC__) && !defined(__clang__)  // in GCC's own headers
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#if defined(__AVX512VNNI__) || (defined(_MSC_VER) && defined(__AVX512BW__))
#include <immintrin.h>

namespace quire {
namespace avx512vnni {
static constexpr const char *kName = "avx512vnni";
#include "simd_avx512.inc"
#include "isa_body.inc"
}  // namespace avx512vnni

const Isa *isa_avx512vnni() { return &avx512vnni::isa_table; }

}  // namespace quire
#else
const quire::Isa *quire::isa_avx512vnni() { return nullptr; }
#endif
