// Where a step's numbers lie between its parts.
#ifndef QUIRE_STEP_MEMORY_H
#define QUIRE_STEP_MEMORY_H

#include "internal.h"

namespace quire {

// All float arrays are (T, width), contiguous.
struct StepMemory {
  float *x;               // hidden: the residual stream
  float *normed;          // hidden: what a norm made of it
  float *added;           // hidden: what attention or MLP add to it
  float *query, *key, *value;
  float *attended;        // heads * head_dim
  float *gate, *up;       // mlp; with experts (T * experts used, mlp)
  float *router;          // experts
  float *shared_gate, *shared_up, *shared;  // of the expert that all share: its width twice, hidden
  float *expert_x;        // (T * experts used, hidden): what experts take, then what they make
  float *ple, *ple_projected;  // (T, layers * ple)
  float *ple_gate;        // ple
  float *cosine, *sine;   // (ropes, T, head_dim / 2)
  float *attention;       // for AttentionPlan::run
  void *hidden_inputs, *attended_inputs, *mlp_inputs, *expert_inputs, *shared_inputs, *ple_inputs;  // rounded rows
};

// Take all of it from the buffer. False: there is no memory.
bool lay_out(Buffer *buffer, const qk_model &model, int32_t num_rows, size_t attention_floats, StepMemory *memory);

}  // namespace quire

#endif
