// One bi-level denoising step on a GRBM with a linear Bernoulli posterior: theta's gradient through N unrolled lower steps and
// phi after K real ones, by hand (README.md derives it). Matrix products and one loop between two of them, nothing else.
// Shape tags: B batch, D visible, H latent. A_HD is the posterior's weight, W_DH the model's; V are perturbed batches.

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "../common/batched.h"
#include "../common/parallel.h"
#include "../common/product.h"
#include "../common/tensors.h"
#include "../common/workspace.h"
#include "../grbm/sizes.h"
#include "loops.h"

namespace {

// The rows of A that a lower step moves at once: what is in the second-level cache, and no fewer than torch's library
// multiplies well. Without AVX-512 it takes 58 rows of 560 numbers at two thirds of its speed.
struct Panel {
  int64_t bytes, rows;
};
#ifdef EBLVM_X86
const Panel kPanel = __builtin_cpu_supports("avx512f") ? Panel{128 << 10, 32} : Panel{512 << 10, 200};
#else
constexpr Panel kPanel{512 << 10, 200};
#endif

struct Plan {
  int64_t B, D, H, K, N;
  double sigma, tau;
  bool shared, exact, sgd, auto_rate;
  double b1, b2, eps, eps_root;
  bool upper;  // else the real steps alone

  // The dual costs B^2 H a step and direction, the primal 2 B D H.
  bool dual() const { return sgd && shared && N > 0 && B < 2 * D; }
  int64_t steps() const { return K + N; }
};

// Pointers of one replica.
template <typename T>
struct Inputs {
  const T* v;
  std::span<const T* const> perturb, latent;
  const T *W, *b, *c, *log_sigma, *A, *a, *mA, *ma, *vA, *va;
  T count, lr, unroll_lr;
};

template <typename T>
struct Outputs {
  T *W_bar, *b_bar, *c_bar, *log_sigma_bar, *A, *a, *mA, *ma, *vA, *va, *loss, *lower;
};

// The automatic step size is kStep / lambda_max(M): three quarters of the largest stable one, 8 / lambda_max(M).
constexpr int kStep = 6;
constexpr int64_t kFewVisible = 16;  // visible units below which its power iterations run on a Gram matrix
// Bytes of this thread's last step: all of its scratch memory, and what of it the unroll keeps for its reverse.
struct Used {
  int64_t scratch = 0, tape = 0;
};
thread_local Used used;

template <typename Body>
void in_parallel(int64_t n, const Body& body) {
  parallel_for(0, n, 16384, body);
}

template <typename T>
class Step {
 public:
  Step(const Plan& plan, const Inputs<T>& in, const Outputs<T>& out)
      : p(plan), in(in), out(out), BH(p.B * p.H), DH(p.D * p.H), workspace(Workspace<T>::of_thread()), used(::used) {
    used = {};
  }

  void run() {
    perturb_batches();
    if (p.steps() > 0) features();
    real_steps();
    if (!p.upper) return;
    if (p.dual()) {
      dual();
    } else {
      primal();
    }
  }

 private:
  const Plan& p;
  const Inputs<T>& in;
  const Outputs<T>& out;
  const int64_t BH, DH;
  Workspace<T>& workspace;
  Used& used;                       // a thread's own are found once a step
  T *rows = nullptr, *x = nullptr;  // [.., B, D]: the lower batches, then r, then the last batch; x of the lower batches
  T* h_rows = nullptr;              // [.., B, H]: what `rows` is multiplied by for W's gradient
  T *l = nullptr, *gap = nullptr, *slope = nullptr, *s1 = nullptr, *precision = nullptr;

  T* memory(int64_t size, bool zero = false) {
    T* const found = workspace.take(size);
    used.scratch += size * static_cast<int64_t>(sizeof(T));
    if (zero) std::fill(found, found + size, T(0));
    return found;
  }

  // What the unroll writes in every step and reads again in its reverse.
  T* tape_memory(int64_t size) {
    used.tape += size * static_cast<int64_t>(sizeof(T));
    return memory(size);
  }

