// One element of the lower step: reference.py's coefficients, for the op and for kernels that fuse more around it.

#pragma once

#include "../runtime/native.h"

namespace {

template <typename T>
struct Lower {
  T h, slope, delta, curvature;
};

// h, dh/dl, delta = dkl/dl and d delta/dl, from s = sigmoid(l), h = sigmoid((l + noise) / tau) and gap = l - x. Unused members
// cost nothing once inlined. `cold` is 1 / tau: a multiplication each instead of three divisions.
template <bool kExact, typename T>
EBLVM_INLINE Lower<T> lower_at(T s, T h, T gap, T cold) {
  const T s1 = s * (T(1) - s);
  if constexpr (kExact) return {s, s1, gap * s1, s1 + gap * s1 * (T(1) - T(2) * s)};
  const T h1 = h * (T(1) - h) * cold;
  return {h, h1, h + gap * h1 - s, T(2) * h1 + gap * h1 * (T(1) - T(2) * h) * cold - s1};
}

template <bool kExact, typename T>
EBLVM_INLINE Lower<T> lower(T l, T x, T noise, T cold) {
  const T s = sigmoid(l);
  return lower_at<kExact>(s, kExact ? s : sigmoid((l + noise) * cold), l - x, cold);
}

template <bool kExact, typename T>
EBLVM_INLINE T lower_value(T l, T x, T noise, T cold) {
  const T h = kExact ? sigmoid(l) : sigmoid((l + noise) * cold);
  return h * (l - x) - softplus(l);
}

}  // namespace
