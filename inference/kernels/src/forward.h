// A model's whole step: what runs it is in forward.cpp, its attention in forward_attention.cpp, its MLPs and per-layer
// embeddings in forward_mlp.cpp.
#ifndef QUIRE_FORWARD_H
#define QUIRE_FORWARD_H

#include <array>
#include <map>
#include <vector>

#include "attend.h"
#include "experts.h"
#include "isa.h"
#include "step_memory.h"

namespace quire {

inline bool is_rounded(const qk_matrix &matrix) { return !is_float_type(matrix.type); }

// An MLP of all rows: its weights, and where its numbers lie.
struct Mlp {
  const qk_matrix *gate, *up, *down;
  const float *gate_bias, *up_bias;  // null: none
  int32_t size;
  float *gate_out, *up_out, *out;
  void *inputs;
};

// What becomes of x once a part of a layer is added to it: it is scaled, and its norm is the next product's input.
struct Next {
  const float *norm;  // null: the input is x itself
  bool is_rounded;
  float scale;
};

class Step {
 public:
  Step(qk_team &team, const qk_model &model, const qk_kv &kv, const qk_step &step)
      : team_(team.team),
        buffer_(team.step),
        isa_(current_isa()),
        kernels_(*isa_.step),
        model_(model),
        kv_(kv),
        step_(step),
        token_slots_(step),
        all_{all_runs(step, token_slots_), {}},
        kept_{wanted_runs(step, token_slots_), {}},
        num_rows_(step.num_rows) {
    for (int32_t i = 0; i < model.num_layers && model.layers[i].key.data; ++i) last_stored_ = i;
  }

  int32_t run();

 private:
  // Rows that are computed together: all of the step, or those whose logits are wanted.
  struct Rows {
    const std::vector<TokenRun> runs;
    std::map<std::array<int32_t, 3>, AttentionPlan> plans;  // by a layer's window and heads
  };

  static std::array<int32_t, 3> kind_of(const qk_layer &layer) {
    return {layer.window, layer.num_kv_heads, layer.head_dim};
  }
  size_t make_plans();
  void embed();
  void find_ple();
  void find_angles();
  bool attend(int32_t layer);
  void finish_query(const qk_layer &layer, int32_t row);
  void store(const qk_layer &layer, const Slots &slots, int32_t row);
  float query_scale(int32_t row) const;
  void norm_heads(float *x, const float *weight, int32_t num_heads, int32_t size);
  void turn_heads(float *x, int32_t num_heads, const qk_layer &layer, int32_t row);
  void keep_wanted_rows(const qk_layer &layer);
  void add_attention(const qk_layer &layer);
  void add_experts(const qk_layer &layer, const Next &next);
  Routing route(const qk_layer &layer);
  void run_experts(const qk_layer &layer, const Routing &routing);
  void run_mlp(const Mlp &mlp);
  void add_shared(const qk_layer &layer, int32_t row);
  void add_mlp(const qk_layer &layer, const Next &next);
  void add_ple(int32_t layer, const Next &next);
  void add_and_norm(const float *bias, const float *post_norm, const Next &next, int32_t row);
  void norm_row(const float *weight, bool is_rounded, int32_t row);
  void find_logits();
  bool is_cancelled() const { return step_.cancel && *step_.cancel; }
  bool is_last(int32_t layer) const { return layer == model_.num_layers - 1; }
  // Which row of the step a row is that is computed now.
  int32_t step_row(int32_t row) const { return is_kept_ ? step_.keep[row] : row; }
  int64_t queries(const qk_layer &layer) const { return int64_t{model_.num_heads} * layer.head_dim; }
  static int64_t keys(const qk_layer &layer) { return int64_t{layer.num_kv_heads} * layer.head_dim; }
  Inputs hidden_inputs() const {
    return make_inputs(memory_.hidden_inputs, num_rows_, model_.hidden_size, memory_.normed, model_.hidden_size);
  }
  Next after(int32_t layer) const {
    const float scale = model_.layers[layer].layer_scale ? *model_.layers[layer].layer_scale : 1.0f;
    if (is_last(layer)) return {model_.final_norm, is_rounded(model_.head), scale};
    const qk_layer &next = model_.layers[layer + 1];
    return {next.attention_norm, is_attention_rounded(next), scale};
  }
  bool is_mlp_rounded(const qk_layer &layer) const {
    if (!model_.num_experts) return is_rounded(layer.gate) || is_rounded(layer.up);
    return is_rounded(layer.router) || (model_.shared_size && is_shared_rounded(layer));
  }
  static bool is_shared_rounded(const qk_layer &layer) {
    return is_rounded(layer.shared_gate) || is_rounded(layer.shared_up);
  }
  static bool is_attention_rounded(const qk_layer &layer) {
    return is_rounded(layer.query) || (layer.key.data && is_rounded(layer.key)) ||
           (layer.value.data && is_rounded(layer.value));
  }

  Team &team_;
  Buffer &buffer_;
  const Isa &isa_;
  const StepKernels &kernels_;
  const qk_model &model_;
  const qk_kv &kv_;
  const qk_step &step_;
  const TokenSlots token_slots_;
  Rows all_, kept_;
  StepMemory memory_ = {};
  int32_t num_rows_;  // rows that are computed; fewer behind the last layer that stores
  int32_t last_stored_ = 0;
  bool is_kept_ = false;
};

}  // namespace quire

#endif
