// How a packed matrix lies in memory. Plain numbers only, for the packing and for every instruction set.
//
// A panel is 16 rows. It is cut into groups of 256 columns (the last one may be shorter, by whole blocks of
// 32), so that one walk from the first byte to the last reads everything once:
//
//   group   scales of its blocks, padded to 64 bytes | block | block | ...
//   scales  types with one scale per 32 numbers: for each block 16 halves (one per row); then, if the type
//           stores minima, for each block 16 halves. MXFP4: bfloats for halves, since its scales are powers of two
//           that halves do not reach.
//           K types and IQ4_XS: 16 halves d, 16 halves -dmin (Q6_K, IQ4_XS: unused); then for each block 16 bytes of
//           scales and 16 bytes of minima, or for Q6_K 2 x 16 signed bytes, a scale per 16 columns; IQ4_XS has the same
//           one twice.
//   block   4-bit part, 4 x 64 bytes: vector j holds for each row 4 bytes; their low halves are columns
//           8j..8j+3, their high halves 8j+4..8j+7. MXFP4, IQ4: places in a table of levels.
//           fifth bits, 64 bytes: for each row 4 bytes; bit v of byte c belongs to column 4v+c.
//           fifth and sixth bits (Q6_K), 2 x 64 bytes: pair of bits v of byte c of vector h belongs to column
//           16h+4v+c.
//           Q8_0: 8 x 64 bytes, vector v holds columns 4v..4v+3 of each row, plus 128.
//
// So an instruction that multiplies 4 neighbouring bytes and adds them up gives one number per row, and
// nothing is ever added across lanes. Rows beyond the matrix are zeros.
#ifndef QUIRE_LAYOUT_H
#define QUIRE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "quire_kernels.h"

namespace quire {

// What codes of 4 bits stand for: numbers, or places in kMxLevels or kIqLevels.
enum class Levels { kNone, kMx, kIq };

struct Layout {
  int32_t bits;            // 4, 5, 6, 8
  bool has_groups;         // K type: scales of scales
  bool has_minima;         // stored minima
  int32_t zero;            // what is taken off each code or level
  int32_t file_columns;    // columns per block in the file
  int32_t file_bytes;      // bytes per block in the file
  Levels levels;
};

constexpr int kVectorBytes = 64;  // 16 rows x 4 columns
constexpr int kGroupHeaderBytes = 320;  // of K types

// Of a quantised type; bits is 0 for any other.
constexpr Layout layout_of(int32_t type) {
  switch (type) {
    case QK_Q4_0: return {4, false, false, 8, 32, 18, Levels::kNone};
    case QK_Q4_1: return {4, false, true, 0, 32, 20, Levels::kNone};
    case QK_Q5_0: return {5, false, false, 16, 32, 22, Levels::kNone};
    case QK_Q5_1: return {5, false, true, 0, 32, 24, Levels::kNone};
    case QK_Q8_0: return {8, false, false, 128, 32, 34, Levels::kNone};
    case QK_Q4_K: return {4, true, true, 0, 256, 144, Levels::kNone};
    case QK_Q5_K: return {5, true, true, 0, 256, 176, Levels::kNone};
    case QK_Q6_K: return {6, true, false, 32, 256, 210, Levels::kNone};
    case QK_MXFP4: return {4, false, false, 12, 32, 17, Levels::kMx};
    case QK_IQ4_NL: return {4, false, false, 128, 32, 18, Levels::kIq};
    case QK_IQ4_XS: return {4, true, false, 128, 256, 136, Levels::kIq};
    default: return {0, false, false, 0, 0, 0, Levels::kNone};
  }
}

// Twice what a code of MXFP4 stands for (a float of 4 bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6, then the negative ones), plus 12.
constexpr uint8_t kMxLevels[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// What a code of IQ4_NL or IQ4_XS stands for (ggml-org/ggml, src/ggml-common.h), plus 128.
constexpr uint8_t kIqLevels[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

constexpr const uint8_t *levels_of(Levels levels) { return levels == Levels::kMx ? kMxLevels : kIqLevels; }

// Bytes of a block of 16 rows x 32 columns, without scales.
constexpr int block_bytes(const Layout &layout) { return layout.bits * 64; }

// Bytes of the scales before num_blocks blocks.
constexpr int header_bytes(const Layout &layout, int num_blocks) {
  return layout.has_groups ? kGroupHeaderBytes
                           : (num_blocks * (layout.has_minima ? 64 : 32) + 63) / 64 * 64;
}

constexpr int group_bytes(const Layout &layout, int num_blocks) {
  return header_bytes(layout, num_blocks) + num_blocks * block_bytes(layout);
}

// Bytes of a panel of num_columns.
constexpr int64_t panel_bytes(const Layout &layout, int32_t num_columns) {
  const int32_t blocks = num_columns / 32;
  const int64_t whole = static_cast<int64_t>(blocks / 8) * group_bytes(layout, 8);
  return whole + (blocks % 8 ? group_bytes(layout, blocks % 8) : 0);
}

}  // namespace quire

#endif
