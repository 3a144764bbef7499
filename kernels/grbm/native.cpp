// Energy and score of a GRBM on the CPU, and their first order: products, and one loop between two of them.
// Shape tags: B batch, D visible, H latent. README.md derives it.

#include <vector>

#include "../runtime/product.h"
#include "../runtime/tensors.h"
#include "../runtime/workspace.h"
#include "loops.h"
#include "sizes.h"

namespace {

using Optional = std::optional<at::Tensor>;

std::vector<at::Tensor> grbm_value_cpu(const at::Tensor& v, const at::Tensor& W, const at::Tensor& b, const at::Tensor& c,
                                       const at::Tensor& log_sigma, const Optional& h) {
  const Sizes n("grbm", v, W);
  n.expect_parameters(b, c, log_sigma);
  if (h) n.expect("h", *h, {n.B, n.H});
  const std::vector<at::Tensor> in = contiguous({v, W, b, c, log_sigma});
  const at::Tensor given = h ? h->contiguous() : at::Tensor();
  at::Tensor energy = n.made({n.B}), scores = n.made({n.B, n.D}), mean = h ? at::Tensor() : n.made({n.B, n.H});
  AT_DISPATCH_FLOATING_TYPES(W.scalar_type(), "grbm", [&] {
    using T = scalar_t;
    parallel_for(0, n.replicas, n.replicas_per_thread(1), [&](int64_t begin, int64_t end) {
      T* const precision = Workspace<T>::of_thread().allocate(n.D);
      for (int64_t r = begin; r < end; ++r) {
        const T *vs = n.part<T>(in[0], r), *bs = n.part<T>(in[2], r), *cs = n.part<T>(in[3], r);
        const Matrix<T> weights{n.part<T>(in[1], r), n.D, n.H};
        T *es = n.part_of<T>(energy, r), *ss = n.part_of<T>(scores, r);
        const T* latent = h ? n.part<T>(given, r) : nullptr;
        precisions(n.D, n.part<T>(in[4], r), precision);
        if (h) {
          for_rows(n.B, n.H, [&](int64_t i) { es[i] = dot(n.H, cs, latent + i * n.H); });
        } else {
          T* const x = n.part_of<T>(mean, r);
          product<T>({vs, n.B, n.D}, weights, 1, 0, x);
          for_rows(n.B, n.H, [&](int64_t i) { es[i] = activate(n.H, cs, x + i * n.H); });
          latent = x;
        }
        product<T>({latent, n.B, n.H}, weights.t(), 1, 0, ss);
        for_rows(n.B, n.D, [&](int64_t i) {
          const int64_t at = i * n.D;
          es[i] = (h ? score_given(n.D, vs + at, bs, precision, ss + at) : score(n.D, vs + at, bs, precision, ss + at)) - es[i];
        });
      }
    });
  });
  return h ? std::vector<at::Tensor>{energy, scores} : std::vector<at::Tensor>{energy, scores, mean};
}

// One replica of the first order; `latent` is the mean, or h if `given`; v_bar and h_bar may be null.
template <typename T>
struct First {
  int64_t B, D, H;
  const T *g, *r, *v, *W, *b, *c, *log_sigma, *latent, *scores;
  T *W_bar, *b_bar, *c_bar, *log_sigma_bar, *v_bar, *h_bar;

  void free_energy(Workspace<T>& memory) const {
    T *const rows = memory.allocate(2 * B * D), *const latents = memory.allocate(2 * B * H);  // [v; r] and [x_bar; mean]
    std::copy(v, v + B * D, rows);
    std::copy(r, r + B * D, rows + B * D);
    std::copy(latent, latent + B * H, latents + B * H);
    visible(memory);
    product<T>({r, B, D}, {W, D, H}, 1, 0, latents);
    for_rows(B, H, [&](int64_t i) { latent_first(H, g[i], latent + i * H, latents + i * H); });
    std::fill(c_bar, c_bar + H, T(0));
    add_rows(c_bar, latents, B, H);
    product<T>(Matrix<T>{rows, 2 * B, D}.t(), {latents, 2 * B, H}, 1, 0, W_bar);
    if (v_bar) product<T>({latents, B, H}, Matrix<T>{W, D, H}.t(), 1, 1, v_bar);
  }

