// Block Gibbs sweeps of a GRBM on the CPU: two products and two loops a sweep, noise drawn where it is used.
// Shape tags: B chains, D visible, H latent.

#include <cmath>
#include <vector>

#include "../grbm/sizes.h"
#include "../philox/philox.h"
#include "../runtime/batched.h"
#include "../runtime/parallel.h"
#include "../runtime/product.h"
#include "../runtime/tensors.h"

namespace {

#define EBLVM_LOOPS(T)                                                                                           \
  /* h = 1[u < sigmoid(x)], over x. */                                                                           \
  template <typename U>                                                                                          \
  EBLVM_INLINE void decide_body(int64_t n, const U* __restrict u, T* __restrict x) {                             \
    for (int64_t i = 0; i < n; ++i) x[i] = static_cast<T>(u[i]) < sigmoid(x[i]) ? T(1) : T(0);                   \
  }                                                                                                              \
  EBLVM_CLONES void decide(int64_t n, const float* u, T* x) { decide_body(n, u, x); }                            \
  EBLVM_CLONES void add_row(int64_t n, const T* __restrict row, T* __restrict x) {                               \
    for (int64_t i = 0; i < n; ++i) x[i] += row[i];                                                              \
  }                                                                                                              \
  /* mean = b + sigma^2 m over m, v = mean + sigma z, for part of a row. */                                      \
  EBLVM_CLONES void move(int64_t n, const float* __restrict z, const T* __restrict b, const T* __restrict sigma, \
                         T* __restrict m, T* __restrict v) {                                                     \
    for (int64_t i = 0; i < n; ++i) {                                                                            \
      m[i] = b[i] + sigma[i] * sigma[i] * m[i];                                                                  \
      v[i] = m[i] + sigma[i] * static_cast<T>(z[i]);                                                             \
    }                                                                                                            \
  }
EBLVM_LOOPS(float)
EBLVM_LOOPS(double)
#undef EBLVM_LOOPS

EBLVM_CLONES void decide(int64_t n, const double* u, double* x) { decide_body(n, u, x); }

EBLVM_CLONES void move(int64_t n, const double* __restrict z, const double* __restrict b, const double* __restrict sigma,
                       double* __restrict m, double* __restrict v) {
  for (int64_t i = 0; i < n; ++i) {
    m[i] = b[i] + sigma[i] * sigma[i] * m[i];
    v[i] = m[i] + sigma[i] * z[i];
  }
}

struct Draw {
  const int64_t* seeds;  // null where the noise is given
  int64_t step, purpose_h, purpose_v, first;
};

// body(offset, size, noise) over chunks of [rows, width]; a stream's chunks are drawn here.
template <typename Fill, typename Body>
void for_chunks(const Stream& stream, Fill fill, const Body& body) {
  parallel_for(0, stream.chunks(), 16, [&](int64_t begin, int64_t end) {
    alignas(64) uint32_t words[4 * kChunk];
    alignas(64) float noise[4 * kChunk];
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const Range range = draw_words(stream, chunk, words);
      fill(words, noise, range.size);
      body(range.offset, range.size, noise);
    }
  });
}

// One replica's sweeps; v and mean are its [B, D] results, and v is the start.
template <typename T>
void run(int64_t B, int64_t D, int64_t H, const T* W, const T* b, const T* c, const T* sigma,
         const std::vector<const T*>& uniforms, const std::vector<const T*>& normals, const Draw& draw, int64_t replica,
         int64_t sweeps, T* x, T* v, T* mean) {
  // Elements of v from `offset` on; a chunk may begin and end within a row.
  const auto move_range = [&](int64_t offset, int64_t size, const auto* noise) {
    for (int64_t done = 0; done < size;) {
      const int64_t column = (offset + done) % D, n = std::min(size - done, D - column);
      move(n, noise + done, b + column, sigma + column, mean + offset + done, v + offset + done);
      done += n;
    }
  };
  for (int64_t i = 0; i < sweeps; ++i) {
    product<T>({v, B, D}, {W, D, H}, 1, 0, x);
    for (int64_t row = 0; row < B; ++row) add_row(H, c, x + row * H);
    const auto stream = [&](int64_t purpose, int64_t width) {
      return Stream{static_cast<uint64_t>(draw.seeds[replica]),
                    static_cast<uint32_t>(draw.step + i),
                    static_cast<uint32_t>(purpose),
                    draw.first,
                    B,
                    width};
    };
    if (draw.seeds) {
      for_chunks(stream(draw.purpose_h, H), fill_uniform,
                 [&](int64_t offset, int64_t size, const float* u) { decide(size, u, x + offset); });
    } else {
      decide(B * H, uniforms[i], x);
    }
    product<T>({x, B, H}, Matrix<T>{W, D, H}.t(), 1, 0, mean);
    if (draw.seeds) {
      for_chunks(stream(draw.purpose_v, D), fill_normal, move_range);
    } else {
      move_range(0, B * D, normals[i]);
    }
  }
}

