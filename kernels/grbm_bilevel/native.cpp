// One bi-level denoising step on a GRBM with a linear Bernoulli posterior: theta's gradient through N unrolled lower steps and
// phi after K real ones, in closed form (README.md derives it): matrix products, and one loop between two of them.

#include <algorithm>
#include <vector>

#include "../grbm/sizes.h"
#include "../runtime/batched.h"
#include "../runtime/parallel.h"
#include "../runtime/tensors.h"
#include "../runtime/workspace.h"
#include "step_size.h"
#include "units.h"

namespace {

// A matrix of a block of units has kBlockBytes (a lower step moves four), but a block has at least kBlockUnits units, and in a
// small model a thread has at least kThreadUnits.
constexpr int64_t kBlockBytes = 1 << 20, kBlockUnits = 200, kThreadUnits = 16;

// Bytes of this thread's last step: all of its scratch memory, and the part that the unroll keeps for its reverse.
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
      : p(plan), in(in), out(out), s{plan, in, out}, workspace(Workspace<T>::of_thread()), used(::used) {
    used = {};
    divide();
    allocate_memory();
  }

  void run() {
    for (int64_t step = 0; step < p.lower_batches(); ++step) perturb(step, s.batch(step));
    perturb(static_cast<int64_t>(in.perturb.size()) - 1, s.last());
    precisions(p.D, in.log_sigma, precision);
    if (p.N > 0) s.rate = unroll_rate();
    for_blocks([this](const Units<T>& units, int64_t block) { lower[block] = units.forward(); });
    if (p.K > 0) *out.lower = lower_loss();
    if (!p.upper) return;
    score();
    residuals();
    for_blocks([](const Units<T>& units, int64_t) { units.reverse(); });
  }

 private:
  const Plan& p;
  const Inputs<T>& in;
  const Outputs<T>& out;
  Shared<T> s;
  Workspace<T>& workspace;
  Used& used;                                // thread-local, looked up once per step
  int64_t width = 0, blocks = 0, lanes = 0;  // units of a block, blocks, and threads that work on them
  Kept<T> kept{};
  std::vector<Scratch<T>> own;
  std::vector<double> lower;
  T *precision = nullptr, *squares = nullptr, *gap_S = nullptr;

  void divide() {
    const int64_t threads = in_parallel_region() ? 1 : at::get_num_threads();
    const int64_t worth = (p.steps() + 1) * p.B * p.D * p.H / kFewProducts;  // threads that pay for their start
    lanes = std::max<int64_t>(1, std::min({threads, worth, p.H / kThreadUnits}));
    const int64_t most = std::max(kBlockUnits, kBlockBytes / (p.D * static_cast<int64_t>(sizeof(T))));
    const int64_t rounds = (p.H + most * lanes - 1) / (most * lanes);
    width = (p.H + rounds * lanes - 1) / (rounds * lanes);
    if (width < p.H) width = (width + 15) / 16 * 16;
    blocks = (p.H + width - 1) / width;
  }

  T* memory(int64_t size) {
    used.scratch += size * static_cast<int64_t>(sizeof(T));
    return workspace.allocate(size);
  }

  // Memory that the unroll writes in every step and reads again in its reverse.
  T* tape_memory(int64_t size) {
    used.tape += size * static_cast<int64_t>(sizeof(T));
    return memory(size);
  }

