// The pointwise part of the lower step on the CPU: value, first and second derivative, each one pass.
// Noise is a tensor, or drawn from its Philox stream a row at a time and never stored, or absent (the closed form).

#include <vector>

#include "../philox/philox.h"
#include "../runtime/parallel.h"
#include "../runtime/tensors.h"
#include "pointwise.h"

namespace {

template <typename T>
struct Row {
  const T *l, *x, *noise;
  T cold;
  int64_t size;
};

// One clone of each loop for every instruction set, element type and kind of KL.
#define EBLVM_ROWS(T, exact, suffix)                                                                            \
  EBLVM_CLONES T value_##suffix(Row<T> r) {                                                                     \
    const T* __restrict l = r.l;                                                                                \
    const T* __restrict x = r.x;                                                                                \
    const T* __restrict n = r.noise;                                                                            \
    T parts[16] = {};                                                                                           \
    int64_t i = 0;                                                                                              \
    for (; i + 16 <= r.size; i += 16)                                                                           \
      for (int64_t j = 0; j < 16; ++j) parts[j] += lower_value<exact>(l[i + j], x[i + j], n[i + j], r.cold);    \
    for (int64_t j = 0; i < r.size; ++i, ++j) parts[j] += lower_value<exact>(l[i], x[i], n[i], r.cold);         \
    T sum = 0;                                                                                                  \
    for (int64_t j = 0; j < 16; ++j) sum += parts[j];                                                           \
    return sum;                                                                                                 \
  }                                                                                                             \
  EBLVM_CLONES void first_##suffix(Row<T> r, T g, T* __restrict gl, T* __restrict gx) {                         \
    const T* __restrict l = r.l;                                                                                \
    const T* __restrict x = r.x;                                                                                \
    const T* __restrict n = r.noise;                                                                            \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < r.size; ++i) {                                                 \
      const Lower<T> c = lower<exact>(l[i], x[i], n[i], r.cold);                                                \
      gl[i] = g * c.delta;                                                                                      \
      gx[i] = -g * c.h;                                                                                         \
    }                                                                                                           \
  }                                                                                                             \
  EBLVM_CLONES T second_##suffix(Row<T> r, T g, const T* __restrict u, const T* __restrict w, T* __restrict ll, \
                                 T* __restrict xx) {                                                            \
    const T* __restrict l = r.l;                                                                                \
    const T* __restrict x = r.x;                                                                                \
    const T* __restrict n = r.noise;                                                                            \
    T parts[16] = {};                                                                                           \
    const auto element = [&](int64_t i, int64_t j) __attribute__((always_inline)) {                             \
      const Lower<T> c = lower<exact>(l[i], x[i], n[i], r.cold);                                                \
      parts[j] += u[i] * c.delta - w[i] * c.h;                                                                  \
      ll[i] = g * (u[i] * c.curvature - w[i] * c.slope);                                                        \
      xx[i] = -g * u[i] * c.slope;                                                                              \
    };                                                                                                          \
    int64_t i = 0;                                                                                              \
    for (; i + 16 <= r.size; i += 16) _Pragma("GCC ivdep") for (int64_t j = 0; j < 16; ++j) element(i + j, j);  \
    for (int64_t j = 0; i < r.size; ++i, ++j) element(i, j);                                                    \
    T sum = 0;                                                                                                  \
    for (int64_t j = 0; j < 16; ++j) sum += parts[j];                                                           \
    return sum;                                                                                                 \
  }
EBLVM_ROWS(float, false, sampled)
EBLVM_ROWS(float, true, exact)
EBLVM_ROWS(double, false, sampled)
EBLVM_ROWS(double, true, exact)
#undef EBLVM_ROWS

// The source of the noise; `seed` has the leading (replica) axes of the logits.
struct Noise {
  std::optional<at::Tensor> given, seed;
  int64_t step, purpose, first;
};

