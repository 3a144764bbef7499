// The differentiable Adam step on the CPU, forward and reverse, each one pass over memory.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "../runtime/batched.h"
#include "../runtime/parallel.h"
#include "../runtime/sums.h"
#include "../runtime/tensors.h"
#include "pointwise.h"

namespace {

#define EBLVM_LOOPS(T)                                                                                                       \
  EBLVM_CLONES void step_loop(AdamRule<T> r, int64_t n, const T* __restrict p, const T* __restrict g, const T* __restrict m, \
                              const T* __restrict v, T* __restrict p_to, T* __restrict m_to, T* __restrict v_to) {           \
    for (int64_t i = 0; i < n; ++i) {                                                                                        \
      T m_ = m[i], v_ = v[i];                                                                                                \
      p_to[i] = adam_element(r, p[i], g[i], m_, v_);                                                                         \
      m_to[i] = m_;                                                                                                          \
      v_to[i] = v_;                                                                                                          \
    }                                                                                                                        \
  }                                                                                                                          \
  EBLVM_CLONES void step_in_place_loop(AdamRule<T> r, int64_t n, T scale, T decay, T* __restrict p, const T* __restrict g,   \
                                       T* __restrict m, T* __restrict v) {                                                   \
    for (int64_t i = 0; i < n; ++i) p[i] = adam_element(r, p[i], scale * g[i] + decay * p[i], m[i], v[i]);                   \
  }                                                                                                                          \
  EBLVM_CLONES double sum_of_squares(int64_t n, const T* __restrict x) {                                                     \
    double sum = 0;                                                                                                          \
    for (int64_t from = 0; from < n; from += 4096) {                                                                         \
      sum += sum_of<T>(std::min<int64_t>(n - from, 4096),                                                                    \
                       [&](int64_t i) __attribute__((always_inline)) { return x[from + i] * x[from + i]; });                 \
    }                                                                                                                        \
    return sum;                                                                                                              \
  }                                                                                                                          \
  EBLVM_CLONES void reverse_loop(AdamRule<T> r, int64_t n, const T* __restrict p_bar, const T* __restrict m_bar,             \
                                 const T* __restrict v_bar, const T* __restrict g, const T* __restrict m,                    \
                                 const T* __restrict v, T* __restrict g_to, T* __restrict m_to, T* __restrict v_to) {        \
    for (int64_t i = 0; i < n; ++i) {                                                                                        \
      T m_ = m_bar[i], v_ = v_bar[i];                                                                                        \
      const T after_m = r.b1 * m[i] + r.a1 * g[i], after_v = r.b2 * v[i] + r.a2 * (g[i] * g[i]);                             \
      g_to[i] = adam_reverse_element(r, p_bar[i], g[i], after_m, after_v, m_, v_);                                           \
      m_to[i] = m_;                                                                                                          \
      v_to[i] = v_;                                                                                                          \
    }                                                                                                                        \
  }
EBLVM_LOOPS(float)
EBLVM_LOOPS(double)
#undef EBLVM_LOOPS

void check(const char* name, const at::Tensor& t, const at::Tensor& g) {
  TORCH_CHECK_VALUE(t.sizes() == g.sizes(), "adam_unroll got ", name, " of shape ", t.sizes(), "; expected that of g, ",
                    g.sizes());
  TORCH_CHECK_VALUE(t.scalar_type() == g.scalar_type(), "adam_unroll got ", name, " of dtype ", t.scalar_type(),
                    "; expected that of g, ", g.scalar_type());
}

void check_scalars(const at::Tensor& g, const at::Tensor& t, const at::Tensor& lr) {
  TORCH_CHECK_VALUE(g.scalar_type() == at::kFloat || g.scalar_type() == at::kDouble, "adam_unroll got g of dtype ",
                    g.scalar_type(), "; expected float32 or float64");
  for (const auto& [name, s] : {std::pair{"t", t}, std::pair{"lr", lr}}) {
    TORCH_CHECK_VALUE(s.dim() <= g.dim() && s.sizes() == g.sizes().slice(0, s.dim()) && s.dim() == t.dim(), "adam_unroll got ",
                      name, " of shape ", s.sizes(), "; expected [] or leading axes of g ", g.sizes(),
                      ", the same as t and lr");
    TORCH_CHECK_VALUE(s.scalar_type() == g.scalar_type(), "adam_unroll got ", name, " of dtype ", s.scalar_type(),
                      "; expected that of g, ", g.scalar_type());
  }
}

constexpr int64_t kThreadElements = 32768;  // elements of one thread's work

// body(begin, end) over the chunks of n elements; a single chunk needs no parallel loop.
template <typename Body>
void in_chunks(int64_t n, const Body& body) {
  if (n <= kThreadElements) return body(0, n);
  parallel_for(0, (n + kThreadElements - 1) / kThreadElements, 1, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) body(i * kThreadElements, std::min(n, (i + 1) * kThreadElements));
  });
}

