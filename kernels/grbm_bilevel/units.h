// A block of latent units in a bi-level step, forward and in reverse (README.md derives it). Units interact in the residual
// only: a block runs all of its lower steps by itself, while its matrices are in the cache.

#pragma once

#include <algorithm>

#include "../runtime/product.h"
#include "arguments.h"
#include "loops.h"

namespace {

// The rows of A that a lower step moves at once: they fit into the second-level cache, and are at least as many as torch's
// library multiplies fast. 58 rows of 560 numbers run at two thirds of its speed, except with AVX-512, used on Intel only.
struct Panel {
  int64_t bytes, rows;
};
#ifdef EBLVM_X86
const bool kWide = __builtin_cpu_is("intel") && __builtin_cpu_supports("avx512f");
const Panel kPanel = kWide ? Panel{128 << 10, 32} : Panel{512 << 10, 200};
#else
constexpr Panel kPanel{512 << 10, 200};
#endif

template <typename T>
class Units {
 public:
  Units(const Shared<T>& shared, const Kept<T>& kept, const Scratch<T>& own, int64_t first, int64_t count)
      : s(shared),
        p(s.p),
        in(s.in),
        out(s.out),
        k(kept.of(p, first)),
        own(own),
        first(first),
        H(count),
        BH(p.B * H),
        DH(p.D * H) {}

  // All lower steps, and h at phi_N. Returns the latent part of the last real step's lower loss, summed over the batch.
  double forward() const {
    if (p.steps() > 0) affine<T>({p.shared ? s.last() : s.rows, p.x_batches() * p.B, p.D}, W(), 1, in.c + first, own.x);
    const double lower = real_steps();
    if (!p.upper) return lower;
    if (p.dual()) {
      dual_steps();
    } else {
      primal_steps();
    }
    sample_latents();
    return lower;
  }

  // The units' part of the latent term of the score, h W^T + (s - h) A_N, added to `to` or stored there; in the dual without
  // the change of A by the unroll.
  void add_score(T* to, bool in_its_place) const {
    product<T>(BxH(h()), W().t(), 1, in_its_place ? T(0) : T(1), to);
    product<T>(BxH(k.gap), HxD(A_N()), 1, 1, to);
  }
  // (s - h) S^T of the dual.
  void add_gap_S(T* to, bool in_its_place) const { product<T>(BxH(k.gap), BxH(k.S).t(), 1, in_its_place ? T(0) : T(1), to); }

  // From the residual: the gradients of W and c.
  void reverse() const {
    if (p.N == 0) {
      product<T>(BxD(s.residual()).t(), BxH(h()), 1, 0, out.W_bar + first, p.H);
      std::fill(out.c_bar + first, out.c_bar + first + H, T(0));
      return;
    }
    product<T>(BxD(s.residual()), W(), 1, 0, own.delta);
    product<T>(BxD(s.residual()), HxD(A_N()).t(), 1, 0, own.rA);
    if (p.dual()) {
      reverse_dual_steps();
    } else {
      reverse_primal_steps();
    }
    // W's gradient from the score (r with h) and from every unrolled step (its batch with x_bar), in one product; c's.
    const int64_t count = p.h_batches() * p.B;
    const T* left = p.shared ? s.residual() : s.batch(p.K);
    product<T>(Matrix<T>{left, count, p.D}.t(), {k.h_rows, count, H}, 1, 0, out.W_bar + first, p.H);
    column_sums(p.shared ? k.h_rows + BH : k.h_rows, p.shared ? p.B : p.N * p.B, out.c_bar + first);
  }

 private:
  const Shared<T>& s;
  const Plan& p;
  const Inputs<T>& in;
  const Outputs<T>& out;
  const Kept<T> k;
  const Scratch<T>& own;
  const int64_t first, H, BH, DH;  // H units from `first` on; p.H is all of them

  const T* x_of(int64_t step) const { return p.shared ? own.x : own.x + step * BH; }
  T* h() const { return p.shared ? k.h_rows : k.h_rows + p.N * BH; }
  T* x_bar(int64_t n) const { return p.shared ? k.h_rows + BH : k.h_rows + n * BH; }
  T* l_bar() const { return k.gap + BH; }  // one product with [r; V] for both
  AdamRule<T> rule(int64_t steps_before, T lr) const {
    return {p.b1, p.b2, p.eps, p.eps_root, in.count + static_cast<T>(steps_before + 1), lr};
  }
  Matrix<T> BxD(const T* data) const { return {data, p.B, p.D}; }
  Matrix<T> BxB(const T* data) const { return {data, p.B, p.B}; }
  Matrix<T> BxH(const T* data) const { return {data, p.B, H}; }
  Matrix<T> HxD(const T* data) const { return {data, H, p.D}; }
  Matrix<T> W() const { return {in.W + first, p.D, H, false, p.H}; }

