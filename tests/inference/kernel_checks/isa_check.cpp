// One instruction set against plain C++ on random weights, as a program: for processors that are emulated.
// Usage: isa_check NAME. Exit status 0: all products agree, and no row depends on its company.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <random>
#include <vector>

#include "quire_kernels.h"

namespace {

struct Type {
  int32_t number;
  const char *name;
  int block_bytes;
  std::vector<int> scales;  // where halves lie in a block
};

const std::vector<Type> kTypes = {
    {QK_Q4_0, "Q4_0", 18, {0}},     {QK_Q4_1, "Q4_1", 20, {0, 2}},  {QK_Q5_0, "Q5_0", 22, {0}},
    {QK_Q5_1, "Q5_1", 24, {0, 2}},  {QK_Q8_0, "Q8_0", 34, {0}},     {QK_Q4_K, "Q4_K", 144, {0, 2}},
    {QK_Q5_K, "Q5_K", 176, {0, 2}}, {QK_Q6_K, "Q6_K", 210, {208}},  {QK_F32, "F32", 4, {2}},
    {QK_F16, "F16", 2, {0}},        {QK_BF16, "BF16", 2, {0}},      {QK_MXFP4, "MXFP4", 17, {}},
};
constexpr int kRows = 53;

std::mt19937 random_bits(1);

// A half of some 0.1 to 1, or the upper half of a float between 2^-5 and 4.
uint16_t random_scale(int32_t type) {
  const bool is_wide = type == QK_F32 || type == QK_BF16;
  const uint32_t size = is_wide ? 0x3d00 + random_bits() % 0x0380 : 0x2c00 + random_bits() % 0x0c00;
  return static_cast<uint16_t>(size | (random_bits() & 1) << 15);
}

std::vector<uint8_t> random_rows(const Type &type, size_t row_bytes) {
  std::vector<uint8_t> rows(row_bytes * kRows);
  for (uint8_t &byte : rows) byte = static_cast<uint8_t>(random_bits());
  for (size_t block = 0; block < rows.size(); block += type.block_bytes) {
    for (int place : type.scales) {
      const uint16_t scale = random_scale(type.number);
      memcpy(&rows[block + place], &scale, sizeof scale);
    }
    if (type.number == QK_MXFP4) rows[block] = static_cast<uint8_t>(122 + random_bits() % 8);  // an exponent
  }
  return rows;
}

struct Packed {
  std::vector<uint8_t> memory;
  qk_matrix matrix;
};

Packed pack(const Type &type, int32_t columns) {
  const size_t row_bytes = qk_file_row_bytes(type.number, columns);
  const std::vector<uint8_t> rows = random_rows(type, row_bytes);
  std::vector<const void *> addresses;
  for (int row = 0; row < kRows; ++row) addresses.push_back(&rows[row * row_bytes]);
  Packed packed;
  packed.memory.resize(qk_packed_bytes(type.number, kRows, columns) + 64);
  uint8_t *data = packed.memory.data() + (64 - reinterpret_cast<uintptr_t>(packed.memory.data()) % 64);
  qk_pack(type.number, kRows, columns, data, 0, kRows, addresses.data());
  packed.matrix = {type.number, kRows, columns, 0, data};
  return packed;
}

// The error relative to the size of what was added up.
double error_of(const qk_matrix &matrix, const float *x, const float *y, const float *wanted) {
  std::vector<float> weights(matrix.num_columns);
  double worst = 0;
  for (int row = 0; row < kRows; ++row) {
    qk_unpack_row(&matrix, row, weights.data());
    double size = 0;
    for (int c = 0; c < matrix.num_columns; ++c) size += fabs(static_cast<double>(weights[c]) * x[c]);
    const double error = fabs(static_cast<double>(y[row]) - wanted[row]) / size;
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

int check(qk_team *team, const char *isa, const Type &type, int32_t columns, int num_x) {
  const Packed packed = pack(type, columns);
  std::vector<float> x(static_cast<size_t>(num_x) * columns);
  for (float &value : x) value = (static_cast<int>(random_bits() % 2001) - 1000) / 500.0f;
  std::vector<float> plain(num_x * kRows), y(num_x * kRows), alone(kRows);
  qk_set_isa("portable");
  qk_matmul(team, &packed.matrix, x.data(), num_x, columns, plain.data(), kRows);
  qk_set_isa(isa);
  qk_matmul(team, &packed.matrix, x.data(), num_x, columns, y.data(), kRows);
  int failures = 0;
  for (int r = 0; r < num_x; ++r) {
    const float *row = &x[static_cast<size_t>(r) * columns];
    const bool is_close = error_of(packed.matrix, row, &y[r * kRows], &plain[r * kRows]) <= 1e-6;
    qk_matmul(team, &packed.matrix, row, 1, columns, alone.data(), kRows);
    const bool is_same = memcmp(alone.data(), &y[r * kRows], sizeof(float) * kRows) == 0;
    if (is_close && is_same) continue;
    printf("%s, %d columns, row %d of %d: %s\n", type.name, columns, r, num_x,
           is_close ? "other bits alone" : "far from plain C++");
    ++failures;
  }
  return failures;
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 2 || qk_set_isa(argv[1]) != 0) {
    printf("there is no such instruction set\n");
    return 2;
  }
  int failures = 0;
  for (int threads : {1, 3}) {
    qk_team *team = qk_team_new(threads);
    for (const Type &type : kTypes) {
      for (int32_t columns : {256, 768}) {
        for (int num_x : {1, 2, 3, 4, 5, 6, 7, 8, 9, 33}) {
          failures += check(team, argv[1], type, columns, num_x);
        }
      }
    }
    qk_team_free(team);
  }
  printf("%d failures\n", failures);
  return failures != 0;
}