// body(row number, Row, exact) for every row of [..., B, H]; a row of a stream is drawn into a buffer of its thread.
template <typename T, typename Body>
void for_rows(const at::Tensor& logits, const at::Tensor& x, const Noise& noise, double tau, const Body& body) {
  const int64_t width = logits.size(-1), rows = width ? logits.numel() / width : 0, batch = logits.size(-2);
  const T* l = logits.const_data_ptr<T>();
  const T* xs = x.const_data_ptr<T>();
  const T* given = noise.given ? noise.given->const_data_ptr<T>() : nullptr;
  const int64_t* seeds = noise.seed ? noise.seed->const_data_ptr<int64_t>() : nullptr;
  const bool exact = !given && !seeds;
  parallel_for(0, rows, std::max<int64_t>(1, 8192 / std::max<int64_t>(width, 1)), [&](int64_t begin, int64_t end) {
    std::vector<float> drawn(seeds ? width : 0);
    std::vector<T> cast(seeds && !std::is_same_v<T, float> ? width : 0);
    alignas(64) uint32_t words[4 * kChunk];
    for (int64_t i = begin; i < end; ++i) {
      const T* n = given ? given + i * width : l + i * width;  // the closed form reads no noise
      if (seeds) {
        const Stream stream{static_cast<uint64_t>(seeds[i / batch]),
                            static_cast<uint32_t>(noise.step),
                            static_cast<uint32_t>(noise.purpose),
                            noise.first + i % batch,
                            1,
                            width};
        for (int64_t chunk = 0; chunk < stream.chunks(); ++chunk) {
          const Range range = draw_words(stream, chunk, words);
          fill_logistic(words, drawn.data() + range.offset, range.size);
        }
        if constexpr (std::is_same_v<T, float>) {
          n = drawn.data();
        } else {
          std::copy(drawn.begin(), drawn.end(), cast.begin());
          n = cast.data();
        }
      }
      body(i, Row<T>{l + i * width, xs + i * width, n, static_cast<T>(1 / tau), width}, exact);
    }
  });
}

void same(const char* name, const at::Tensor& t, const at::Tensor& logits, at::IntArrayRef sizes) {
  TORCH_CHECK_VALUE(t.sizes() == sizes, "bernoulli_lower got ", name, " of shape ", t.sizes(), "; expected ", sizes);
  TORCH_CHECK_VALUE(t.scalar_type() == logits.scalar_type(), "bernoulli_lower got ", name, " of dtype ", t.scalar_type(),
                    "; expected that of logits, ", logits.scalar_type());
}

Noise checked(const at::Tensor& logits, const at::Tensor& x, const std::optional<at::Tensor>& given,
              const std::optional<at::Tensor>& seed, int64_t step, int64_t purpose, int64_t first) {
  TORCH_CHECK_VALUE(logits.dim() >= 2, "bernoulli_lower got logits of shape ", logits.sizes(), "; expected [..., B, H]");
  TORCH_CHECK_VALUE(logits.scalar_type() == at::kFloat || logits.scalar_type() == at::kDouble,
                    "bernoulli_lower got logits of dtype ", logits.scalar_type(), "; expected float32 or float64");
  same("x", x, logits, logits.sizes());
  if (given) same("noise", *given, logits, logits.sizes());
  if (seed) {
    TORCH_CHECK_VALUE(seed->scalar_type() == at::kLong, "bernoulli_lower got seeds of dtype ", seed->scalar_type(),
                      "; expected int64, use seed.long()");
    TORCH_CHECK_VALUE(seed->sizes() == logits.sizes().slice(0, logits.dim() - 2), "bernoulli_lower got seeds of shape ",
                      seed->sizes(), "; expected the leading axes of logits ", logits.sizes());
  }
  const auto contiguous = [](const std::optional<at::Tensor>& t) { return t ? std::optional(t->contiguous()) : t; };
  return {contiguous(given), contiguous(seed), step, purpose, first};
}

at::Tensor value_cpu(const at::Tensor& logits, const at::Tensor& x, const std::optional<at::Tensor>& given,
                     const std::optional<at::Tensor>& seed, int64_t step, int64_t purpose, int64_t first, double tau) {
  const Noise noise = checked(logits, x, given, seed, step, purpose, first);
  at::Tensor out = at::zeros(logits.sizes().slice(0, logits.dim() - 1), logits.options());
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "bernoulli_lower", [&] {
    using T = scalar_t;
    T* to = out.mutable_data_ptr<T>();
    for_rows<T>(logits.contiguous(), x.contiguous(), noise, tau,
                [&](int64_t i, Row<T> row, bool exact) { to[i] = exact ? value_exact(row) : value_sampled(row); });
  });
  return out;
}