  // phi as given, and after the real steps.
  Phi<const T> given() const { return Phi<const T>{in.A, in.a, in.mA, in.ma, in.vA, in.va}.of(first, p.D); }
  Phi<T> moved() const { return Phi<T>{out.A, out.a, out.mA, out.ma, out.vA, out.va}.of(first, p.D); }
  Phi<const T> after_real() const { return p.K > 0 ? moved().read() : given(); }
  const T* A_N() const { return p.N > 0 && !p.dual() ? k.A : after_real().A; }

  // The units' columns of a latent noise.
  const T* noise(const T* all) const {
    if (H == p.H) return all;
    for (int64_t i = 0; i < p.B; ++i) std::copy(all + i * p.H + first, all + i * p.H + first + H, own.noise + i * H);
    return own.noise;
  }

  void logits(const T* V, Phi<const T> at) const { affine<T>(BxD(V), HxD(at.A).t(), 1, at.a, own.l); }

  // The lower level at the logits `own.l` of lower step `step`.
  LowerArrays<T> lower(int64_t step, T* slope, T* curvature) const {
    const T* const drawn = p.exact ? nullptr : noise(in.latent[step]);
    const LowerArrays<T> arrays{own.l, x_of(step), drawn, static_cast<T>(1 / p.tau), own.delta, slope, curvature};
    p.exact ? lower_exact(arrays, 0, BH) : lower_sampled(arrays, 0, BH);
    return arrays;
  }

  void column_sums(const T* from, int64_t count, T* to) const {
    std::fill(to, to + H, T(0));
    add_rows(to, from, count, H);
  }

  // a's gradient in a lower step.
  void mean_delta(T* to) const {
    column_sums(own.delta, p.B, to);
    for (int64_t i = 0; i < H; ++i) to[i] /= static_cast<T>(p.B);
  }

  // alpha left^T right + beta result, [H, D], a panel of its rows at a time, and move(begin, size, panel) on the elements of
  // each.
  template <typename Move>
  void by_panels(Matrix<T> left, Matrix<T> right, T alpha, T beta, T* result, const Move& move) const {
    const int64_t most = std::max(kPanel.rows, kPanel.bytes / (p.D * static_cast<int64_t>(sizeof(T))));
    const int64_t count = (H + most - 1) / most, width = (H + count - 1) / count;
    for (int64_t row = 0; row < H; row += width) {
      const int64_t rows = std::min(width, H - row);
      T* const to = result + row * p.D;
      product<T>(left.columns(row, rows).t(), right, alpha, beta, to);
      move(row * p.D, rows * p.D, to);
    }
  }

  // A's gradient in a lower step, by panels.
  template <typename Move>
  void gradient_panels(const T* V, T* result, const Move& move) const {
    by_panels(BxH(own.delta), BxD(V), T(1) / static_cast<T>(p.B), 0, result, move);
  }
  // A gradient that is not kept is written where W's will be, which is computed last.
  T* not_kept() const { return out.W_bar + first * p.D; }

  void adam(const AdamRule<T>& rule, const T* V, T* A_grad, const T* a_grad, Phi<const T> from, Phi<T> to) const {
    gradient_panels(V, A_grad, [&](int64_t i, int64_t n, const T* grad) {
      adam_step(rule, n, grad, from.A + i, from.mA + i, from.vA + i, to.A + i, to.mA + i, to.vA + i);
    });
    adam_step(rule, H, a_grad, from.a, from.ma, from.va, to.a, to.ma, to.va);
  }

  double real_steps() const {
    double value = 0;
    for (int64_t n = 0; n < p.K; ++n) {
      const Phi<const T> from = n > 0 ? moved().read() : given();
      logits(s.batch(n), from);
      const LowerArrays<T> arrays = lower(n, nullptr, nullptr);
      mean_delta(own.a_grad);
      if (n == p.K - 1) value = p.exact ? value_exact(arrays, 0, BH) : value_sampled(arrays, 0, BH);
      adam(rule(n, in.phi_rate), s.batch(n), not_kept(), own.a_grad, from, moved());
    }
    return value;
  }

  // h and its derivatives at the logits of the last batch.
  void sample_latents() const {
    const SampleArrays<T> arrays{own.l, noise(in.latent.back()), static_cast<T>(1 / p.tau), h(), k.gap, k.slope, k.s1};
    sample(arrays, 0, BH);
  }

  T* slope_of(int64_t n) const { return k.tape + 2 * n * BH; }
  T* curvature_of(int64_t n) const { return slope_of(n) + BH; }

