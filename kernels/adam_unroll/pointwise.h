// One element of the differentiable Adam step and of its reverse, for the op and for kernels that fuse more around it.

#pragma once

#include <cmath>

#include "../runtime/native.h"

namespace {

template <typename T>
struct AdamRule {
  T b1, b2, eps, eps_root, rate, scale;  // rate = lr / (1 - b1^t), scale = 1 / (1 - b2^t)

  AdamRule(double b1_, double b2_, double eps_, double eps_root_, T t, T lr)
      : b1(static_cast<T>(b1_)),
        b2(static_cast<T>(b2_)),
        eps(static_cast<T>(eps_)),
        eps_root(static_cast<T>(eps_root_)),
        rate(lr / (T(1) - std::pow(b1, t))),
        scale(T(1) / (T(1) - std::pow(b2, t))),
        a1(static_cast<T>(1 - b1_)),
        a2(static_cast<T>(1 - b2_)) {}

  T a1, a2;  // 1 - b1 and 1 - b2, rounded once
};

// A square root and one division an element: these bound its speed.
template <typename T>
EBLVM_INLINE T adam_element(const AdamRule<T>& r, T p, T g, T& m, T& v) {
  m = r.b1 * m + r.a1 * g;
  v = r.b2 * v + r.a2 * (g * g);
  return p - r.rate * m / (std::sqrt(v * r.scale + r.eps_root) + r.eps);
}

// m and v are those after the step. Gives the cotangent of g; m_bar and v_bar become those of m and v before the step.
template <typename T>
EBLVM_INLINE T adam_reverse_element(const AdamRule<T>& r, T p_bar, T g, T m, T v, T& m_bar, T& v_bar) {
  const T root = std::sqrt(v * r.scale + r.eps_root);
  const T inverse = T(1) / (root + r.eps);
  const T pull = r.rate * p_bar * inverse;
  const T m_all = m_bar - pull;
  const T v_all = v_bar + pull * m * inverse * (T(0.5) * r.scale / root);
  m_bar = r.b1 * m_all;
  v_bar = r.b2 * v_all;
  return r.a1 * m_all + T(2) * r.a2 * g * v_all;
}

}  // namespace
