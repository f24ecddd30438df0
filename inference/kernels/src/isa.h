// The kernels that exist once per instruction set, and the choice between them at run time.
#ifndef QUIRE_ISA_H
#define QUIRE_ISA_H

#include "internal.h"
#include "step.h"

namespace quire {

struct Isa {
  const char *name;
  // Round row `row` of inputs.x into its codes, scales, sums and offsets.
  void (*quantise_row)(const Inputs &inputs, int32_t row);
  // y[r * y_stride + row] for x rows [first_x, first_x + num_x) and the rows of the panels
  // [first_panel, first_panel + num_panels). A panel is 16 rows, for float types too. first_x is a multiple
  // of 8.
  void (*matmul_panels)(const qk_matrix &matrix, int32_t first_panel, int32_t num_panels,
                        const Inputs &inputs, int32_t first_x, int32_t num_x, float *y,
                        int64_t y_stride);
  const StepKernels *step;  // attention, norms, activations: step.h
};

const Isa &current_isa();

// Each null if this build or this kind of processor has no such instructions.
const Isa *isa_avx512vnni();
const Isa *isa_avxvnni();
const Isa *isa_avx2();
const Isa *isa_neon();
const Isa *isa_portable();

}  // namespace quire

#endif
