// Files with rows of blocks: gathered, checked and written without the interpreter.
#include <string.h>

#include "crc32.h"
#include "pause.h"
#include "quire_kernels.h"

#if !defined(_WIN32)
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace {

constexpr size_t kSumBytes = 4;
constexpr size_t kMostPathBytes = 4096;

bool is_valid(const qk_plane &plane) {
  return plane.data && plane.num_runs > 0 && plane.num_slots > 0 && plane.row_bytes > 0;
}

bool is_valid(const qk_row_file &file, const qk_plane *planes, int32_t num_planes, int64_t buffer_bytes) {
  if (!file.temporary || !file.path || !file.header || file.header_bytes < 0) return false;
  if (file.num_rows < 1 || file.first_slot < 0) return false;
  int64_t left = buffer_bytes - static_cast<int64_t>(kSumBytes);
  for (int32_t i = 0; i < num_planes; ++i) {
    if (file.num_rows > left / planes[i].row_bytes / planes[i].num_runs) return false;
    left -= file.num_rows * planes[i].row_bytes * planes[i].num_runs;
    if (file.num_rows > planes[i].num_slots || file.first_slot > planes[i].num_slots - file.num_rows) return false;
  }
  return true;
}

// One run after the other, as the disk tier has them, and their sum behind them. Returns the length of all.
size_t gather(const qk_row_file &file, const qk_plane *planes, int32_t num_planes, uint8_t *buffer) {
  uint8_t *out = buffer;
  for (int32_t i = 0; i < num_planes; ++i) {
    const qk_plane &plane = planes[i];
    const size_t size = static_cast<size_t>(file.num_rows * plane.row_bytes);
    const uint8_t *rows = plane.data + file.first_slot * plane.row_bytes;
    for (int64_t run = 0; run < plane.num_runs; ++run, out += size) {
      memcpy(out, rows + run * plane.num_slots * plane.row_bytes, size);
    }
  }
  const uint32_t sum = quire::crc32(buffer, static_cast<size_t>(out - buffer));
  for (size_t byte = 0; byte < kSumBytes; ++byte) *out++ = static_cast<uint8_t>(sum >> (8 * byte));
  return static_cast<size_t>(out - buffer);
}

#if !defined(_WIN32)

bool write_all(int handle, const uint8_t *data, size_t size) {
  while (size > 0) {
    const ssize_t count = write(handle, data, size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    data += count;
    size -= static_cast<size_t>(count);
  }
  return true;
}

bool fill(int handle, const qk_row_file &file, const uint8_t *rows, size_t size) {
  struct timespec used[2];
  for (struct timespec &each : used) {
    each.tv_sec = static_cast<time_t>(file.used_ns / 1000000000);
    each.tv_nsec = static_cast<long>(file.used_ns % 1000000000);
  }
  if (!write_all(handle, file.header, static_cast<size_t>(file.header_bytes))) return false;
  if (!write_all(handle, rows, size)) return false;
  futimens(handle, used);  // some file systems have no times, and lose nothing by it
  return true;
}

// Give a file its own name, in a folder that is made if that is all that is missing.
bool put(const char *temporary, const char *path) {
  if (rename(temporary, path) == 0) return true;
  const char *name = errno == ENOENT ? strrchr(path, '/') : nullptr;
  if (!name || static_cast<size_t>(name - path) >= kMostPathBytes) return false;
  char folder[kMostPathBytes] = {};
  memcpy(folder, path, static_cast<size_t>(name - path));
  return mkdir(folder, 0700) == 0 && rename(temporary, path) == 0;
}

bool write_file(const qk_row_file &file, const uint8_t *rows, size_t size) {
  const int handle = open(file.temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (handle < 0) return false;
  struct stat status;
  // A umask may take more than it should.
  if (fstat(handle, &status) == 0 && (status.st_mode & 0777) != 0600) (void)!fchmod(handle, 0600);
  const bool is_full = fill(handle, file, rows, size);
  const bool is_whole = close(handle) == 0 && is_full && put(file.temporary, file.path);
  if (!is_whole) unlink(file.temporary);
  return is_whole;
}

#else

bool write_file(const qk_row_file &, const uint8_t *, size_t) { return false; }

#endif

}  // namespace

extern "C" {

uint32_t qk_crc32(const uint8_t *data, int64_t size) { return quire::crc32(data, static_cast<size_t>(size)); }

int32_t qk_write_rows(const qk_plane *planes, int32_t num_planes, qk_row_file *files, int32_t num_files,
                      uint8_t *buffer, int64_t buffer_bytes, int64_t spread_us,
                      const volatile int32_t *is_hurried) {
  if (!planes || num_planes < 1 || !files || num_files < 1 || !buffer) return QK_ERROR_ARGUMENT;
  if (spread_us < 0 || !is_hurried) return QK_ERROR_ARGUMENT;
  for (int32_t i = 0; i < num_planes; ++i) {
    if (!is_valid(planes[i])) return QK_ERROR_ARGUMENT;
  }
  for (int32_t i = 0; i < num_files; ++i) {
    if (!is_valid(files[i], planes, num_planes, buffer_bytes)) return QK_ERROR_ARGUMENT;
  }
  quire::Spreading spreading(num_files, std::chrono::microseconds(spread_us), is_hurried);
  for (int32_t i = 0; i < num_files; ++i) {
    spreading.wait();
    files[i].is_written = write_file(files[i], buffer, gather(files[i], planes, num_planes, buffer));
  }
  return 0;
}

}  // extern "C"
