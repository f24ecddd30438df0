// 16-bit floats, converted in plain C++. Static, so that each file has its own (see internal.h).
#ifndef QUIRE_HALF_H
#define QUIRE_HALF_H

#include <stdint.h>
#include <string.h>

namespace quire {

static inline float bits_to_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline float bfloat_to_float(uint16_t bits) { return bits_to_float(static_cast<uint32_t>(bits) << 16); }

static inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t rest = half & 0x7fff;
  if (rest >= 0x7c00) return bits_to_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  if (rest >= 0x0400) return bits_to_float(sign | ((rest << 13) + (112u << 23)));
  const float value = static_cast<float>(rest) * 5.9604644775390625e-8f;  // subnormal: times 2^-24
  return sign ? -value : value;
}

}  // namespace quire

#endif