  int64_t slots() const { return p.shared ? 0 : p.steps(); }
  T* batch(int64_t step) const { return p.shared ? last() : rows + step * p.B * p.D; }
  T* residual_rows() const { return rows + slots() * p.B * p.D; }
  T* last() const { return residual_rows() + p.B * p.D; }
  const T* x_of(int64_t step) const { return p.shared ? x : x + step * BH; }
  const T* noise_of(int64_t step) const { return p.exact ? nullptr : in.latent[step]; }
  AdamRule<T> rule(int64_t steps_before, T lr) const {
    return {p.b1, p.b2, p.eps, p.eps_root, in.count + static_cast<T>(steps_before + 1), lr};
  }
  Matrix<T> BxD(const T* data) const { return {data, p.B, p.D}; }
  Matrix<T> BxH(const T* data) const { return {data, p.B, p.H}; }
  Matrix<T> HxD(const T* data) const { return {data, p.H, p.D}; }
  Matrix<T> DxH(const T* data) const { return {data, p.D, p.H}; }

  void perturb_batches() {
    rows = memory((slots() + 2) * p.B * p.D);
    for (int64_t step = 0; step < slots(); ++step) perturbed(step, batch(step));
    perturbed(static_cast<int64_t>(in.perturb.size()) - 1, last());
  }

  void perturbed(int64_t step, T* to) {
    in_parallel(p.B * p.D, [&](int64_t begin, int64_t end) {
      add_scaled(end - begin, in.v + begin, static_cast<T>(p.sigma), in.perturb[step] + begin, to + begin);
    });
  }

  // x = V W + c of every lower batch: one product, since W does not move.
  void features() {
    const int64_t count = (p.shared ? 1 : slots()) * p.B;
    x = memory(count * p.H);
    affine<T>({p.shared ? last() : rows, count, p.D}, DxH(in.W), 1, in.c, x);
  }

  void logits(const T* V, const T* A, const T* a) { affine<T>(BxD(V), HxD(A).t(), 1, a, l); }

  void lower_loop(const LowerArrays<T>& arrays) const {
    in_parallel(
        BH, [&](int64_t begin, int64_t end) { p.exact ? lower_exact(arrays, begin, end) : lower_sampled(arrays, begin, end); });
  }

  // delta of lower step `step` at the logits `l`, and a's gradient from it.
  void lower_gradient(int64_t step, T* delta, T* slope_to, T* curvature_to, T* a_grad) {
    lower_loop({l, x_of(step), noise_of(step), static_cast<T>(1 / p.tau), delta, slope_to, curvature_to});
    column_sums(delta, p.B, a_grad);
    for (int64_t i = 0; i < p.H; ++i) a_grad[i] /= static_cast<T>(p.B);
  }

  // alpha left^T right + beta result, [H, D], a panel of its rows at a time, and move(begin, size, panel) on the elements of
  // each.
  template <typename Move>
  void by_panels(Matrix<T> left, Matrix<T> right, T alpha, T beta, T* result, const Move& move) {
    const bool alone = in_parallel_region() || left.rows * DH < kFewProducts;
    const int64_t threads = alone ? 1 : at::get_num_threads();
    const int64_t most =
        std::min(std::max(kPanel.rows, kPanel.bytes / (p.D * static_cast<int64_t>(sizeof(T)))), (p.H + threads - 1) / threads);
    const int64_t count = (p.H + most - 1) / most, width = (p.H + count - 1) / count;
    const auto make = [&](int64_t panel, int64_t end) {
      for (; panel < end; ++panel) {
        const int64_t first = panel * width, rows = std::min(width, p.H - first);
        T* const to = result + first * p.D;
        product<T>(left.columns(first, rows).t(), right, alpha, beta, to);
        move(first * p.D, rows * p.D, to);
      }
    };
    alone ? make(0, count) : parallel_for(0, count, 1, make);
  }

  // phi's gradient of a lower step, by panels. One that is not kept goes to the place of W's, which is made last.
  template <typename Move>
  void gradient_panels(const T* delta, const T* V, T* result, const Move& move) {
    by_panels(BxH(delta), BxD(V), T(1) / static_cast<T>(p.B), 0, result, move);
  }

  void column_sums(const T* from, int64_t count, T* to) const {
    std::fill(to, to + p.H, T(0));
    add_rows(to, from, count, p.H);
  }

