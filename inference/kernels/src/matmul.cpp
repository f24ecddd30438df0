// Cuts products into chunks for the team; qk_matmul.
#include <new>

#include "isa.h"
#include "layout.h"

namespace quire {
namespace {

// A chunk is a range of panels times up to so many rows of x: their rounded inputs stay in the second-level
// cache while panels pass by.
constexpr int32_t kChunkX = 64;
constexpr int kMaxJobs = 32;
constexpr int kMaxRanges = 512;
// Work is counted in multiply-adds. A chunk has at least some microseconds' worth, far above the cost of
// claiming it, and at most some 100, so that threads end together though one of them lost its core.
constexpr int64_t kLeastWork = 200000;
constexpr int64_t kMostWork = 8000000;
constexpr int64_t kByteWork = 8;  // a byte of weights takes as long as so many multiply-adds

// Panels of all jobs are counted through. Ranges of them get shorter towards the end: long ones are read
// faster, short ones let the threads end together.
struct Region {
  const Isa *isa;
  const MatmulJob *jobs;
  int num_jobs;
  int32_t x_spans;                   // pieces of kChunkX rows of the job that has most
  int32_t job_starts[kMaxJobs + 1];  // first panel of each job
  int num_ranges;
  int32_t range_starts[kMaxRanges + 1];
};

// Of the average panel.
int64_t panel_work(const Region &region) {
  int64_t bytes = 0, products = 0;
  for (int j = 0; j < region.num_jobs; ++j) {
    const qk_matrix &matrix = *region.jobs[j].matrix;
    const int32_t all_x = region.jobs[j].inputs->num_x;
    const int32_t num_x = all_x < kChunkX ? all_x : kChunkX;
    bytes += qk_packed_bytes(matrix.type, matrix.num_rows, matrix.num_columns);
    products += static_cast<int64_t>(matrix.num_rows) * matrix.num_columns * num_x;
  }
  const int64_t work = bytes * kByteWork > products ? bytes * kByteWork : products;
  return work / region.job_starts[region.num_jobs] + 1;
}

void cut_region(Region &region, int team_size) {
  region.x_spans = 0;
  region.job_starts[0] = 0;
  for (int j = 0; j < region.num_jobs; ++j) {
    const int32_t spans = (region.jobs[j].inputs->num_x + kChunkX - 1) / kChunkX;
    if (spans > region.x_spans) region.x_spans = spans;
    region.job_starts[j + 1] = region.job_starts[j] + num_panels(region.jobs[j].matrix->num_rows);
  }
  const int32_t panels = region.job_starts[region.num_jobs];
  const int64_t work = panel_work(region);
  const int64_t least = kLeastWork / work + 1;
  const int64_t most = kMostWork / work + 1 + panels / (kMaxRanges / 2);
  region.num_ranges = 0;
  int32_t start = 0;
  while (start < panels) {
    region.range_starts[region.num_ranges++] = start;
    const int64_t share = (panels - start) / (2 * team_size);
    const int64_t length = share < least ? least : share > most ? most : share;
    start = length < panels - start && region.num_ranges < kMaxRanges ? start + static_cast<int32_t>(length)
                                                                      : panels;
  }
  region.range_starts[region.num_ranges] = panels;
}

void do_chunk(void *context, int chunk, int) {
  const Region &region = *static_cast<const Region *>(context);
  // The pieces of x come one after the other for the same panels, which are in the cache then.
  const int range = chunk / region.x_spans;
  const int32_t first_x = chunk % region.x_spans * kChunkX;
  const int32_t start = region.range_starts[range];
  const int32_t end = region.range_starts[range + 1];
  for (int j = 0; j < region.num_jobs; ++j) {
    const int32_t job_start = region.job_starts[j];
    const int32_t first = start > job_start ? start : job_start;
    const int32_t last = end < region.job_starts[j + 1] ? end : region.job_starts[j + 1];
    const MatmulJob &job = region.jobs[j];
    const int32_t x_left = job.inputs->num_x - first_x;
    if (first >= last || x_left <= 0) continue;
    region.isa->matmul_panels(*job.matrix, first - job_start, last - first, *job.inputs, first_x,
                              x_left < kChunkX ? x_left : kChunkX, job.y, job.y_stride);
  }
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

void matmul_many(Team &team, const Isa &isa, const MatmulJob *jobs, int num_jobs) {
  for (int done = 0; done < num_jobs; done += kMaxJobs) {
    Region region;
    region.isa = &isa;
    region.jobs = jobs + done;
    region.num_jobs = num_jobs - done < kMaxJobs ? num_jobs - done : kMaxJobs;
    cut_region(region, team.size());
    team.run(region.num_ranges * region.x_spans, do_chunk, &region);
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
  const quire::MatmulJob job = {matrix, &inputs, y, y_stride};
  quire::matmul_many(team->team, isa, &job, 1);
  return 0;
}

int32_t qk_abi_version(void) { return QK_ABI_VERSION; }

int64_t qk_struct_bytes(int32_t index) {
  constexpr int64_t kBytes[] = {sizeof(qk_matrix),   sizeof(qk_layer), sizeof(qk_rope), sizeof(qk_model),
                                sizeof(qk_kv_layer), sizeof(qk_kv),    sizeof(qk_span), sizeof(qk_step),
                                sizeof(qk_plane),    sizeof(qk_row_file), sizeof(qk_filters)};
  return index >= 0 && index < 11 ? kBytes[index] : 0;
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