  void given(Workspace<T>& memory) const {
    T* const pulled = memory.allocate(B * D);  // r - g v
    for_rows(B, D, [&](int64_t i) { add_scaled(D, r + i * D, -g[i], v + i * D, pulled + i * D); });
    visible(memory);
    std::fill(c_bar, c_bar + H, T(0));
    for (int64_t i = 0; i < B; ++i) add_scaled(H, c_bar, -g[i], latent + i * H, c_bar);
    product<T>(Matrix<T>{pulled, B, D}.t(), {latent, B, H}, 1, 0, W_bar);
    if (h_bar) {
      for (int64_t i = 0; i < B; ++i)
        for (int64_t j = 0; j < H; ++j) h_bar[i * H + j] = -g[i] * c[j];
      product<T>({pulled, B, D}, {W, D, H}, 1, 1, h_bar);
    }
  }

 private:
  void visible(Workspace<T>& memory) const {
    T *const precision = memory.allocate(D), *const nowhere = v_bar ? nullptr : memory.allocate(D);
    precisions(D, log_sigma, precision);
    std::fill(b_bar, b_bar + D, T(0));
    std::fill(log_sigma_bar, log_sigma_bar + D, T(0));
    for (int64_t i = 0; i < B; ++i) {
      T* const to = v_bar ? v_bar + i * D : nowhere;
      if (scores) {
        visible_given(D, g[i], r + i * D, scores + i * D, v + i * D, b, precision, b_bar, log_sigma_bar, to);
      } else {
        visible_first(D, g[i], r + i * D, v + i * D, b, precision, b_bar, log_sigma_bar, to);
      }
    }
  }
};

std::vector<at::Tensor> grbm_first_cpu(const at::Tensor& g, const at::Tensor& r, const at::Tensor& kept, const at::Tensor& v,
                                       const at::Tensor& W, const at::Tensor& b, const at::Tensor& c,
                                       const at::Tensor& log_sigma, const Optional& h, bool wants_v, bool wants_h) {
  const Sizes n("grbm", v, W);
  n.expect_parameters(b, c, log_sigma);
  n.expect("g", g, {n.B});
  n.expect("r", r, {n.B, n.D});
  n.expect("kept", kept, {n.B, h ? n.D : n.H});
  if (h) n.expect("h", *h, {n.B, n.H});
  const std::vector<at::Tensor> in = contiguous({g, r, kept, v, W, b, c, log_sigma, h ? *h : kept});
  std::vector<at::Tensor> out = {n.made({n.D, n.H}), n.made({n.D}), n.made({n.H}), n.made({n.D})};
  if (wants_v) out.push_back(n.made({n.B, n.D}));
  if (wants_h) out.push_back(n.made({n.B, n.H}));
  AT_DISPATCH_FLOATING_TYPES(W.scalar_type(), "grbm", [&] {
    using T = scalar_t;
    parallel_for(0, n.replicas, n.replicas_per_thread(1), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto from = [&](size_t k) { return n.part<T>(in[k], i); };
        const auto to = [&](size_t k) { return n.part_of<T>(out[k], i); };
        const First<T> one{n.B,
                           n.D,
                           n.H,
                           from(0),
                           from(1),
                           from(3),
                           from(4),
                           from(5),
                           from(6),
                           from(7),
                           from(8),
                           h ? from(2) : nullptr,
                           to(0),
                           to(1),
                           to(2),
                           to(3),
                           wants_v ? to(4) : nullptr,
                           wants_h ? to(out.size() - 1) : nullptr};
        Workspace<T>& memory = Workspace<T>::of_thread();
        h ? one.given(memory) : one.free_energy(memory);
      }
    });
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(eblvm, m) {
  m.def("grbm(Tensor v, Tensor W, Tensor b, Tensor c, Tensor log_sigma, Tensor? h) -> Tensor[]");
  m.def(
      "grbm_first(Tensor g, Tensor r, Tensor kept, Tensor v, Tensor W, Tensor b, Tensor c, Tensor log_sigma, Tensor? h, "
      "bool wants_v, bool wants_h) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(eblvm, CPU, m) {
  m.impl("grbm", grbm_value_cpu);
  m.impl("grbm_first", grbm_first_cpu);
}
