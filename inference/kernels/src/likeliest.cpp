// The likeliest tokens of one row of logits: all that sampling by rank has to look at.
#include <string.h>

#include <algorithm>
#include <functional>
#include <new>
#include <vector>

#include "quire_kernels.h"

namespace {

constexpr int32_t kMostPerGroup = 64;
constexpr int32_t kExponent = 0x7f800000;  // all of its bits are set in what is not finite

// Whole numbers are compared in vectors, floats are not unless NaN may be forgotten.
int32_t bits_of(float x) {
  int32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

// In the order of the floats.
int32_t rank_of(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

float float_of(int32_t rank) {
  const int32_t bits = rank_of(rank);
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// The highest rank of each group; false if a number is not finite.
bool find_maxima(const float *logits, int32_t size, int32_t per_group, std::vector<int32_t> *maxima) {
  int32_t num_bad = 0;
  for (int32_t first = 0; first < size; first += per_group) {
    const int32_t end = std::min(size, first + per_group);
    int32_t highest = rank_of(bits_of(logits[first]));
    for (int32_t i = first; i < end; ++i) {
      const int32_t bits = bits_of(logits[i]);
      num_bad += (bits & kExponent) == kExponent;
      highest = std::max(highest, rank_of(bits));
    }
    maxima->push_back(highest);
  }
  return num_bad == 0;
}

int32_t find_likeliest(const float *logits, int32_t size, int32_t count, int32_t capacity, int32_t *ids) {
  const int32_t per_group = std::max(1, std::min(kMostPerGroup, size / (4 * count)));
  std::vector<int32_t> maxima;
  maxima.reserve(static_cast<size_t>(size / per_group + 1));
  if (!find_maxima(logits, size, per_group, &maxima)) return QK_ERROR_NUMBERS;
  // At least `count` tokens reach the count-th highest of the groups' maxima, each in its own group.
  std::vector<int32_t> ranked = maxima;
  std::nth_element(ranked.begin(), ranked.begin() + (count - 1), ranked.end(), std::greater<int32_t>());
  const float bound = float_of(ranked[static_cast<size_t>(count - 1)]);
  int32_t num_found = 0;
  for (int32_t group = 0; group < static_cast<int32_t>(maxima.size()); ++group) {
    if (float_of(maxima[static_cast<size_t>(group)]) < bound) continue;
    const int32_t end = std::min(size, (group + 1) * per_group);
    for (int32_t i = group * per_group; i < end; ++i) {
      if (logits[i] < bound) continue;
      if (num_found < capacity) ids[num_found] = i;
      ++num_found;
    }
  }
  return num_found;
}

}  // namespace

int32_t qk_likeliest(const float *logits, int32_t size, int32_t count, int32_t capacity, int32_t *ids) {
  if (!logits || !ids || count < 1 || count >= size || capacity < 0 || size > INT32_MAX / 2) return QK_ERROR_ARGUMENT;
  try {
    return find_likeliest(logits, size, count, capacity, ids);
  } catch (const std::bad_alloc &) {
    return QK_ERROR_MEMORY;
  }
}
