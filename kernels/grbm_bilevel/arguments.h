// A bi-level step's plan and arguments, and the memory of its units: common to all, kept until the reverse, scratch.
// Shape tags: B batch, D visible, H latent. A_HD is the posterior's weight, W_DH the model's; V are perturbed batches.

#pragma once

#include <cstdint>
#include <span>

namespace {

struct Plan {
  int64_t B, D, H, K, N;
  double sigma, tau;
  bool shared, exact, sgd, auto_rate;
  double b1, b2, eps, eps_root;
  bool upper;  // else the real steps alone

  // The dual costs B^2 H a step and direction, the primal 2 B D H.
  bool dual() const { return sgd && shared && N > 0 && B < 2 * D; }
  int64_t steps() const { return K + N; }
  int64_t lower_batches() const { return shared ? 0 : steps(); }  // without the last batch
  int64_t x_batches() const { return shared && steps() > 0 ? 1 : steps(); }
  int64_t h_batches() const { return shared ? 2 : N + 1; }  // of x's cotangents and h, for W's gradient
};

// Of one replica.
template <typename T>
struct Inputs {
  const T* v;
  std::span<const T* const> perturb, latent;
  const T *W, *b, *c, *log_sigma, *A, *a, *mA, *ma, *vA, *va;
  T count, phi_rate, unroll_rate;
};

template <typename T>
struct Outputs {
  T *W_bar, *b_bar, *c_bar, *log_sigma_bar, *A, *a, *mA, *ma, *vA, *va, *loss, *lower;
};

template <typename T>
struct Shared {
  const Plan& p;
  const Inputs<T>& in;
  const Outputs<T>& out;
  T* rows = nullptr;              // [.., B, D]: the lower batches, then r, then the last batch
  T rate = 0;                     // of an unrolled step
  T *M = nullptr, *rV = nullptr;  // the dual: (V V^T + 1 1^T) / B and r V^T, [B, B]

  T* batch(int64_t step) const { return p.shared ? last() : rows + step * p.B * p.D; }
  T* residual() const { return rows + p.lower_batches() * p.B * p.D; }
  T* last() const { return residual() + p.B * p.D; }
};

// The posterior and Adam's moments of it.
template <typename T>
struct Phi {
  T *A, *a, *mA, *ma, *vA, *va;

  Phi of(int64_t unit, int64_t D) const { return {A + unit * D, a + unit, mA + unit * D, ma + unit, vA + unit * D, va + unit}; }
  Phi<const T> read() const { return {A, a, mA, ma, vA, va}; }
};

// Written by the units' forward and read by their reverse. A block's part of an array is contiguous.
template <typename T>
struct Kept {
  T *h_rows, *gap, *slope, *s1;              // [.., B, H]; h_rows: the right factor of W's gradient
  T* tape;                                   // [N, 2, B, H]: slope and curvature of every unrolled step
  T *A, *a;                                  // the primal: phi_N
  T *A_grads, *a_grads, *mA, *ma, *vA, *va;  // and with Adam the tape of its steps
  T* S;                                      // the dual: sum_n delta_n

  Kept of(const Plan& p, int64_t unit) const {
    const int64_t B = p.B * unit, D = p.D * unit, N = p.N;
    const auto from = [](T* array, int64_t begin) { return array ? array + begin : nullptr; };
    return {from(h_rows, p.h_batches() * B),
            from(gap, 2 * B),
            from(slope, B),
            from(s1, B),
            from(tape, 2 * N * B),
            from(A, D),
            from(a, unit),
            from(A_grads, N * D),
            from(a_grads, N * unit),
            from(mA, N * D),
            from(ma, N * unit),
            from(vA, N * D),
            from(va, N * unit),
            from(S, B)};
  }
};

// Scratch memory of the current block: every thread has one.
template <typename T>
struct Scratch {
  T *x, *noise, *l, *delta, *a_grad;                                  // forward
  T *rA, *S_bar, *A_bar, *a_bar, *mA_bar, *ma_bar, *vA_bar, *va_bar;  // reverse
};

}  // namespace