  void real_steps() {
    l = memory(BH);
    if (p.K == 0) return;
    T *delta = memory(BH), *a_grad = memory(p.H);
    const T *A = in.A, *a = in.a, *mA = in.mA, *ma = in.ma, *vA = in.vA, *va = in.va;
    for (int64_t k = 0; k < p.K; ++k) {
      logits(batch(k), A, a);
      lower_gradient(k, delta, nullptr, nullptr, a_grad);
      if (k == p.K - 1) *out.lower = lower_value_at(k);
      const AdamRule<T> adam = rule(k, in.lr);
      gradient_panels(delta, batch(k), out.W_bar, [&](int64_t i, int64_t n, const T* A_grad) {
        adam_step(adam, n, A_grad, A + i, mA + i, vA + i, out.A + i, out.mA + i, out.vA + i);
      });
      adam_step(adam, p.H, a_grad, a, ma, va, out.a, out.ma, out.va);
      A = out.A, a = out.a, mA = out.mA, ma = out.ma, vA = out.vA, va = out.va;
    }
  }

  const T* precisions() {
    if (precision == nullptr) {
      precision = memory(2 * p.D);
      ::precisions(p.D, in.log_sigma, precision);
    }
    return precision;
  }
  T* column_squares() { return const_cast<T*>(precisions()) + p.D; }

  T lower_value_at(int64_t step) {
    const LowerArrays<T> arrays{l, x_of(step), noise_of(step), static_cast<T>(1 / p.tau), nullptr, nullptr, nullptr};
    double sum = p.exact ? value_exact(arrays, 0, BH) : value_sampled(arrays, 0, BH);
    sum += quadratic(p.B, p.D, batch(step), in.b, precisions(), column_squares());
    return static_cast<T>(sum / static_cast<double>(p.B));
  }

  const T* phi_A() const { return p.K ? out.A : in.A; }
  const T* phi_a() const { return p.K ? out.a : in.a; }

  // h and its derivatives at the logits `l` of the last batch.
  void sample_latents() {
    h_rows = memory((p.shared ? 2 : p.N + 1) * BH);
    gap = memory(2 * BH);  // s - h; then l_bar, so that both meet [r; V] in one product
    slope = memory(BH), s1 = memory(BH);
    const SampleArrays<T> arrays{l, in.latent.back(), static_cast<T>(1 / p.tau), h(), gap, slope, s1};
    in_parallel(BH, [&](int64_t begin, int64_t end) { sample(arrays, begin, end); });
  }
  T* h() const { return p.shared ? h_rows : h_rows + p.N * BH; }

  // r from the latent part of the score, already in its place: loss, r, and the gradients of b and log sigma.
  void residuals() {
    const double squares = ::residuals(p.B, p.D, last(), in.perturb.back(), in.b, precisions(), static_cast<T>(p.sigma),
                                       residual_rows(), out.b_bar, out.log_sigma_bar, column_squares());
    *out.loss = static_cast<T>(0.5 * squares / static_cast<double>(p.B));
  }

  void upper_l_bar(const T* rW, const T* rA, T* l_bar) const {
    in_parallel(BH, [&](int64_t i, int64_t end) { upper_cotangent(end - i, rW + i, rA + i, slope + i, s1 + i, l_bar + i); });
  }

