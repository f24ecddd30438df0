// The memory of a matrix product's inputs.
#include <stdlib.h>

#include "internal.h"

namespace quire {
namespace {

constexpr size_t kAlignment = 64;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Hands out pieces of one block of memory; with no block it only counts.
class Pieces {
 public:
  explicit Pieces(void *memory) : memory_(static_cast<char *>(memory)) {}
  template <typename T>
  T *take(size_t count) {
    T *piece = memory_ ? reinterpret_cast<T *>(memory_ + used_) : nullptr;
    used_ += aligned(count * sizeof(T));
    return piece;
  }
  size_t used() const { return used_; }

 private:
  char *memory_;
  size_t used_ = 0;
};

Inputs lay_out(Pieces &pieces, int32_t num_x, int32_t num_columns) {
  const size_t blocks = num_columns % kBlockColumns == 0 ? num_columns / kBlockColumns : 0;
  const size_t all_blocks = static_cast<size_t>(num_x) * blocks;
  Inputs inputs = {};
  inputs.num_x = num_x;
  inputs.num_columns = num_columns;
  inputs.codes = pieces.take<int8_t>(all_blocks * kBlockColumns);
  inputs.scales = pieces.take<float>(all_blocks);
  inputs.sums = pieces.take<float>(all_blocks);
  inputs.offsets = pieces.take<int32_t>(all_blocks * 2);
  return inputs;
}

}  // namespace

size_t inputs_bytes(int32_t num_x, int32_t num_columns) {
  Pieces pieces(nullptr);
  lay_out(pieces, num_x, num_columns);
  return pieces.used();
}

Inputs make_inputs(void *memory, int32_t num_x, int32_t num_columns, const float *x, int64_t x_stride) {
  Pieces pieces(memory);
  Inputs inputs = lay_out(pieces, num_x, num_columns);
  inputs.x = x;
  inputs.x_stride = x_stride;
  return inputs;
}

Buffer::~Buffer() { free(memory_); }

void *Buffer::reserve(size_t bytes) {
  if (bytes <= bytes_) return aligned_;
  void *memory = malloc(bytes + kAlignment);
  if (!memory) return nullptr;
  free(memory_);
  memory_ = memory;
  aligned_ = reinterpret_cast<void *>(aligned(reinterpret_cast<uintptr_t>(memory)));
  bytes_ = bytes;
  return aligned_;
}

}  // namespace quire