  void allocate_memory() {
    const int64_t B = p.B, D = p.D, H = p.H, N = p.N;
    s.rows = memory((p.lower_batches() + 2) * B * D);
    precision = memory(D), squares = memory(D);
    if (p.upper) kept.h_rows = memory(p.h_batches() * B * H), kept.gap = memory(2 * B * H);
    if (p.upper) kept.slope = memory(B * H), kept.s1 = memory(B * H);
    if (N > 0) kept.tape = tape_memory(2 * N * B * H);
    if (p.dual()) {
      kept.S = memory(B * H), s.M = memory(B * B), s.rV = memory(B * B), gap_S = memory(B * B);
    } else if (N > 0) {
      kept.A = memory(D * H), kept.a = memory(H);
      if (!p.sgd) {
        for (T** const matrix : {&kept.A_grads, &kept.mA, &kept.vA}) *matrix = tape_memory(N * D * H);
        for (T** const vector : {&kept.a_grads, &kept.ma, &kept.va}) *vector = tape_memory(N * H);
      }
    }
    lower.resize(static_cast<size_t>(blocks));
    own.resize(static_cast<size_t>(lanes));
    for (Scratch<T>& t : own) {
      t.x = memory(p.x_batches() * B * width), t.l = memory(B * width);
      t.delta = memory(B * width), t.a_grad = memory(width);
      if (blocks > 1) t.noise = memory(B * width);
      if (N == 0) continue;
      t.rA = memory(B * width);
      if (p.dual()) {
        t.S_bar = memory(B * width);
      } else {
        t.A_bar = memory(D * width), t.a_bar = memory(width);
        if (!p.sgd)
          t.mA_bar = memory(D * width), t.vA_bar = memory(D * width), t.ma_bar = memory(width), t.va_bar = memory(width);
      }
    }
  }

  // body(units of the block, block); a thread runs its blocks one after the other.
  template <typename Body>
  void for_blocks(const Body& body) {
    const auto of_lanes = [&](int64_t begin, int64_t end) {
      for (int64_t lane = begin; lane < end; ++lane)
        for (int64_t block = lane * blocks / lanes; block < (lane + 1) * blocks / lanes; ++block)
          body(units(block, lane), block);
    };
    lanes == 1 ? of_lanes(0, 1) : parallel_for(0, lanes, 1, of_lanes);
  }
  Units<T> units(int64_t block, int64_t lane) const {
    return {s, kept, own[static_cast<size_t>(lane)], block * width, std::min(width, p.H - block * width)};
  }

  Matrix<T> BxB(const T* data) const { return {data, p.B, p.B}; }
  Matrix<T> V() const { return {s.last(), p.B, p.D}; }

  void perturb(int64_t step, T* to) {
    in_parallel(p.B * p.D, [&](int64_t begin, int64_t end) {
      add_scaled(end - begin, in.v + begin, static_cast<T>(p.sigma), in.perturb[step] + begin, to + begin);
    });
  }

  // Computes M too, if the unroll is in the dual.
  T unroll_rate() {
    if (p.dual()) {
      std::fill(s.M, s.M + p.B * p.B, T(1) / static_cast<T>(p.B));
      product<T>(V(), V().t(), T(1) / static_cast<T>(p.B), 1, s.M);
    }
    if (!p.auto_rate) return in.unroll_rate;
    if (!p.dual() && p.D < kFewVisible) return step_size_by_gram(V());
    T *const y = memory(p.B), *const z = memory(p.dual() ? p.B : p.D);
    return p.dual() ? step_size_by_matrix(s.M, p.B, y, z) : step_size_by_products(V(), y, z);
  }

  T lower_loss() {
    double sum = 0;
    for (const double of_block : lower) sum += of_block;
    sum += quadratic(p.B, p.D, s.batch(p.K - 1), in.b, precision, squares);
    return static_cast<T>(sum / static_cast<double>(p.B));
  }

  // The latent part of the score, in the residual's place.
  void score() {
    for (int64_t block = 0; block < blocks; ++block) {
      const Units<T> some = units(block, 0);
      some.add_score(s.residual(), block == 0);
      if (p.dual()) some.add_gap_S(gap_S, block == 0);
    }
    // A_N = A - alpha/B S^T V
    if (p.dual()) product<T>(BxB(gap_S), V(), -s.rate / static_cast<T>(p.B), 1, s.residual());
  }

