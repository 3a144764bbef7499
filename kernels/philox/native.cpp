// Philox 4x32-10 noise on the CPU: the bits of reference.py, in loops that the compiler vectorises.
// Build with -ffp-contract=off: a fused multiply-add rounds once where the reference rounds twice.

#include <cmath>

#include "../runtime/parallel.h"
#include "../runtime/tensors.h"
#include "philox.h"

namespace {

enum Kind : int64_t { kWords, kUniform, kNormal, kLogistic, kGumbel, kRademacher, kKinds };

EBLVM_INLINE float rademacher(uint32_t r) { return signed_by_top_bit(1.0f, r); }

EBLVM_INLINE float gumbel_exponential(uint32_t r) {
  const bool negative = static_cast<int32_t>(r) < 0;
  const float q = tail(r) * 0.5f;
  const float y = 1.0f - q;
  const float u = negative ? q : y;
  const float log_u = log_positive(u);
  const float ratio = log_u * q / (y == 1.0f ? -1.0f : y - 1.0f);
  const float small = y == 1.0f ? q : ratio;
  return negative ? -log_u : small;
}

#define EBLVM_TRANSFORM(name, function)                                                       \
  EBLVM_CLONES void name(const uint32_t* __restrict r, float* __restrict out, int64_t size) { \
    for (int64_t i = 0; i < size; ++i) out[i] = function(r[i]);                               \
  }
EBLVM_TRANSFORM(fill_rademacher, rademacher)
#undef EBLVM_TRANSFORM

EBLVM_CLONES void fill_gumbel(const uint32_t* __restrict r, float* __restrict out, int64_t size) {
  alignas(64) float e[kStage];
  for (int64_t begin = 0; begin < size; begin += kStage, r += kStage, out += kStage) {
    const int64_t n = std::min(kStage, size - begin);
    for (int64_t i = 0; i < n; ++i) e[i] = gumbel_exponential(r[i]);
    for (int64_t i = 0; i < n; ++i) out[i] = -log_positive(e[i]);
  }
}

void transform(int64_t kind, const uint32_t* r, float* out, int64_t size) {
  switch (kind) {
    case kUniform:
      return fill_uniform(r, out, size);
    case kNormal:
      return fill_normal(r, out, size);
    case kLogistic:
      return fill_logistic(r, out, size);
    case kGumbel:
      return fill_gumbel(r, out, size);
    default:
      return fill_rademacher(r, out, size);
  }
}

void check(const at::Tensor& seed, int64_t kind) {
  TORCH_CHECK_VALUE(seed.scalar_type() == at::kLong, "philox got seeds of dtype ", seed.scalar_type(),
                    "; expected int64, use seed.long()");
  TORCH_CHECK_VALUE(kind >= 0 && kind < kKinds, "philox got kind ", kind, "; expected 0..", kKinds - 1);
}

// `streams` tensors [seeds..., count, width]; stream i has purpose + i.
std::vector<at::Tensor> streams_cpu(const at::Tensor& seed, int64_t step, int64_t purpose, int64_t streams, int64_t count,
                                    int64_t width, int64_t first, int64_t kind) {
  check(seed, kind);
  TORCH_CHECK_VALUE(step >= 0 && step >> 32 == 0, "philox got step ", step, "; expected 0 <= step < 2**32");
  TORCH_CHECK_VALUE(purpose >= 0 && purpose >> 32 == 0, "philox got purpose ", purpose, "; expected 0 <= purpose < 2**32");
  TORCH_CHECK_VALUE(streams >= 0 && streams <= (int64_t{1} << 32) - purpose, "philox got ", streams, " streams from purpose ",
                    purpose, "; expected purposes inside [0, 2**32)");
  TORCH_CHECK_VALUE(count >= 0 && width >= 0 && width <= int64_t{1} << 34, "philox got count ", count, " and width ", width,
                    "; expected count >= 0 and 0 <= width <= 2**34");
  TORCH_CHECK_VALUE(first >= 0 && count <= (int64_t{1} << 32) - first, "philox got samples from ", first, ", ", count,
                    " of them; expected indices inside [0, 2**32)");

  const at::Tensor seeds = seed.contiguous();
  auto sizes = seed.sizes().vec();
  sizes.push_back(count);
  sizes.push_back(width);
  std::vector<at::Tensor> out;
  for (int64_t i = 0; i < streams; ++i) {
    out.push_back(at::empty(sizes, seed.options().dtype(kind == kWords ? at::kLong : at::kFloat)));
  }
  if (streams == 0 || out[0].numel() == 0) return out;

  const int64_t* seed_data = seeds.const_data_ptr<int64_t>();
  const int64_t replicas = seeds.numel();
  std::vector<void*> memory;
  for (at::Tensor& noise : out) memory.push_back(noise.mutable_data_ptr());
  const auto draw = [&](int64_t stream, int64_t replica, int64_t begin, int64_t end) {
    alignas(64) uint32_t words[4 * kChunk];
    const Stream noise{static_cast<uint64_t>(seed_data[replica]),
                       static_cast<uint32_t>(step),
                       static_cast<uint32_t>(purpose + stream),
                       first,
                       count,
                       width};
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const Range range = draw_words(noise, chunk, words);
      const int64_t offset = replica * count * width + range.offset;
      if (kind == kWords) {
        std::copy(words, words + range.size, static_cast<int64_t*>(memory[stream]) + offset);
      } else {
        transform(kind, words, static_cast<float*>(memory[stream]) + offset, range.size);
      }
    }
  };
  const int64_t chunks = Stream{0, 0, 0, first, count, width}.chunks(), a_stream = replicas * chunks;
  parallel_for(0, streams * a_stream, 16, [&](int64_t begin, int64_t end) {
    for (int64_t next; begin < end; begin = next) {
      const int64_t stream = begin / a_stream, replica = begin % a_stream / chunks, chunk = begin % chunks;
      next = std::min(end, begin - chunk + chunks);
      draw(stream, replica, chunk, chunk + next - begin);
    }
  });
  return out;
}

at::Tensor philox_cpu(const at::Tensor& seed, int64_t step, int64_t purpose, int64_t count, int64_t width, int64_t first,
                      int64_t kind) {
  return streams_cpu(seed, step, purpose, 1, count, width, first, kind)[0];
}

at::Tensor philox_meta(const at::Tensor& seed, const c10::SymInt&, const c10::SymInt&, c10::SymInt count, c10::SymInt width,
                       const c10::SymInt&, int64_t kind) {
  check(seed, kind);
  auto sizes = seed.sym_sizes().vec();
  sizes.push_back(std::move(count));
  sizes.push_back(std::move(width));
  return at::empty_symint(sizes, seed.options().dtype(kind == kWords ? at::kLong : at::kFloat));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(eblvm, m) {
  m.def("philox(Tensor seed, SymInt step, SymInt purpose, SymInt count, SymInt width, SymInt first, int kind) -> Tensor",
        {at::Tag::pt2_compliant_tag});
  m.def(
      "philox_streams(Tensor seed, int step, int purpose, int streams, int count, int width, int first, int kind) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(eblvm, CPU, m) {
  m.impl("philox", philox_cpu);
  m.impl("philox_streams", streams_cpu);
}

TORCH_LIBRARY_IMPL(eblvm, Meta, m) {
  m.impl("philox", [](const at::Tensor& seed, c10::SymInt step, c10::SymInt purpose, c10::SymInt count, c10::SymInt width,
                      c10::SymInt first, int64_t kind) {
    return philox_meta(seed, step, purpose, std::move(count), std::move(width), first, kind);
  });
}
