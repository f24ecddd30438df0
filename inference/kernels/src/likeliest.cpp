// The likeliest tokens of one row of logits: all that sampling by rank has to look at.
#include <math.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <new>
#include <vector>

#include "isa.h"
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

// Calls use(id) in the order of ids; false if a number is not finite.
template <typename Use>
bool find_likeliest(const float *logits, int32_t size, int32_t count, const Use &use) {
  const int32_t per_group = std::max(1, std::min(kMostPerGroup, size / (4 * count)));
  std::vector<int32_t> maxima;
  maxima.reserve(static_cast<size_t>(size / per_group + 1));
  if (!find_maxima(logits, size, per_group, &maxima)) return false;
  // At least `count` tokens reach the count-th highest of the groups' maxima, each in its own group.
  std::vector<int32_t> ranked = maxima;
  std::nth_element(ranked.begin(), ranked.begin() + (count - 1), ranked.end(), std::greater<int32_t>());
  const float bound = float_of(ranked[static_cast<size_t>(count - 1)]);
  for (int32_t group = 0; group < static_cast<int32_t>(maxima.size()); ++group) {
    if (float_of(maxima[static_cast<size_t>(group)]) < bound) continue;
    const int32_t end = std::min(size, (group + 1) * per_group);
    for (int32_t i = group * per_group; i < end; ++i) {
      if (logits[i] >= bound) use(i);
    }
  }
  return true;
}

struct Candidate {
  int32_t id;
  double logit, weight;
};

// How many of the ranked candidates top-p and min-p leave.
size_t num_kept(const std::vector<Candidate> &ranked, const qk_filters &filters) {
  double total = 0.0;
  for (const Candidate &each : ranked) total += each.weight;
  double sum = 0.0;
  for (size_t i = 0; i < ranked.size(); ++i) {
    if (filters.min_p > 0.0 && ranked[i].weight < filters.min_p) return i;
    sum += ranked[i].weight;
    // The first place where the sum reaches top_p is the last one that is needed for it.
    if (filters.top_p < 1.0 && sum >= filters.top_p * total) return i + 1;
  }
  return ranked.size();
}

// As `draw` of inference/sampling.py; all sums are doubles, in order of rank.
int32_t draw(const float *logits, int32_t size, const qk_filters &filters, double number) {
  std::vector<Candidate> ranked;
  const auto add = [&](int32_t id) { ranked.push_back({id, logits[id], 0.0}); };
  if (!find_likeliest(logits, size, filters.top_k, add)) return QK_ERROR_NUMBERS;
  // Of equals the one with the lower id comes first.
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Candidate &a, const Candidate &b) { return a.logit > b.logit; });
  ranked.resize(static_cast<size_t>(filters.top_k));
  for (Candidate &each : ranked) each.weight = exp((each.logit - ranked[0].logit) / filters.temperature);
  ranked.resize(num_kept(ranked, filters));
  double total = 0.0;
  for (const Candidate &each : ranked) total += each.weight;
  const double point = total * number;
  double sum = 0.0;
  for (const Candidate &each : ranked) {
    sum += each.weight;
    if (sum > point) return each.id;
  }
  return ranked.back().id;
}

// The first of the highest numbers; false if a number is not finite.
bool find_highest(const float *logits, int32_t size, int32_t *id) {
  std::vector<int32_t> maxima;
  maxima.reserve(static_cast<size_t>(size / kMostPerGroup + 1));
  if (!find_maxima(logits, size, kMostPerGroup, &maxima)) return false;
  const float highest = float_of(*std::max_element(maxima.begin(), maxima.end()));
  int32_t first = 0;
  for (const int32_t each : maxima) {
    if (float_of(each) >= highest) break;
    first += kMostPerGroup;
  }
  *id = static_cast<int32_t>(std::find(logits + first, logits + size, highest) - logits);
  return true;
}

// The sum of e^(x - highest), piece by piece: a long sum of floats loses the small ones.
double sum_of_exponentials(const float *logits, int32_t size, float highest) {
  constexpr int32_t kPiece = 1 << 12;
  const auto sum_exponentials = quire::current_isa().step->sum_exponentials;
  double sum = 0.0;
  for (int32_t first = 0; first < size; first += kPiece) {
    sum += sum_exponentials(logits + first, std::min(size - first, kPiece), highest);
  }
  return sum;
}

}  // namespace

int32_t qk_surest(const float *logits, int32_t size, float *probability) {
  if (!logits || !probability || size < 1 || size > INT32_MAX / 2) return QK_ERROR_ARGUMENT;
  try {
    int32_t id = 0;
    if (!find_highest(logits, size, &id)) return QK_ERROR_NUMBERS;
    *probability = static_cast<float>(1.0 / sum_of_exponentials(logits, size, logits[id]));
    return id;
  } catch (const std::bad_alloc &) {
    return QK_ERROR_MEMORY;
  }
}

int32_t qk_likeliest(const float *logits, int32_t size, int32_t count, int32_t capacity, int32_t *ids) {
  if (!logits || !ids || count < 1 || count >= size || capacity < 0 || size > INT32_MAX / 2) return QK_ERROR_ARGUMENT;
  int32_t num_found = 0;
  const auto note = [&](int32_t id) {
    if (num_found < capacity) ids[num_found] = id;
    ++num_found;
  };
  try {
    return find_likeliest(logits, size, count, note) ? num_found : QK_ERROR_NUMBERS;
  } catch (const std::bad_alloc &) {
    return QK_ERROR_MEMORY;
  }
}

int32_t qk_draw(const float *logits, int32_t size, const qk_filters *filters, double number) {
  if (!logits || !filters || filters->top_k < 1 || filters->top_k >= size || size > INT32_MAX / 2) {
    return QK_ERROR_ARGUMENT;
  }
  // Written so that NaN is refused too.
  if (!(filters->temperature > 0.0 && filters->min_p <= 1.0 && number >= 0.0 && number < 1.0)) {
    return QK_ERROR_ARGUMENT;
  }
  try {
    return draw(logits, size, *filters, number);
  } catch (const std::bad_alloc &) {
    return QK_ERROR_MEMORY;
  }
}
