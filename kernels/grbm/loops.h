// The loops between the matrix products of GRBM steps, one clone for every instruction set. Each runs over one row or more.

#pragma once

#include <algorithm>

#include "../runtime/native.h"
#include "../runtime/parallel.h"
#include "../runtime/sums.h"

namespace {

// x becomes sigmoid(x + c); returns sum softplus(x + c). Both from one exp(-|x + c|).
template <typename T>
EBLVM_INLINE T activate_body(int64_t H, const T* __restrict c, T* __restrict x) {
  return sum_of<T>(H, [&](int64_t i) __attribute__((always_inline)) {
    const T z = x[i] + c[i];
    const T e = exp_clamped(z > T(0) ? -z : z);
    const T q = T(1) / (T(1) + e);
    x[i] = z > T(0) ? q : e * q;
    return (z > T(0) ? z : T(0)) + log1p_unit(e);
  });
}

// The latent part of the score, in m, becomes the score; returns 1/2 sum (v-b)^2/sigma^2, if kGiven less v.m.
template <bool kGiven, typename T>
EBLVM_INLINE T score_body(int64_t D, const T* __restrict v, const T* __restrict b, const T* __restrict precision,
                          T* __restrict m) {
  return sum_of<T>(D, [&](int64_t d) __attribute__((always_inline)) {
    const T z = v[d] - b[d];
    const T away = z * precision[d];
    const T pull = m[d];
    m[d] = pull - away;
    return T(0.5) * z * away - (kGiven ? v[d] * pull : T(0));
  });
}

// From cotangents g of the energy and r of the score: adds to those of b and log_sigma, and writes v's; without `scores`
// (the energy's own part of it, if kGiven) only the explicit part, to which the latents add theirs.
template <bool kGiven, typename T>
EBLVM_INLINE void visible_body(int64_t D, T g, const T* __restrict r, const T* __restrict scores, const T* __restrict v,
                               const T* __restrict b, const T* __restrict precision, T* __restrict b_bar,
                               T* __restrict log_sigma_bar, T* __restrict v_bar) {
  for (int64_t d = 0; d < D; ++d) {
    const T z = v[d] - b[d];
    const T away = z * precision[d];
    const T pull = r[d] * precision[d];
    b_bar[d] += pull - g * away;
    log_sigma_bar[d] += away * (T(2) * r[d] - g * z);
    v_bar[d] = -g * (kGiven ? scores[d] : -away) - pull;
  }
}

// Of the rows of v [B, D]: r = (s(v) + eps/sigma) / B in the place of the latent part of the score; its gradients of b and
// log_sigma; B^2 r^2 summed over the rows, in `squares` [D], and over all.
template <typename T>
EBLVM_INLINE double residuals_body(int64_t B, int64_t D, const T* __restrict v, const T* __restrict eps, const T* __restrict b,
                                   const T* __restrict precision, T sigma, T* __restrict r, T* __restrict b_bar,
                                   T* __restrict log_sigma_bar, T* __restrict squares) {
  for (int64_t d = 0; d < D; ++d) b_bar[d] = log_sigma_bar[d] = squares[d] = T(0);
  const T batch = static_cast<T>(B);
  for (int64_t i = 0; i < B; ++i, v += D, eps += D, r += D) {
    for (int64_t d = 0; d < D; ++d) {
      const T away = (v[d] - b[d]) * precision[d];
      const T score = r[d] - away + eps[d] / sigma;
      squares[d] += score * score;
      r[d] = score / batch;
      b_bar[d] += r[d] * precision[d];
      log_sigma_bar[d] += T(2) * r[d] * away;
    }
  }
  double sum = 0;
  for (int64_t d = 0; d < D; ++d) sum += static_cast<double>(squares[d]);
  return sum;
}

// 1/2 sum (v-b)^2/sigma^2 over the rows of v [B, D]; `squares` [D] is scratch.
template <typename T>
EBLVM_INLINE double quadratic_body(int64_t B, int64_t D, const T* __restrict v, const T* __restrict b,
                                   const T* __restrict precision, T* __restrict squares) {
  for (int64_t d = 0; d < D; ++d) squares[d] = T(0);
  for (int64_t i = 0; i < B; ++i, v += D)
    for (int64_t d = 0; d < D; ++d) squares[d] += (v[d] - b[d]) * (v[d] - b[d]);
  double sum = 0;
  for (int64_t d = 0; d < D; ++d) sum += static_cast<double>(squares[d]) * static_cast<double>(precision[d]);
  return sum / 2;
}

// Rows side by side in registers: one sum a column would wait for itself in every row.
template <int kColumns, typename T>
EBLVM_INLINE void add_narrow_rows(T* __restrict to, const T* __restrict from, int64_t rows) {
  constexpr int kLanes = 16;
  static_assert(kLanes % kColumns == 0);
  const T* const end = from + rows * kColumns;
  T sums[kLanes] = {};
  for (; end - from >= kLanes; from += kLanes)
    for (int i = 0; i < kLanes; ++i) sums[i] += from[i];
  for (; from < end; from += kColumns)
    for (int i = 0; i < kColumns; ++i) sums[i] += from[i];
  for (int i = 0; i < kLanes; ++i) to[i % kColumns] += sums[i];
}

template <typename T>
EBLVM_INLINE void add_rows_body(T* __restrict to, const T* __restrict from, int64_t rows, int64_t n) {
  if (n == 2) return add_narrow_rows<2>(to, from, rows);
  if (n == 4) return add_narrow_rows<4>(to, from, rows);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < n; ++i) to[i] += from[r * n + i];
}

