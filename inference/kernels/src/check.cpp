#include "check.h"

#include "step.h"

namespace quire {
namespace {

bool is_matrix(const qk_matrix &matrix, int64_t num_rows, int64_t num_columns) {
  return matrix.data && matrix.num_rows == num_rows && matrix.num_columns == num_columns &&
         qk_packed_bytes(matrix.type, matrix.num_rows, matrix.num_columns) > 0;
}

// One matrix for all tokens, or those of all experts.
bool is_mlp(const qk_layer &layer, const qk_model &model) {
  const int64_t hidden = model.hidden_size, size = layer.mlp_size;
  if (size < 1 || size > model.mlp_size || (model.num_experts && size != model.mlp_size)) return false;
  const int64_t experts = model.num_experts ? model.num_experts : 1;
  if (model.num_experts && !is_matrix(layer.router, experts, hidden)) return false;
  // With a norm of its own a router writes over the inputs that these would read.
  if (layer.router_norm && (layer.shared_router || !layer.expert_norm)) return false;
  if (const int64_t shared = model.shared_size) {
    if (!is_matrix(layer.shared_gate, shared, hidden)) return false;
    if (!is_matrix(layer.shared_up, shared, hidden) || !is_matrix(layer.shared_down, hidden, shared)) return false;
  }
  return is_matrix(layer.gate, experts * size, hidden) && is_matrix(layer.up, experts * size, hidden) &&
         is_matrix(layer.down, experts * hidden, size);
}

// Sizes of the layer's attention, all within the model's.
bool are_heads(const qk_layer &layer, const qk_model &model) {
  if (layer.num_kv_heads < 1 || layer.num_kv_heads > model.num_kv_heads || model.num_heads % layer.num_kv_heads) {
    return false;
  }
  if (layer.head_dim < 2 || layer.head_dim % 2 || layer.head_dim > model.head_dim) return false;
  if (layer.window < 0 || layer.rope_index < 0 || layer.rope_index >= model.num_ropes || layer.kv_layer < 0) return false;
  return model.ropes[layer.rope_index].num_pairs <= layer.head_dim / 2;
}

bool is_ple(const qk_layer &layer, const qk_model &model) {
  const int64_t hidden = model.hidden_size, size = model.ple_size;
  return !size || (is_matrix(layer.ple_gate, size, hidden) && is_matrix(layer.ple_output, hidden, size));
}

bool is_layer(const qk_layer &layer, const qk_model &model) {
  if (!are_heads(layer, model)) return false;
  const int64_t hidden = model.hidden_size;
  const int64_t queries = int64_t{model.num_heads} * layer.head_dim;
  const int64_t keys = int64_t{layer.num_kv_heads} * layer.head_dim;
  const bool has_norms = model.query_key_norm == QK_QK_NORM_NONE || (layer.query_norm && layer.key_norm);
  const bool stores = layer.key.data != nullptr;
  if (stores && (!is_matrix(layer.key, keys, hidden) || !has_norms)) return false;
  if (!stores && model.query_key_norm != QK_QK_NORM_NONE && !layer.query_norm) return false;
  if (layer.value.data && (!stores || !is_matrix(layer.value, keys, hidden))) return false;
  return is_matrix(layer.query, queries, hidden) && is_matrix(layer.output, hidden, queries) &&
         is_mlp(layer, model) && is_ple(layer, model);
}

// Each layer stores in a place of its own, or reads that of an earlier one of its shape; those that store come first.
bool are_places(const qk_model &model) {
  for (int32_t i = 0; i < model.num_layers; ++i) {
    const qk_layer &layer = model.layers[i];
    const bool stores = layer.key.data != nullptr;
    if (stores) {
      if (layer.kv_layer != i) return false;
      continue;
    }
    if (layer.kv_layer >= i) return false;
    const qk_layer &source = model.layers[layer.kv_layer];
    if (!source.key.data || source.num_kv_heads != layer.num_kv_heads || source.head_dim != layer.head_dim) return false;
    if (i + 1 < model.num_layers && model.layers[i + 1].key.data) return false;
  }
  return true;
}

bool is_power_of_two(int32_t n) { return n > 0 && (n & (n - 1)) == 0; }

bool is_span(const qk_span &span, int32_t row, const qk_kv &kv) {
  if (span.row != row || span.num_rows < 1 || span.start < 0 || span.start > INT32_MAX - span.num_rows) return false;
  if (span.num_extents < 1 || !span.extents) return false;
  int64_t count = 0;
  for (int32_t i = 0; i < span.num_extents; ++i) {
    const int64_t first = span.extents[2 * i], length = span.extents[2 * i + 1];
    if (first < 0 || length < 1 || first > kv.num_slots - length) return false;
    count += length;
  }
  return count >= int64_t{span.start} + span.num_rows;
}

}  // namespace

bool is_valid(const qk_model &model) {
  if (model.num_layers < 1 || model.hidden_size < 1 || model.num_heads < 1 || model.num_kv_heads < 1) return false;
  if (model.mlp_size < 1 || model.vocab_size < 1 || model.num_heads % model.num_kv_heads) return false;
  if (model.head_dim < 2 || model.head_dim % 2 || model.head_dim > kMaxHeadDim) return false;
  if (model.activation < QK_SILU || model.activation > QK_CLAMPED_SWISH) return false;
  if (model.query_key_norm < QK_QK_NORM_NONE || model.query_key_norm > QK_QK_NORM_WHOLE) return false;
  if (model.query_growth != 0.0f && model.growth_tokens < 1) return false;
  if (model.num_experts < 0 || model.num_experts_used < 0 || model.num_experts_used > model.num_experts) return false;
  if (model.shared_size < 0 || (model.shared_size && !model.num_experts)) return false;
  if (model.num_experts &&
      (!model.num_experts_used || model.mlp_size % kPanelRows || model.hidden_size % kPanelRows)) {
    return false;
  }
  if (model.num_ropes < 1 || !model.ropes || !model.layers || !model.final_norm) return false;
  for (int32_t i = 0; i < model.num_ropes; ++i) {
    const int32_t num_pairs = model.ropes[i].num_pairs;
    if (!model.ropes[i].inverse_frequencies || num_pairs < 0 || num_pairs > model.head_dim / 2) return false;
  }
  for (int32_t i = 0; i < model.num_layers; ++i) {
    if (!is_layer(model.layers[i], model)) return false;
  }
  if (!are_places(model) || model.ple_size < 0) return false;
  if (const int64_t size = int64_t{model.num_layers} * model.ple_size) {
    if (size > INT32_MAX || !model.ple_norm || !is_matrix(model.ple_embedding, model.vocab_size, size)) return false;
    if (!is_matrix(model.ple_projection, size, model.hidden_size)) return false;
  }
  return is_matrix(model.embedding, model.vocab_size, model.hidden_size) &&
         is_matrix(model.head, model.vocab_size, model.hidden_size);
}

bool is_valid(const qk_kv &kv, const qk_model &model) {
  if (kv.scheme < QK_KV_F32 || kv.scheme > QK_KV_INT4 || kv.num_slots < 1 || !kv.layers) return false;
  const int num_planes = kv.scheme == QK_KV_INT4 ? 5 : kv.scheme == QK_KV_INT8 ? 2 : 1;
  for (int32_t i = 0; i < model.num_layers; ++i) {
    const int32_t size = model.layers[i].head_dim;
    if (model.layers[i].kv_layer >= kv.num_layers) return false;
    const qk_kv_layer &layer = kv.layers[model.layers[i].kv_layer];
    const bool is_turned = layer.stored_factor != 0.0f || layer.query_factor != 0.0f;
    if (is_turned && !is_power_of_two(size)) return false;
    const int32_t groups = layer.value_groups;
    if (kv.scheme == QK_KV_INT4 && (groups < 1 || size % groups || size / groups > 32)) return false;
    for (int plane = 0; plane < num_planes; ++plane) {
      if (!layer.planes[plane]) return false;
    }
  }
  return true;
}

bool is_valid(const qk_step &step, const qk_model &model, const qk_kv &kv) {
  if (step.num_rows < 1 || step.num_spans < 1 || !step.spans || !step.token_ids || !step.positions || !step.slots) {
    return false;
  }
  if (step.num_keep < 0 || (step.num_keep > 0 && (!step.keep || !step.logits))) return false;
  if (step.num_logits < 0 || step.num_logits > model.vocab_size) return false;
  if (step.num_logits < model.vocab_size && step.num_logits % qk_panel_rows()) return false;
  int32_t row = 0;
  for (int32_t i = 0; i < step.num_spans; ++i) {
    if (!is_span(step.spans[i], row, kv) || step.spans[i].num_rows > step.num_rows - row) return false;
    row += step.spans[i].num_rows;
  }
  if (row != step.num_rows) return false;
  for (int32_t i = 0; i < step.num_rows; ++i) {
    if (step.token_ids[i] < 0 || step.token_ids[i] >= model.vocab_size || step.positions[i] < 0) return false;
    if (step.slots[i] < 0 || step.slots[i] >= kv.num_slots) return false;
  }
  for (int32_t i = 0; i < step.num_keep; ++i) {
    if (step.keep[i] < (i ? step.keep[i - 1] + 1 : 0) || step.keep[i] >= step.num_rows) return false;
  }
  return true;
}

}  // namespace quire