// body(rule, begin, size) over chunks, each within one replica, whose (t, lr) make the rule.
template <typename T, typename Body>
void for_replicas(const at::Tensor& g, const at::Tensor& t, const at::Tensor& lr, double b1, double b2, double eps,
                  double eps_root, const Body& body) {
  const at::Tensor ts = t.contiguous(), lrs = lr.contiguous();
  const int64_t replicas = ts.numel(), size = replicas ? g.numel() / replicas : 0;
  for (int64_t i = 0; i < replicas; ++i) {
    const AdamRule<T> rule(b1, b2, eps, eps_root, ts.const_data_ptr<T>()[i], lrs.const_data_ptr<T>()[i]);
    in_chunks(size, [&](int64_t begin, int64_t end) { body(rule, i * size + begin, end - begin); });
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> step_cpu(const at::Tensor& p, const at::Tensor& g, const at::Tensor& m,
                                                        const at::Tensor& v, const at::Tensor& t, const at::Tensor& lr,
                                                        double b1, double b2, double eps, double eps_root) {
  check_scalars(g, t, lr);
  check("p", p, g);
  check("m", m, g);
  check("v", v, g);
  const at::Tensor p_ = p.contiguous(), g_ = g.contiguous(), m_ = m.contiguous(), v_ = v.contiguous();
  at::Tensor p_to = at::empty_like(p_), m_to = at::empty_like(p_), v_to = at::empty_like(p_);
  AT_DISPATCH_FLOATING_TYPES(g.scalar_type(), "adam_unroll", [&] {
    using T = scalar_t;
    const T *ps = p_.const_data_ptr<T>(), *gs = g_.const_data_ptr<T>(), *ms = m_.const_data_ptr<T>(),
            *vs = v_.const_data_ptr<T>();
    T *to_p = p_to.mutable_data_ptr<T>(), *to_m = m_to.mutable_data_ptr<T>(), *to_v = v_to.mutable_data_ptr<T>();
    for_replicas<T>(g, t, lr, b1, b2, eps, eps_root, [&](const AdamRule<T>& rule, int64_t at, int64_t n) {
      step_loop(rule, n, ps + at, gs + at, ms + at, vs + at, to_p + at, to_m + at, to_v + at);
    });
  });
  return {p_to, m_to, v_to};
}

// One parameter, its gradient and its moments in one memory order with the replicas first: views where they have it already,
// else copies.
struct Place {
  at::Tensor p, g, m, v;
};

Place place_of(const at::Tensor& p, const at::Tensor& g, const at::Tensor& m, const at::Tensor& v, bool replicas) {
  const bool dense = p.is_non_overlapping_and_dense() && p.strides() == m.strides() && p.strides() == v.strides();
  if (!dense || (replicas && !p.is_contiguous())) return {p.contiguous(), g.contiguous(), m.contiguous(), v.contiguous()};
  return {p, g.strides() == p.strides() ? g : at::empty_like(p).copy_(g), m, v};
}

// The sum over n elements is in the same order for any number of threads.
template <typename T>
double sum_of_all_squares(int64_t n, const T* x) {
  if (n <= kThreadElements) return sum_of_squares(n, x);
  std::vector<double> sums((n + kThreadElements - 1) / kThreadElements);
  in_chunks(n, [&](int64_t begin, int64_t end) { sums[begin / kThreadElements] = sum_of_squares(end - begin, x + begin); });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

// Adam's step of many parameters in place. Returns the number of steps after it and the norm of the whole gradient, for each
// replica.
std::tuple<at::Tensor, at::Tensor> steps_in_place_cpu(at::TensorList p, at::TensorList g, at::TensorList m, at::TensorList v,
                                                      const at::Tensor& step_count, const at::Tensor& lr, double b1, double b2,
                                                      double eps, double eps_root, double weight_decay,
                                                      std::optional<double> clip_norm) {
  TORCH_CHECK_VALUE(p.size() == g.size() && p.size() == m.size() && p.size() == v.size(), "adam_unroll_ got ", p.size(), ", ",
                    g.size(), ", ", m.size(), " and ", v.size(), " of p, g, m and v; expected as many of each");
  for (size_t i = 0; i < p.size(); ++i) {
    check_scalars(g[i], step_count, lr);
    check("p", p[i], g[i]);
    check("m", m[i], g[i]);
    check("v", v[i], g[i]);
  }
  const at::Tensor before = step_count.contiguous(), rates = lr.contiguous();
  at::Tensor after = at::empty_like(before), norm = at::empty_like(before);
  AT_DISPATCH_FLOATING_TYPES(step_count.scalar_type(), "adam_unroll_", [&] {
    using T = scalar_t;
    const int64_t replicas = step_count.numel();
    const auto data = [](const at::Tensor& x) { return x.mutable_data_ptr<T>(); };

    std::vector<double> squares(replicas);
    for (const at::Tensor& x : g) {
      const at::Tensor dense = step_count.dim() == 0 && x.is_non_overlapping_and_dense() ? x : x.contiguous();
      const T* const gs = data(dense);
      const int64_t size = replicas ? x.numel() / replicas : 0;
      for (int64_t r = 0; r < replicas; ++r) squares[r] += sum_of_all_squares(size, gs + r * size);
    }
    std::vector<AdamRule<T>> rules;
    std::vector<T> scales;
    for (int64_t r = 0; r < replicas; ++r) {
      const double length = std::sqrt(squares[r]);
      data(norm)[r] = static_cast<T>(length);
      data(after)[r] = data(before)[r] + T(1);
      rules.emplace_back(b1, b2, eps, eps_root, data(after)[r], data(rates)[r]);
      // A NaN norm compares false and so scales the gradient: the NaN reaches all parameters.
      scales.push_back(clip_norm && !(length <= *clip_norm) ? static_cast<T>(*clip_norm / length) : T(1));
    }

    for (size_t i = 0; i < p.size(); ++i) {
      const Place place = place_of(p[i], g[i], m[i], v[i], step_count.dim() > 0);
      T *const ps = data(place.p), *const gs = data(place.g), *const ms = data(place.m), *const vs = data(place.v);
      const int64_t size = replicas ? p[i].numel() / replicas : 0;
      for (int64_t r = 0; r < replicas; ++r) {
        in_chunks(size, [&](int64_t begin, int64_t end) {
          const int64_t k = r * size + begin;
          step_in_place_loop(rules[r], end - begin, scales[r], static_cast<T>(weight_decay), ps + k, gs + k, ms + k, vs + k);
        });
      }
      for (const auto& [to, from] : {std::pair{p[i], place.p}, {m[i], place.m}, {v[i], place.v}}) {
        if (!to.is_same(from)) to.copy_(from);
      }
    }
  });
  return {after, norm};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> reverse_cpu(const at::Tensor& p_bar, const at::Tensor& m_bar,
                                                           const at::Tensor& v_bar, const at::Tensor& g, const at::Tensor& m,
                                                           const at::Tensor& v, const at::Tensor& t, const at::Tensor& lr,
                                                           double b1, double b2, double eps, double eps_root) {
  check_scalars(g, t, lr);
  check("p_bar", p_bar, g);
  check("m_bar", m_bar, g);
  check("v_bar", v_bar, g);
  check("m", m, g);
  check("v", v, g);
  const at::Tensor pb = p_bar.contiguous(), mb = m_bar.contiguous(), vb = v_bar.contiguous();
  const at::Tensor g_ = g.contiguous(), m_ = m.contiguous(), v_ = v.contiguous();
  at::Tensor g_to = at::empty_like(g_), m_to = at::empty_like(g_), v_to = at::empty_like(g_);
  AT_DISPATCH_FLOATING_TYPES(g.scalar_type(), "adam_unroll", [&] {
    using T = scalar_t;
    const T *pbs = pb.const_data_ptr<T>(), *mbs = mb.const_data_ptr<T>(), *vbs = vb.const_data_ptr<T>();
    const T *gs = g_.const_data_ptr<T>(), *ms = m_.const_data_ptr<T>(), *vs = v_.const_data_ptr<T>();
    T *to_g = g_to.mutable_data_ptr<T>(), *to_m = m_to.mutable_data_ptr<T>(), *to_v = v_to.mutable_data_ptr<T>();
    for_replicas<T>(g, t, lr, b1, b2, eps, eps_root, [&](const AdamRule<T>& rule, int64_t at, int64_t n) {
      reverse_loop(rule, n, pbs + at, mbs + at, vbs + at, gs + at, ms + at, vs + at, to_g + at, to_m + at, to_v + at);
    });
  });
  return {g_to, m_to, v_to};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(eblvm, m) {
  const std::string rest = "Tensor g, Tensor m, Tensor v, Tensor t, Tensor lr, float b1, float b2, float eps, float eps_root)";
  m.def(("adam_unroll(Tensor p, " + rest + " -> (Tensor, Tensor, Tensor)").c_str());
  m.def(
      "adam_unroll_(Tensor(a!)[] p, Tensor[] g, Tensor(b!)[] m, Tensor(c!)[] v, Tensor step_count, Tensor lr, float b1, float "
      "b2, "
      "float eps, float eps_root, float weight_decay, float? clip_norm) -> (Tensor, Tensor)");
  m.def(("adam_unroll_reverse(Tensor p_bar, Tensor m_bar, Tensor v_bar, " + rest + " -> (Tensor, Tensor, Tensor)").c_str());
}

TORCH_LIBRARY_IMPL(eblvm, CPU, m) {
  m.impl("adam_unroll", step_cpu);
  m.impl("adam_unroll_", steps_in_place_cpu);
  m.impl("adam_unroll_reverse", reverse_cpu);
}

TORCH_LIBRARY_IMPL(eblvm, FuncTorchBatched, m) {
  m.impl("adam_unroll", torch::CppFunction::makeFromBoxedFunction<&replica_rule>());
  m.impl("adam_unroll_reverse", torch::CppFunction::makeFromBoxedFunction<&replica_rule>());
}
