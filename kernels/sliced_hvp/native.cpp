// The terms of sliced score matching on a GRBM on the CPU, and their first order: products, and loops between them.
// Shape tags: B batch, D visible, H latent, M directions. README.md derives it.

#include <vector>

#include "../grbm/loops.h"
#include "../grbm/sizes.h"
#include "../runtime/product.h"
#include "../runtime/tensors.h"
#include "../runtime/workspace.h"

namespace {

#define EBLVM_LOOPS(T)                                                                                                      \
  /* u^T H u of one direction at one sample; q = u W. */                                                                    \
  EBLVM_CLONES T curvature(int64_t D, int64_t H, const T* __restrict u, const T* __restrict precision,                      \
                           const T* __restrict mean, const T* __restrict q) {                                               \
    const T latent =                                                                                                        \
        sum_of<T>(H, [&](int64_t i) __attribute__((always_inline)) { return mean[i] * (T(1) - mean[i]) * (q[i] * q[i]); }); \
    return latent - sum_of<T>(D, [&](int64_t d) __attribute__((always_inline)) { return precision[d] * (u[d] * u[d]); });   \
  }                                                                                                                         \
  /* Adds k q^2 to `squares`; q_bar = 2 k sigmoid' q. */                                                                    \
  EBLVM_CLONES void slice_first(int64_t H, T k, const T* __restrict mean, const T* __restrict q, T* __restrict squares,     \
                                T* __restrict q_bar) {                                                                      \
    for (int64_t i = 0; i < H; ++i) {                                                                                       \
      const T kq = k * q[i];                                                                                                \
      squares[i] += kq * q[i];                                                                                              \
      q_bar[i] = T(2) * kq * (mean[i] * (T(1) - mean[i]));                                                                  \
    }                                                                                                                       \
  }                                                                                                                         \
  /* t = r W becomes the cotangent of c + vW: sigmoid' t + sigmoid'' sum_M k q^2. */                                        \
  EBLVM_CLONES void bend(int64_t H, const T* __restrict mean, const T* __restrict squares, T* __restrict t) {               \
    for (int64_t i = 0; i < H; ++i) t[i] = mean[i] * (T(1) - mean[i]) * (t[i] + (T(1) - T(2) * mean[i]) * squares[i]);      \
  }                                                                                                                         \
  /* u_bar = -2 k u / sigma^2, to which the slices add theirs; log_sigma's part is -u u_bar. */                             \
  EBLVM_CLONES void direction_first(int64_t D, T k, const T* __restrict u, const T* __restrict precision,                   \
                                    T* __restrict log_sigma_bar, T* __restrict u_bar) {                                     \
    for (int64_t d = 0; d < D; ++d) {                                                                                       \
      u_bar[d] = T(-2) * k * precision[d] * u[d];                                                                           \
      log_sigma_bar[d] -= u_bar[d] * u[d];                                                                                  \
    }                                                                                                                       \
  }                                                                                                                         \
  EBLVM_CLONES void scaled(int64_t n, T scale, const T* __restrict x, T* __restrict to) {                                   \
    for (int64_t i = 0; i < n; ++i) to[i] = scale * x[i];                                                                   \
  }
EBLVM_LOOPS(float)
EBLVM_LOOPS(double)
#undef EBLVM_LOOPS

// M of u [..., M, B, D], whose other axes are those of v.
int64_t directions(const Sizes& n, const at::Tensor& u) {
  TORCH_CHECK_VALUE(u.dim() == static_cast<int64_t>(n.lead.size()) + 3, n.op, " got u of shape ", u.sizes(),
                    "; expected [..., M, B, D] for W ", n.W.sizes());
  const int64_t M = u.size(-3);
  n.expect("u", u, {M, n.B, n.D});
  return M;
}

std::vector<at::Tensor> sliced_hvp_value_cpu(const at::Tensor& v, const at::Tensor& u, const at::Tensor& W, const at::Tensor& b,
                                             const at::Tensor& c, const at::Tensor& log_sigma) {
  const Sizes n("sliced_hvp", v, W);
  n.expect_parameters(b, c, log_sigma);
  const int64_t M = directions(n, u), B = n.B, D = n.D, H = n.H;
  const std::vector<at::Tensor> in = contiguous({v, u, W, b, c, log_sigma});
  std::vector<at::Tensor> out = {n.made({B}), n.made({M, B}), n.made({B, H}), n.made({B, D}), n.made({M, B, H})};
  AT_DISPATCH_FLOATING_TYPES(W.scalar_type(), "sliced_hvp", [&] {
    using T = scalar_t;
    parallel_for(0, n.replicas, n.replicas_per_thread(M), [&](int64_t begin, int64_t end) {
      T* const precision = Workspace<T>::of_thread().allocate(D);
      for (int64_t i = begin; i < end; ++i) {
        const T *vs = n.part<T>(in[0], i), *us = n.part<T>(in[1], i), *bs = n.part<T>(in[3], i), *cs = n.part<T>(in[4], i);
        const Matrix<T> weights{n.part<T>(in[2], i), D, H};
        T *half = n.part_of<T>(out[0], i), *bent = n.part_of<T>(out[1], i), *mean = n.part_of<T>(out[2], i),
          *scores = n.part_of<T>(out[3], i), *slices = n.part_of<T>(out[4], i);
        precisions(D, n.part<T>(in[5], i), precision);
        product<T>({vs, B, D}, weights, 1, 0, mean);
        for_rows(B, H, [&](int64_t row) { means(H, cs, mean + row * H); });
        product<T>({mean, B, H}, weights.t(), 1, 0, scores);
        for_rows(B, D, [&](int64_t row) {
          T* const s = scores + row * D;
          score(D, vs + row * D, bs, precision, s);
          half[row] = T(0.5) * dot(D, s, s);
        });
        product<T>({us, M * B, D}, weights, 1, 0, slices);
        for_rows(M * B, D + H, [&](int64_t row) {
          bent[row] = curvature(D, H, us + row * D, precision, mean + row % B * H, slices + row * H);
        });
      }
    });
  });
  return out;
}

std::vector<at::Tensor> sliced_hvp_first_cpu(const at::Tensor& f, const at::Tensor& k, const at::Tensor& mean,
                                             const at::Tensor& scores, const at::Tensor& slices, const at::Tensor& v,
                                             const at::Tensor& u, const at::Tensor& W, const at::Tensor& b, const at::Tensor& c,
                                             const at::Tensor& log_sigma, bool wants_v, bool wants_u) {
  const Sizes n("sliced_hvp", v, W);
  n.expect_parameters(b, c, log_sigma);
  const int64_t M = directions(n, u), B = n.B, D = n.D, H = n.H;
  n.expect("f", f, {B});
  n.expect("k", k, {M, B});
  n.expect("mean", mean, {B, H});
  n.expect("score", scores, {B, D});
  n.expect("slices", slices, {M, B, H});
  const std::vector<at::Tensor> in = contiguous({f, k, mean, scores, slices, v, u, W, b, log_sigma});
  std::vector<at::Tensor> out = {n.made({D, H}), n.made({D}), n.made({H}), n.made({D})};
  if (wants_v) out.push_back(n.made({B, D}));
  if (wants_u) out.push_back(n.made({M, B, D}));
  AT_DISPATCH_FLOATING_TYPES(W.scalar_type(), "sliced_hvp", [&] {
    using T = scalar_t;
    parallel_for(0, n.replicas, n.replicas_per_thread(M), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto from = [&](size_t j) { return n.part<T>(in[j], i); };
        const T *fs = from(0), *ks = from(1), *means = from(2), *ss = from(3), *qs = from(4), *vs = from(5), *us = from(6);
        const Matrix<T> weights{from(7), D, H};
        T *W_bar = n.part_of<T>(out[0], i), *b_bar = n.part_of<T>(out[1], i), *c_bar = n.part_of<T>(out[2], i),
          *log_sigma_bar = n.part_of<T>(out[3], i);
        Workspace<T>& memory = Workspace<T>::of_thread();
        // [v; r] and [x_bar; mean], so that they meet in one product.
        T *const rows = memory.allocate(2 * B * D), *const latents = memory.allocate(2 * B * H);
        T *const r = rows + B * D, *const q_bar = memory.allocate(M * B * H), *const squares = memory.allocate(B * H);
        T *const precision = memory.allocate(D), *const nowhere = memory.allocate(D);
        T* const v_bar = wants_v ? n.part_of<T>(out[4], i) : nullptr;
        T* const u_bar = wants_u ? n.part_of<T>(out.back(), i) : nullptr;
        precisions(D, from(9), precision);
        std::copy(vs, vs + B * D, rows);
        std::copy(means, means + B * H, latents + B * H);
        std::fill(b_bar, b_bar + D, T(0));
        std::fill(log_sigma_bar, log_sigma_bar + D, T(0));
        for (int64_t row = 0; row < B; ++row) {
          const int64_t at = row * D;
          scaled(D, fs[row], ss + at, r + at);
          visible_first(D, T(0), r + at, vs + at, from(8), precision, b_bar, log_sigma_bar, v_bar ? v_bar + at : nowhere);
        }
        for (int64_t row = 0; row < M * B; ++row) {
          direction_first(D, ks[row], us + row * D, precision, log_sigma_bar, u_bar ? u_bar + row * D : nowhere);
        }
        product<T>({r, B, D}, weights, 1, 0, latents);
        for_rows(B, M * H, [&](int64_t row) {
          T* const sums = squares + row * H;
          std::fill(sums, sums + H, T(0));
          for (int64_t m = 0; m < M; ++m) {
            const int64_t at = m * B + row;
            slice_first(H, ks[at], means + row * H, qs + at * H, sums, q_bar + at * H);
          }
          bend(H, means + row * H, sums, latents + row * H);
        });
        std::fill(c_bar, c_bar + H, T(0));
        add_rows(c_bar, latents, B, H);
        product<T>(Matrix<T>{us, M * B, D}.t(), {q_bar, M * B, H}, 1, 0, W_bar);
        product<T>(Matrix<T>{rows, 2 * B, D}.t(), {latents, 2 * B, H}, 1, 1, W_bar);
        if (v_bar) product<T>({latents, B, H}, weights.t(), 1, 1, v_bar);
        if (u_bar) product<T>({q_bar, M * B, H}, weights.t(), 1, 1, u_bar);
      }
    });
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(eblvm, m) {
  m.def("sliced_hvp(Tensor v, Tensor u, Tensor W, Tensor b, Tensor c, Tensor log_sigma) -> Tensor[]");
  m.def(
      "sliced_hvp_first(Tensor f, Tensor k, Tensor mean, Tensor score, Tensor slices, Tensor v, Tensor u, Tensor W, Tensor b, "
      "Tensor c, Tensor log_sigma, bool wants_v, bool wants_u) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(eblvm, CPU, m) {
  m.impl("sliced_hvp", sliced_hvp_value_cpu);
  m.impl("sliced_hvp_first", sliced_hvp_first_cpu);
}
