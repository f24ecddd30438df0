// The kernels of a step beside the matrix products, one table per instruction set.
//
// All are bit for bit the same for a row, whichever rows are computed with it.
#ifndef QUIRE_STEP_H
#define QUIRE_STEP_H

#include "internal.h"

namespace quire {

constexpr int kTileTokens = 64;    // keys are read in tiles at multiples of this
constexpr int kSplitTokens = 512;  // softmax runs on its own over so many keys; then the parts are merged
constexpr int kMaxHeadDim = 1024;

// The numbers of a head, with room for whole vectors of any instruction set.
inline int32_t padded(int32_t n) { return (n + 15) / 16 * 16; }

// How and where one layer's slots are stored.
struct Slots {
  int32_t scheme;        // QK_KV_*
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t value_groups;  // of int4
  int64_t num_slots;
  float stored_factor;   // 0: upright
  void *const *planes;
};

// One layer's attention. Query heads are scaled already, and turned if the slots are.
struct Attention {
  Slots slots;
  int32_t num_heads;
  int32_t window;      // 0: none
  float softcap;       // 0: none
  const float *sinks;  // (num_heads) scores without values; null: none
  float query_factor;  // turns results upright; 0: they are
  const float *query;  // (T, num_heads * head_dim)
  float *out;          // the same shape
};

// New tokens of one sequence that are computed together, for the query heads that share a KV head.
// Their rows are token by token, and for each token head by head: R = num_tokens * group.
struct AttentionTile {
  const int64_t *token_slots;  // where each token of the sequence lies
  int32_t first_row;           // in the step
  int32_t first_token;         // in the sequence
  int32_t num_tokens;
  int32_t kv_head;
  int32_t end_fetch;  // whoever reads the keys before this token goes on up to it: they are fetched ahead
};

// Softmax over some of the keys, not yet divided by its sum. In memory: the largest score of each row,
// the sum of exponentials of each row (R, rounded up to 16, each), and the results (R, padded head_dim).
inline size_t partial_floats(int32_t num_rows, int32_t head_dim) {
  return 2 * static_cast<size_t>(padded(num_rows)) + static_cast<size_t>(num_rows) * padded(head_dim);
}
// Floats that attend_split needs for itself.
inline size_t attend_floats(int32_t num_rows, int32_t head_dim) {
  return static_cast<size_t>(kTileTokens) * (2 * padded(head_dim) + 2) +
         static_cast<size_t>(num_rows) * (kTileTokens + padded(head_dim)) + 2 * padded(num_rows);
}

struct StepKernels {
  // out = x / rms(x) * weight; out may be x.
  void (*normalise)(const float *x, const float *weight, int32_t n, float epsilon, float *out);
  // x += scale * y
  void (*add_scaled)(float *x, const float *y, float scale, int32_t n);
  void (*multiply)(float *x, float factor, int32_t n);
  void (*soft_cap)(float *x, float cap, int32_t n);
  // The sum of e^(x - highest).
  float (*sum_exponentials)(const float *x, int32_t n, float highest);
  // The highest of each group of per_group numbers, of which the last may be shorter; whether all are finite.
  bool (*group_maxima)(const float *x, int32_t n, int32_t per_group, float *maxima);
  // Gate and up to what QK_* says; out may be gate.
  void (*activate)(int32_t activation, const float *gate, const float *up, int32_t n, float *out);
  // Turn the pairs (i, i + half) by the angles.
  void (*rotate)(float *x, const float *cosine, const float *sine, int32_t half);
  // x times a Hadamard matrix of +-factor; n is a power of two.
  void (*hadamard)(float *x, int32_t n, float factor);
  // Store one head's numbers, upright; rows are keys' heads, then values'.
  void (*store_row)(const Slots &slots, int32_t row, int64_t slot, const float *x);
  // Attend to the keys [split, split + 1) * kSplitTokens, as far as the rows see them.
  void (*attend_split)(const Attention &attention, const AttentionTile &tile, int32_t split,
                       float *scratch, float *partial);
  // Join the next split's partial to those before it.
  void (*merge)(const Attention &attention, const AttentionTile &tile, float *total,
                const float *partial);
  // Write the results to attention.out.
  void (*finish)(const Attention &attention, const AttentionTile &tile, const float *total);
};

}  // namespace quire

#endif
