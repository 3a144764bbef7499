// The loops between the matrix products of the bi-level step, one clone for every instruction set.

#pragma once

#include "../adam_unroll/pointwise.h"
#include "../bernoulli_lower/pointwise.h"
#include "../grbm/loops.h"

namespace {

// The arrays of a lower step; `slope` and `curvature` are its tape, null in a real step.
template <typename T>
struct LowerArrays {
  const T *l, *x, *noise;
  T cold;
  T *delta, *slope, *curvature;
};

template <bool kExact, typename T>
EBLVM_INLINE void lower_body(LowerArrays<T> a, int64_t begin, int64_t end) {
  alignas(64) T s[kStage], h[kStage];
  for (int64_t from = begin; from < end; from += kStage) {
    const int64_t n = end - from < kStage ? end - from : kStage;
    const T* __restrict l = a.l + from, * __restrict x = a.x + from;
    T* __restrict delta = a.delta + from;
    for (int64_t i = 0; i < n; ++i) s[i] = sigmoid(l[i]);
    if constexpr (!kExact) {
      const T* __restrict noise = a.noise + from;
      for (int64_t i = 0; i < n; ++i) h[i] = sigmoid((l[i] + noise[i]) * a.cold);
    }
    const T* __restrict sampled = kExact ? s : h;
    if (a.slope == nullptr) {
      for (int64_t i = 0; i < n; ++i) delta[i] = lower_at<kExact>(s[i], sampled[i], l[i] - x[i], a.cold).delta;
      continue;
    }
    T* __restrict slope = a.slope + from, * __restrict curvature = a.curvature + from;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const Lower<T> c = lower_at<kExact>(s[i], sampled[i], l[i] - x[i], a.cold);
      delta[i] = c.delta;
      slope[i] = c.slope;
      curvature[i] = c.curvature;
    }
  }
}

template <bool kExact, typename T>
EBLVM_INLINE double value_body(LowerArrays<T> a, int64_t begin, int64_t end) {
  const T* __restrict l = a.l, * __restrict x = a.x, * __restrict n = kExact ? a.l : a.noise;
  T parts[16] = {};
  double sum = 0;
  for (int64_t from = begin; from < end; from += 512) {
    const int64_t to = end - from < 512 ? end : from + 512;
    int64_t i = from;
    for (; i + 16 <= to; i += 16)
      for (int64_t j = 0; j < 16; ++j) parts[j] += lower_value<kExact>(l[i + j], x[i + j], n[i + j], a.cold);
    for (int64_t j = 0; i < to; ++i, ++j) parts[j] += lower_value<kExact>(l[i], x[i], n[i], a.cold);
    for (int64_t j = 0; j < 16; ++j) {
      sum += static_cast<double>(parts[j]);
      parts[j] = 0;
    }
  }
  return sum;
}

// The upper level's latent side: h, s - h, h' and s'.
template <typename T>
struct SampleArrays {
  const T *l, *noise;
  T cold;
  T *h, *gap, *slope, *s1;
};

template <typename T>
EBLVM_INLINE void sample_body(SampleArrays<T> a, int64_t begin, int64_t end) {
  const T* __restrict l = a.l, * __restrict n = a.noise;
  T* __restrict h_to = a.h, * __restrict gap = a.gap, * __restrict slope = a.slope, * __restrict s1 = a.s1;
#pragma GCC ivdep
  for (int64_t i = begin; i < end; ++i) {
    const T s = sigmoid(l[i]);
    const T h = sigmoid((l[i] + n[i]) * a.cold);
    h_to[i] = h;
    gap[i] = s - h;
    slope[i] = h * (T(1) - h) * a.cold;
    s1[i] = s * (T(1) - s);
  }
}

#define EBLVM_LOOPS(T)                                                                                                         \
  EBLVM_CLONES void lower_sampled(LowerArrays<T> a, int64_t begin, int64_t end) { lower_body<false>(a, begin, end); }          \
  EBLVM_CLONES void lower_exact(LowerArrays<T> a, int64_t begin, int64_t end) { lower_body<true>(a, begin, end); }             \
  EBLVM_CLONES double value_sampled(LowerArrays<T> a, int64_t begin, int64_t end) { return value_body<false>(a, begin, end); } \
  EBLVM_CLONES double value_exact(LowerArrays<T> a, int64_t begin, int64_t end) { return value_body<true>(a, begin, end); }    \
  EBLVM_CLONES void sample(SampleArrays<T> a, int64_t begin, int64_t end) { sample_body(a, begin, end); }                      \
  EBLVM_CLONES void adam_step(AdamRule<T> rule, int64_t n, const T* __restrict g, const T* p, const T* m, const T* v, T* p_to, \
                              T* m_to, T* v_to) {                                                                              \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) {                                                                     \
      T m_ = m[i], v_ = v[i];                                                                                                  \
      p_to[i] = adam_element(rule, p[i], g[i], m_, v_);                                                                        \
      m_to[i] = m_;                                                                                                            \
      v_to[i] = v_;                                                                                                            \
    }                                                                                                                          \
  }                                                                                                                            \
  EBLVM_CLONES void adam_reverse(AdamRule<T> rule, int64_t n, const T* __restrict p_bar, const T* __restrict m,                \
                                 const T* __restrict v, T* __restrict m_bar, T* __restrict v_bar, T* __restrict g) {           \
    for (int64_t i = 0; i < n; ++i) {                                                                                          \
      T m_ = m_bar[i], v_ = v_bar[i];                                                                                          \
      g[i] = adam_reverse_element(rule, p_bar[i], g[i], m[i], v[i], m_, v_);                                                   \
      m_bar[i] = m_;                                                                                                           \
      v_bar[i] = v_;                                                                                                           \
    }                                                                                                                          \
  }                                                                                                                            \
  EBLVM_CLONES void upper_cotangent(int64_t n, const T* __restrict rw, const T* __restrict ra, const T* __restrict slope,      \
                                    const T* __restrict s1, T* __restrict l_bar) {                                             \
    for (int64_t i = 0; i < n; ++i) l_bar[i] = (rw[i] - ra[i]) * slope[i] + ra[i] * s1[i];                                     \
  }                                                                                                                            \
  EBLVM_CLONES void primal_reverse(int64_t n, const T* __restrict delta_bar, const T* __restrict slope,                        \
                                   const T* __restrict curvature, T* __restrict l_bar, T* __restrict x_bar, T keep) {          \
    for (int64_t i = 0; i < n; ++i) {                                                                                          \
      l_bar[i] = delta_bar[i] * curvature[i];                                                                                  \
      x_bar[i] = (keep == T(0) ? T(0) : x_bar[i]) - delta_bar[i] * slope[i];                                                   \
    }                                                                                                                          \
  }                                                                                                                            \
  EBLVM_CLONES void dual_reverse(int64_t n, const T* __restrict s_bar, const T* __restrict product, T alpha,                   \
                                 const T* __restrict slope, const T* __restrict curvature, T* __restrict l_bar,                \
                                 T* __restrict x_bar) {                                                                        \
    for (int64_t i = 0; i < n; ++i) {                                                                                          \
      const T delta_bar = s_bar[i] - alpha * product[i];                                                                       \
      x_bar[i] -= delta_bar * slope[i];                                                                                        \
      l_bar[i] += delta_bar * curvature[i];                                                                                    \
    }                                                                                                                          \
  }
EBLVM_LOOPS(float)
EBLVM_LOOPS(double)
#undef EBLVM_LOOPS

}  // namespace
