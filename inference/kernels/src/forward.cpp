// A model's whole step.
//
// Parallel regions of a layer, with the work on single rows between them:
//
//     norm | query, key, value | bias, norm, rotary, store | attention | output | residual, norm | gate, up |
//     activation | down | residual, and the next layer's norm
//
// In a mixture of experts there is the router's product before gate and up, then the experts are chosen.
//
// In the last layer all rows store keys and values, but only rows whose logits are wanted go on.
#include <math.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <new>

#include "attend.h"
#include "check.h"
#include "experts.h"
#include "for_rows.h"
#include "isa.h"
#include "step_memory.h"

namespace quire {
namespace {

bool is_rounded(const qk_matrix &matrix) { return !is_float_type(matrix.type); }

// An MLP of all rows: its weights, and where its numbers lie.
struct Mlp {
  const qk_matrix *gate, *up, *down;
  const float *gate_bias, *up_bias;  // null: none
  int32_t size;
  float *gate_out, *up_out, *out;
  void *inputs;
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
        num_rows_(step.num_rows),
        queries_(int64_t{model.num_heads} * model.head_dim),
        keys_(int64_t{model.num_kv_heads} * model.head_dim) {}

  int32_t run();

 private:
  void make_plans();
  const AttentionPlan &plan_of(int32_t layer) const;
  void embed();
  void find_angles();
  void attend(int32_t layer);
  void finish_heads(const qk_layer &layer, const Slots &slots, int32_t row);
  float query_scale(int32_t row) const;
  void norm_heads(float *x, const float *weight, int32_t num_heads);
  void turn_heads(float *x, int32_t num_heads, int32_t rope, int32_t row);
  void keep_wanted_rows();
  void add_attention(const qk_layer &layer);
  void add_experts(const qk_layer &layer, const float *next_norm, bool is_next_rounded);
  Routing route(const qk_layer &layer);
  void run_experts(const qk_layer &layer, const Routing &routing);
  void run_mlp(const Mlp &mlp);
  void add_shared(const qk_layer &layer, int32_t row);
  void add_mlp(const qk_layer &layer, const float *next_norm, bool is_next_rounded);
  void add_and_norm(const float *bias, const float *post_norm, const float *next_norm, bool is_next_rounded,
                    int32_t row);
  void norm_row(const float *weight, bool is_rounded, int32_t row);
  void find_logits();
  bool is_cancelled() const { return step_.cancel && *step_.cancel; }
  bool is_last(int32_t layer) const { return layer == model_.num_layers - 1; }
  Inputs hidden_inputs() const {
    return make_inputs(memory_.hidden_inputs, num_rows_, model_.hidden_size, memory_.normed, model_.hidden_size);
  }
  const float *norm_after(int32_t layer) const {
    return is_last(layer) ? model_.final_norm : model_.layers[layer + 1].attention_norm;
  }
  bool is_rounded_after(int32_t layer) const {
    return is_last(layer) ? is_rounded(model_.head) : is_attention_rounded(model_.layers[layer + 1]);
  }
  static bool is_shared_rounded(const qk_layer &layer) {
    return is_rounded(layer.shared_gate) || is_rounded(layer.shared_up);
  }
  static bool is_attention_rounded(const qk_layer &layer) {
    return is_rounded(layer.query) || is_rounded(layer.key) || is_rounded(layer.value);
  }

