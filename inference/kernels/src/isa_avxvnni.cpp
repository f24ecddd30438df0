// AVX2 and the dot product of bytes without AVX-512: Intel since Alder Lake, AMD since Zen 5.
#include "isa_common.h"

#if defined(__AVXVNNI__) || (defined(_MSC_VER) && defined(__AVX2__))
#include <immintrin.h>
#define QUIRE_VNNI 1

namespace quire {
namespace avxvnni {
static constexpr const char *kName = "avxvnni";
#include "simd_avx2.inc"
#include "isa_body.inc"
}  // namespace avxvnni

const Isa *isa_avxvnni() { return &avxvnni::isa_table; }

}  // namespace quire
#else
const quire::Isa *quire::isa_avxvnni() { return nullptr; }
#endif
