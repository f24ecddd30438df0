#include "experts.h"

#include <math.h>

#include <algorithm>

#include "isa.h"

namespace quire {
namespace {

constexpr size_t kPaddingOfGroup = 4 * 64;  // make_inputs begins each of four arrays at a multiple of 64

size_t count_pairs(const qk_model &model, int32_t num_rows) {
  return static_cast<size_t>(num_rows) * static_cast<size_t>(model.num_experts_used);
}

}  // namespace

qk_matrix expert_matrix(const qk_matrix &all, int32_t expert, int32_t num_rows) {
  const int64_t bytes = qk_packed_bytes(all.type, num_rows, all.num_columns);
  qk_matrix matrix = all;
  matrix.num_rows = num_rows;
  matrix.data = static_cast<const char *>(all.data) + bytes * expert;
  return matrix;
}

Routing::Routing(const qk_model &model, int32_t num_rows)
    : num_experts_(model.num_experts),
      num_used_(model.num_experts_used),
      num_rows_(num_rows),
      sums_to_one_(model.expert_weights_sum_to_one != 0),
      chosen_(count_pairs(model, num_rows)),
      weights_(chosen_.size()),
      pair_of_(chosen_.size()),
      row_of_(chosen_.size()),
      group_of_(chosen_.size()) {}

void Routing::choose(int32_t row, const float *logits) {
  const size_t first = place(row, 0);
  float used = 0.0f;
  for (int32_t i = 0; i < num_used_; ++i) {
    const auto begin = chosen_.begin() + static_cast<std::ptrdiff_t>(first), end = begin + i;
    int32_t best = -1;  // one is found even among numbers that are none
    for (int32_t expert = 0; expert < num_experts_; ++expert) {
      if ((best < 0 || logits[expert] > logits[best]) && std::find(begin, end, expert) == end) best = expert;
    }
    chosen_[first + static_cast<size_t>(i)] = best;
    const float weight = expf(logits[best] - logits[chosen_[first]]);  // the first one is the largest
    weights_[first + static_cast<size_t>(i)] = weight;
    used += weight;
  }
  float all = 0.0f;
  for (int32_t expert = 0; expert < num_experts_; ++expert) all += expf(logits[expert] - logits[chosen_[first]]);
  // A number that is none makes the whole row so, also that of an expert that is not used: it must not be passed over.
  const float sum = sums_to_one_ && isfinite(all) ? used : all;
  for (int32_t i = 0; i < num_used_; ++i) weights_[first + static_cast<size_t>(i)] /= sum;
}

void Routing::number_pairs() {
  std::vector<int32_t> ends(static_cast<size_t>(num_experts_));
  for (const int32_t expert : chosen_) ++ends[static_cast<size_t>(expert)];
  groups_.clear();
  std::vector<int32_t> group(ends.size());
  int32_t start = 0;
  for (int32_t expert = 0; expert < num_experts_; ++expert) {
    int32_t &end = ends[static_cast<size_t>(expert)];
    const int32_t count = end;
    end = start;  // where the next pair of this expert goes
    if (!count) continue;
    group[static_cast<size_t>(expert)] = static_cast<int32_t>(groups_.size());
    groups_.push_back({expert, start, count});
    start += count;
  }
  for (int32_t row = 0; row < num_rows_; ++row) {
    for (int32_t i = 0; i < num_used_; ++i) {
      const size_t expert = static_cast<size_t>(chosen_[place(row, i)]);
      const int32_t pair = ends[expert]++;
      pair_of_[place(row, i)] = pair;
      row_of_[static_cast<size_t>(pair)] = row;
      group_of_[static_cast<size_t>(pair)] = group[expert];
    }
  }
}

GroupInputs::GroupInputs(const Routing &routing, void *memory, int32_t num_columns, const float *x)
    : routing_(routing) {
  char *next = static_cast<char *>(memory);
  for (const Routing::Group &group : routing.groups()) {
    const float *first = x + int64_t{group.first_pair} * num_columns;
    inputs_.push_back(make_inputs(next, group.num_pairs, num_columns, first, num_columns));
    next += inputs_bytes(group.num_pairs, num_columns);
  }
}

void GroupInputs::round(const Isa &isa, int32_t pair) const {
  const size_t group = static_cast<size_t>(routing_.group_of(pair));
  isa.quantise_row(inputs_[group], pair - routing_.groups()[group].first_pair);
}

size_t group_inputs_bytes(const qk_model &model, int32_t num_rows, int32_t num_columns) {
  const size_t pairs = count_pairs(model, num_rows);
  const size_t groups = std::min(pairs, static_cast<size_t>(model.num_experts));
  return inputs_bytes(static_cast<int32_t>(pairs), num_columns) + groups * kPaddingOfGroup;
}

}  // namespace quire
