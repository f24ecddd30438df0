// The attention of a step: from normed rows to what it adds to x.
#include <math.h>
#include <string.h>

#include <algorithm>
#include <tuple>

#include "for_rows.h"
#include "forward.h"

namespace quire {

// Returns how many floats the largest of them needs.
size_t Step::make_plans() {
  size_t num_floats = 0;
  for (int32_t i = 0; i < model_.num_layers; ++i) {
    const qk_layer &layer = model_.layers[i];
    Rows &rows = i < last_stored_ ? all_ : kept_;
    if (rows.runs.empty() || rows.plans.count(kind_of(layer))) continue;
    const auto plan = rows.plans.emplace(std::piecewise_construct, std::forward_as_tuple(kind_of(layer)),
                                         std::forward_as_tuple(model_, layer, rows.runs, team_.size()));
    num_floats = std::max(num_floats, plan.first->second.num_floats());
  }
  return num_floats;
}

void Step::find_angles() {
  const int32_t width = model_.head_dim / 2;
  for_rows(team_, num_rows_ * model_.num_ropes, int64_t{width} * 64, [&](int32_t index) {
    const qk_rope &rope = model_.ropes[index / num_rows_];
    const float position = static_cast<float>(step_.positions[index % num_rows_]);
    const size_t first = static_cast<size_t>(index) * width;
    for (int32_t i = 0; i < rope.num_pairs; ++i) {
      const float angle = position * rope.inverse_frequencies[i];
      memory_.cosine[first + i] = cosf(angle) * rope.factor;
      memory_.sine[first + i] = sinf(angle) * rope.factor;
    }
  });
}

// False: nothing is wanted beyond what is stored now.
bool Step::attend(int32_t index) {
  const qk_layer &layer = model_.layers[index];
  const Inputs inputs = hidden_inputs();
  const MatmulJob jobs[3] = {{&layer.query, &inputs, memory_.query, queries(layer)},
                             {&layer.key, &inputs, memory_.key, keys(layer)},
                             {&layer.value, &inputs, memory_.value, keys(layer)}};
  matmul_many(team_, isa_, jobs, !layer.key.data ? 1 : !layer.value.data ? 2 : 3);
  const Slots slots = slots_of(layer, kv_);
  for_rows(team_, num_rows_, (queries(layer) + 2 * keys(layer)) * 4, [&](int32_t row) {
    finish_query(layer, row);
    if (layer.key.data) store(layer, slots, row);
  });
  if (index == last_stored_) {
    if (step_.num_keep == 0) return false;
    keep_wanted_rows(layer);
  }
  if (is_cancelled()) return true;  // the caller looks again
  const Attention attention = {slots, model_.num_heads, layer.window, model_.attention_softcap, layer.sinks,
                               kv_.layers[layer.kv_layer].query_factor, memory_.query, memory_.attended};
  (is_kept_ ? kept_ : all_).plans.at(kind_of(layer)).run(team_, kernels_, attention, memory_.attention);
  return true;
}

// From a row's product to queries that are ready.
void Step::finish_query(const qk_layer &layer, int32_t row) {
  const int32_t num_heads = model_.num_heads, size = layer.head_dim, count = static_cast<int32_t>(queries(layer));
  float *query = memory_.query + row * queries(layer);
  if (layer.query_bias) kernels_.add_scaled(query, layer.query_bias, 1.0f, count);
  if (model_.query_key_norm != QK_QK_NORM_NONE) norm_heads(query, layer.query_norm, num_heads, size);
  turn_heads(query, num_heads, layer, row);
  kernels_.multiply(query, query_scale(row), count);
  const float factor = kv_.layers[layer.kv_layer].query_factor;
  if (factor == 0.0f) return;
  for (int32_t head = 0; head < num_heads; ++head) kernels_.hadamard(query + head * size, size, factor);
}

// From a row's products to stored keys and values.
void Step::store(const qk_layer &layer, const Slots &slots, int32_t row) {
  const int32_t num_heads = layer.num_kv_heads, size = layer.head_dim, count = static_cast<int32_t>(keys(layer));
  float *key = memory_.key + row * keys(layer), *value = memory_.value + row * keys(layer);
  if (layer.key_bias) kernels_.add_scaled(key, layer.key_bias, 1.0f, count);
  if (!layer.value.data) memcpy(value, key, sizeof(float) * static_cast<size_t>(count));
  if (layer.value_bias) kernels_.add_scaled(value, layer.value_bias, 1.0f, count);
  if (model_.query_key_norm != QK_QK_NORM_NONE) norm_heads(key, layer.key_norm, num_heads, size);
  turn_heads(key, num_heads, layer, row);
  if (layer.key_centre) kernels_.add_scaled(key, layer.key_centre, -1.0f, count);
  for (int32_t head = 0; head < num_heads; ++head) {
    float *part = value + head * size;
    if (layer.value_norm) kernels_.normalise(part, layer.value_norm, size, model_.norm_epsilon, part);
    kernels_.store_row(slots, head, step_.slots[row], key + head * size);
    kernels_.store_row(slots, num_heads + head, step_.slots[row], part);
  }
}

float Step::query_scale(int32_t row) const {
  if (model_.query_growth == 0.0f) return model_.attention_scale;
  const float turns = static_cast<float>(1 + step_.positions[step_row(row)] / model_.growth_tokens);
  return model_.attention_scale * (1.0f + model_.query_growth * logf(turns));
}

void Step::norm_heads(float *x, const float *weight, int32_t num_heads, int32_t size) {
  const bool is_whole = model_.query_key_norm == QK_QK_NORM_WHOLE;
  const int32_t count = is_whole ? num_heads * size : size;
  for (int32_t part = 0; part < (is_whole ? 1 : num_heads); ++part) {
    kernels_.normalise(x + part * count, weight, count, model_.norm_epsilon, x + part * count);
  }
}

void Step::turn_heads(float *x, int32_t num_heads, const qk_layer &layer, int32_t row) {
  const size_t first = (static_cast<size_t>(layer.rope_index) * step_.num_rows + step_row(row)) * (model_.head_dim / 2);
  const int32_t num_pairs = model_.ropes[layer.rope_index].num_pairs;
  for (int32_t head = 0; head < num_heads; ++head) {
    kernels_.rotate(x + head * layer.head_dim, memory_.cosine + first, memory_.sine + first, num_pairs);
  }
}

// From here on rows are those whose logits are wanted.
void Step::keep_wanted_rows(const qk_layer &layer) {
  const size_t x_bytes = sizeof(float) * static_cast<size_t>(model_.hidden_size);
  const size_t query_bytes = sizeof(float) * static_cast<size_t>(queries(layer));
  for (int32_t i = 0; i < step_.num_keep; ++i) {
    const int64_t row = step_.keep[i];  // never before i, so nothing is overwritten that is still to be read
    if (row == i) continue;
    memcpy(memory_.x + i * int64_t{model_.hidden_size}, memory_.x + row * model_.hidden_size, x_bytes);
    memcpy(memory_.query + i * queries(layer), memory_.query + row * queries(layer), query_bytes);
  }
  num_rows_ = step_.num_keep;
  is_kept_ = true;
}

void Step::add_attention(const qk_layer &layer) {
  const Inputs inputs = make_inputs(memory_.attended_inputs, num_rows_, static_cast<int32_t>(queries(layer)),
                                    memory_.attended, queries(layer));
  if (is_rounded(layer.output)) quantise_rows(team_, isa_, inputs);
  const MatmulJob job = {&layer.output, &inputs, memory_.added, model_.hidden_size};
  matmul_many(team_, isa_, &job, 1);
  const Next next = {layer.mlp_norm, is_mlp_rounded(layer), 1.0f};
  for_rows(team_, num_rows_, int64_t{model_.hidden_size} * 4, [&](int32_t row) {
    add_and_norm(layer.output_bias, layer.post_attention_norm, next, row);
  });
}

}  // namespace quire