#define EBLVM_LOOPS(T)                                                                                                         \
  EBLVM_CLONES T activate(int64_t H, const T* c, T* x) { return activate_body(H, c, x); }                                      \
  EBLVM_CLONES void means(int64_t H, const T* __restrict c, T* __restrict x) {                                                 \
    for (int64_t i = 0; i < H; ++i) x[i] = sigmoid(x[i] + c[i]);                                                               \
  }                                                                                                                            \
  EBLVM_CLONES T score(int64_t D, const T* v, const T* b, const T* precision, T* m) {                                          \
    return score_body<false>(D, v, b, precision, m);                                                                           \
  }                                                                                                                            \
  EBLVM_CLONES T score_given(int64_t D, const T* v, const T* b, const T* precision, T* m) {                                    \
    return score_body<true>(D, v, b, precision, m);                                                                            \
  }                                                                                                                            \
  EBLVM_CLONES void visible_first(int64_t D, T g, const T* r, const T* v, const T* b, const T* precision, T* b_bar,            \
                                  T* log_sigma_bar, T* v_bar) {                                                                \
    visible_body<false>(D, g, r, r, v, b, precision, b_bar, log_sigma_bar, v_bar);                                             \
  }                                                                                                                            \
  EBLVM_CLONES void visible_given(int64_t D, T g, const T* r, const T* scores, const T* v, const T* b, const T* precision,     \
                                  T* b_bar, T* log_sigma_bar, T* v_bar) {                                                      \
    visible_body<true>(D, g, r, scores, v, b, precision, b_bar, log_sigma_bar, v_bar);                                         \
  }                                                                                                                            \
  /* t = r W becomes the cotangent of c + vW: sigmoid' t - g mean. */                                                          \
  EBLVM_CLONES void latent_first(int64_t H, T g, const T* __restrict mean, T* __restrict t) {                                  \
    for (int64_t i = 0; i < H; ++i) t[i] = mean[i] * ((T(1) - mean[i]) * t[i] - g);                                            \
  }                                                                                                                            \
  /* to = x + scale y. */                                                                                                      \
  EBLVM_CLONES void add_scaled(int64_t n, const T* x, T scale, const T* y, T* to) {                                            \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) to[i] = x[i] + scale * y[i];                                          \
  }                                                                                                                            \
  EBLVM_CLONES T dot(int64_t n, const T* __restrict x, const T* __restrict y) {                                                \
    return sum_of<T>(n, [&](int64_t i) __attribute__((always_inline)) { return x[i] * y[i]; });                                \
  }                                                                                                                            \
  EBLVM_CLONES double residuals(int64_t B, int64_t D, const T* v, const T* eps, const T* b, const T* precision, T sigma, T* r, \
                                T* b_bar, T* log_sigma_bar, T* squares) {                                                      \
    return residuals_body(B, D, v, eps, b, precision, sigma, r, b_bar, log_sigma_bar, squares);                                \
  }                                                                                                                            \
  EBLVM_CLONES double quadratic(int64_t B, int64_t D, const T* v, const T* b, const T* precision, T* squares) {                \
    return quadratic_body(B, D, v, b, precision, squares);                                                                     \
  }                                                                                                                            \
  EBLVM_CLONES void add_rows(T* to, const T* from, int64_t rows, int64_t n) { add_rows_body(to, from, rows, n); }
EBLVM_LOOPS(float)
EBLVM_LOOPS(double)
#undef EBLVM_LOOPS

template <typename T>
void precisions(int64_t D, const T* log_sigma, T* to) {
  for (int64_t d = 0; d < D; ++d) to[d] = std::exp(T(-2) * log_sigma[d]);
}

// body(row) over the rows of [B, width], in parallel where there are enough.
template <typename Body>
void for_rows(int64_t B, int64_t width, const Body& body) {
  parallel_for(0, B, std::max<int64_t>(1, 16384 / std::max<int64_t>(width, 1)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

}  // namespace
