// One denoising score matching step on a GRBM on the CPU: loss and all gradients, four products and a loop after each.
// Shape tags: B batch, D visible, H latent.

#include <vector>

#include "../grbm/loops.h"
#include "../grbm/sizes.h"
#include "../runtime/batched.h"
#include "../runtime/product.h"
#include "../runtime/tensors.h"
#include "../runtime/workspace.h"

namespace {

std::vector<at::Tensor> grbm_dsm_cpu(const at::Tensor& v, const at::Tensor& eps, const at::Tensor& W, const at::Tensor& b,
                                     const at::Tensor& c, const at::Tensor& log_sigma, double sigma) {
  const Sizes n("grbm_dsm", v, W);
  n.expect_parameters(b, c, log_sigma);
  n.expect("eps", eps, {n.B, n.D});
  const std::vector<at::Tensor> in = contiguous({v, eps, W, b, c, log_sigma});
  std::vector<at::Tensor> out = {n.made({}), n.made({n.D, n.H}), n.made({n.D}), n.made({n.H}), n.made({n.D})};
  const int64_t B = n.B, D = n.D, H = n.H;
  AT_DISPATCH_FLOATING_TYPES(W.scalar_type(), "grbm_dsm", [&] {
    using T = scalar_t;
    parallel_for(0, n.replicas, n.replicas_per_thread(1), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto from = [&](size_t k) { return n.part<T>(in[k], i); };
        T *loss = n.part_of<T>(out[0], i), *W_bar = n.part_of<T>(out[1], i), *b_bar = n.part_of<T>(out[2], i),
          *c_bar = n.part_of<T>(out[3], i), *log_sigma_bar = n.part_of<T>(out[4], i);
        const T *noise = from(1), *bs = from(3), *cs = from(4);
        const Matrix<T> weights{from(2), D, H};
        Workspace<T>& memory = Workspace<T>::of_thread();
        // [v; r] and [x_bar; mean], so that W's gradient is one product.
        T *const rows = memory.allocate(2 * B * D), *const latents = memory.allocate(2 * B * H),
                 *const precision = memory.allocate(D);
        T *const r = rows + B * D, *const mean = latents + B * H;
        precisions(D, from(5), precision);
        add_scaled(B * D, from(0), static_cast<T>(sigma), noise, rows);

        product<T>({rows, B, D}, weights, 1, 0, mean);
        for_rows(B, H, [&](int64_t row) { means(H, cs, mean + row * H); });
        product<T>({mean, B, H}, weights.t(), 1, 0, r);
        const double squares =
            residuals(B, D, rows, noise, bs, precision, static_cast<T>(sigma), r, b_bar, log_sigma_bar, memory.allocate(D));
        *loss = static_cast<T>(0.5 * squares / static_cast<double>(B));

        product<T>({r, B, D}, weights, 1, 0, latents);
        for_rows(B, H, [&](int64_t row) { latent_first(H, T(0), mean + row * H, latents + row * H); });
        std::fill(c_bar, c_bar + H, T(0));
        add_rows(c_bar, latents, B, H);
        product<T>(Matrix<T>{rows, 2 * B, D}.t(), {latents, 2 * B, H}, 1, 0, W_bar);
      }
    });
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(eblvm, m) {
  m.def("grbm_dsm(Tensor v, Tensor eps, Tensor W, Tensor b, Tensor c, Tensor log_sigma, float sigma) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(eblvm, CPU, m) { m.impl("grbm_dsm", grbm_dsm_cpu); }

TORCH_LIBRARY_IMPL(eblvm, FuncTorchBatched, m) {
  m.impl("grbm_dsm", torch::CppFunction::makeFromBoxedFunction<&replica_rule>());
}