  // N steps on (A, a) themselves: Adam, or SGD where that is cheaper or the batches differ.
  void primal() {
    const int64_t N = p.N;
    T *A = nullptr, *a = nullptr, *delta = nullptr, *tape = nullptr, *A_grads = nullptr, *a_grads = nullptr;
    T *mA = nullptr, *vA = nullptr, *ma = nullptr, *va = nullptr, rate = in.unroll_lr;
    const T *A_N = phi_A(), *a_N = phi_a();
    if (N > 0) {
      A = memory(DH), a = memory(p.H), delta = memory(BH), tape = tape_memory(2 * N * BH);
      if (p.sgd) {
        a_grads = memory(p.H);
      } else {
        A_grads = tape_memory(N * DH), a_grads = tape_memory(N * p.H);
        mA = tape_memory(N * DH), vA = tape_memory(N * DH), ma = tape_memory(N * p.H), va = tape_memory(N * p.H);
      }
      if (p.auto_rate) rate = p.D < kFewVisible ? step_size_by_gram() : step_size_by_products();
    }
    for (int64_t n = 0; n < N; ++n) {
      const int64_t kept = p.sgd ? 0 : n;
      const T* V = batch(p.K + n);
      T* const a_grad = a_grads + kept * p.H;
      logits(V, A_N, a_N);
      lower_gradient(p.K + n, delta, tape + 2 * n * BH, tape + (2 * n + 1) * BH, a_grad);
      if (p.sgd) {
        gradient_panels(delta, V, out.W_bar, [&](int64_t begin, int64_t size, const T* A_grad) {
          for (int64_t i = 0; i < size; ++i) A[begin + i] = A_N[begin + i] - rate * A_grad[i];
        });
        for (int64_t i = 0; i < p.H; ++i) a[i] = a_N[i] - rate * a_grad[i];
      } else {
        const AdamRule<T> adam = rule(p.K + n, rate);
        const T *mA0 = n ? mA + (n - 1) * DH : p.K ? out.mA : in.mA, *vA0 = n ? vA + (n - 1) * DH : p.K ? out.vA : in.vA;
        const T *ma0 = n ? ma + (n - 1) * p.H : p.K ? out.ma : in.ma, *va0 = n ? va + (n - 1) * p.H : p.K ? out.va : in.va;
        gradient_panels(delta, V, A_grads + n * DH, [&](int64_t i, int64_t size, const T* A_grad) {
          adam_step(adam, size, A_grad, A_N + i, mA0 + i, vA0 + i, A + i, mA + n * DH + i, vA + n * DH + i);
        });
        adam_step(adam, p.H, a_grad, a_N, ma0, va0, a, ma + n * p.H, va + n * p.H);
      }
      A_N = A, a_N = a;
    }

    logits(last(), A_N, a_N);
    sample_latents();
    product<T>(BxH(h()), DxH(in.W).t(), 1, 0, residual_rows());
    product<T>(BxH(gap), HxD(A_N), 1, 1, residual_rows());
    residuals();
    if (N == 0) {
      product<T>(BxD(residual_rows()).t(), BxH(h()), 1, 0, out.W_bar);
      std::fill(out.c_bar, out.c_bar + p.H, T(0));
      return;
    }

    // Reverse: the upper level into phi_N, then the steps, last one first.
    T *l_bar = gap + BH, *rA = memory(BH), *A_bar = memory(DH), *a_bar = memory(p.H, true);
    T *mA_bar = nullptr, *vA_bar = nullptr, *ma_bar = nullptr, *va_bar = nullptr;
    if (!p.sgd) mA_bar = memory(DH, true), vA_bar = memory(DH, true), ma_bar = memory(p.H, true), va_bar = memory(p.H, true);
    // Cotangents of phi_{n+1} from a product and from l_bar; of Adam's step n on them, the gradients become the cotangents.
    const auto into_step = [&](int64_t n, const T* left, const T* right, int64_t rows, T keep) {
      const AdamRule<T> adam = rule(p.K + n, rate);
      by_panels({left, rows, p.H}, {right, rows, p.D}, 1, keep, A_bar, [&](int64_t i, int64_t size, const T* p_bar) {
        const int64_t at = n * DH + i;
        if (!p.sgd) adam_reverse(adam, size, p_bar, mA + at, vA + at, mA_bar + i, vA_bar + i, A_grads + at);
      });
      add_rows(a_bar, l_bar, p.B, p.H);
      const int64_t at = n * p.H;
      if (!p.sgd) adam_reverse(adam, p.H, a_bar, ma + at, va + at, ma_bar, va_bar, a_grads + at);
    };
    product<T>(BxD(residual_rows()), DxH(in.W), 1, 0, delta);
    product<T>(BxD(residual_rows()), HxD(A_N).t(), 1, 0, rA);
    upper_l_bar(delta, rA, l_bar);
    into_step(N - 1, gap, residual_rows(), 2 * p.B, 0);
    for (int64_t n = N - 1;; --n) {
      const T* V = batch(p.K + n);
      if (p.sgd) {
        affine<T>(BxD(V), HxD(A_bar).t(), -rate / static_cast<T>(p.B), a_bar, delta);
      } else {
        affine<T>(BxD(V), HxD(A_grads + n * DH).t(), T(1) / static_cast<T>(p.B), a_grads + n * p.H, delta);
      }
      T* const x_bar = p.shared ? h_rows + BH : h_rows + n * BH;
      const T keep = p.shared && n < N - 1 ? T(1) : T(0);
      const T *slope_n = tape + 2 * n * BH, *curvature_n = tape + (2 * n + 1) * BH;
      in_parallel(BH, [&](int64_t i, int64_t end) {
        primal_reverse(end - i, delta + i, slope_n + i, curvature_n + i, l_bar + i, x_bar + i, keep);
      });
      if (n == 0) break;  // phi_0 is no function of theta
      into_step(n - 1, l_bar, V, p.B, 1);
    }
    weights();
  }

