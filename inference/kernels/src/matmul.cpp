// Cuts products into chunks for the team; qk_matmul.
#include <new>

#include "isa.h"
#include "layout.h"

namespace quire {
namespace {

// A chunk is some 16-row panels times up to so many rows of x: their rounded inputs stay in the second-level
// cache while panels pass by.
constexpr int32_t kChunkX = 64;
constexpr int kMaxJobs = 8;
// Multiply-adds that a chunk should have at least, about 10 microseconds: far above the cost of claiming it.
constexpr int64_t kChunkWork = 500000;
constexpr int64_t kByteWork = 12;  // a byte of weights costs as much as so many multiply-adds
constexpr int kChunksPerThread = 8;

struct Cut {
  int32_t panels;       // of the matrix
  int32_t per_chunk;    // panels in a chunk
  int32_t x_spans;      // pieces of kChunkX rows
  int32_t first_chunk;  // of this job in the region
};

struct Region {
  const Isa *isa;
  const MatmulJob *jobs;
  const Inputs *inputs;
  int num_jobs;
  Cut cuts[kMaxJobs];
};

int64_t panel_work(const qk_matrix &matrix, int32_t num_x) {
  const int64_t columns = matrix.num_columns;
  const int64_t bytes = is_float_type(matrix.type) ? columns * kPanelRows * (matrix.type == QK_F32 ? 4 : 2)
                                                   : panel_bytes(layout_of(matrix.type), matrix.num_columns);
  const int64_t products = columns * kPanelRows * (num_x < kChunkX ? num_x : kChunkX);
  return bytes * kByteWork > products ? bytes * kByteWork : products;
}

// Work of one chunk: small enough that threads end together, large enough to be worth claiming.
int64_t work_of_a_chunk(const MatmulJob *jobs, int num_jobs, int32_t num_x, int team_size) {
  int64_t total = 0;
  for (int j = 0; j < num_jobs; ++j) {
    total += panel_work(*jobs[j].matrix, num_x) * num_panels(jobs[j].matrix->num_rows);
  }
  const int64_t share = total / (team_size * kChunksPerThread);
  const int64_t largest = 8 * kChunkWork;
  return share < kChunkWork ? kChunkWork : share > largest ? largest : share;
}

int cut_region(Region &region, int team_size) {
  const int32_t num_x = region.inputs->num_x;
  const int64_t work = work_of_a_chunk(region.jobs, region.num_jobs, num_x, team_size);
  int num_chunks = 0;
  for (int j = 0; j < region.num_jobs; ++j) {
    const qk_matrix &matrix = *region.jobs[j].matrix;
    const int64_t fitting = work / panel_work(matrix, num_x);
    Cut &cut = region.cuts[j];
    cut.panels = num_panels(matrix.num_rows);
    cut.per_chunk = fitting < 1 ? 1 : fitting > cut.panels ? cut.panels : static_cast<int32_t>(fitting);
    cut.x_spans = (num_x + kChunkX - 1) / kChunkX;
    cut.first_chunk = num_chunks;
    num_chunks += (cut.panels + cut.per_chunk - 1) / cut.per_chunk * cut.x_spans;
  }
  return num_chunks;
}

void do_chunk(void *context, int chunk, int) {
  const Region &region = *static_cast<const Region *>(context);
  int j = region.num_jobs - 1;
  while (region.cuts[j].first_chunk > chunk) --j;
  const Cut &cut = region.cuts[j];
  const MatmulJob &job = region.jobs[j];
  const int index = chunk - cut.first_chunk;
  // The pieces of x come one after the other for the same panels, which are in the cache then.
  const int32_t first_panel = index / cut.x_spans * cut.per_chunk;
  const int32_t left = cut.panels - first_panel;
  const int32_t first_x = index % cut.x_spans * kChunkX;
  const int32_t x_left = region.inputs->num_x - first_x;
  region.isa->matmul_panels(*job.matrix, first_panel, left < cut.per_chunk ? left : cut.per_chunk,
                            *region.inputs, first_x, x_left < kChunkX ? x_left : kChunkX, job.y,
                            job.y_stride);
}

struct Rounding {
  const Isa *isa;
  const Inputs *inputs;
};

// One tile of rows: they share cache lines.
void round_tile(void *context, int chunk, int) {
  const Rounding &rounding = *static_cast<const Rounding *>(context);
  const int32_t end = (chunk + 1) * kXTileRows;
  for (int32_t row = chunk * kXTileRows; row < end && row < rounding.inputs->num_x; ++row) {
    rounding.isa->quantise_row(*rounding.inputs, row);
  }
}

}  // namespace

void matmul_many(Team &team, const Isa &isa, const MatmulJob *jobs, int num_jobs, const Inputs &inputs) {
  for (int done = 0; done < num_jobs; done += kMaxJobs) {
    const int left = num_jobs - done;
    Region region = {&isa, jobs + done, &inputs, left < kMaxJobs ? left : kMaxJobs, {}};
    const int num_chunks = cut_region(region, team.size());
    team.run(num_chunks, do_chunk, &region);
  }
}

void quantise_rows(Team &team, const Isa &isa, const Inputs &inputs) {
  Rounding rounding = {&isa, &inputs};
  team.run((inputs.num_x + kXTileRows - 1) / kXTileRows, round_tile, &rounding);
}

}  // namespace quire

int32_t qk_matmul(qk_team *team, const qk_matrix *matrix, const float *x, int32_t num_x,
                  int64_t x_stride, float *y, int64_t y_stride) {
  if (!team || !matrix || !matrix->data || num_x < 0) return QK_ERROR_ARGUMENT;
  if (qk_packed_bytes(matrix->type, matrix->num_rows, matrix->num_columns) <= 0) return QK_ERROR_ARGUMENT;
  if (num_x == 0) return 0;
  if (!x || !y || x_stride < matrix->num_columns || y_stride < matrix->num_rows) return QK_ERROR_ARGUMENT;
  void *memory = team->matmul.reserve(quire::inputs_bytes(num_x, matrix->num_columns));
  if (!memory) return QK_ERROR_MEMORY;
  const quire::Isa &isa = quire::current_isa();
  const quire::Inputs inputs = quire::make_inputs(memory, num_x, matrix->num_columns, x, x_stride);
  if (!quire::is_float_type(matrix->type)) quire::quantise_rows(team->team, isa, inputs);
  const quire::MatmulJob job = {matrix, y, y_stride};
  quire::matmul_many(team->team, isa, &job, 1, inputs);
  return 0;
}

int32_t qk_abi_version(void) { return QK_ABI_VERSION; }

int64_t qk_struct_bytes(int32_t index) {
  constexpr int64_t kBytes[] = {sizeof(qk_matrix),   sizeof(qk_layer), sizeof(qk_rope), sizeof(qk_model),
                                sizeof(qk_kv_layer), sizeof(qk_kv),    sizeof(qk_span), sizeof(qk_step)};
  return index >= 0 && index < 8 ? kBytes[index] : 0;
}

qk_team *qk_team_new(int32_t num_threads) {
  if (num_threads < 1 || num_threads > 1024) return nullptr;
  try {
    return new qk_team(num_threads);
  } catch (...) {  // no memory or no more threads
    return nullptr;
  }
}

void qk_team_free(qk_team *team) { delete team; }

int32_t qk_team_size(const qk_team *team) { return team ? team->team.size() : 0; }
