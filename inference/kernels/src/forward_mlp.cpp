// The MLPs of a step, one for all tokens or those of experts, and per-layer embeddings.
#include <math.h>
#include <string.h>

#include "for_rows.h"
#include "forward.h"

namespace quire {

// Each layer's part of the tokens' per-layer embeddings.
void Step::find_ple() {
  const qk_layer &first = model_.layers[0];
  const int32_t size = model_.ple_size, all = model_.num_layers * size;
  const Inputs inputs = hidden_inputs();
  const MatmulJob job = {&model_.ple_projection, &inputs, memory_.ple_projected, all};
  matmul_many(team_, isa_, &job, 1);
  const float projection_scale = 1.0f / sqrtf(static_cast<float>(model_.hidden_size));
  const float embedding_scale = sqrtf(static_cast<float>(size)), half = sqrtf(0.5f);
  for_rows(team_, num_rows_, int64_t{all} * 8, [&](int32_t row) {
    float *projected = memory_.ple_projected + int64_t{row} * all, *ple = memory_.ple + int64_t{row} * all;
    qk_unpack_row(&model_.ple_embedding, step_.token_ids[row], ple);
    kernels_.multiply(ple, embedding_scale, all);
    kernels_.multiply(projected, projection_scale, all);
    for (int32_t first_number = 0; first_number < all; first_number += size) {
      float *part = projected + first_number;
      kernels_.normalise(part, model_.ple_norm, size, model_.norm_epsilon, part);
    }
    kernels_.add_scaled(ple, projected, 1.0f, all);
    kernels_.multiply(ple, half, all);
    norm_row(first.attention_norm, is_attention_rounded(first), row);
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

void Step::add_mlp(const qk_layer &layer, const Next &next) {
  run_mlp({&layer.gate, &layer.up, &layer.down, layer.gate_bias, layer.up_bias, layer.mlp_size, memory_.gate,
           memory_.up, memory_.added, memory_.mlp_inputs});
  if (is_cancelled()) return;  // the caller looks again
  for_rows(team_, num_rows_, int64_t{model_.hidden_size} * 4, [&](int32_t row) {
    add_and_norm(layer.down_bias, layer.post_mlp_norm, next, row);
  });
}

// The layer's part of the per-layer embeddings; the product's input is x itself.
void Step::add_ple(int32_t index, const Next &next) {
  const qk_layer &layer = model_.layers[index];
  const int32_t size = model_.ple_size;
  const int64_t all = int64_t{model_.num_layers} * size;
  const Inputs hidden = hidden_inputs();
  const MatmulJob gate = {&layer.ple_gate, &hidden, memory_.ple_gate, size};
  matmul_many(team_, isa_, &gate, 1);
  const Inputs inner = make_inputs(memory_.ple_inputs, num_rows_, size, memory_.ple_gate, size);
  const bool is_output_rounded = is_rounded(layer.ple_output);
  for_rows(team_, num_rows_, int64_t{size} * 4, [&](int32_t row) {
    float *gated = memory_.ple_gate + int64_t{row} * size;
    const float *ple = memory_.ple + step_row(row) * all + int64_t{index} * size;
    kernels_.activate(model_.activation, gated, ple, size, gated);
    if (is_output_rounded) isa_.quantise_row(inner, row);
  });
  const MatmulJob output = {&layer.ple_output, &inner, memory_.added, model_.hidden_size};
  matmul_many(team_, isa_, &output, 1);
  for_rows(team_, num_rows_, int64_t{model_.hidden_size} * 4,
           [&](int32_t row) { add_and_norm(nullptr, layer.post_ple_norm, next, row); });
}

Routing Step::route(const qk_layer &layer) {
  const Inputs hidden = hidden_inputs();
  const int32_t num_experts = model_.num_experts;
  const MatmulJob job = {&layer.router, &hidden, memory_.router, num_experts};
  matmul_many(team_, isa_, &job, 1);
  const float root = 1.0f / sqrtf(static_cast<float>(model_.hidden_size));
  Routing routing(model_, num_rows_);
  for_rows(team_, num_rows_, int64_t{num_experts} * model_.num_experts_used,
           [&](int32_t row) {
             float *logits = memory_.router + int64_t{row} * num_experts;
             if (layer.router_norm) kernels_.multiply(logits, root, num_experts);
             if (layer.router_bias) kernels_.add_scaled(logits, layer.router_bias, 1.0f, num_experts);
             routing.choose(row, logits);
           });
  routing.number_pairs();
  return routing;
}

// What the expert that all tokens share made of a row, times its weight.
void Step::add_shared(const qk_layer &layer, int32_t row) {
  const int32_t size = model_.hidden_size;
  const int64_t first = int64_t{row} * size;
  float weight = 1.0f, *shared = memory_.shared + first;
  if (layer.shared_router) {
    float logit = 0.0f;
    for (int32_t i = 0; i < size; ++i) logit += memory_.normed[first + i] * layer.shared_router[i];
    weight = 1.0f / (1.0f + expf(-logit));
  }
  if (layer.post_shared_norm) kernels_.normalise(shared, layer.post_shared_norm, size, model_.norm_epsilon, shared);
  kernels_.add_scaled(memory_.added + first, shared, weight, size);
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

void Step::add_experts(const qk_layer &layer, const Next &next) {
  const int32_t size = model_.hidden_size;
  if (model_.shared_size) {
    run_mlp({&layer.shared_gate, &layer.shared_up, &layer.shared_down, nullptr, nullptr, model_.shared_size,
             memory_.shared_gate, memory_.shared_up, memory_.shared, memory_.shared_inputs});
    if (is_cancelled()) return;  // the caller looks again
  }
  if (layer.router_norm) {
    for_rows(team_, num_rows_, int64_t{size} * 4,
             [&](int32_t row) { norm_row(layer.router_norm, is_rounded(layer.router), row); });
  }
  const Routing routing = route(layer);
  for_rows(team_, routing.num_pairs(), size, [&](int32_t pair) {
    const int64_t first = int64_t{routing.row_of(pair)} * size;
    float *input = memory_.expert_x + int64_t{pair} * size;
    if (layer.expert_norm) {
      kernels_.normalise(memory_.x + first, layer.expert_norm, size, model_.norm_epsilon, input);
    } else {
      memcpy(input, memory_.normed + first, sizeof(float) * static_cast<size_t>(size));
    }
  });
  run_experts(layer, routing);
  if (is_cancelled()) return;  // the caller looks again
  for_rows(team_, num_rows_, int64_t{size} * (2 + routing.num_used()), [&](int32_t row) {
    float *added = memory_.added + int64_t{row} * size;
    memset(added, 0, sizeof(float) * static_cast<size_t>(size));
    for (int32_t i = 0; i < routing.num_used(); ++i) {
      const int32_t pair = routing.pair_of(row, i);
      const float scale = layer.expert_scale ? layer.expert_scale[routing.expert_of(pair)] : 1.0f;
      const float weight = routing.weight(row, i) * scale;
      kernels_.add_scaled(added, memory_.expert_x + int64_t{pair} * size, weight, size);
      if (layer.down_bias) {
        kernels_.add_scaled(added, layer.down_bias + int64_t{routing.expert_of(pair)} * size, weight, size);
      }
    }
    if (layer.post_expert_norm) {
      kernels_.normalise(added, layer.post_expert_norm, size, model_.norm_epsilon, added);
    }
    if (model_.shared_size) add_shared(layer, row);
    add_and_norm(nullptr, layer.post_mlp_norm, next, row);
  });
}

}  // namespace quire
