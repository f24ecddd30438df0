// Parts of a step through the C face, for tests and measurements.
#include <new>

#include "attend.h"
#include "check.h"

using namespace quire;

int32_t qk_store(const qk_model *model, const qk_kv *kv, int32_t layer, int32_t num_rows, const float *keys,
                 const float *values, const int64_t *slots) {
  if (!model || !kv || !keys || !values || !slots || !is_valid(*model) || !is_valid(*kv, *model)) {
    return QK_ERROR_ARGUMENT;
  }
  if (layer < 0 || layer >= model->num_layers) return QK_ERROR_ARGUMENT;
  const Slots place = slots_of(model->layers[layer], *kv);
  const int32_t num_heads = place.num_kv_heads, size = place.head_dim;
  for (int32_t row = 0; row < num_rows; ++row) {
    if (slots[row] < 0 || slots[row] >= kv->num_slots) return QK_ERROR_ARGUMENT;
    for (int32_t head = 0; head < num_heads; ++head) {
      const int64_t first = (int64_t{row} * num_heads + head) * size;
      current_isa().step->store_row(place, head, slots[row], keys + first);
      current_isa().step->store_row(place, num_heads + head, slots[row], values + first);
    }
  }
  return 0;
}

int32_t qk_attend(qk_team *team, const qk_model *model, const qk_kv *kv, int32_t layer, const qk_step *step,
                  const float *query, float *out) {
  if (!team || !model || !kv || !step || !query || !out) return QK_ERROR_ARGUMENT;
  if (!is_valid(*model) || !is_valid(*kv, *model) || !is_valid(*step, *model, *kv)) return QK_ERROR_ARGUMENT;
  if (layer < 0 || layer >= model->num_layers) return QK_ERROR_ARGUMENT;
  try {
    const qk_layer &own = model->layers[layer];
    const TokenSlots slots(*step);
    const AttentionPlan plan(*model, own, all_runs(*step, slots), team->team.size());
    float *memory = static_cast<float *>(team->step.reserve(sizeof(float) * plan.num_floats()));
    if (!memory) return QK_ERROR_MEMORY;
    const Attention attention = {slots_of(own, *kv), model->num_heads, own.window, model->attention_softcap,
                                 own.sinks, kv->layers[own.kv_layer].query_factor, query, out};
    plan.run(team->team, *current_isa().step, attention, memory);
    return 0;
  } catch (const std::bad_alloc &) {
    return QK_ERROR_MEMORY;
  }
}
