// Four numbers of 32 bits, in one register where the compiler has such: that of the baseline, on any processor.
#ifndef QUIRE_LANES_H
#define QUIRE_LANES_H

#include <stdint.h>
#include <string.h>

namespace quire {

#if defined(__GNUC__)

typedef uint32_t Lanes __attribute__((vector_size(16)));

#else

struct Lanes {
  uint32_t at[4];
  uint32_t operator[](int i) const { return at[i]; }
};

inline Lanes operator&(const Lanes &a, const Lanes &b) {
  return {a.at[0] & b.at[0], a.at[1] & b.at[1], a.at[2] & b.at[2], a.at[3] & b.at[3]};
}
inline Lanes operator|(const Lanes &a, const Lanes &b) {
  return {a.at[0] | b.at[0], a.at[1] | b.at[1], a.at[2] | b.at[2], a.at[3] | b.at[3]};
}
inline Lanes operator+(const Lanes &a, uint32_t b) { return {a.at[0] + b, a.at[1] + b, a.at[2] + b, a.at[3] + b}; }
inline Lanes operator&(const Lanes &a, uint32_t b) { return {a.at[0] & b, a.at[1] & b, a.at[2] & b, a.at[3] & b}; }
inline Lanes operator^(const Lanes &a, uint32_t b) { return {a.at[0] ^ b, a.at[1] ^ b, a.at[2] ^ b, a.at[3] ^ b}; }
inline Lanes operator<<(const Lanes &a, int n) { return {a.at[0] << n, a.at[1] << n, a.at[2] << n, a.at[3] << n}; }
inline Lanes operator>>(const Lanes &a, int n) { return {a.at[0] >> n, a.at[1] >> n, a.at[2] >> n, a.at[3] >> n}; }

#endif

inline Lanes load_lanes(const uint8_t *at) {
  Lanes lanes;
  memcpy(&lanes, at, sizeof lanes);
  return lanes;
}

inline void store_lanes(uint8_t *at, const Lanes &lanes) { memcpy(at, &lanes, sizeof lanes); }

// Lane i of each row becomes column i. In two steps of two vectors each, which compilers know as shuffles.
inline void transpose(const Lanes (&rows)[4], Lanes *columns) {
  const Lanes a = {rows[0][0], rows[1][0], rows[0][1], rows[1][1]};
  const Lanes b = {rows[2][0], rows[3][0], rows[2][1], rows[3][1]};
  const Lanes c = {rows[0][2], rows[1][2], rows[0][3], rows[1][3]};
  const Lanes d = {rows[2][2], rows[3][2], rows[2][3], rows[3][3]};
  columns[0] = Lanes{a[0], a[1], b[0], b[1]};
  columns[1] = Lanes{a[2], a[3], b[2], b[3]};
  columns[2] = Lanes{c[0], c[1], d[0], d[1]};
  columns[3] = Lanes{c[2], c[3], d[2], d[3]};
}

}  // namespace quire

#endif