  // The score becomes r; the loss, and the gradients of b and log sigma.
  void residuals() {
    const double sum = ::residuals(p.B, p.D, s.last(), in.perturb.back(), in.b, precision, static_cast<T>(p.sigma),
                                   s.residual(), out.b_bar, out.log_sigma_bar, squares);
    *out.loss = static_cast<T>(0.5 * sum / static_cast<double>(p.B));
    if (p.dual()) product<T>({s.residual(), p.B, p.D}, V().t(), 1, 0, s.rV);
  }
};

std::vector<at::Tensor> grbm_bilevel_cpu(const at::Tensor& v, const std::vector<at::Tensor>& perturb,
                                         const std::vector<at::Tensor>& latent, const at::Tensor& W, const at::Tensor& b,
                                         const at::Tensor& c, const at::Tensor& log_sigma, const at::Tensor& A,
                                         const at::Tensor& a, const at::Tensor& mA, const at::Tensor& ma, const at::Tensor& vA,
                                         const at::Tensor& va, const at::Tensor& step_count, const at::Tensor& phi_rate,
                                         const at::Tensor& unroll_rate, int64_t K, int64_t N, double sigma, double tau,
                                         bool exact, bool sgd, bool auto_rate, double b1, double b2, double eps,
                                         double eps_root, bool upper) {
  const Sizes n("grbm_bilevel", v, W);
  const int64_t B = n.B, D = n.D, H = n.H;
  TORCH_CHECK_VALUE(K >= 0 && N >= 0, "grbm_bilevel got K=", K, ", N=", N, "; expected both at least 0");
  const size_t steps = static_cast<size_t>(K + N + upper), noises = exact ? upper : steps;
  TORCH_CHECK_VALUE(perturb.size() == 1 || perturb.size() == steps, "grbm_bilevel got ", perturb.size(),
                    " perturbations; expected 1 (shared) or one per step, ", steps);
  TORCH_CHECK_VALUE(latent.size() == noises, "grbm_bilevel got ", latent.size(), " latent noises; expected ", noises);
  TORCH_CHECK_VALUE(B > 0 && D > 0 && H > 0, "grbm_bilevel got sizes B=", B, ", D=", D, ", H=", H, "; expected at least 1");
  n.expect_parameters(b, c, log_sigma);
  for (const at::Tensor& t : perturb) n.expect("perturb", t, {B, D});
  for (const at::Tensor& t : latent) n.expect("latent", t, {B, H});
  const std::pair<const char*, const at::Tensor*> vectors[] = {{"a", &a}, {"m_bias", &ma}, {"v_bias", &va}};
  for (const auto& [name, t] : vectors) n.expect(name, *t, {H});
  const std::pair<const char*, const at::Tensor*> matrices[] = {{"A", &A}, {"m_weight", &mA}, {"v_weight", &vA}};
  for (const auto& [name, t] : matrices) n.expect(name, *t, {H, D});
  const std::pair<const char*, const at::Tensor*> scalars[] = {
      {"step_count", &step_count}, {"phi_rate", &phi_rate}, {"unroll_rate", &unroll_rate}};
  for (const auto& [name, t] : scalars) n.expect(name, *t, {});

  const Plan plan{B,     D,   H,         K,  N,  sigma, tau,      perturb.size() == 1 && K + N > 0,
                  exact, sgd, auto_rate, b1, b2, eps,   eps_root, upper};
  const std::vector<at::Tensor> eps_list = contiguous(perturb), noise_list = contiguous(latent);
  const std::vector<at::Tensor> ins =
      contiguous({v, W, b, c, log_sigma, A, a, mA, ma, vA, va, step_count, phi_rate, unroll_rate});
  std::vector<at::Tensor> outs = {n.made({D, H}), n.made({D}), n.made({H}), n.made({D})};
  // Without real steps phi and its moments are copies of the given ones.
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
      "Tensor a, Tensor m_weight, Tensor m_bias, Tensor v_weight, Tensor v_bias, Tensor step_count, Tensor phi_rate, Tensor "
      "unroll_rate, "
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
