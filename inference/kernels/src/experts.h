// Which experts compute which tokens of a step.
#ifndef QUIRE_EXPERTS_H
#define QUIRE_EXPERTS_H

#include <vector>

#include "internal.h"

namespace quire {

// The part of an expert in the matrix of all of a layer; num_rows (of one expert) is a multiple of the panel.
qk_matrix expert_matrix(const qk_matrix &all, int32_t expert, int32_t num_rows);

// A token and one of its experts are a pair. Pairs are numbered expert by expert, and for each token by token: what one
// expert computes lies together.
class Routing {
 public:
  struct Group {
    int32_t expert, first_pair, num_pairs;
  };

  Routing(const qk_model &model, int32_t num_rows);
  // Choose a token's experts and their weights from the router's results (E), as inference/model/experts.py does, which
  // leaves open who comes first of equals: here the lower number. Rows may be chosen for at the same time.
  void choose(int32_t row, const float *logits);
  // Number the pairs once all rows are chosen for.
  void number_pairs();

  int32_t num_used() const { return num_used_; }
  int32_t num_pairs() const { return num_rows_ * num_used_; }
  const std::vector<Group> &groups() const { return groups_; }                // of experts that are used
  int32_t group_of(int32_t pair) const { return group_of_[size_t(pair)]; }    // index in groups
  int32_t expert_of(int32_t pair) const { return groups_[size_t(group_of(pair))].expert; }
  int32_t row_of(int32_t pair) const { return row_of_[size_t(pair)]; }
  // Of a token's expert number i of num_used.
  int32_t pair_of(int32_t row, int32_t i) const { return pair_of_[place(row, i)]; }
  float weight(int32_t row, int32_t i) const { return weights_[place(row, i)]; }

 private:
  size_t place(int32_t row, int32_t i) const { return size_t(row) * size_t(num_used_) + size_t(i); }

  const int32_t num_experts_, num_used_, num_rows_;
  const bool sums_to_one_;
  std::vector<int32_t> chosen_;   // (T, num_used)
  std::vector<float> weights_;    // the same shape
  std::vector<int32_t> pair_of_;  // the same shape
  std::vector<int32_t> row_of_, group_of_;  // (T * num_used)
  std::vector<Group> groups_;
};

// The inputs of a product for each group of pairs.
class GroupInputs {
 public:
  // memory has group_inputs_bytes; x is (pairs, num_columns).
  GroupInputs(const Routing &routing, void *memory, int32_t num_columns, const float *x);
  // Round a pair's numbers once they are there.
  void round(const Isa &isa, int32_t pair) const;
  const Inputs &of(size_t group) const { return inputs_[group]; }

 private:
  const Routing &routing_;
  std::vector<Inputs> inputs_;
};

// Bytes of the inputs of all groups, in however many groups the pairs are.
size_t group_inputs_bytes(const qk_model &model, int32_t num_rows, int32_t num_columns);

}  // namespace quire

#endif