  // W's gradient from the score (r with h) and from every unrolled step (its batch with x_bar), in one product; c's.
  void weights() {
    const int64_t count = (p.shared ? 2 : p.N + 1) * p.B;
    const T* left = p.shared ? residual_rows() : batch(p.K);
    product<T>(Matrix<T>{left, count, p.D}.t(), {h_rows, count, p.H}, 1, 0, out.W_bar);
    column_sums(p.shared ? h_rows + BH : h_rows, p.shared ? p.B : p.N * p.B, out.c_bar);
  }

  // M = U U^T / B with U = [V 1], so that M^i 1 = U G^i e_D with G = U^T U / B: the same iterates in D + 1 numbers.
  T step_size_by_gram() {
    const int64_t n = p.D + 1;
    double G[kFewVisible * kFewVisible] = {}, z[kFewVisible] = {}, next[kFewVisible], u[kFewVisible];
    for (int64_t i = 0; i < p.B; ++i) {
      std::copy(last() + i * p.D, last() + (i + 1) * p.D, u);
      u[p.D] = 1;
      for (int64_t j = 0; j < n; ++j)
        for (int64_t k = 0; k < n; ++k) G[j * n + k] += u[j] * u[k] / static_cast<double>(p.B);
    }
    z[p.D] = 1;
    for (int64_t i = 0;; ++i) {
      double square = 0;  // |U z|^2 / B = z^T G z
      for (int64_t j = 0; j < n; ++j) {
        next[j] = 0;
        for (int64_t k = 0; k < n; ++k) next[j] += G[j * n + k] * z[k];
        square += z[j] * next[j];
      }
      const double length = std::sqrt(static_cast<double>(p.B) * square);
      if (i == 16) return static_cast<T>(kStep / length);
      for (int64_t j = 0; j < n; ++j) z[j] = next[j] / length;
    }
  }

  T step_size_by_products() {
    T *left = memory(p.B), *right = memory(p.D);
    std::fill(left, left + p.B, T(1));
    for (int64_t i = 0; i < 16; ++i) {
      normalise(left);
      T sum = 0;
      for (int64_t j = 0; j < p.B; ++j) sum += left[j];
      product<T>({left, 1, p.B}, BxD(last()), 1, 0, right);
      product<T>(BxD(last()), {right, p.D, 1}, 1, 0, left);
      for (int64_t j = 0; j < p.B; ++j) left[j] = (left[j] + sum) / static_cast<T>(p.B);
    }
    return kStep / norm(left);
  }

  T norm(const T* y) const {
    double sum = 0;
    for (int64_t i = 0; i < p.B; ++i) sum += static_cast<double>(y[i]) * static_cast<double>(y[i]);
    return static_cast<T>(std::sqrt(sum));
  }
  void normalise(T* y) const {
    const T length = norm(y);
    for (int64_t i = 0; i < p.B; ++i) y[i] /= length;
  }

