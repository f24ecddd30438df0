// CRC-32 by carry-less multiplication where the processor has it, else eight bytes at a time from tables.
//
// Sources: Gopal et al. 2009, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
// and Kounavis and Berry 2005, "A Systematic Approach to Building High Performance, Software-based, CRC Generators".
#include "crc32.h"

#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define QUIRE_CARRY_LESS 1
#include <immintrin.h>
#endif

namespace quire {
namespace {

constexpr uint32_t kPolynomial = 0xedb88320u;
constexpr size_t kSlices = 8;

struct Tables {
  uint32_t of[kSlices][256];

  Tables() {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t rest = byte;
      for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ (rest & 1 ? kPolynomial : 0);
      of[0][byte] = rest;
    }
    for (size_t slice = 1; slice < kSlices; ++slice) {
      for (size_t byte = 0; byte < 256; ++byte) {
        const uint32_t before = of[slice - 1][byte];
        of[slice][byte] = (before >> 8) ^ of[0][before & 0xff];
      }
    }
  }
};

uint32_t from_tables(uint32_t sum, const uint8_t *data, size_t size) {
  static const Tables tables;
  const auto &of = tables.of;
  for (; size >= kSlices; data += kSlices, size -= kSlices) {
    const uint32_t low = sum ^ (data[0] | data[1] << 8 | data[2] << 16 | static_cast<uint32_t>(data[3]) << 24);
    sum = of[7][low & 0xff] ^ of[6][low >> 8 & 0xff] ^ of[5][low >> 16 & 0xff] ^ of[4][low >> 24] ^
          of[3][data[4]] ^ of[2][data[5]] ^ of[1][data[6]] ^ of[0][data[7]];
  }
  for (; size > 0; ++data, --size) sum = (sum >> 8) ^ of[0][(sum ^ *data) & 0xff];
  return sum;
}

#if defined(QUIRE_CARRY_LESS)

constexpr size_t kLanes = 4;
constexpr size_t kLaneBytes = 16;
constexpr size_t kLeast = kLanes * kLaneBytes;

#define QUIRE_TARGET __attribute__((target("pclmul,sse4.1")))

QUIRE_TARGET inline __m128i load(const uint8_t *data) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i *>(data));
}

// What 16 bytes stand for so many bytes further on, as `powers` say, together with what is there.
QUIRE_TARGET inline __m128i fold(__m128i bytes, __m128i powers, __m128i next) {
  const __m128i low = _mm_clmulepi64_si128(bytes, powers, 0x00);
  const __m128i high = _mm_clmulepi64_si128(bytes, powers, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

// At least kLeast bytes; four lanes, since one multiplication takes as long as four that overlap.
QUIRE_TARGET uint32_t by_multiplication(uint32_t sum, const uint8_t *data, size_t size) {
  const __m128i over_lanes = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);  // x^(512-32), x^(512+32), reflected
  const __m128i over_one = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);    // x^(128-32), x^(128+32), reflected
  __m128i lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = load(data + i * kLaneBytes);
  lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128(static_cast<int>(sum)));
  for (data += kLeast, size -= kLeast; size >= kLeast; data += kLeast, size -= kLeast) {
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = fold(lanes[i], over_lanes, load(data + i * kLaneBytes));
  }
  __m128i all = lanes[0];
  for (size_t i = 1; i < kLanes; ++i) all = fold(all, over_one, lanes[i]);
  uint8_t rest[kLaneBytes];
  _mm_storeu_si128(reinterpret_cast<__m128i *>(rest), all);
  return from_tables(from_tables(0, rest, sizeof rest), data, size);
}

bool can_multiply() {
  static const bool can = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
  return can;
}

#endif

}  // namespace

uint32_t crc32(const uint8_t *data, size_t size) {
#if defined(QUIRE_CARRY_LESS)
  if (size >= kLeast && can_multiply()) return ~by_multiplication(~0u, data, size);
#endif
  return ~from_tables(~0u, data, size);
}

}  // namespace quire
