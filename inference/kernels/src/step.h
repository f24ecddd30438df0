// The kernels of a step beside the matrix products, one table per instruction set.
#ifndef QUIRE_STEP_H
#define QUIRE_STEP_H

#include "internal.h"

namespace quire {

struct StepKernels {
  int32_t reserved;
};

}  // namespace quire

#endif
