// The automatic step size of unrolled SGD, kStep / lambda_max(M) with M = (V V^T + 1 1^T) / B, by 16 power iterations from 1.

#pragma once

#include <algorithm>
#include <cmath>

#include "../runtime/product.h"

namespace {

constexpr int kStep = 6, kIterations = 16;  // three quarters of the largest stable size, 8 / lambda_max(M)
constexpr int64_t kFewVisible = 16;         // visible units below which the iterations run on a Gram matrix

template <typename T>
T norm(const T* y, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(y[i]) * static_cast<double>(y[i]);
  return static_cast<T>(std::sqrt(sum));
}

template <typename T>
void normalise(T* y, int64_t n) {
  const T length = norm(y, n);
  for (int64_t i = 0; i < n; ++i) y[i] /= length;
}

// From M [B, B]; y and z [B] are scratch.
template <typename T>
T step_size_by_matrix(const T* M, int64_t B, T* y, T* z) {
  std::fill(y, y + B, T(1));
  for (int i = 0; i < kIterations; ++i) {
    normalise(y, B);
    product<T>({y, 1, B}, {M, B, B}, 1, 0, z);
    std::swap(y, z);
  }
  return kStep / norm(y, B);
}

// By products with V [B, D]; `left` [B] and `right` [D] are scratch.
template <typename T>
T step_size_by_products(Matrix<T> V, T* left, T* right) {
  const int64_t B = V.rows;
  std::fill(left, left + B, T(1));
  for (int i = 0; i < kIterations; ++i) {
    normalise(left, B);
    T sum = 0;
    for (int64_t j = 0; j < B; ++j) sum += left[j];
    product<T>({left, 1, B}, V, 1, 0, right);
    product<T>(V, {right, V.cols, 1}, 1, 0, left);
    for (int64_t j = 0; j < B; ++j) left[j] = (left[j] + sum) / static_cast<T>(B);
  }
  return kStep / norm(left, B);
}

// M = U U^T / B with U = [V 1], so that M^i 1 = U G^i e_D with G = U^T U / B: the same iterates in D + 1 numbers.
template <typename T>
T step_size_by_gram(Matrix<T> V) {
  const int64_t D = V.cols, n = D + 1;
  const double B = static_cast<double>(V.rows);
  double G[kFewVisible * kFewVisible] = {}, z[kFewVisible] = {}, next[kFewVisible], u[kFewVisible];
  for (int64_t i = 0; i < V.rows; ++i) {
    std::copy(V.data + i * D, V.data + (i + 1) * D, u);
    u[D] = 1;
    for (int64_t j = 0; j < n; ++j)
      for (int64_t k = 0; k < n; ++k) G[j * n + k] += u[j] * u[k] / B;
  }
  z[D] = 1;
  for (int i = 0;; ++i) {
    double square = 0;  // |U z|^2 / B = z^T G z
    for (int64_t j = 0; j < n; ++j) {
      next[j] = 0;
      for (int64_t k = 0; k < n; ++k) next[j] += G[j * n + k] * z[k];
      square += z[j] * next[j];
    }
    const double length = std::sqrt(B * square);
    if (i == kIterations) return static_cast<T>(kStep / length);
    for (int64_t j = 0; j < n; ++j) z[j] = next[j] / length;
  }
}

}  // namespace
