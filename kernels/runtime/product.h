// Products of row-major matrices: torch's, or plain loops for tiny ones, which cost less than a call of torch.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "native.h"
#include "tensors.h"

namespace {

template <typename T>
struct Matrix {
  const T* data;
  int64_t rows, cols;
  bool transposed = false;                   // stored as [cols, rows]
  int64_t pitch = transposed ? rows : cols;  // from one stored row to the next

  Matrix t() const { return {data, cols, rows, !transposed, pitch}; }
  // Columns begin .. begin + count - 1 of a matrix that is stored by rows.
  Matrix columns(int64_t begin, int64_t count) const { return {data + begin, rows, count, false, pitch}; }
  int64_t row_stride() const { return transposed ? 1 : pitch; }
  int64_t col_stride() const { return transposed ? pitch : 1; }
  at::Tensor tensor() const {
    const auto options = at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value);
    return at::from_blob(const_cast<T*>(data), {rows, cols}, {row_stride(), col_stride()}, options);
  }
};

constexpr int64_t kTiny = 16384;  // multiply-adds below which the loops are faster

// kColumns is the width of the result if it is known when compiling, else 0.
template <int kColumns, typename T>
EBLVM_INLINE void tiny_product(Matrix<T> a, const T* __restrict b, int64_t columns, T alpha, T beta, T* __restrict c) {
  const int64_t n = kColumns ? kColumns : columns, ars = a.row_stride(), acs = a.col_stride();
  T sums[kColumns ? kColumns : 1024];
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < n; ++j) sums[j] = 0;
    for (int64_t k = 0; k < a.cols; ++k) {
      const T x = a.data[i * ars + k * acs];
      for (int64_t j = 0; j < n; ++j) sums[j] += x * b[k * n + j];
    }
    for (int64_t j = 0; j < n; ++j) c[i * n + j] = (beta == T(0) ? T(0) : beta * c[i * n + j]) + alpha * sums[j];
  }
}

// The same with everything but the number of rows known when compiling: a few instructions per row.
template <int kInner, int kColumns, typename T>
EBLVM_INLINE void tiny_rows(const T* __restrict a, int64_t rows, const T* __restrict b, T alpha, T beta, T* __restrict c) {
  T scaled[kInner * kColumns];
  for (int i = 0; i < kInner * kColumns; ++i) scaled[i] = alpha * b[i];
  const auto row = [&](int64_t i, int j) __attribute__((always_inline)) {
    T sum = 0;
    for (int k = 0; k < kInner; ++k) sum += a[i * kInner + k] * scaled[k * kColumns + j];
    return sum;
  };
  if (beta == T(0)) {
    for (int64_t i = 0; i < rows; ++i)
      for (int j = 0; j < kColumns; ++j) c[i * kColumns + j] = row(i, j);
  } else {
    for (int64_t i = 0; i < rows; ++i)
      for (int j = 0; j < kColumns; ++j) c[i * kColumns + j] = beta * c[i * kColumns + j] + row(i, j);
  }
}

// Four floats in a register of the size that every machine has; compilers' own code for products of 2 by 4 is slower.
typedef float Quad __attribute__((vector_size(16)));

