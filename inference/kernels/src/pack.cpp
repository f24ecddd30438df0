// From rows as they lie in a GGUF file to packed panels (layout.h), and back to floats.
#include <string.h>

#include "half.h"
#include "internal.h"
#include "layout.h"

// The layouts of the file are those of ggml's block structures (ggml-org/ggml, src/ggml-common.h).

namespace quire {
namespace {

// 32 codes of one row, 8 in a word, the first in the lowest byte: unsigned numbers of 4 to 8 bits.
using Codes = uint64_t[4];

constexpr uint64_t in_each_byte(uint64_t number) { return number * 0x0101010101010101u; }
constexpr uint32_t in_four_bytes(uint32_t number) { return number * 0x01010101u; }

uint16_t read_half(const uint8_t *at) {
  uint16_t half;
  memcpy(&half, at, sizeof half);
  return half;
}

uint64_t read_word(const uint8_t *at) {
  uint64_t word;
  memcpy(&word, at, sizeof word);
  return word;
}

// Bit i becomes bit 4 of byte i.
uint64_t as_fifth_bits(uint8_t bits) {
  const uint64_t alone = in_each_byte(bits) & 0x8040201008040201u;
  return (alone + in_each_byte(0x7f)) >> 3 & in_each_byte(0x10);
}

// A block as types with one scale per 32 numbers have it; `at` is behind its scale and minimum.
void read_block(int bits, const uint8_t *at, Codes &codes) {
  if (bits == 8) {
    for (int j = 0; j < 4; ++j) codes[j] = read_word(at + 8 * j) ^ in_each_byte(0x80);
    return;
  }
  const uint8_t *low = at + (bits == 5 ? 4 : 0);
  for (int j = 0; j < 2; ++j) {
    codes[j] = read_word(low + 8 * j) & in_each_byte(15);
    codes[2 + j] = read_word(low + 8 * j) >> 4 & in_each_byte(15);
  }
  for (int j = 0; bits == 5 && j < 4; ++j) codes[j] |= as_fifth_bits(at[j]);
}

// Block b of a super-block of Q4_K or Q5_K: 32 bytes hold two blocks, the second in the high halves.
void read_k(int bits, const uint8_t *file, int b, Codes &codes) {
  const uint8_t *low = file + (bits == 5 ? 48 : 16) + b / 2 * 32;
  for (int j = 0; j < 4; ++j) {
    codes[j] = read_word(low + 8 * j) >> b % 2 * 4 & in_each_byte(15);
    if (bits == 5) codes[j] |= (read_word(file + 16 + 8 * j) >> b & in_each_byte(1)) << 4;
  }
}

void read_q6_k(const uint8_t *file, int b, Codes &codes) {
  const uint8_t *low = file + b / 4 * 64 + b % 2 * 32;
  const uint8_t *high = file + 128 + b / 4 * 32;
  for (int j = 0; j < 4; ++j) {
    codes[j] = read_word(low + 8 * j) >> b % 4 / 2 * 4 & in_each_byte(15);
    codes[j] |= (read_word(high + 8 * j) >> b % 4 * 2 & in_each_byte(3)) << 4;
  }
}

// Columns 4v..4v+3, a byte each.
uint32_t columns(const Codes &codes, int v) { return static_cast<uint32_t>(codes[v / 2] >> v % 2 * 32); }

void write_vector(uint8_t *out, int vector, int row, uint32_t bytes) {
  memcpy(out + vector * kVectorBytes + 4 * row, &bytes, sizeof bytes);
}

void write_codes(int bits, const Codes &codes, int row, uint8_t *out) {
  if (bits == 8) {
    for (int v = 0; v < 8; ++v) write_vector(out, v, row, columns(codes, v));
    return;
  }
  for (int j = 0; j < 4; ++j) {
    const uint32_t pair = columns(codes, 2 * j) & in_four_bytes(15);
    write_vector(out, j, row, pair | (columns(codes, 2 * j + 1) & in_four_bytes(15)) << 4);
  }
  uint32_t high[2] = {};
  for (int v = 0; v < 8; ++v) {
    const uint32_t upper = columns(codes, v) >> 4;
    if (bits == 5) high[0] |= (upper & in_four_bytes(1)) << v;
    if (bits == 6) high[v / 4] |= (upper & in_four_bytes(3)) << v % 4 * 2;
  }
  for (int plane = 0; plane < bits - 4; ++plane) write_vector(out, 4 + plane, row, high[plane]);
}

// Block b of a super-block of Q4_K or Q5_K: scales of 6 bits, the upper two of some elsewhere.
void read_six_bit_scales(const uint8_t *packed, int b, uint8_t *scales) {
  if (b < 4) {
    scales[0] = packed[b] & 63;
    scales[1] = packed[4 + b] & 63;
  } else {
    scales[0] = static_cast<uint8_t>((packed[4 + b] & 15) | (packed[b - 4] >> 6 << 4));
    scales[1] = static_cast<uint8_t>((packed[4 + b] >> 4) | (packed[b] >> 6 << 4));
  }
}

// Scales of a super-block: d, -dmin, and those of each of its blocks.
void write_k_scales(int bits, const uint8_t *file, int num_blocks, int row, uint8_t *header) {
  const uint16_t scale = read_half(bits == 6 ? file + 208 : file);
  const uint16_t minimum = bits == 6 ? 0 : read_half(file + 2) ^ 0x8000;
  memcpy(header + 2 * row, &scale, sizeof scale);
  memcpy(header + 32 + 2 * row, &minimum, sizeof minimum);
  for (int b = 0; b < num_blocks; ++b) {
    uint8_t small[2];
    if (bits == 6) {
      memcpy(small, file + 192 + 2 * b, sizeof small);
    } else {
      read_six_bit_scales(file + 4, b, small);
    }
    header[64 + 32 * b + row] = small[0];
    header[64 + 32 * b + 16 + row] = small[1];
  }
}

// A row of a group of up to 256 columns; types are constants, so that nothing is decided per block.
template <int32_t kType>
void pack_row(const uint8_t *file, int num_blocks, int row, uint8_t *header) {
  constexpr Layout layout = layout_of(kType);
  uint8_t *out = header + header_bytes(layout, num_blocks);
  if (layout.has_groups) write_k_scales(layout.bits, file, num_blocks, row, header);
  for (int b = 0; b < num_blocks; ++b) {
    Codes codes;
    if (layout.bits == 6) {
      read_q6_k(file, b, codes);
    } else if (layout.has_groups) {
      read_k(layout.bits, file, b, codes);
    } else {
      memcpy(header + 32 * b + 2 * row, file, 2);
      if (layout.has_minima) memcpy(header + 32 * (num_blocks + b) + 2 * row, file + 2, 2);
      read_block(layout.bits, file + (layout.has_minima ? 4 : 2), codes);
      file += layout.file_bytes;
    }
    write_codes(layout.bits, codes, row, out);
    out += block_bytes(layout);
  }
}

template <int32_t kType>
void pack_panel(int32_t num_columns, const void *const *rows, int num_rows, uint8_t *out) {
  constexpr Layout layout = layout_of(kType);
  const int blocks = num_columns / kBlockColumns;
  for (int first = 0; first < blocks; first += 8) {
    const int num_blocks = blocks - first < 8 ? blocks - first : 8;
    const int64_t before = static_cast<int64_t>(first) * kBlockColumns / layout.file_columns * layout.file_bytes;
    memset(out, 0, static_cast<size_t>(num_rows < kPanelRows ? group_bytes(layout, num_blocks)
                                                             : header_bytes(layout, num_blocks)));
    for (int row = 0; row < num_rows; ++row) {
      pack_row<kType>(static_cast<const uint8_t *>(rows[row]) + before, num_blocks, row, out);
    }
    out += group_bytes(layout, num_blocks);
  }
}

using PackPanel = void (*)(int32_t num_columns, const void *const *rows, int num_rows, uint8_t *out);

PackPanel pack_panel_of(int32_t type) {
  switch (type) {
    case QK_Q4_0: return pack_panel<QK_Q4_0>;
    case QK_Q4_1: return pack_panel<QK_Q4_1>;
    case QK_Q5_0: return pack_panel<QK_Q5_0>;
    case QK_Q5_1: return pack_panel<QK_Q5_1>;
    case QK_Q8_0: return pack_panel<QK_Q8_0>;
    case QK_Q4_K: return pack_panel<QK_Q4_K>;
    case QK_Q5_K: return pack_panel<QK_Q5_K>;
    default: return pack_panel<QK_Q6_K>;
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
  const auto pack_panel = quire::pack_panel_of(type);
  for (int32_t row = 0; row < count; row += kPanelRows) {
    const int32_t left = count - row;
    pack_panel(num_columns, file_rows + row, left < kPanelRows ? left : kPanelRows,
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
