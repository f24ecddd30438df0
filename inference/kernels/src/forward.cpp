// A model's whole step.
//
// Parallel regions of a layer, with the work on single rows between them:
//
//     norm | query, key, value | bias, norm, rotary, store | attention | output | residual, norm | gate, up |
//     activation | down | residual, and the next layer's norm
//
// In a mixture of experts there is the router's product before gate and up, then the experts are chosen.
//
// In the last layer that stores keys and values all rows do, but only rows whose logits are wanted go on.
#include "forward.h"

#include <string.h>

#include <algorithm>

#include "check.h"
#include "for_rows.h"

namespace quire {

int32_t Step::run() {
  if (!lay_out(&buffer_, model_, num_rows_, make_plans(), &memory_)) return QK_ERROR_MEMORY;
  find_angles();
  embed();
  for (int32_t layer = 0; layer < model_.num_layers; ++layer) {
    if (is_cancelled()) return QK_ERROR_CANCELLED;
    if (!attend(layer)) return 0;
    if (is_cancelled()) return QK_ERROR_CANCELLED;
    const qk_layer &own = model_.layers[layer];
    add_attention(own);
    if (is_cancelled()) return QK_ERROR_CANCELLED;
    const Next ple = {nullptr, model_.ple_size && is_rounded(own.ple_gate), 1.0f};
    const Next next = model_.ple_size ? ple : after(layer);
    if (model_.num_experts) {
      add_experts(own, next);
    } else {
      add_mlp(own, next);
    }
    if (!model_.ple_size) continue;
    if (is_cancelled()) return QK_ERROR_CANCELLED;
    add_ple(layer, after(layer));
  }
  if (is_cancelled()) return QK_ERROR_CANCELLED;  // perhaps the last layer was left in its midst
  find_logits();
  return 0;
}

void Step::embed() {
  const qk_layer &first = model_.layers[0];
  for_rows(team_, num_rows_, int64_t{model_.hidden_size} * 4, [&](int32_t row) {
    float *x = memory_.x + int64_t{row} * model_.hidden_size;
    qk_unpack_row(&model_.embedding, step_.token_ids[row], x);
    if (model_.embedding_scale != 1.0f) kernels_.multiply(x, model_.embedding_scale, model_.hidden_size);
    if (model_.ple_size) {
      norm_row(nullptr, is_rounded(model_.ple_projection), row);
    } else {
      norm_row(first.attention_norm, is_attention_rounded(first), row);
    }
  });
  if (model_.ple_size) find_ple();
}

// The input of the next product: x, normed and rounded.
void Step::norm_row(const float *weight, bool is_rounded, int32_t row) {
  const int64_t first = int64_t{row} * model_.hidden_size;
  float *out = memory_.normed + first;
  if (weight) {
    kernels_.normalise(memory_.x + first, weight, model_.hidden_size, model_.norm_epsilon, out);
  } else {
    memcpy(out, memory_.x + first, sizeof(float) * static_cast<size_t>(model_.hidden_size));
  }
  if (is_rounded) isa_.quantise_row(hidden_inputs(), row);
}

void Step::add_and_norm(const float *bias, const float *post_norm, const Next &next, int32_t row) {
  const int32_t size = model_.hidden_size;
  const int64_t first = int64_t{row} * size;
  float *added = memory_.added + first;
  if (bias) kernels_.add_scaled(added, bias, 1.0f, size);
  if (post_norm) kernels_.normalise(added, post_norm, size, model_.norm_epsilon, added);
  kernels_.add_scaled(memory_.x + first, added, model_.residual_scale, size);
  if (next.scale != 1.0f) kernels_.multiply(memory_.x + first, next.scale, size);
  norm_row(next.norm, next.is_rounded, row);
}

void Step::find_logits() {
  qk_matrix head = model_.head;
  if (step_.num_logits) head.num_rows = step_.num_logits;
  const int64_t size = head.num_rows;
  const Inputs inputs = hidden_inputs();
  const MatmulJob job = {&head, &inputs, step_.logits, size};
  matmul_many(team_, isa_, &job, 1);
  if (model_.logit_scale == 1.0f && model_.logit_softcap == 0.0f) return;
  constexpr int64_t kPart = 8192;
  const int64_t all = num_rows_ * size;
  for_rows(team_, static_cast<int32_t>((all + kPart - 1) / kPart), kPart * 2, [&](int32_t part) {
    float *logits = step_.logits + part * kPart;
    const int32_t count = static_cast<int32_t>(std::min(kPart, all - part * kPart));
    if (model_.logit_scale != 1.0f) kernels_.multiply(logits, model_.logit_scale, count);
    if (model_.logit_softcap != 0.0f) kernels_.soft_cap(logits, model_.logit_softcap, count);
  });
}

}  // namespace quire

using namespace quire;

int32_t qk_forward(qk_team *team, const qk_model *model, const qk_kv *kv, const qk_step *step) {
  if (!team || !model || !kv || !step) return QK_ERROR_ARGUMENT;
  if (!is_valid(*model) || !is_valid(*kv, *model) || !is_valid(*step, *model, *kv)) return QK_ERROR_ARGUMENT;
  try {
    return Step(*team, *model, *kv, *step).run();
  } catch (...) {  // no memory
    return QK_ERROR_MEMORY;
  }
}
