// ELU on the CPU: forward, backward and double backward, each one pass, in the memory order of the input.

#include "../runtime/native.h"

#include "../runtime/batched.h"
#include "../runtime/parallel.h"
#include "../runtime/tensors.h"

namespace {

// The exponential of every x is computed and selected where x <= 0: compilers vectorise a branch worse.
#define EBLVM_LOOPS(T)                                                                                                   \
  EBLVM_CLONES void value_loop(int64_t n, const T* __restrict x, T alpha, T* __restrict y) {                             \
    for (int64_t i = 0; i < n; ++i) {                                                                                    \
      const T below = alpha * expm1_negative(x[i]);                                                                      \
      y[i] = x[i] > T(0) ? x[i] : below;                                                                                 \
    }                                                                                                                    \
  }                                                                                                                      \
  EBLVM_CLONES void first_loop(int64_t n, const T* __restrict g, const T* __restrict x, T alpha, T* __restrict to) {     \
    for (int64_t i = 0; i < n; ++i) {                                                                                    \
      const T curve = alpha * exp_clamped(x[i]);                                                                         \
      to[i] = g[i] * (x[i] > T(0) ? T(1) : curve);                                                                       \
    }                                                                                                                    \
  }                                                                                                                      \
  EBLVM_CLONES void second_loop(int64_t n, const T* __restrict u, const T* __restrict g, const T* __restrict x, T alpha, \
                                T* __restrict g_to, T* __restrict x_to) {                                                \
    for (int64_t i = 0; i < n; ++i) {                                                                                    \
      const T curve = alpha * exp_clamped(x[i]);                                                                         \
      g_to[i] = u[i] * (x[i] > T(0) ? T(1) : curve);                                                                     \
      x_to[i] = u[i] * g[i] * (x[i] > T(0) ? T(0) : curve);                                                              \
    }                                                                                                                    \
  }
EBLVM_LOOPS(float)
EBLVM_LOOPS(double)
#undef EBLVM_LOOPS

void check(const at::Tensor& x) {
  TORCH_CHECK_VALUE(x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble, "elu_second_order got x of dtype ",
                    x.scalar_type(), "; expected float32 or float64");
}

at::Tensor dense(const at::Tensor& x) { return x.is_non_overlapping_and_dense() ? x : x.contiguous(); }

// `t` in the memory order of `x`.
at::Tensor like(const char* name, const at::Tensor& t, const at::Tensor& x) {
  TORCH_CHECK_VALUE(t.sizes() == x.sizes(), "elu_second_order got ", name, " of shape ", t.sizes(), "; expected that of x, ",
                    x.sizes());
  TORCH_CHECK_VALUE(t.scalar_type() == x.scalar_type(), "elu_second_order got ", name, " of dtype ", t.scalar_type(),
                    "; expected that of x, ", x.scalar_type());
  return t.strides() == x.strides() ? t : at::empty_like(x).copy_(t);
}

at::Tensor elu_value_cpu(const at::Tensor& x_in, double alpha) {
  check(x_in);
  const at::Tensor x = dense(x_in);
  at::Tensor y = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "elu_second_order", [&] {
    using T = scalar_t;
    const T* from = x.const_data_ptr<T>();
    T* to = y.mutable_data_ptr<T>();
    parallel_for(0, x.numel(), 32768,
                 [&](int64_t i, int64_t end) { value_loop(end - i, from + i, static_cast<T>(alpha), to + i); });
  });
  return y;
}

at::Tensor elu_first_cpu(const at::Tensor& g_in, const at::Tensor& x_in, double alpha) {
  check(x_in);
  const at::Tensor x = dense(x_in), g = like("g", g_in, x);
  at::Tensor out = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "elu_second_order", [&] {
    using T = scalar_t;
    const T *xs = x.const_data_ptr<T>(), *gs = g.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    parallel_for(0, x.numel(), 32768,
                 [&](int64_t i, int64_t end) { first_loop(end - i, gs + i, xs + i, static_cast<T>(alpha), to + i); });
  });
  return out;
}

std::tuple<at::Tensor, at::Tensor> elu_second_cpu(const at::Tensor& u_in, const at::Tensor& g_in, const at::Tensor& x_in,
                                                  double alpha) {
  check(x_in);
  const at::Tensor x = dense(x_in), g = like("g", g_in, x), u = like("u", u_in, x);
  at::Tensor g_out = at::empty_like(x), x_out = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "elu_second_order", [&] {
    using T = scalar_t;
    const T *xs = x.const_data_ptr<T>(), *gs = g.const_data_ptr<T>(), *us = u.const_data_ptr<T>();
    T *g_to = g_out.mutable_data_ptr<T>(), *x_to = x_out.mutable_data_ptr<T>();
    parallel_for(0, x.numel(), 32768, [&](int64_t i, int64_t end) {
      second_loop(end - i, us + i, gs + i, xs + i, static_cast<T>(alpha), g_to + i, x_to + i);
    });
  });
  return {g_out, x_out};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(eblvm, m) {
  m.def("elu_second_order(Tensor x, float alpha) -> Tensor");
  m.def("elu_second_order_first(Tensor g, Tensor x, float alpha) -> Tensor");
  m.def("elu_second_order_second(Tensor u, Tensor g, Tensor x, float alpha) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(eblvm, CPU, m) {
  m.impl("elu_second_order", elu_value_cpu);
  m.impl("elu_second_order_first", elu_first_cpu);
  m.impl("elu_second_order_second", elu_second_cpu);
}

TORCH_LIBRARY_IMPL(eblvm, FuncTorchBatched, m) {
  m.impl("elu_second_order", torch::CppFunction::makeFromBoxedFunction<&replica_rule>());
  m.impl("elu_second_order_first", torch::CppFunction::makeFromBoxedFunction<&replica_rule>());
  m.impl("elu_second_order_second", torch::CppFunction::makeFromBoxedFunction<&replica_rule>());
}
