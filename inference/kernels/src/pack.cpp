// From rows as they lie in a GGUF file to packed panels (layout.h), and back to floats.
#include <string.h>

#include "half.h"
#include "internal.h"
#include "layout.h"

// The layouts of the file are those of ggml's block structures (ggml-org/ggml, src/ggml-common.h).

namespace quire {
namespace {

// 32 weights of one row, before they are interleaved.
struct Block {
  uint8_t codes[kBlockColumns];  // unsigned
  uint16_t scale, minimum;       // halves; per 32, or d and -dmin of a K type
  uint8_t small_scales[2];       // K types: scale and minimum, or the two scales of Q6_K
};

uint16_t read_half(const uint8_t *at) {
  uint16_t half;
  memcpy(&half, at, sizeof half);
  return half;
}

void read_nibbles(const uint8_t *at, uint8_t *codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = at[i] & 15;
    codes[16 + i] = static_cast<uint8_t>(at[i] >> 4);
  }
}

void add_fifth_bits(const uint8_t *at, uint8_t *codes) {
  uint32_t bits;
  memcpy(&bits, at, sizeof bits);
  for (int i = 0; i < 32; ++i) codes[i] |= static_cast<uint8_t>(((bits >> i) & 1) << 4);
}

// Block b of 32 of a super-block of Q4_K or Q5_K: scales of 6 bits, the upper two of some elsewhere.
void read_six_bit_scales(const uint8_t *packed, int b, uint8_t *scales) {
  if (b < 4) {
    scales[0] = packed[b] & 63;
    scales[1] = packed[4 + b] & 63;
  } else {
    scales[0] = static_cast<uint8_t>((packed[4 + b] & 15) | (packed[b - 4] >> 6 << 4));
    scales[1] = static_cast<uint8_t>((packed[4 + b] >> 4) | (packed[b] >> 6 << 4));
  }
}

// Nibbles of Q4_K and Q5_K: 32 bytes hold two blocks, the second in the high halves.
void read_half_bytes(const uint8_t *quants, int b, uint8_t *codes) {
  const uint8_t *at = quants + b / 2 * 32;
  const int shift = b % 2 * 4;
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>((at[i] >> shift) & 15);
}

void read_q6_k(const uint8_t *file, int b, Block &block) {
  const uint8_t *low = file + b / 4 * 64 + b % 2 * 32;
  const uint8_t *high = file + 128 + b / 4 * 32;
  const int low_shift = b % 4 / 2 * 4;
  const int high_shift = b % 4 * 2;
  for (int i = 0; i < 32; ++i) {
    const int code = ((low[i] >> low_shift) & 15) | ((high[i] >> high_shift) & 3) << 4;
    block.codes[i] = static_cast<uint8_t>(code);
  }
  block.scale = read_half(file + 208);
  memcpy(block.small_scales, file + 192 + 2 * b, 2);
}

void read_k(int32_t type, const uint8_t *file, int b, Block &block) {
  if (type == QK_Q6_K) return read_q6_k(file, b, block);
  block.scale = read_half(file);
  block.minimum = read_half(file + 2) ^ 0x8000;
  read_six_bit_scales(file + 4, b, block.small_scales);
  if (type == QK_Q4_K) return read_half_bytes(file + 16, b, block.codes);
  read_half_bytes(file + 48, b, block.codes);
  for (int i = 0; i < 32; ++i) {
    block.codes[i] |= static_cast<uint8_t>(((file[16 + i] >> b) & 1) << 4);
  }
}

// The block of columns [32 b, 32 b + 32) of a row.
void read_block(int32_t type, const uint8_t *row, int b, Block &block) {
  const Layout layout = layout_of(type);
  const int in_file = layout.file_columns / kBlockColumns;
  const uint8_t *file = row + static_cast<int64_t>(b / in_file) * layout.file_bytes;
  if (layout.has_groups) return read_k(type, file, b % in_file, block);
  block.scale = read_half(file);
  const uint8_t *rest = file + 2;
  if (layout.has_minima) {
    block.minimum = read_half(rest);
    rest += 2;
  }
  if (layout.bits == 8) {
    for (int i = 0; i < 32; ++i) block.codes[i] = rest[i] ^ 0x80;
    return;
  }
  read_nibbles(rest + (layout.bits == 5 ? 4 : 0), block.codes);
  if (layout.bits == 5) add_fifth_bits(rest, block.codes);
}

// Vector v of 64 bytes: columns 4v..4v+3 of 16 rows.
using Vectors = uint8_t[8][kVectorBytes];

void write_codes(const Layout &layout, const Vectors &vectors, uint8_t *out) {
  if (layout.bits == 8) {
    memcpy(out, vectors, sizeof vectors);
    return;
  }
  for (int j = 0; j < 4; ++j) {
    for (int i = 0; i < kVectorBytes; ++i) {
      const int pair = (vectors[2 * j][i] & 15) | (vectors[2 * j + 1][i] & 15) << 4;
      out[j * kVectorBytes + i] = static_cast<uint8_t>(pair);
    }
  }
  uint8_t *high = out + 4 * kVectorBytes;
  if (layout.bits == 4) return;
  memset(high, 0, static_cast<size_t>(layout.bits - 4) * kVectorBytes);
  for (int v = 0; v < 8; ++v) {
    uint8_t *plane = layout.bits == 6 ? high + v / 4 * kVectorBytes : high;
    const int shift = layout.bits == 6 ? v % 4 * 2 : v;
    for (int i = 0; i < kVectorBytes; ++i) plane[i] |= static_cast<uint8_t>(vectors[v][i] >> 4 << shift);
  }
}

void write_scales(const Layout &layout, const Block &block, int b, int num_blocks, int row,
                  uint8_t *header) {
  if (layout.has_groups) {
    memcpy(header + 2 * row, &block.scale, 2);
    memcpy(header + 32 + 2 * row, &block.minimum, 2);
    header[64 + 32 * b + row] = block.small_scales[0];
    header[64 + 32 * b + 16 + row] = block.small_scales[1];
    return;
  }
  memcpy(header + 32 * b + 2 * row, &block.scale, 2);
  if (layout.has_minima) memcpy(header + 32 * (num_blocks + b) + 2 * row, &block.minimum, 2);
}

void pack_panel(int32_t type, int32_t num_columns, const void *const *rows, int num_rows, uint8_t *out) {
  const Layout layout = layout_of(type);
  const int blocks = num_columns / kBlockColumns;
  for (int first = 0; first < blocks; first += 8) {
    const int num_blocks = blocks - first < 8 ? blocks - first : 8;
    uint8_t *header = out;
    out += header_bytes(layout, num_blocks);
    memset(header, 0, static_cast<size_t>(out - header));
    for (int b = 0; b < num_blocks; ++b) {
      Vectors vectors = {};
      for (int row = 0; row < num_rows; ++row) {
        Block block = {};
        read_block(type, static_cast<const uint8_t *>(rows[row]), first + b, block);
        write_scales(layout, block, b, num_blocks, row, header);
        for (int v = 0; v < 8; ++v) memcpy(vectors[v] + 4 * row, block.codes + 4 * v, 4);
      }
      write_codes(layout, vectors, out);
      out += block_bytes(layout);
    }
  }
}

// ------------------------------------------------------------------ back to floats

int code_at(const Layout &layout, const uint8_t *block, int row, int column) {
  const int v = column / 4;
  const int byte = 4 * row + column % 4;
  if (layout.bits == 8) return block[v * kVectorBytes + byte];
  int code = (block[v / 2 * kVectorBytes + byte] >> (v % 2 * 4)) & 15;
  const uint8_t *high = block + 4 * kVectorBytes + byte;
  if (layout.bits == 5) code |= ((*high >> v) & 1) << 4;
  if (layout.bits == 6) code |= ((high[v / 4 * kVectorBytes] >> (v % 4 * 2)) & 3) << 4;
  return code;
}

// The factor and the summand of 16 columns.
struct Scales {
  float factor, summand;
};

Scales scales_at(const Layout &layout, const uint8_t *header, int num_blocks, int b, int half, int row) {
  if (layout.has_groups) {
    const float d = half_to_float(read_half(header + 2 * row));
    const uint8_t *small = header + 64 + 32 * b + row;
    if (!layout.has_minima) return {d * static_cast<int8_t>(small[16 * half]), 0.0f};
    return {d * small[0], half_to_float(read_half(header + 32 + 2 * row)) * small[16]};
  }
  const float factor = half_to_float(read_half(header + 32 * b + 2 * row));
  if (!layout.has_minima) return {factor, 0.0f};
  return {factor, half_to_float(read_half(header + 32 * (num_blocks + b) + 2 * row))};
}

void unpack_block(const Layout &layout, const uint8_t *header, int num_blocks, int b, int row, float *out) {
  const uint8_t *block = header + header_bytes(layout, num_blocks) + b * block_bytes(layout);
  for (int half = 0; half < 2; ++half) {
    const Scales scales = scales_at(layout, header, num_blocks, b, half, row);
    for (int c = 16 * half; c < 16 * half + 16; ++c) {
      const float product = scales.factor * static_cast<float>(code_at(layout, block, row, c) - layout.zero);
      out[c] = layout.has_minima ? product + scales.summand : product;
    }
  }
}

void unpack_packed_row(const qk_matrix &matrix, int32_t row, float *out) {
  const Layout layout = layout_of(matrix.type);
  const int blocks = matrix.num_columns / kBlockColumns;
  const uint8_t *group = static_cast<const uint8_t *>(matrix.data) +
                         row / kPanelRows * panel_bytes(layout, matrix.num_columns);
  for (int first = 0; first < blocks; first += 8) {
    const int num_blocks = blocks - first < 8 ? blocks - first : 8;
    for (int b = 0; b < num_blocks; ++b) {
      unpack_block(layout, group, num_blocks, b, row % kPanelRows, out + (first + b) * kBlockColumns);
    }
    group += group_bytes(layout, num_blocks);
  }
}

void unpack_float_row(const qk_matrix &matrix, int32_t row, float *out) {
  const int64_t bytes = qk_file_row_bytes(matrix.type, matrix.num_columns);
  const uint8_t *at = static_cast<const uint8_t *>(matrix.data) + row * bytes;
  if (matrix.type == QK_F32) {
    memcpy(out, at, static_cast<size_t>(bytes));
    return;
  }
  for (int32_t c = 0; c < matrix.num_columns; ++c) {
    const uint16_t bits = read_half(at + 2 * static_cast<int64_t>(c));
    out[c] = matrix.type == QK_F16 ? half_to_float(bits) : bfloat_to_float(bits);
  }
}

}  // namespace
}  // namespace quire

