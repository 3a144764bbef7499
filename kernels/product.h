// Matrix products of row-major matrices: torch's, or for tiny ones plain loops that cost less than its call.

#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "native.h"

namespace {

template <typename T>
struct Matrix {
  const T* data;
  int64_t rows, cols;
  bool transposed = false;  // stored as [cols, rows]

  Matrix t() const { return {data, cols, rows, !transposed}; }
  int64_t row_stride() const { return transposed ? 1 : cols; }
  int64_t col_stride() const { return transposed ? rows : 1; }
  at::Tensor tensor() const {
    const auto options = at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value);
    T* const memory = const_cast<T*>(data);
    return transposed ? at::from_blob(memory, {cols, rows}, options).t() : at::from_blob(memory, {rows, cols}, options);
  }
};

constexpr int64_t kTiny = 16384;  // multiply-adds below which the loops win

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

// The same where everything but the number of rows is known when compiling: a few instructions a row.
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

// The same for a transposed `a` with few rows: all sums stay in registers while both factors are read once.
template <int kRows, int kColumns, typename T>
EBLVM_INLINE void tiny_transposed(Matrix<T> a, const T* __restrict b, T alpha, T beta, T* __restrict c) {
  T sums[kRows * kColumns] = {};
  for (int64_t k = 0; k < a.cols; ++k)
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kColumns; ++j) sums[i * kColumns + j] += a.data[k * kRows + i] * b[k * kColumns + j];
  for (int i = 0; i < kRows * kColumns; ++i) c[i] = (beta == T(0) ? T(0) : beta * c[i]) + alpha * sums[i];
}

// c = alpha a b + beta c; with beta = 0 what c held is not read.
template <typename T>
void product(Matrix<T> a, Matrix<T> b, T alpha, T beta, T* c) {
  const int64_t size = a.rows * a.cols * b.cols;
  if (size > kTiny || b.cols > 1024 || b.rows * b.cols > 4096) {
    Matrix<T>{c, a.rows, b.cols}.tensor().addmm_(a.tensor(), b.tensor(), static_cast<double>(beta), static_cast<double>(alpha));
    return;
  }
  T packed[4096];
  const T* plain = b.data;
  if (b.transposed) {
    for (int64_t k = 0; k < b.rows; ++k)
      for (int64_t j = 0; j < b.cols; ++j) packed[k * b.cols + j] = b.data[j * b.rows + k];
    plain = packed;
  }
  if (a.transposed && a.rows == 4 && b.cols == 2) return tiny_transposed<4, 2>(a, plain, alpha, beta, c);
  if (a.transposed && a.rows == 2 && b.cols == 4) return tiny_transposed<2, 4>(a, plain, alpha, beta, c);
  if (!a.transposed && a.cols == 2 && b.cols == 4) return tiny_rows<2, 4>(a.data, a.rows, plain, alpha, beta, c);
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

}  // namespace