std::tuple<at::Tensor, at::Tensor> first_cpu(const at::Tensor& g, const at::Tensor& logits, const at::Tensor& x,
                                             const std::optional<at::Tensor>& given, const std::optional<at::Tensor>& seed,
                                             int64_t step, int64_t purpose, int64_t first, double tau) {
  const Noise noise = checked(logits, x, given, seed, step, purpose, first);
  same("g", g, logits, logits.sizes().slice(0, logits.dim() - 1));
  at::Tensor gl = at::empty(logits.sizes(), logits.options()), gx = at::empty(logits.sizes(), logits.options());
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "bernoulli_lower", [&] {
    using T = scalar_t;
    const at::Tensor g_ = g.contiguous();
    const T* gs = g_.const_data_ptr<T>();
    T *l_to = gl.mutable_data_ptr<T>(), *x_to = gx.mutable_data_ptr<T>();
    for_rows<T>(logits.contiguous(), x.contiguous(), noise, tau, [&](int64_t i, Row<T> row, bool exact) {
      if (exact) {
        first_exact(row, gs[i], l_to + i * row.size, x_to + i * row.size);
      } else {
        first_sampled(row, gs[i], l_to + i * row.size, x_to + i * row.size);
      }
    });
  });
  return {gl, gx};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> second_cpu(const at::Tensor& g, const at::Tensor& u, const at::Tensor& w,
                                                          const at::Tensor& logits, const at::Tensor& x,
                                                          const std::optional<at::Tensor>& given,
                                                          const std::optional<at::Tensor>& seed, int64_t step, int64_t purpose,
                                                          int64_t first, double tau) {
  const Noise noise = checked(logits, x, given, seed, step, purpose, first);
  same("g", g, logits, logits.sizes().slice(0, logits.dim() - 1));
  same("u", u, logits, logits.sizes());
  same("w", w, logits, logits.sizes());
  at::Tensor gg = at::zeros(g.sizes(), g.options());
  at::Tensor ll = at::empty(logits.sizes(), logits.options()), xx = at::empty(logits.sizes(), logits.options());
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "bernoulli_lower", [&] {
    using T = scalar_t;
    const at::Tensor g_ = g.contiguous(), u_ = u.contiguous(), w_ = w.contiguous();
    const T *gs = g_.const_data_ptr<T>(), *us = u_.const_data_ptr<T>(), *ws = w_.const_data_ptr<T>();
    T *g_to = gg.mutable_data_ptr<T>(), *l_to = ll.mutable_data_ptr<T>(), *x_to = xx.mutable_data_ptr<T>();
    for_rows<T>(logits.contiguous(), x.contiguous(), noise, tau, [&](int64_t i, Row<T> row, bool exact) {
      const int64_t at = i * row.size;
      g_to[i] = exact ? second_exact(row, gs[i], us + at, ws + at, l_to + at, x_to + at)
                      : second_sampled(row, gs[i], us + at, ws + at, l_to + at, x_to + at);
    });
  });
  return {gg, ll, xx};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(eblvm, m) {
  const std::string noise = "Tensor? noise, Tensor? seed, int step, int purpose, int first, float tau";
  m.def(("bernoulli_lower(Tensor logits, Tensor x, " + noise + ") -> Tensor").c_str());
  m.def(("bernoulli_lower_first(Tensor g, Tensor logits, Tensor x, " + noise + ") -> (Tensor, Tensor)").c_str());
  m.def(("bernoulli_lower_second(Tensor g, Tensor u, Tensor w, Tensor logits, Tensor x, " + noise +
         ") -> (Tensor, Tensor, Tensor)")
            .c_str());
}

TORCH_LIBRARY_IMPL(eblvm, CPU, m) {
  m.impl("bernoulli_lower", value_cpu);
  m.impl("bernoulli_lower_first", first_cpu);
  m.impl("bernoulli_lower_second", second_cpu);
}
