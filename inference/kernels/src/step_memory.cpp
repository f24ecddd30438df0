#include "step_memory.h"

#include "experts.h"

namespace quire {
namespace {

// Gives out parts of a block one after the other; with no block it only adds up what is needed.
class Parts {
 public:
  explicit Parts(void *memory) : memory_(static_cast<char *>(memory)) {}
  void *bytes(size_t size) {
    void *part = memory_ ? memory_ + used_ : nullptr;
    used_ += (size + 63) / 64 * 64;
    return part;
  }
  float *floats(size_t rows, int64_t width) {
    return static_cast<float *>(bytes(sizeof(float) * rows * static_cast<size_t>(width)));
  }
  size_t used() const { return used_; }

 private:
  char *memory_;
  size_t used_ = 0;
};

void take_all(Parts *parts, const qk_model &model, int32_t num_rows, size_t attention_floats, StepMemory *memory) {
  const size_t rows = static_cast<size_t>(num_rows);
  const int64_t queries = int64_t{model.num_heads} * model.head_dim;
  const int64_t keys = int64_t{model.num_kv_heads} * model.head_dim;
  memory->x = parts->floats(rows, model.hidden_size);
  memory->normed = parts->floats(rows, model.hidden_size);
  memory->added = parts->floats(rows, model.hidden_size);
  memory->query = parts->floats(rows, queries);
  memory->key = parts->floats(rows, keys);
  memory->value = parts->floats(rows, keys);
  memory->attended = parts->floats(rows, queries);
  const size_t pairs = model.num_experts ? rows * static_cast<size_t>(model.num_experts_used) : rows;
  memory->gate = parts->floats(pairs, model.mlp_size);
  memory->up = parts->floats(pairs, model.mlp_size);
  const size_t angles = rows * static_cast<size_t>(model.num_ropes);
  memory->cosine = parts->floats(angles, model.head_dim / 2);
  memory->sine = parts->floats(angles, model.head_dim / 2);
  memory->attention = parts->floats(attention_floats, 1);
  memory->hidden_inputs = parts->bytes(inputs_bytes(num_rows, model.hidden_size));
  memory->attended_inputs = parts->bytes(inputs_bytes(num_rows, static_cast<int32_t>(queries)));
  if (model.ple_size) {
    const int64_t all = int64_t{model.num_layers} * model.ple_size;
    memory->ple = parts->floats(rows, all);
    memory->ple_projected = parts->floats(rows, all);
    memory->ple_gate = parts->floats(rows, model.ple_size);
    memory->ple_inputs = parts->bytes(inputs_bytes(num_rows, model.ple_size));
  }
  if (!model.num_experts) {
    memory->mlp_inputs = parts->bytes(inputs_bytes(num_rows, model.mlp_size));
    return;
  }
  memory->router = parts->floats(rows, model.num_experts);
  memory->expert_x = parts->floats(pairs, model.hidden_size);
  memory->expert_inputs = parts->bytes(group_inputs_bytes(model, num_rows, model.hidden_size));
  memory->mlp_inputs = parts->bytes(group_inputs_bytes(model, num_rows, model.mlp_size));
  if (!model.shared_size) return;
  memory->shared_gate = parts->floats(rows, model.shared_size);
  memory->shared_up = parts->floats(rows, model.shared_size);
  memory->shared = parts->floats(rows, model.hidden_size);
  memory->shared_inputs = parts->bytes(inputs_bytes(num_rows, model.shared_size));
}

}  // namespace

bool lay_out(Buffer *buffer, const qk_model &model, int32_t num_rows, size_t attention_floats, StepMemory *memory) {
  Parts needed(nullptr);
  take_all(&needed, model, num_rows, attention_floats, memory);
  void *block = buffer->reserve(needed.used());
  if (!block) return false;
  Parts parts(block);
  take_all(&parts, model, num_rows, attention_floats, memory);
  return true;
}

}  // namespace quire
