// How the attention of a step is cut into pieces for the team.
#ifndef QUIRE_ATTEND_H
#define QUIRE_ATTEND_H

#include <atomic>
#include <memory>
#include <vector>

#include "isa.h"

namespace quire {

inline Slots slots_of(const qk_layer &layer, const qk_kv &kv) {
  const qk_kv_layer &place = kv.layers[layer.kv_layer];
  return {kv.scheme, layer.num_kv_heads, layer.head_dim, place.value_groups, kv.num_slots, place.stored_factor,
          place.planes};
}

// The slot of each token of each span, one after the other.
class TokenSlots {
 public:
  explicit TokenSlots(const qk_step &step);
  const int64_t *of_span(int32_t span) const { return slots_.data() + first_[static_cast<size_t>(span)]; }

 private:
  std::vector<int64_t> slots_;
  std::vector<size_t> first_;
};

// New tokens of one sequence that follow each other in what is computed; `slots` has those of all of its tokens.
struct TokenRun {
  const int64_t *slots;
  int32_t row;    // of its first token
  int32_t count;
  int32_t first;  // that token's place in the sequence
};

// All rows of a step.
std::vector<TokenRun> all_runs(const qk_step &step, const TokenSlots &slots);
// Those whose logits are wanted, as they lie when the others are left out.
std::vector<TokenRun> wanted_runs(const qk_step &step, const TokenSlots &slots);

// The pieces of all layers that have the same window and shape. Where pieces are cut changes no bit of the results.
class AttentionPlan {
 public:
  AttentionPlan(const qk_model &model, const qk_layer &layer, const std::vector<TokenRun> &runs, int num_threads);

  // Floats that run needs.
  size_t num_floats() const { return per_thread_floats_ * static_cast<size_t>(num_threads_) + shared_floats_; }
  void run(Team &team, const StepKernels &kernels, const Attention &attention, float *memory) const;

 private:
  // All splits of a tile, or some that follow each other, whose results lie in shared memory until the last
  // split of the tile is done.
  struct Piece {
    int32_t tile;
    int32_t first_split, num_splits;
    bool is_all;
  };
  struct Splits {
    int32_t first, count;
    size_t partial;  // where the first one's result is shared; the others follow
  };
  struct Run;

  int32_t tile_tokens(const std::vector<TokenRun> &runs) const;
  void add_tiles(const TokenRun &run, int32_t size);
  void find_splits();
  void add_pieces();
  int32_t num_rows(const AttentionTile &tile) const { return tile.num_tokens * group_; }
  static void work(void *run, int32_t piece, int32_t thread);
  void attend_all(const Run &run, const Piece &piece, float *memory) const;
  void attend_some(const Run &run, const Piece &piece, float *memory) const;
  AttentionTile tile_of(const Piece &piece) const;

  int32_t group_, num_kv_heads_, head_dim_, window_, num_threads_;
  std::vector<AttentionTile> tiles_;
  std::vector<Splits> splits_;  // of each tile
  std::vector<Piece> pieces_;
  std::unique_ptr<std::atomic<int32_t>[]> num_left_;  // splits of each tile
  size_t per_thread_floats_ = 0, scratch_floats_ = 0, partial_floats_ = 0, shared_floats_ = 0;
};

}  // namespace quire

#endif