  // N SGD steps on a shared batch, in the logits: l' = l - alpha M delta with M = (V V^T + 1 1^T) / B.
  void dual() {
    const int64_t N = p.N, BB = p.B * p.B;
    const T *V = last(), *A = phi_A();
    T *M = memory(BB), *delta = memory(BH), *tape = tape_memory(2 * N * BH), *S = memory(BH, true);
    std::fill(M, M + BB, T(1) / static_cast<T>(p.B));
    product<T>(BxD(V), BxD(V).t(), T(1) / static_cast<T>(p.B), 1, M);
    const T alpha = p.auto_rate ? step_size(M) : in.unroll_lr;
    const T shrink = -alpha / static_cast<T>(p.B);

    logits(V, A, phi_a());
    for (int64_t n = 0; n < N; ++n) {
      lower_loop({l, x, noise_of(p.K + n), static_cast<T>(1 / p.tau), delta, tape + 2 * n * BH, tape + (2 * n + 1) * BH});
      add_rows(S, delta, 1, BH);
      product<T>({M, p.B, p.B}, BxH(delta), -alpha, 1, l);
    }

    // A_N = A - alpha/B S^T V is never made: it only meets (s-h) and r, through B x B matrices.
    sample_latents();
    T *meets = memory(BB), *rV = memory(BB), *rA = memory(BH), *S_bar = memory(BH), *l_bar = gap + BH, *x_bar = h_rows + BH;
    product<T>(BxH(gap), BxH(S).t(), 1, 0, meets);
    product<T>(BxH(h()), DxH(in.W).t(), 1, 0, residual_rows());
    product<T>(BxH(gap), HxD(A), 1, 1, residual_rows());
    product<T>({meets, p.B, p.B}, BxD(V), shrink, 1, residual_rows());
    residuals();

    product<T>(BxD(residual_rows()), BxD(V).t(), 1, 0, rV);
    product<T>(BxD(residual_rows()), DxH(in.W), 1, 0, delta);
    product<T>(BxD(residual_rows()), HxD(A).t(), 1, 0, rA);
    product<T>({rV, p.B, p.B}, BxH(S), shrink, 1, rA);
    product<T>(Matrix<T>{rV, p.B, p.B}.t(), BxH(gap), shrink, 0, S_bar);
    upper_l_bar(delta, rA, l_bar);
    std::fill(x_bar, x_bar + BH, T(0));
    for (int64_t n = N - 1; n >= 0; --n) {
      product<T>({M, p.B, p.B}, BxH(l_bar), 1, 0, delta);
      const T *slope_n = tape + 2 * n * BH, *curvature_n = tape + (2 * n + 1) * BH;
      in_parallel(BH, [&](int64_t i, int64_t end) {
        dual_reverse(end - i, S_bar + i, delta + i, alpha, slope_n + i, curvature_n + i, l_bar + i, x_bar + i);
      });
    }
    weights();
  }

