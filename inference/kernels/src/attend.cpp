#include "attend.h"

#include <algorithm>

namespace quire {
namespace {

// Query rows of a tile: the keys of a KV head are made floats once for so many. At 120 rows that is 3 % of
// the work; fewer only where there would be too few tiles.
constexpr int32_t kMostTileRows = 120, kLeastTileRows = 30;
// With fewer tiles than this for each thread, tiles are made smaller, and then cut into splits.
constexpr int32_t kTilesPerThread = 8;
constexpr int32_t kPiecesPerThread = 4, kMostSplits = 4;
constexpr size_t kMostSharedFloats = size_t{4} << 20;

size_t aligned(size_t num_floats) { return (num_floats + 15) / 16 * 16; }

}  // namespace

TokenSlots::TokenSlots(const qk_step &step) {
  for (int32_t i = 0; i < step.num_spans; ++i) {
    const qk_span &span = step.spans[i];
    first_.push_back(slots_.size());
    int64_t left = static_cast<int64_t>(span.start) + span.num_rows;
    for (int32_t extent = 0; extent < span.num_extents && left > 0; ++extent) {
      const int64_t first = span.extents[2 * extent], count = std::min(left, span.extents[2 * extent + 1]);
      for (int64_t slot = first; slot < first + count; ++slot) slots_.push_back(slot);
      left -= count;
    }
  }
}

std::vector<TokenRun> all_runs(const qk_step &step, const TokenSlots &slots) {
  std::vector<TokenRun> runs;
  for (int32_t i = 0; i < step.num_spans; ++i) {
    runs.push_back({slots.of_span(i), step.spans[i].row, step.spans[i].num_rows, step.spans[i].start});
  }
  return runs;
}

std::vector<TokenRun> wanted_runs(const qk_step &step, const TokenSlots &slots) {
  std::vector<TokenRun> runs;
  int32_t kept = 0;
  for (int32_t i = 0; i < step.num_spans; ++i) {
    const qk_span &span = step.spans[i];
    int32_t end = -1;  // of the run that is the last one
    for (; kept < step.num_keep && step.keep[kept] < span.row + span.num_rows; ++kept) {
      const int32_t row = step.keep[kept];
      if (row == end) {
        ++runs.back().count;
      } else {
        runs.push_back({slots.of_span(i), kept, 1, span.start + row - span.row});
      }
      end = row + 1;
    }
  }
  return runs;
}

AttentionPlan::AttentionPlan(const qk_model &model, const qk_layer &layer, const std::vector<TokenRun> &runs,
                             int num_threads)
    : group_(model.num_heads / layer.num_kv_heads),
      num_kv_heads_(layer.num_kv_heads),
      head_dim_(layer.head_dim),
      window_(layer.window),
      num_threads_(num_threads) {
  const int32_t size = tile_tokens(runs);
  for (const TokenRun &run : runs) add_tiles(run, size);
  add_pieces();
  num_left_ = std::make_unique<std::atomic<int32_t>[]>(tiles_.size());
}

// New tokens in a tile.
int32_t AttentionPlan::tile_tokens(const std::vector<TokenRun> &runs) const {
  int32_t size = std::max(1, kMostTileRows / group_);
  while (size > 1 && size * group_ >= 2 * kLeastTileRows) {
    int64_t num_tiles = 0;
    for (const TokenRun &run : runs) num_tiles += (run.count + size - 1) / size;
    if (num_tiles * num_kv_heads_ >= int64_t{kTilesPerThread} * num_threads_) break;
    size /= 2;
  }
  return size;
}

void AttentionPlan::add_tiles(const TokenRun &run, int32_t size) {
  // The last rows see the most keys: they come first, so that no thread is left with them.
  for (int32_t first = (run.count - 1) / size * size; first >= 0; first -= size) {
    const int32_t count = std::min(size, run.count - first);
    for (int32_t head = 0; head < num_kv_heads_; ++head) {
      tiles_.push_back({run.slots, run.row + first, run.first + first, count, head, 0});
    }
  }
}

void AttentionPlan::find_splits() {
  for (const AttentionTile &tile : tiles_) {
    const int32_t first_key = window_ > 0 ? std::max(0, tile.first_token - window_ + 1) : 0;
    const int32_t first = first_key / kSplitTokens;
    splits_.push_back({first, (tile.first_token + tile.num_tokens - 1) / kSplitTokens - first + 1, 0});
    scratch_floats_ = std::max(scratch_floats_, aligned(attend_floats(num_rows(tile), head_dim_)));
    partial_floats_ = std::max(partial_floats_, aligned(quire::partial_floats(num_rows(tile), head_dim_)));
  }
  per_thread_floats_ = scratch_floats_ + 2 * partial_floats_;
}

void AttentionPlan::add_pieces() {
  find_splits();
  const bool may_split = tiles_.size() < static_cast<size_t>(kTilesPerThread * num_threads_);
  int32_t num_splits = 0;
  for (const Splits &splits : splits_) num_splits += splits.count;
  // Splits that follow each other are better for memory, many pieces better for the team.
  const int32_t most = std::clamp(num_splits / (kPiecesPerThread * num_threads_), 1, kMostSplits);
  for (size_t i = 0; i < tiles_.size(); ++i) {
    Splits &splits = splits_[i];
    const size_t partial = aligned(quire::partial_floats(num_rows(tiles_[i]), head_dim_));
    const size_t needed = partial * static_cast<size_t>(splits.count);
    const bool is_all = !may_split || splits.count == 1 || shared_floats_ + needed > kMostSharedFloats;
    if (is_all) {
      pieces_.push_back({static_cast<int32_t>(i), splits.first, splits.count, true});
      continue;
    }
    splits.partial = shared_floats_;
    shared_floats_ += needed;
    for (int32_t done = 0; done < splits.count; done += most) {
      const int32_t count = std::min(most, splits.count - done);
      pieces_.push_back({static_cast<int32_t>(i), splits.first + done, count, false});
    }
  }
}

struct AttentionPlan::Run {
  const AttentionPlan *plan;
  const StepKernels *kernels;
  const Attention *attention;
  float *shared;
  float *per_thread;
};

void AttentionPlan::run(Team &team, const StepKernels &kernels, const Attention &attention, float *memory) const {
  for (size_t i = 0; i < tiles_.size(); ++i) num_left_[i].store(splits_[i].count, std::memory_order_relaxed);
  Run run = {this, &kernels, &attention, memory, memory + shared_floats_};
  team.run(static_cast<int>(pieces_.size()), work, &run);
}

void AttentionPlan::work(void *context, int32_t index, int32_t thread) {
  const Run &run = *static_cast<const Run *>(context);
  const Piece &piece = run.plan->pieces_[static_cast<size_t>(index)];
  float *memory = run.per_thread + run.plan->per_thread_floats_ * static_cast<size_t>(thread);
  if (piece.is_all) {
    run.plan->attend_all(run, piece, memory);
  } else {
    run.plan->attend_some(run, piece, memory);
  }
}

AttentionTile AttentionPlan::tile_of(const Piece &piece) const {
  AttentionTile tile = tiles_[static_cast<size_t>(piece.tile)];
  tile.end_fetch = (piece.first_split + piece.num_splits) * kSplitTokens;
  return tile;
}

void AttentionPlan::attend_all(const Run &run, const Piece &piece, float *memory) const {
  const AttentionTile tile = tile_of(piece);
  float *total = memory + scratch_floats_, *next = total + partial_floats_;
  run.kernels->attend_split(*run.attention, tile, piece.first_split, memory, total);
  for (int32_t i = 1; i < piece.num_splits; ++i) {
    run.kernels->attend_split(*run.attention, tile, piece.first_split + i, memory, next);
    run.kernels->merge(*run.attention, tile, total, next);
  }
  run.kernels->finish(*run.attention, tile, total);
}

void AttentionPlan::attend_some(const Run &run, const Piece &piece, float *memory) const {
  const AttentionTile tile = tile_of(piece);
  const Splits &splits = splits_[static_cast<size_t>(piece.tile)];
  const size_t size = aligned(quire::partial_floats(num_rows(tile), head_dim_));
  float *total = run.shared + splits.partial;
  for (int32_t split = piece.first_split; split < piece.first_split + piece.num_splits; ++split) {
    float *partial = total + size * static_cast<size_t>(split - splits.first);
    run.kernels->attend_split(*run.attention, tile, split, memory, partial);
  }
  const int32_t before = num_left_[piece.tile].fetch_sub(piece.num_splits, std::memory_order_acq_rel);
  if (before != piece.num_splits) return;
  for (int32_t split = 1; split < splits.count; ++split) {
    run.kernels->merge(*run.attention, tile, total, total + size * static_cast<size_t>(split));
  }
  run.kernels->finish(*run.attention, tile, total);
}

}  // namespace quire
