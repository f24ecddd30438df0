// From rows as they lie in a GGUF file to packed panels (layout.h), and back to floats.
#include <string.h>

#include "half.h"
#include "internal.h"
#include "lanes.h"
#include "layout.h"

// The layouts of the file are those of ggml's block structures (ggml-org/ggml, src/ggml-common.h).

namespace quire {
namespace {

// 32 codes of one row, a byte each: unsigned numbers of 4 to 8 bits, columns 0-15 and 16-31.
struct Codes {
  Lanes low, high;
};

constexpr int kRowsAtOnce = 4;  // whose codes are turned around together

constexpr uint32_t in_each_byte(uint32_t number) { return number * 0x01010101u; }

uint16_t read_half(const uint8_t *at) {
  uint16_t half;
  memcpy(&half, at, sizeof half);
  return half;
}

// Bits of two bytes: bit i becomes bit 4 of byte i.
Lanes as_fifth_bits(const uint8_t *at) {
  const uint32_t first = in_each_byte(at[0]), second = in_each_byte(at[1]);
  const Lanes bits = {first, first, second, second};
  const Lanes alone = bits & Lanes{0x08040201u, 0x80402010u, 0x08040201u, 0x80402010u};
  return (alone + in_each_byte(0x7f)) >> 3 & in_each_byte(0x10);
}

// A block as types with one scale per 32 numbers have it; `at` is behind its scale and minimum.
Codes read_block(int bits, const uint8_t *at) {
  if (bits == 8) {
    return {load_lanes(at) ^ in_each_byte(0x80), load_lanes(at + 16) ^ in_each_byte(0x80)};
  }
  const Lanes both = load_lanes(at + (bits == 5 ? 4 : 0));
  Codes codes = {both & in_each_byte(15), both >> 4 & in_each_byte(15)};
  if (bits == 5) codes = {codes.low | as_fifth_bits(at), codes.high | as_fifth_bits(at + 2)};
  return codes;
}

// 16 codes of block b of a super-block of Q4_K or Q5_K: 32 bytes hold two blocks, the second in the high halves.
Lanes read_k(int bits, const uint8_t *file, int b, int half) {
  const uint8_t *low = file + (bits == 5 ? 48 : 16) + b / 2 * 32 + 16 * half;
  const Lanes codes = load_lanes(low) >> b % 2 * 4 & in_each_byte(15);
  return bits == 4 ? codes : codes | (load_lanes(file + 16 + 16 * half) >> b & in_each_byte(1)) << 4;
}

Lanes read_q6_k(const uint8_t *file, int b, int half) {
  const uint8_t *low = file + b / 4 * 64 + b % 2 * 32 + 16 * half;
  const uint8_t *high = file + 128 + b / 4 * 32 + 16 * half;
  return (load_lanes(low) >> b % 4 / 2 * 4 & in_each_byte(15)) |
         (load_lanes(high) >> b % 4 * 2 & in_each_byte(3)) << 4;
}

// Block b of a group that begins at `file`.
Codes read_codes(const Layout &layout, const uint8_t *file, int b) {
  if (layout.bits == 6) return {read_q6_k(file, b, 0), read_q6_k(file, b, 1)};
  if (layout.has_groups && layout.levels == Levels::kIq) return read_block(layout.bits, file + 8 + 16 * b);
  if (layout.has_groups) return {read_k(layout.bits, file, b, 0), read_k(layout.bits, file, b, 1)};
  const int scale_bytes = layout.levels == Levels::kMx ? 1 : layout.has_minima ? 4 : 2;
  return read_block(layout.bits, file + b * layout.file_bytes + scale_bytes);
}

// A block of four rows: lane r of `columns[v]` has columns 4v..4v+3 of row r; `out` is the first row's place.
void write_codes(int bits, const Lanes (&columns)[8], uint8_t *out) {
  if (bits == 8) {
    for (int v = 0; v < 8; ++v) store_lanes(out + v * kVectorBytes, columns[v]);
    return;
  }
  for (int j = 0; j < 4; ++j) {
    const Lanes second = (columns[2 * j + 1] & in_each_byte(15)) << 4;
    store_lanes(out + j * kVectorBytes, (columns[2 * j] & in_each_byte(15)) | second);
  }
  const int each = 8 >> (bits - 4) / 2;  // vectors whose upper bits are in one plane: 8 of one bit, 4 of two
  for (int plane = 0; plane < bits - 4; ++plane) {
    Lanes upper = {};
    for (int v = 0; v < each; ++v) {
      upper = upper | (columns[plane * each + v] >> 4 & in_each_byte(bits == 5 ? 1 : 3)) << v * (bits - 4);
    }
    store_lanes(out + (4 + plane) * kVectorBytes, upper);
  }
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

// Scales of a super-block of IQ4_XS: d, and of each block 6 bits less 32, the upper two of them elsewhere.
void write_iq4_xs_scales(const uint8_t *file, int num_blocks, int row, uint8_t *header) {
  memcpy(header + 2 * row, file, 2);
  const uint16_t upper = read_half(file + 2);
  for (int b = 0; b < num_blocks; ++b) {
    const int lower = file[4 + b / 2] >> b % 2 * 4 & 15;
    const uint8_t scale = static_cast<uint8_t>((lower | (upper >> 2 * b & 3) << 4) - 32);
    header[64 + 32 * b + row] = scale;
    header[64 + 32 * b + 16 + row] = scale;
  }
}

// Half of 2^(exponent - 127) as a bfloat, since levels are doubled; 255 is no number.
uint16_t mx_scale(uint8_t exponent) {
  if (exponent == 255) return 0x7fc0;
  return exponent < 2 ? static_cast<uint16_t>(0x20 << exponent) : static_cast<uint16_t>((exponent - 1) << 7);
}

void write_scales(const Layout &layout, const uint8_t *file, int num_blocks, int row, uint8_t *header) {
  if (layout.has_groups && layout.levels == Levels::kIq) return write_iq4_xs_scales(file, num_blocks, row, header);
  if (layout.has_groups) return write_k_scales(layout.bits, file, num_blocks, row, header);
  for (int b = 0; b < num_blocks; ++b, file += layout.file_bytes) {
    const uint16_t scale = layout.levels == Levels::kMx ? mx_scale(*file) : read_half(file);
    memcpy(header + 32 * b + 2 * row, &scale, sizeof scale);
    if (layout.has_minima) memcpy(header + 32 * (num_blocks + b) + 2 * row, file + 2, 2);
  }
}

// Up to four rows of a group of up to 256 columns; types are constants, so that nothing is decided per block.
template <int32_t kType>
void pack_rows(const uint8_t *const *files, int num_rows, int num_blocks, int row, uint8_t *header) {
  constexpr Layout layout = layout_of(kType);
  for (int r = 0; r < num_rows; ++r) write_scales(layout, files[r], num_blocks, row + r, header);
  uint8_t *out = header + header_bytes(layout, num_blocks) + 4 * row;
  for (int b = 0; b < num_blocks; ++b, out += block_bytes(layout)) {
    Lanes low[kRowsAtOnce] = {}, high[kRowsAtOnce] = {}, columns[8];
    for (int r = 0; r < num_rows; ++r) {
      const Codes codes = read_codes(layout, files[r], b);
      low[r] = codes.low;
      high[r] = codes.high;
    }
    transpose(low, columns);
    transpose(high, columns + 4);
    write_codes(layout.bits, columns, out);
  }
}

// Each row is a short stream that no processor foresees: what lies there in the next panel is asked for now.
void prefetch(const uint8_t *at, int num_bytes) {
#if defined(__GNUC__)
  for (int byte = 0; byte < num_bytes; byte += 64) __builtin_prefetch(at + byte);
#else
  (void)at, (void)num_bytes;
#endif
}

// The first panel of the rows that are left.
template <int32_t kType>
void pack_panel(int32_t num_columns, const void *const *rows, int num_left, uint8_t *out) {
  constexpr Layout layout = layout_of(kType);
  const int num_rows = num_left < kPanelRows ? num_left : kPanelRows;
  const int blocks = num_columns / kBlockColumns;
  for (int first = 0; first < blocks; first += 8) {
    const int num_blocks = blocks - first < 8 ? blocks - first : 8;
    const int64_t before = static_cast<int64_t>(first) * kBlockColumns / layout.file_columns * layout.file_bytes;
    const int num_bytes = num_blocks * kBlockColumns / layout.file_columns * layout.file_bytes;
    memset(out, 0, static_cast<size_t>(num_rows < kPanelRows ? group_bytes(layout, num_blocks)
                                                             : header_bytes(layout, num_blocks)));
    for (int row = 0; row < num_rows; row += kRowsAtOnce) {
      const int count = num_rows - row < kRowsAtOnce ? num_rows - row : kRowsAtOnce;
      const uint8_t *files[kRowsAtOnce] = {};
      for (int r = 0; r < count; ++r) {
        files[r] = static_cast<const uint8_t *>(rows[row + r]) + before;
        const int next = row + r + kPanelRows;
        if (next < num_left) prefetch(static_cast<const uint8_t *>(rows[next]) + before, num_bytes);
      }
      if (count == kRowsAtOnce) {
        pack_rows<kType>(files, kRowsAtOnce, num_blocks, row, out);  // a constant: no loop is left of it
      } else {
        pack_rows<kType>(files, count, num_blocks, row, out);
      }
    }
    out += group_bytes(layout, num_blocks);
  }
}

using PackPanel = void (*)(int32_t num_columns, const void *const *rows, int num_left, uint8_t *out);

PackPanel pack_panel_of(int32_t type) {
  switch (type) {
    case QK_Q4_0: return pack_panel<QK_Q4_0>;
    case QK_Q4_1: return pack_panel<QK_Q4_1>;
    case QK_Q5_0: return pack_panel<QK_Q5_0>;
    case QK_Q5_1: return pack_panel<QK_Q5_1>;
    case QK_Q8_0: return pack_panel<QK_Q8_0>;
    case QK_Q4_K: return pack_panel<QK_Q4_K>;
    case QK_Q5_K: return pack_panel<QK_Q5_K>;
    case QK_MXFP4: return pack_panel<QK_MXFP4>;
    case QK_IQ4_NL: return pack_panel<QK_IQ4_NL>;
    case QK_IQ4_XS: return pack_panel<QK_IQ4_XS>;
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
  return layout.levels == Levels::kNone ? code : levels_of(layout.levels)[code];
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
  const uint16_t scale = read_half(header + 32 * b + 2 * row);
  const float factor = layout.levels == Levels::kMx ? bfloat_to_float(scale) : half_to_float(scale);
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
    pack_panel(num_columns, file_rows + row, count - row, out + (first_row + row) / kPanelRows * bytes);
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
