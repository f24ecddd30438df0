// Work on single rows of a step, shared by the team.
#ifndef QUIRE_FOR_ROWS_H
#define QUIRE_FOR_ROWS_H

#include <algorithm>

#include "team.h"

namespace quire {

// Numbers that a thread works on at least, before another is asked for help.
constexpr int64_t kNumbersPerChunk = 16384;

// Call work(row) for each row, in parallel if it is worth it. numbers: of one row, weighted by their cost.
template <typename Work>
void for_rows(Team &team, int32_t num_rows, int64_t numbers, const Work &work) {
  const int64_t most = std::max<int64_t>(1, kNumbersPerChunk / std::max<int64_t>(1, numbers));
  const int32_t size = static_cast<int32_t>(std::min<int64_t>(num_rows, most));
  struct Context {
    const Work *work;
    int32_t num_rows, size;
  } context = {&work, num_rows, size};
  const auto chunk = [](void *memory, int index, int) {
    const Context &context = *static_cast<const Context *>(memory);
    const int32_t first = index * context.size, end = std::min(context.num_rows, first + context.size);
    for (int32_t row = first; row < end; ++row) (*context.work)(row);
  };
  team.run((num_rows + size - 1) / size, chunk, &context);
}

}  // namespace quire

#endif