  // N steps on (A, a) themselves: Adam, or SGD where that is cheaper or the batches differ. Leaves the logits at phi_N.
  void primal_steps() const {
    Phi<const T> from = after_real();
    for (int64_t n = 0; n < p.N; ++n) {
      const T* const V = s.batch(p.K + n);
      T* const a_grad = p.sgd ? own.a_grad : k.a_grads + n * H;
      logits(V, from);
      lower(p.K + n, slope_of(n), curvature_of(n));
      mean_delta(a_grad);
      const Phi<T> to = adam_tape(n);
      if (p.sgd) {
        gradient_panels(V, not_kept(), [&](int64_t begin, int64_t size, const T* A_grad) {
          for (int64_t i = 0; i < size; ++i) to.A[begin + i] = from.A[begin + i] - s.rate * A_grad[i];
        });
        for (int64_t i = 0; i < H; ++i) to.a[i] = from.a[i] - s.rate * a_grad[i];
      } else {
        adam(rule(p.K + n, s.rate), V, k.A_grads + n * DH, a_grad, from, to);
      }
      from = to.read();
    }
    logits(s.last(), from);
  }
  // phi_{n+1}; A and a are overwritten in every step, and SGD has no moments.
  Phi<T> adam_tape(int64_t n) const {
    const int64_t D = p.sgd ? 0 : n * DH, one = p.sgd ? 0 : n * H;
    return {k.A, k.a, k.mA + D, k.ma + one, k.vA + D, k.va + one};
  }

  void upper_l_bar() const { upper_cotangent(BH, own.delta, own.rA, k.slope, k.s1, l_bar()); }

  // The upper level into phi_N, then the steps, last one first.
  void reverse_primal_steps() const {
    upper_l_bar();
    std::fill(own.a_bar, own.a_bar + H, T(0));
    if (!p.sgd) {
      for (T* const bar : {own.mA_bar, own.vA_bar}) std::fill(bar, bar + DH, T(0));
      for (T* const bar : {own.ma_bar, own.va_bar}) std::fill(bar, bar + H, T(0));
    }
    // The cotangents of phi_{n+1} from a product and from l_bar; Adam's step n turns its gradients into their cotangents.
    const auto into_step = [&](int64_t n, const T* left, const T* right, int64_t rows, T keep) {
      const AdamRule<T> adam = rule(p.K + n, s.rate);
      const Phi<T> after = adam_tape(n);
      by_panels({left, rows, H}, {right, rows, p.D}, 1, keep, own.A_bar, [&](int64_t i, int64_t size, const T* A_bar) {
        if (!p.sgd) {
          adam_reverse(adam, size, A_bar, after.mA + i, after.vA + i, own.mA_bar + i, own.vA_bar + i, k.A_grads + n * DH + i);
        }
      });
      add_rows(own.a_bar, l_bar(), p.B, H);
      if (!p.sgd) adam_reverse(adam, H, own.a_bar, after.ma, after.va, own.ma_bar, own.va_bar, k.a_grads + n * H);
    };
    into_step(p.N - 1, k.gap, s.residual(), 2 * p.B, 0);
    for (int64_t n = p.N - 1;; --n) {
      const T* const V = s.batch(p.K + n);
      if (p.sgd) {
        affine<T>(BxD(V), HxD(own.A_bar).t(), -s.rate / static_cast<T>(p.B), own.a_bar, own.delta);
      } else {
        affine<T>(BxD(V), HxD(k.A_grads + n * DH).t(), T(1) / static_cast<T>(p.B), k.a_grads + n * H, own.delta);
      }
      const T keep = p.shared && n < p.N - 1 ? T(1) : T(0);
      primal_reverse(BH, own.delta, slope_of(n), curvature_of(n), l_bar(), x_bar(n), keep);
      if (n == 0) break;  // phi_0 is no function of theta
      into_step(n - 1, l_bar(), V, p.B, 1);
    }
  }

  // N SGD steps on a shared batch, in the logits: l' = l - alpha M delta. A_N = A - alpha/B S^T V is never
  // computed: its products with (s-h) and r are those of B x B matrices.
  void dual_steps() const {
    std::fill(k.S, k.S + BH, T(0));
    logits(s.last(), after_real());
    for (int64_t n = 0; n < p.N; ++n) {
      lower(p.K + n, slope_of(n), curvature_of(n));
      add_rows(k.S, own.delta, 1, BH);
      product<T>(BxB(s.M), BxH(own.delta), -s.rate, 1, own.l);
    }
  }

  void reverse_dual_steps() const {
    const T shrink = -s.rate / static_cast<T>(p.B);
    product<T>(BxB(s.rV), BxH(k.S), shrink, 1, own.rA);
    product<T>(BxB(s.rV).t(), BxH(k.gap), shrink, 0, own.S_bar);
    upper_l_bar();
    std::fill(x_bar(0), x_bar(0) + BH, T(0));
    for (int64_t n = p.N - 1; n >= 0; --n) {
      product<T>(BxB(s.M), BxH(l_bar()), 1, 0, own.delta);
      dual_reverse(BH, own.S_bar, own.delta, s.rate, slope_of(n), curvature_of(n), l_bar(), x_bar(n));
    }
  }
};

}  // namespace