int64_t qk_file_row_bytes(int32_t type, int32_t num_columns) {
  if (num_columns <= 0) return 0;
  if (quire::is_float_type(type)) return static_cast<int64_t>(num_columns) * (type == QK_F32 ? 4 : 2);
  const quire::Layout layout = quire::layout_of(type);
  if (!layout.bits || num_columns % layout.file_columns) return 0;
  return static_cast<int64_t>(num_columns / layout.file_columns) * layout.file_bytes;
}

int64_t qk_packed_bytes(int32_t type, int32_t num_rows, int32_t num_columns) {
  const int64_t row_bytes = qk_file_row_bytes(type, num_columns);
  if (row_bytes <= 0 || num_rows <= 0) return 0;
  if (quire::is_float_type(type)) return row_bytes * num_rows;
  return quire::panel_bytes(quire::layout_of(type), num_columns) * quire::num_panels(num_rows);
}

int32_t qk_panel_rows(void) { return quire::kPanelRows; }

int32_t qk_pack(int32_t type, int32_t num_rows, int32_t num_columns, void *packed, int32_t first_row,
                int32_t count, const void *const *file_rows) {
  using quire::kPanelRows;
  if (qk_packed_bytes(type, num_rows, num_columns) <= 0 || !packed || !file_rows) return QK_ERROR_ARGUMENT;
  if (first_row < 0 || count < 0 || first_row > num_rows || count > num_rows - first_row ||
      first_row % kPanelRows || (count % kPanelRows && first_row + count != num_rows)) {
    return QK_ERROR_ARGUMENT;
  }
  for (int32_t row = 0; row < count; ++row) {
    if (!file_rows[row]) return QK_ERROR_ARGUMENT;
  }
  uint8_t *out = static_cast<uint8_t *>(packed);
  if (quire::is_float_type(type)) {
    const int64_t bytes = qk_file_row_bytes(type, num_columns);
    for (int32_t row = 0; row < count; ++row) {
      memcpy(out + (first_row + row) * bytes, file_rows[row], static_cast<size_t>(bytes));
    }
    return 0;
  }
  const int64_t bytes = quire::panel_bytes(quire::layout_of(type), num_columns);
  for (int32_t row = 0; row < count; row += kPanelRows) {
    const int32_t left = count - row;
    quire::pack_panel(type, num_columns, file_rows + row, left < kPanelRows ? left : kPanelRows,
                      out + (first_row + row) / kPanelRows * bytes);
  }
  return 0;
}

int32_t qk_unpack_row(const qk_matrix *matrix, int32_t row, float *out) {
  if (!matrix || !matrix->data || !out || row < 0 || row >= matrix->num_rows) return QK_ERROR_ARGUMENT;
  if (qk_packed_bytes(matrix->type, matrix->num_rows, matrix->num_columns) <= 0) return QK_ERROR_ARGUMENT;
  if (quire::is_float_type(matrix->type)) {
    quire::unpack_float_row(*matrix, row, out);
  } else {
    quire::unpack_packed_row(*matrix, row, out);
  }
  return 0;
}