EBLVM_INLINE Quad quad(const float* from) {
  Quad lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

// c [rows, 4] = a [rows, 2] b + start(c's row)
template <typename Start>
EBLVM_INLINE void quad_rows(const float* __restrict a, int64_t rows, const float* b, float alpha, const Start& start,
                            float* __restrict c) {
  const Quad b0 = alpha * quad(b), b1 = alpha * quad(b + 4);
  for (int64_t i = 0; i < rows; ++i) {
    const Quad sum = start(c + 4 * i) + a[2 * i] * b0 + a[2 * i + 1] * b1;
    std::memcpy(c + 4 * i, &sum, sizeof sum);
  }
}

// sums [2, 4] of two [n, 2] and four [n, 4] over n: even and odd rows on their own, since a sum waits for the one before.
EBLVM_INLINE void quad_sums(const float* two, const float* four, int64_t n, Quad (&sums)[2]) {
  Quad odd[2] = {};
  for (int64_t k = 0; k + 1 < n; k += 2) {
    const Quad even_row = quad(four + 4 * k), odd_row = quad(four + 4 * k + 4);
    for (int i = 0; i < 2; ++i) {
      sums[i] += two[2 * k + i] * even_row;
      odd[i] += two[2 * k + 2 + i] * odd_row;
    }
  }
  for (int i = 0; i < 2; ++i) {
    sums[i] += odd[i];
    if (n % 2) sums[i] += two[2 * n - 2 + i] * quad(four + 4 * n - 4);
  }
}

// Products of 2 by 4, the checkerboard's sizes; false for other sizes.
EBLVM_INLINE bool quad_product(Matrix<float> a, const float* b, int64_t columns, float alpha, float beta, float* c) {
  if (!a.transposed && a.cols == 2 && columns == 4) {
    if (beta == 0.0f) {
      quad_rows(a.data, a.rows, b, alpha, [](const float*) { return Quad{}; }, c);
    } else {
      quad_rows(a.data, a.rows, b, alpha, [=](const float* row) { return beta * quad(row); }, c);
    }
    return true;
  }
  if (!a.transposed || a.rows * columns != 8 || a.rows == 8 || columns == 8) return false;
  const bool wide = columns == 4;
  Quad sums[2] = {};
  quad_sums(wide ? a.data : b, wide ? b : a.data, a.cols, sums);
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      float& to = c[i * columns + j];
      to = (beta == 0.0f ? 0.0f : beta * to) + alpha * (wide ? sums[i][j] : sums[j][i]);
    }
  return true;
}

// b's rows one after the other: its own memory, or `turned`.
template <typename T>
EBLVM_INLINE const T* row_major(Matrix<T> b, T* turned) {
  if (!b.transposed && b.pitch == b.cols) return b.data;
  for (int64_t k = 0; k < b.rows; ++k)
    for (int64_t j = 0; j < b.cols; ++j) turned[k * b.cols + j] = b.data[k * b.row_stride() + j * b.col_stride()];
  return turned;
}

// c = alpha a b + beta c; with beta = 0 c is not read. c's rows are `pitch` apart, else one after the other.
template <typename T>
void product(Matrix<T> a, Matrix<T> b, T alpha, T beta, T* c, int64_t pitch = 0) {
  const int64_t size = a.rows * a.cols * b.cols;
  const bool apart = pitch != 0 && pitch != b.cols;
  if (size > kTiny || b.cols > 1024 || b.rows * b.cols > 4096 || apart) {
    const Matrix<T> to{c, a.rows, b.cols, false, apart ? pitch : b.cols};
    to.tensor().addmm_(a.tensor(), b.tensor(), static_cast<double>(beta), static_cast<double>(alpha));
    return;
  }
  T turned[4096];
  const T* const plain = row_major(b, turned);
  if constexpr (std::is_same_v<T, float>) {
    if (quad_product(a, plain, b.cols, alpha, beta, c)) return;
  }
  if (!a.transposed && a.cols == 4 && b.cols == 2) return tiny_rows<4, 2>(a.data, a.rows, plain, alpha, beta, c);
  switch (b.cols) {
    case 2:
      return tiny_product<2>(a, plain, 2, alpha, beta, c);
    case 4:
      return tiny_product<4>(a, plain, 4, alpha, beta, c);
    case 8:
      return tiny_product<8>(a, plain, 8, alpha, beta, c);
    default:
      return tiny_product<0>(a, plain, b.cols, alpha, beta, c);
  }
}

// c = alpha (a b + row), the same row in each.
template <typename T>
void affine(Matrix<T> a, Matrix<T> b, T alpha, const T* row, T* c) {
  if constexpr (std::is_same_v<T, float>) {
    if (!a.transposed && a.cols == 2 && b.cols == 4) {
      float turned[8];
      const Quad start = alpha * quad(row);
      return quad_rows(a.data, a.rows, row_major(b, turned), alpha, [=](const float*) { return start; }, c);
    }
  }
  for (int64_t j = 0; j < b.cols; ++j) c[j] = alpha * row[j];
  // Copies of copies: a few long ones instead of one for each short row.
  for (int64_t done = 1; done < a.rows; done *= 2) std::copy(c, c + std::min(done, a.rows - done) * b.cols, c + done * b.cols);
  product<T>(a, b, alpha, 1, c);
}

}  // namespace
