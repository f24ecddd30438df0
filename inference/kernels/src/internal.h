// What the C++ files share: the layout of packed weights, the inputs of a matrix product, the team's memory.
//
// Files compiled for one instruction set (isa_*.cpp and what they include) use no templates or inline
// functions of the standard library: the linker keeps one copy of those for all files, and it might keep
// one that not every processor can run.
#ifndef QUIRE_INTERNAL_H
#define QUIRE_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "quire_kernels.h"
#include "team.h"

namespace quire {

// ------------------------------------------------------------------ packed weights

constexpr int kPanelRows = 16;      // rows of a packed matrix that lie interleaved
constexpr int kBlockColumns = 32;   // numbers that share a scale (of weights and of inputs)
constexpr int kXTileRows = 8;       // rows of rounded inputs that lie together

inline bool is_float_type(int32_t type) { return type == QK_F32 || type == QK_F16 || type == QK_BF16; }
inline int32_t num_panels(int32_t num_rows) { return (num_rows + kPanelRows - 1) / kPanelRows; }

// ------------------------------------------------------------------ inputs of a matrix product

// Rows of x as floats, and rounded to 8 bits with one scale per 32 numbers. Float weights meet the first,
// quantised weights the second. C is num_columns. Rounded rows lie in tiles of 8 (the last may have fewer),
// and within a tile of T rows the blocks of 32 columns come first: so what is read together lies together.
struct Inputs {
  int32_t num_x;
  int32_t num_columns;
  const float *x;     // (num_x, C), rows x_stride floats apart
  int64_t x_stride;
  int8_t *codes;      // of each tile (C / 32, T, 32), -127..127
  float *scales;      // of each tile (C / 32, T)
  float *sums;        // of each tile (C / 32, T): scale times the sum of the codes, for minima
  int32_t *offsets;   // of each tile (C / 32, T, 2): -32 times the sum of 16 codes, for Q6_K
};

// Bytes that make_inputs needs, a multiple of 64. num_columns may be any number: if it is no multiple of
// 32, no quantised weight can meet it and there is nothing to round.
size_t inputs_bytes(int32_t num_x, int32_t num_columns);
// Lay the arrays out in memory (aligned to 64 bytes). Nothing is rounded yet: for that call
// isa.quantise_row for each row once x is there.
Inputs make_inputs(void *memory, int32_t num_x, int32_t num_columns, const float *x, int64_t x_stride);

// ------------------------------------------------------------------ products

struct Isa;

struct MatmulJob {
  const qk_matrix *matrix;
  const Inputs *inputs;
  float *y;  // (num_x, num_rows), rows y_stride floats apart
  int64_t y_stride;
};

// y = x W^T for several matrices (query, key, value; gate, up; those of some experts), some 30 of them in each
// parallel region. All rows of x are rounded already if the matrix is quantised. Every row of x
// gives the same bits whatever num_x and the team's size are.
void matmul_many(Team &team, const Isa &isa, const MatmulJob *jobs, int num_jobs);
// Round all rows, in parallel if they are many.
void quantise_rows(Team &team, const Isa &isa, const Inputs &inputs);

// ------------------------------------------------------------------ memory

// A block of memory, aligned to 64 bytes, that only grows.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer();
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;
  // At least so many bytes; what was in it is lost when it grows. Null: no memory (the old is kept).
  void *reserve(size_t bytes);

 private:
  void *memory_ = nullptr;
  void *aligned_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace quire

// What Python holds. step is for qk_forward, matmul for qk_matmul.
struct qk_team {
  explicit qk_team(int num_threads) : team(num_threads) {}
  quire::Team team;
  quire::Buffer step;
  quire::Buffer matmul;
};

#endif