  Team &team_;
  Buffer &buffer_;
  const Isa &isa_;
  const StepKernels &kernels_;
  const qk_model &model_;
  const qk_kv &kv_;
  const qk_step &step_;
  const TokenSlots token_slots_;
  std::map<int32_t, AttentionPlan> plans_;  // by window
  std::unique_ptr<AttentionPlan> last_plan_;
  StepMemory memory_ = {};
  int32_t num_rows_;  // rows that are computed; fewer in the last layer
  const int64_t queries_, keys_;
};

int32_t Step::run() {
  make_plans();
  size_t attention_floats = last_plan_ ? last_plan_->num_floats() : 0;
  for (const auto &plan : plans_) attention_floats = std::max(attention_floats, plan.second.num_floats());
  if (!lay_out(&buffer_, model_, num_rows_, attention_floats, &memory_)) return QK_ERROR_MEMORY;
  find_angles();
  embed();
  for (int32_t layer = 0; layer < model_.num_layers; ++layer) {
    if (is_cancelled()) return QK_ERROR_CANCELLED;
    attend(layer);
    if (is_last(layer)) {
      if (step_.num_keep == 0) return 0;
      keep_wanted_rows();
    }
    if (is_cancelled()) return QK_ERROR_CANCELLED;
    add_attention(model_.layers[layer]);
    if (is_cancelled()) return QK_ERROR_CANCELLED;
    if (model_.num_experts) {
      add_experts(model_.layers[layer], norm_after(layer), is_rounded_after(layer));
    } else {
      add_mlp(model_.layers[layer], norm_after(layer), is_rounded_after(layer));
    }
  }
  if (is_cancelled()) return QK_ERROR_CANCELLED;  // perhaps the last layer was left in its midst
  find_logits();
  return 0;
}

void Step::make_plans() {
  for (int32_t layer = 0; layer + 1 < model_.num_layers; ++layer) {
    const int32_t window = model_.layers[layer].window;
    if (plans_.count(window)) continue;
    plans_.emplace(std::piecewise_construct, std::forward_as_tuple(window),
                   std::forward_as_tuple(model_, step_, token_slots_, window, nullptr, team_.size()));
  }
  if (step_.num_keep == 0) return;
  std::vector<bool> is_wanted(static_cast<size_t>(step_.num_rows));
  for (int32_t i = 0; i < step_.num_keep; ++i) is_wanted[static_cast<size_t>(step_.keep[i])] = true;
  const int32_t window = model_.layers[model_.num_layers - 1].window;
  last_plan_ = std::make_unique<AttentionPlan>(model_, step_, token_slots_, window, &is_wanted, team_.size());
}

const AttentionPlan &Step::plan_of(int32_t layer) const {
  return is_last(layer) ? *last_plan_ : plans_.at(model_.layers[layer].window);
}

void Step::find_angles() {
  const int32_t half = model_.rotary_dim / 2;
  for_rows(team_, num_rows_ * model_.num_ropes, int64_t{half} * 64, [&](int32_t index) {
    const qk_rope &rope = model_.ropes[index / num_rows_];
    const float position = static_cast<float>(step_.positions[index % num_rows_]);
    const size_t first = static_cast<size_t>(index) * half;
    for (int32_t i = 0; i < half; ++i) {
      const float angle = position * rope.inverse_frequencies[i];
      memory_.cosine[first + i] = cosf(angle) * rope.factor;
      memory_.sine[first + i] = sinf(angle) * rope.factor;
    }
  });
}

void Step::embed() {
  const qk_layer &first = model_.layers[0];
  const Inputs inputs = hidden_inputs();
  for_rows(team_, num_rows_, int64_t{model_.hidden_size} * 4, [&](int32_t row) {
    float *x = memory_.x + int64_t{row} * model_.hidden_size;
    qk_unpack_row(&model_.embedding, step_.token_ids[row], x);
    if (model_.embedding_scale != 1.0f) kernels_.multiply(x, model_.embedding_scale, model_.hidden_size);
    norm_row(first.attention_norm, false, row);
    if (is_attention_rounded(first)) isa_.quantise_row(inputs, row);
  });
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

void Step::attend(int32_t index) {
  const qk_layer &layer = model_.layers[index];
  const Inputs inputs = hidden_inputs();
  const MatmulJob jobs[3] = {{&layer.query, &inputs, memory_.query, queries_},
                             {&layer.key, &inputs, memory_.key, keys_},
                             {&layer.value, &inputs, memory_.value, keys_}};
  matmul_many(team_, isa_, jobs, 3);
  const Slots slots = slots_of(model_, kv_, index);
  for_rows(team_, num_rows_, (queries_ + 2 * keys_) * 4,
           [&](int32_t row) { finish_heads(layer, slots, row); });
  if (is_last(index) && step_.num_keep == 0) return;
  if (is_cancelled()) return;  // the caller looks again
  const Attention attention = {slots, model_.num_heads, layer.window, model_.attention_softcap, layer.sinks,
                               kv_.query_factor, memory_.query, memory_.attended};
  plan_of(index).run(team_, kernels_, attention, memory_.attention);
}

// From a row's products to queries that are ready and to stored keys and values.
void Step::finish_heads(const qk_layer &layer, const Slots &slots, int32_t row) {
  const int32_t num_heads = model_.num_heads, num_kv_heads = model_.num_kv_heads, size = model_.head_dim;
  float *query = memory_.query + row * queries_, *key = memory_.key + row * keys_,
        *value = memory_.value + row * keys_;
  if (layer.query_bias) kernels_.add_scaled(query, layer.query_bias, 1.0f, static_cast<int32_t>(queries_));
  if (layer.key_bias) kernels_.add_scaled(key, layer.key_bias, 1.0f, static_cast<int32_t>(keys_));
  if (layer.value_bias) kernels_.add_scaled(value, layer.value_bias, 1.0f, static_cast<int32_t>(keys_));
  norm_heads(query, layer.query_norm, num_heads);
  norm_heads(key, layer.key_norm, num_kv_heads);
  turn_heads(query, num_heads, layer.rope_index, row);
  turn_heads(key, num_kv_heads, layer.rope_index, row);
  if (layer.key_centre) kernels_.add_scaled(key, layer.key_centre, -1.0f, static_cast<int32_t>(keys_));
  kernels_.multiply(query, query_scale(row), static_cast<int32_t>(queries_));
  if (kv_.query_factor != 0.0f) {
    for (int32_t head = 0; head < num_heads; ++head) kernels_.hadamard(query + head * size, size, kv_.query_factor);
  }
  for (int32_t head = 0; head < num_kv_heads; ++head) {
    kernels_.store_row(slots, head, step_.slots[row], key + head * size);
    kernels_.store_row(slots, num_kv_heads + head, step_.slots[row], value + head * size);
  }
}

float Step::query_scale(int32_t row) const {
  if (model_.query_growth == 0.0f) return model_.attention_scale;
  const float turns = static_cast<float>(1 + step_.positions[row] / model_.growth_tokens);
  return model_.attention_scale * (1.0f + model_.query_growth * logf(turns));
}

void Step::norm_heads(float *x, const float *weight, int32_t num_heads) {
  if (model_.query_key_norm == QK_QK_NORM_NONE) return;
  const bool is_whole = model_.query_key_norm == QK_QK_NORM_WHOLE;
  const int32_t size = is_whole ? num_heads * model_.head_dim : model_.head_dim;
  for (int32_t part = 0; part < (is_whole ? 1 : num_heads); ++part) {
    kernels_.normalise(x + part * size, weight, size, model_.norm_epsilon, x + part * size);
  }
}

void Step::turn_heads(float *x, int32_t num_heads, int32_t rope, int32_t row) {
  const int32_t half = model_.rotary_dim / 2;
  const size_t first = (static_cast<size_t>(rope) * step_.num_rows + row) * half;
  for (int32_t head = 0; head < num_heads; ++head) {
    kernels_.rotate(x + head * model_.head_dim, memory_.cosine + first, memory_.sine + first, half);
  }
}

// From here on rows are those whose logits are wanted.
void Step::keep_wanted_rows() {
  for (int32_t i = 0; i < step_.num_keep; ++i) {
    const int64_t row = step_.keep[i];  // never before i, so nothing is overwritten that is still to be read
    if (row == i) continue;
    memcpy(memory_.x + i * int64_t{model_.hidden_size}, memory_.x + row * model_.hidden_size,
           sizeof(float) * static_cast<size_t>(model_.hidden_size));
    memcpy(memory_.attended + i * queries_, memory_.attended + row * queries_,
           sizeof(float) * static_cast<size_t>(queries_));
  }
  num_rows_ = step_.num_keep;
}

void Step::add_attention(const qk_layer &layer) {
  const Inputs inputs = make_inputs(memory_.attended_inputs, num_rows_, static_cast<int32_t>(queries_),
                                    memory_.attended, queries_);
  if (is_rounded(layer.output)) quantise_rows(team_, isa_, inputs);
  const MatmulJob job = {&layer.output, &inputs, memory_.added, model_.hidden_size};
  matmul_many(team_, isa_, &job, 1);
  const bool is_next_rounded =
      model_.num_experts ? is_rounded(layer.router) || (model_.shared_size && is_shared_rounded(layer))
                         : is_rounded(layer.gate) || is_rounded(layer.up);
  for_rows(team_, num_rows_, int64_t{model_.hidden_size} * 4, [&](int32_t row) {
    add_and_norm(layer.output_bias, layer.post_attention_norm, layer.mlp_norm, is_next_rounded, row);
  });
}

// From the normed rows to mlp.out.
void Step::run_mlp(const Mlp &mlp) {
  const int32_t size = mlp.size;
  const Inputs hidden = hidden_inputs();
  const MatmulJob jobs[2] = {{mlp.gate, &hidden, mlp.gate_out, size}, {mlp.up, &hidden, mlp.up_out, size}};
  matmul_many(team_, isa_, jobs, 2);
  const Inputs inputs = make_inputs(mlp.inputs, num_rows_, size, mlp.gate_out, size);
  const bool is_down_rounded = is_rounded(*mlp.down);
  for_rows(team_, num_rows_, int64_t{size} * 4, [&](int32_t row) {
    float *gate = mlp.gate_out + int64_t{row} * size, *up = mlp.up_out + int64_t{row} * size;
    if (mlp.gate_bias) kernels_.add_scaled(gate, mlp.gate_bias, 1.0f, size);
    if (mlp.up_bias) kernels_.add_scaled(up, mlp.up_bias, 1.0f, size);
    kernels_.activate(model_.activation, gate, up, size, gate);
    if (is_down_rounded) isa_.quantise_row(inputs, row);
  });
  if (is_cancelled()) return;  // the caller looks again
  const MatmulJob job = {mlp.down, &inputs, mlp.out, model_.hidden_size};
  matmul_many(team_, isa_, &job, 1);
}

void Step::add_mlp(const qk_layer &layer, const float *next_norm, bool is_next_rounded) {
  run_mlp({&layer.gate, &layer.up, &layer.down, layer.gate_bias, layer.up_bias, model_.mlp_size, memory_.gate,
           memory_.up, memory_.added, memory_.mlp_inputs});
  if (is_cancelled()) return;  // the caller looks again
  for_rows(team_, num_rows_, int64_t{model_.hidden_size} * 4, [&](int32_t row) {
    add_and_norm(layer.down_bias, layer.post_mlp_norm, next_norm, is_next_rounded, row);
  });
}

Routing Step::route(const qk_layer &layer) {
  const Inputs hidden = hidden_inputs();
  const int32_t num_experts = model_.num_experts;
  const MatmulJob job = {&layer.router, &hidden, memory_.router, num_experts};
  matmul_many(team_, isa_, &job, 1);
  Routing routing(model_, num_rows_);
  for_rows(team_, num_rows_, int64_t{num_experts} * model_.num_experts_used,
           [&](int32_t row) {
             float *logits = memory_.router + int64_t{row} * num_experts;
             if (layer.router_bias) kernels_.add_scaled(logits, layer.router_bias, 1.0f, num_experts);
             routing.choose(row, logits);
           });
  routing.number_pairs();
  return routing;
}

// What the expert that all tokens share made of a row, times its weight.
void Step::add_shared(const qk_layer &layer, int32_t row) {
  const int64_t first = int64_t{row} * model_.hidden_size;
  float logit = 0.0f;
  for (int32_t i = 0; i < model_.hidden_size; ++i) logit += memory_.normed[first + i] * layer.shared_router[i];
  const float weight = 1.0f / (1.0f + expf(-logit));
  kernels_.add_scaled(memory_.added + first, memory_.shared + first, weight, model_.hidden_size);
}

// A row for each pair of token and expert: from memory.expert_x to memory.expert_x.
void Step::run_experts(const qk_layer &layer, const Routing &routing) {
  const int32_t size = model_.mlp_size, hidden_size = model_.hidden_size;
  const GroupInputs hidden(routing, memory_.expert_inputs, hidden_size, memory_.expert_x);
  const GroupInputs inner(routing, memory_.mlp_inputs, size, memory_.gate);
  if (is_rounded(layer.gate) || is_rounded(layer.up)) {
    for_rows(team_, routing.num_pairs(), hidden_size, [&](int32_t pair) { hidden.round(isa_, pair); });
  }
  std::vector<qk_matrix> matrices;
  std::vector<MatmulJob> jobs;
  const size_t num_groups = routing.groups().size();
  matrices.reserve(2 * num_groups);  // jobs point to them
  for (size_t group = 0; group < num_groups; ++group) {
    const int32_t expert = routing.groups()[group].expert;
    const int64_t first = int64_t{routing.groups()[group].first_pair} * size;
    matrices.push_back(expert_matrix(layer.gate, expert, size));
    jobs.push_back({&matrices.back(), &hidden.of(group), memory_.gate + first, size});
    matrices.push_back(expert_matrix(layer.up, expert, size));
    jobs.push_back({&matrices.back(), &hidden.of(group), memory_.up + first, size});
  }
  matmul_many(team_, isa_, jobs.data(), static_cast<int>(jobs.size()));
  if (is_cancelled()) return;  // the caller looks again
  const bool is_down_rounded = is_rounded(layer.down);
  for_rows(team_, routing.num_pairs(), int64_t{size} * 4, [&](int32_t pair) {
    float *gate = memory_.gate + int64_t{pair} * size, *up = memory_.up + int64_t{pair} * size;
    const int64_t first = int64_t{routing.expert_of(pair)} * size;
    if (layer.gate_bias) kernels_.add_scaled(gate, layer.gate_bias + first, 1.0f, size);
    if (layer.up_bias) kernels_.add_scaled(up, layer.up_bias + first, 1.0f, size);
    kernels_.activate(model_.activation, gate, up, size, gate);
    if (is_down_rounded) inner.round(isa_, pair);
  });
  matrices.clear();
  jobs.clear();
  for (size_t group = 0; group < num_groups; ++group) {
    matrices.push_back(expert_matrix(layer.down, routing.groups()[group].expert, hidden_size));
    float *y = memory_.expert_x + int64_t{routing.groups()[group].first_pair} * hidden_size;
    jobs.push_back({&matrices.back(), &inner.of(group), y, hidden_size});
  }
  matmul_many(team_, isa_, jobs.data(), static_cast<int>(jobs.size()));
}

void Step::add_experts(const qk_layer &layer, const float *next_norm, bool is_next_rounded) {
  const int32_t size = model_.hidden_size;
  const Routing routing = route(layer);
  for_rows(team_, routing.num_pairs(), size, [&](int32_t pair) {
    memcpy(memory_.expert_x + int64_t{pair} * size, memory_.normed + int64_t{routing.row_of(pair)} * size,
           sizeof(float) * static_cast<size_t>(size));
  });
  run_experts(layer, routing);
  if (is_cancelled()) return;  // the caller looks again
  if (model_.shared_size) {
    run_mlp({&layer.shared_gate, &layer.shared_up, &layer.shared_down, nullptr, nullptr, model_.shared_size,
             memory_.shared_gate, memory_.shared_up, memory_.shared, memory_.shared_inputs});
    if (is_cancelled()) return;  // the caller looks again
  }
  for_rows(team_, num_rows_, int64_t{size} * (2 + routing.num_used()), [&](int32_t row) {
    float *added = memory_.added + int64_t{row} * size;
    memset(added, 0, sizeof(float) * static_cast<size_t>(size));
    for (int32_t i = 0; i < routing.num_used(); ++i) {
      const int32_t pair = routing.pair_of(row, i);
      const float weight = routing.weight(row, i);
      kernels_.add_scaled(added, memory_.expert_x + int64_t{pair} * size, weight, size);
      if (layer.down_bias) {
        kernels_.add_scaled(added, layer.down_bias + int64_t{routing.expert_of(pair)} * size, weight, size);
      }
    }
    if (model_.shared_size) add_shared(layer, row);
    add_and_norm(nullptr, layer.post_mlp_norm, next_norm, is_next_rounded, row);
  });
}

void Step::add_and_norm(const float *bias, const float *post_norm, const float *next_norm, bool is_next_rounded,
                        int32_t row) {
  const int32_t size = model_.hidden_size;
  const int64_t first = int64_t{row} * size;
  float *added = memory_.added + first;
  if (bias) kernels_.add_scaled(added, bias, 1.0f, size);
  if (post_norm) kernels_.normalise(added, post_norm, size, model_.norm_epsilon, added);
  kernels_.add_scaled(memory_.x + first, added, model_.residual_scale, size);
  norm_row(next_norm, is_next_rounded, row);
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

}  // namespace
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