std::tuple<at::Tensor, at::Tensor> gibbs_cpu(const at::Tensor& v, const at::Tensor& W, const at::Tensor& b, const at::Tensor& c,
                                             const at::Tensor& log_sigma, const std::vector<at::Tensor>& uniforms,
                                             const std::vector<at::Tensor>& normals, const std::optional<at::Tensor>& seed,
                                             int64_t step, int64_t purpose_h, int64_t purpose_v, int64_t first,
                                             int64_t sweeps) {
  const Sizes n("gibbs", v, W);
  const int64_t B = n.B, D = n.D, H = n.H;
  TORCH_CHECK_VALUE(sweeps >= 0, "gibbs got sweeps=", sweeps, "; expected at least 0");
  n.expect_parameters(b, c, log_sigma);
  const auto wanted = seed ? 0 : static_cast<size_t>(sweeps);
  TORCH_CHECK_VALUE(uniforms.size() == wanted && normals.size() == wanted, "gibbs got ", uniforms.size(), " and ",
                    normals.size(), " tensors of noise; expected ", wanted, " of each");
  for (const at::Tensor& t : uniforms) n.expect("uniform_h", t, {B, H});
  for (const at::Tensor& t : normals) n.expect("normal_v", t, {B, D});
  if (seed) {
    TORCH_CHECK_VALUE(seed->scalar_type() == at::kLong && seed->sizes() == at::IntArrayRef(n.lead), "gibbs got seeds of dtype ",
                      seed->scalar_type(), " and shape ", seed->sizes(), "; expected int64 with the leading axes of W ",
                      W.sizes());
  }

  const std::vector<at::Tensor> ins = contiguous({W, b, c, log_sigma.exp()}), us = contiguous(uniforms),
                                ns = contiguous(normals);
  const at::Tensor seeds = seed ? seed->contiguous() : at::Tensor();
  at::Tensor out = v.clone(at::MemoryFormat::Contiguous), mean = v.clone(at::MemoryFormat::Contiguous);
  if (out.numel() == 0 || sweeps == 0) return {out, mean};
  const Draw draw{seed ? seeds.const_data_ptr<int64_t>() : nullptr, step, purpose_h, purpose_v, first};
  AT_DISPATCH_FLOATING_TYPES(W.scalar_type(), "gibbs", [&] {
    using T = scalar_t;
    parallel_for(0, n.replicas, n.replicas_per_thread(sweeps), [&](int64_t begin, int64_t end) {
      at::Tensor x = at::empty({B, H}, W.options());
      for (int64_t r = begin; r < end; ++r) {
        const auto part = [&](const at::Tensor& t) { return n.part<T>(t, r); };
        std::vector<const T*> u, z;
        for (const at::Tensor& t : us) u.push_back(part(t));
        for (const at::Tensor& t : ns) z.push_back(part(t));
        run<T>(B, D, H, part(ins[0]), part(ins[1]), part(ins[2]), part(ins[3]), u, z, draw, r, sweeps, x.mutable_data_ptr<T>(),
               n.part_of<T>(out, r), n.part_of<T>(mean, r));
      }
    });
  });
  return {out, mean};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(eblvm, m) {
  m.def(
      "gibbs(Tensor v, Tensor W, Tensor b, Tensor c, Tensor log_sigma, Tensor[] uniforms, Tensor[] normals, Tensor? seed, "
      "int step, int purpose_h, int purpose_v, int first, int sweeps) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(eblvm, CPU, m) { m.impl("gibbs", gibbs_cpu); }

TORCH_LIBRARY_IMPL(eblvm, FuncTorchBatched, m) { m.impl("gibbs", torch::CppFunction::makeFromBoxedFunction<&replica_rule>()); }
