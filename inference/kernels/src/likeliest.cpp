// The likeliest tokens of one row of logits: all that sampling by rank has to look at.
#include <math.h>

#include <algorithm>
#include <functional>
#include <new>
#include <vector>

#include "isa.h"
#include "quire_kernels.h"

namespace {

constexpr int32_t kMostPerGroup = 64;
constexpr float kUnseen = 20.0f;  // so far below the highest all of a million tokens have 0.2 % of its weight

// The highest number of each group, the last of which may be shorter; false if a number is not finite.
bool find_maxima(const float *logits, int32_t size, int32_t per_group, std::vector<float> *maxima) {
  maxima->resize(static_cast<size_t>((size + per_group - 1) / per_group));
  return quire::current_isa().step->group_maxima(logits, size, per_group, maxima->data());
}

// Calls use(id) in the order of ids; false if a number is not finite.
template <typename Use>
bool find_likeliest(const float *logits, int32_t size, int32_t count, const Use &use) {
  const int32_t per_group = std::max(1, std::min(kMostPerGroup, size / (4 * count)));
  std::vector<float> maxima;
  if (!find_maxima(logits, size, per_group, &maxima)) return false;
  // At least `count` tokens reach the count-th highest of the groups' maxima, each in its own group.
  std::vector<float> ranked = maxima;
  std::nth_element(ranked.begin(), ranked.begin() + (count - 1), ranked.end(), std::greater<float>());
  const float bound = ranked[static_cast<size_t>(count - 1)];
  for (int32_t group = 0; group < static_cast<int32_t>(maxima.size()); ++group) {
    if (maxima[static_cast<size_t>(group)] < bound) continue;
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

// The first of the highest numbers, and its share of the sum of all e^x; false if a number is not finite.
bool find_surest(const float *logits, int32_t size, int32_t *id, float *probability) {
  std::vector<float> maxima;
  if (!find_maxima(logits, size, kMostPerGroup, &maxima)) return false;
  const auto best = std::max_element(maxima.begin(), maxima.end());
  const int32_t first = static_cast<int32_t>(best - maxima.begin()) * kMostPerGroup;
  *id = static_cast<int32_t>(std::find(logits + first, logits + size, *best) - logits);
  const auto sum_exponentials = quire::current_isa().step->sum_exponentials;
  double sum = 0.0;
  for (size_t group = 0; group < maxima.size(); ++group) {
    if (maxima[group] < *best - kUnseen) continue;
    const int32_t begin = static_cast<int32_t>(group) * kMostPerGroup;
    sum += sum_exponentials(logits + begin, std::min(size - begin, kMostPerGroup), *best);
  }
  *probability = static_cast<float>(1.0 / sum);
  return true;
}

}  // namespace

int32_t qk_surest(const float *logits, int32_t size, float *probability) {
  if (!logits || !probability || size < 1 || size > INT32_MAX / 2) return QK_ERROR_ARGUMENT;
  try {
    int32_t id = 0;
    return find_surest(logits, size, &id, probability) ? id : QK_ERROR_NUMBERS;
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