  T step_size(const T* M) {
    T *y = memory(p.B), *z = memory(p.B);
    std::fill(y, y + p.B, T(1));
    for (int64_t i = 0; i < 16; ++i) {
      normalise(y);
      product<T>({y, 1, p.B}, {M, p.B, p.B}, 1, 0, z);
      std::swap(y, z);
    }
    return kStep / norm(y);
  }
};

std::vector<at::Tensor> grbm_bilevel_cpu(const at::Tensor& v, const std::vector<at::Tensor>& perturb,
                                         const std::vector<at::Tensor>& latent, const at::Tensor& W, const at::Tensor& b,
                                         const at::Tensor& c, const at::Tensor& log_sigma, const at::Tensor& A,
                                         const at::Tensor& a, const at::Tensor& mA, const at::Tensor& ma, const at::Tensor& vA,
                                         const at::Tensor& va, const at::Tensor& count, const at::Tensor& lr,
                                         const at::Tensor& unroll_lr, int64_t K, int64_t N, double sigma, double tau,
                                         bool exact, bool sgd, bool auto_rate, double b1, double b2, double eps,
                                         double eps_root, bool upper) {
  const Sizes n("grbm_bilevel", v, W);
  const int64_t B = n.B, D = n.D, H = n.H;
  TORCH_CHECK_VALUE(K >= 0 && N >= 0, "grbm_bilevel got K=", K, ", N=", N, "; expected both at least 0");
  const size_t steps = static_cast<size_t>(K + N + upper), noises = exact ? upper : steps;
  TORCH_CHECK_VALUE(perturb.size() == 1 || perturb.size() == steps, "grbm_bilevel got ", perturb.size(),
                    " perturbations; expected 1 (shared) or one a step, ", steps);
  TORCH_CHECK_VALUE(latent.size() == noises, "grbm_bilevel got ", latent.size(), " latent noises; expected ", noises);
  TORCH_CHECK_VALUE(B > 0 && D > 0 && H > 0, "grbm_bilevel got sizes B=", B, ", D=", D, ", H=", H, "; expected at least 1");
  n.expect_parameters(b, c, log_sigma);
  for (const at::Tensor& t : perturb) n.expect("perturb", t, {B, D});
  for (const at::Tensor& t : latent) n.expect("latent", t, {B, H});
  const std::pair<const char*, const at::Tensor*> vectors[] = {{"a", &a}, {"m_bias", &ma}, {"v_bias", &va}};
  for (const auto& [name, t] : vectors) n.expect(name, *t, {H});
  const std::pair<const char*, const at::Tensor*> matrices[] = {{"A", &A}, {"m_weight", &mA}, {"v_weight", &vA}};
  for (const auto& [name, t] : matrices) n.expect(name, *t, {H, D});
  const std::pair<const char*, const at::Tensor*> scalars[] = {{"count", &count}, {"lr", &lr}, {"unroll_lr", &unroll_lr}};
  for (const auto& [name, t] : scalars) n.expect(name, *t, {});

  const Plan plan{B,     D,   H,         K,  N,  sigma, tau,      perturb.size() == 1 && K + N > 0,
                  exact, sgd, auto_rate, b1, b2, eps,   eps_root, upper};
  const std::vector<at::Tensor> eps_list = contiguous(perturb), noise_list = contiguous(latent);
  const std::vector<at::Tensor> ins = contiguous({v, W, b, c, log_sigma, A, a, mA, ma, vA, va, count, lr, unroll_lr});
  std::vector<at::Tensor> outs = {n.made({D, H}), n.made({D}), n.made({H}), n.made({D})};
  // Without real steps phi and its moments are what they were.
  for (size_t i = 5; i <= 10; ++i) outs.push_back(K ? at::empty(ins[i].sizes(), W.options()) : ins[i].clone());
  outs.push_back(at::empty_like(ins[11]));
  outs.push_back(at::zeros(n.lead, W.options()));
  outs.push_back(at::zeros(n.lead, W.options()));

  AT_DISPATCH_FLOATING_TYPES(W.scalar_type(), "grbm_bilevel", [&] {
    using T = scalar_t;
    const auto from = n.parts<const T>(ins), eps = n.parts<const T>(eps_list), noise = n.parts<const T>(noise_list);
    const auto to = n.parts<T>(outs);
    parallel_for(0, n.replicas, n.replicas_per_thread(K + N + 1), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const auto x = from.of(r), perturb_r = eps.of(r), latent_r = noise.of(r);
        const auto y = to.of(r);
        const Inputs<T> in{x[0], perturb_r, latent_r, x[1], x[2],  x[3],   x[4],   x[5],
                           x[6], x[7],      x[8],     x[9], x[10], *x[11], *x[12], *x[13]};
        *y[10] = in.count + static_cast<T>(K);
        const Outputs<T> out{y[0], y[1], y[2], y[3], y[4], y[5], y[6], y[7], y[8], y[9], y[11], y[12]};
        Step<T>(plan, in, out).run();
      }
    });
  });
  return outs;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(eblvm, m) {
  m.def(
      "grbm_bilevel(Tensor v, Tensor[] perturb, Tensor[] latent, Tensor W, Tensor b, Tensor c, Tensor log_sigma, Tensor A, "
      "Tensor a, Tensor m_weight, Tensor m_bias, Tensor v_weight, Tensor v_bias, Tensor count, Tensor lr, Tensor unroll_lr, "
      "int K, int N, "
      "float sigma, float tau, bool exact, bool sgd, bool auto_rate, float b1, float b2, float eps, float eps_root, bool "
      "upper) "
      "-> Tensor[]");
  m.def("grbm_bilevel_memory() -> (int, int)", []() { return std::tuple(used.scratch, used.tape); });
}

TORCH_LIBRARY_IMPL(eblvm, CPU, m) { m.impl("grbm_bilevel", grbm_bilevel_cpu); }

TORCH_LIBRARY_IMPL(eblvm, FuncTorchBatched, m) {
  m.impl("grbm_bilevel", torch::CppFunction::makeFromBoxedFunction<&replica_rule>());
}
