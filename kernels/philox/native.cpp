// Philox 4x32-10 noise on the CPU: the bits of reference.py, in loops that the compiler vectorises.
// Build with -ffp-contract=off: a fused multiply-add rounds once where the reference rounds twice.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

// One body compiled for several instruction sets, chosen when the library is loaded; needs ifunc, hence glibc.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define EBLVM_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EBLVM_CLONES
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#define EBLVM_X86
#include <immintrin.h>
#endif

#if defined(__GNUC__)
#define EBLVM_INLINE inline __attribute__((always_inline))
#else
#define EBLVM_INLINE inline
#endif

namespace {

enum Kind : int64_t { kWords, kUniform, kNormal, kLogistic, kGumbel, kRademacher, kKinds };

// Blocks of four words handled at once: counters and words stay in the first-level cache.
constexpr int64_t kChunk = 256;

constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57, kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;

// The polynomials of reference.py, lowest power first.
constexpr float kLog[9] = {3.3333331174e-1f,  -2.4999993993e-1f, 2.0000714765e-1f,  -1.6668057665e-1f, 1.4249322787e-1f,
                           -1.2420140846e-1f, 1.1676998740e-1f,  -1.1514610310e-1f, 7.0376836292e-2f};
constexpr float kErfinvCentre[9] = {1.50140941f,      0.246640727f,    -0.00417768164f, -0.00125372503f, 0.00021858087f,
                                    -4.39150654e-06f, -3.5233877e-06f, 3.43273939e-07f, 2.81022636e-08f};
constexpr float kErfinvTail[10] = {2.832977056503296f,      1.0016753673553467f,     0.009434619918465614f,
                                   -0.007643571123480797f,  0.00575977610424161f,    -0.0035907127894461155f,
                                   0.0013160713715478778f,  -1.0271419341734145e-05f, -0.0001800694881239906f,
                                   4.527344572125003e-05f};

// Estrin's order: half the dependent steps of Horner's, which is what bounds the speed.
template <int N>
EBLVM_INLINE float polynomial(float t, const float (&c)[N]) {
  const float t2 = t * t;
  const float t4 = t2 * t2;
  const float low = (c[0] + c[1] * t) + (c[2] + c[3] * t) * t2;
  const float middle = (c[4] + c[5] * t) + (c[6] + c[7] * t) * t2;
  float high = c[8];
  if constexpr (N == 10) high = high + c[9] * t;
  return low + (middle + high * t4) * t4;
}

EBLVM_INLINE float log_positive(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x) - 0x3F3504F3;
  const float e = static_cast<float>(bits >> 23);
  const float f = std::bit_cast<float>((bits & 0x7FFFFF) + 0x3F3504F3) - 1.0f;
  const float square = f * f;
  float y = polynomial(f, kLog) * f * square;
  y = y + e * -2.12194440e-4f;
  y = y - square * 0.5f;
  return f + y + e * 0.693359375f;
}

EBLVM_INLINE float tail(uint32_t r) {
  return (static_cast<float>(static_cast<int32_t>(r & 0x7FFFFFFFu)) + 0.5f) * 0x1p-31f;
}

EBLVM_INLINE float signed_by_top_bit(float x, uint32_t r) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) ^ (r & 0x80000000u));
}

EBLVM_INLINE float uniform(uint32_t r) { return static_cast<float>(static_cast<int32_t>(r >> 8)) * 0x1p-24f; }

EBLVM_INLINE float rademacher(uint32_t r) { return signed_by_top_bit(1.0f, r); }

EBLVM_INLINE float erfinv_argument(float p) { return -log_positive(p * (2.0f - p)); }

template <int N>
EBLVM_INLINE float half_normal(float p, float t, const float (&c)[N]) {
  return (1.0f - p) * polynomial(t, c) * 1.4142135381698608f;
}

EBLVM_INLINE float logistic(uint32_t r) {
  const float p = tail(r);
  return signed_by_top_bit(log_positive((2.0f - p) / p), r);
}

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

// Words of kChunk blocks, in the order block by block.
void fill_blocks_plain(const uint32_t* block, const uint32_t* sample, uint32_t step, uint32_t purpose, uint64_t seed,
                       uint32_t* words) {
  for (int64_t i = 0; i < kChunk; ++i) {
    uint32_t c0 = block[i], c1 = sample[i], c2 = step, c3 = purpose;
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t product0 = static_cast<uint64_t>(c0) * kMultiplier0;
      const uint64_t product1 = static_cast<uint64_t>(c2) * kMultiplier1;
      c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
      c1 = static_cast<uint32_t>(product1);
      c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
      c3 = static_cast<uint32_t>(product0);
      k0 += kWeyl0;
      k1 += kWeyl1;
    }
    words[4 * i] = c0;
    words[4 * i + 1] = c1;
    words[4 * i + 2] = c2;
    words[4 * i + 3] = c3;
  }
}

#ifdef EBLVM_X86
// Compilers spend most of a vectorised 32x32->64 multiply on shuffles. Here each word sits in the low half of a 64-bit lane, where
// vpmuludq takes it, and whatever the high half holds is never read, so a round is 2 multiplies, 2 shifts and 4 xors.
__attribute__((target("avx2"))) void fill_blocks_avx2(const uint32_t* block, const uint32_t* sample, uint32_t step,
                                                      uint32_t purpose, uint64_t seed, uint32_t* words) {
  constexpr int kStreams = 2;  // independent chains of four blocks each hide the multiply's latency; more would spill
  static_assert(kChunk % (4 * kStreams) == 0);
  const __m256i m0 = _mm256_set1_epi64x(kMultiplier0), m1 = _mm256_set1_epi64x(kMultiplier1);
  const __m256i low = _mm256_set1_epi64x(0xFFFFFFFF);
  for (int64_t i = 0; i < kChunk; i += 4 * kStreams) {
    __m256i c0[kStreams], c1[kStreams], c2[kStreams], c3[kStreams];
    for (int s = 0; s < kStreams; ++s) {
      c0[s] = _mm256_cvtepu32_epi64(_mm_load_si128(reinterpret_cast<const __m128i*>(block + i + 4 * s)));
      c1[s] = _mm256_cvtepu32_epi64(_mm_load_si128(reinterpret_cast<const __m128i*>(sample + i + 4 * s)));
      c2[s] = _mm256_set1_epi64x(step);
      c3[s] = _mm256_set1_epi64x(purpose);
    }
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const __m256i key0 = _mm256_set1_epi64x(k0), key1 = _mm256_set1_epi64x(k1);
#pragma GCC unroll 2
      for (int s = 0; s < kStreams; ++s) {
        const __m256i product0 = _mm256_mul_epu32(c0[s], m0), product1 = _mm256_mul_epu32(c2[s], m1);
        c0[s] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product1, 32), c1[s]), key0);
        c2[s] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product0, 32), c3[s]), key1);
        c1[s] = product1;
        c3[s] = product0;
      }
      k0 += kWeyl0;
      k1 += kWeyl1;
    }
    for (int s = 0; s < kStreams; ++s) {
      const __m256i c01 = _mm256_or_si256(_mm256_and_si256(c0[s], low), _mm256_slli_epi64(c1[s], 32));
      const __m256i c23 = _mm256_or_si256(_mm256_and_si256(c2[s], low), _mm256_slli_epi64(c3[s], 32));
      const __m256i even = _mm256_unpacklo_epi64(c01, c23), odd = _mm256_unpackhi_epi64(c01, c23);  // blocks 0 2, 1 3
      __m256i* to = reinterpret_cast<__m256i*>(words + 4 * (i + 4 * s));
      _mm256_store_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
      _mm256_store_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
  }
}

const auto fill_blocks = __builtin_cpu_supports("avx2") ? fill_blocks_avx2 : fill_blocks_plain;
#else
constexpr auto fill_blocks = fill_blocks_plain;
#endif

#define EBLVM_TRANSFORM(name, function)                                            \
  EBLVM_CLONES void name(const uint32_t* __restrict r, float* __restrict out, int64_t size) { \
    for (int64_t i = 0; i < size; ++i) out[i] = function(r[i]);                    \
  }
EBLVM_TRANSFORM(fill_uniform, uniform)
EBLVM_TRANSFORM(fill_logistic, logistic)
EBLVM_TRANSFORM(fill_rademacher, rademacher)
#undef EBLVM_TRANSFORM

// One long chain of dependent operations per word leaves the units idle; two loops over a short stage keep them busy.
constexpr int64_t kStage = 128, kGroup = 32;

EBLVM_CLONES void fill_normal(const uint32_t* __restrict r, float* __restrict out, int64_t size) {
  alignas(64) float p[kStage], w[kStage] = {};
  for (int64_t begin = 0; begin < size; begin += kStage, r += kStage, out += kStage) {
    const int64_t n = std::min(kStage, size - begin);
    for (int64_t i = 0; i < n; ++i) {
      p[i] = tail(r[i]);
      w[i] = erfinv_argument(p[i]);
    }
    for (int64_t i = 0; i < n; ++i) out[i] = signed_by_top_bit(half_normal(p[i], w[i] - 2.5f, kErfinvCentre), r[i]);
    // One word in 300 lies in the tail: cheaper to redo these few than to evaluate both branches everywhere.
    for (int64_t group = 0; group < n; group += kGroup) {
      int any = 0;
#pragma GCC unroll 1
      for (int64_t i = group; i < group + kGroup; ++i) any |= w[i] >= 5.0f;
      if (!any) continue;
      for (int64_t i = group; i < std::min(group + kGroup, n); ++i) {
        if (w[i] >= 5.0f) out[i] = signed_by_top_bit(half_normal(p[i], std::sqrt(w[i]) - 3.0f, kErfinvTail), r[i]);
      }
    }
  }
}

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

at::Tensor philox_cpu(const at::Tensor& seed, int64_t step, int64_t purpose, int64_t count, int64_t width, int64_t first,
                      int64_t kind) {
  check(seed, kind);
  TORCH_CHECK_VALUE(step >= 0 && step >> 32 == 0, "philox got step ", step, "; expected 0 <= step < 2**32");
  TORCH_CHECK_VALUE(purpose >= 0 && purpose >> 32 == 0, "philox got purpose ", purpose, "; expected 0 <= purpose < 2**32");
  TORCH_CHECK_VALUE(count >= 0 && width >= 0 && width <= int64_t{1} << 34, "philox got count ", count, " and width ", width,
                    "; expected count >= 0 and 0 <= width <= 2**34");
  TORCH_CHECK_VALUE(first >= 0 && count <= (int64_t{1} << 32) - first, "philox got samples from ", first, ", ", count,
                    " of them; expected indices inside [0, 2**32)");

  const at::Tensor seeds = seed.contiguous();
  auto sizes = seed.sizes().vec();
  sizes.push_back(count);
  sizes.push_back(width);
  at::Tensor out = at::empty(sizes, seed.options().dtype(kind == kWords ? at::kLong : at::kFloat));
  if (out.numel() == 0) return out;

  const int64_t* seed_data = seeds.const_data_ptr<int64_t>();
  int64_t* out_words = kind == kWords ? out.mutable_data_ptr<int64_t>() : nullptr;
  float* out_floats = kind == kWords ? nullptr : out.mutable_data_ptr<float>();

  const int64_t blocks_per_sample = (width + 3) / 4;
  const int64_t blocks_per_seed = count * blocks_per_sample;
  const int64_t chunks_per_seed = (blocks_per_seed + kChunk - 1) / kChunk;
  // A chunk of blocks is a contiguous piece of the output, so chunks are independent jobs.
  at::parallel_for(0, seeds.numel() * chunks_per_seed, 16, [&](int64_t begin, int64_t end) {
    alignas(64) uint32_t block[kChunk], sample[kChunk], words[4 * kChunk];
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t replica = chunk / chunks_per_seed;
      const int64_t flat = chunk % chunks_per_seed * kChunk;
      const int64_t blocks = std::min(kChunk, blocks_per_seed - flat);
      const int64_t first_sample = flat / blocks_per_sample, first_block = flat % blocks_per_sample;
      for (int64_t i = 0, s = first_sample, b = first_block; i < kChunk; ++s, b = 0) {
        const int64_t run = std::min(kChunk - i, blocks_per_sample - b);
        for (int64_t j = 0; j < run; ++j) block[i + j] = static_cast<uint32_t>(b + j);
        for (int64_t j = 0; j < run; ++j) sample[i + j] = static_cast<uint32_t>(first + s);
        i += run;
      }
      fill_blocks(block, sample, static_cast<uint32_t>(step), static_cast<uint32_t>(purpose),
                  static_cast<uint64_t>(seed_data[replica]), words);

      // Drop the words past each sample's width; in place, since they only move down.
      int64_t size = 0;
      if (width % 4 == 0) {
        size = 4 * blocks;
      } else {
        for (int64_t i = 0, b = first_block; i < blocks; ++i) {
          const int64_t kept = std::min<int64_t>(4, width - 4 * b);
          for (int64_t j = 0; j < kept; ++j) words[size++] = words[4 * i + j];
          if (++b == blocks_per_sample) b = 0;
        }
      }
      const int64_t offset = (replica * count + first_sample) * width + 4 * first_block;
      if (kind == kWords) {
        std::copy(words, words + size, out_words + offset);
      } else {
        transform(kind, words, out_floats + offset, size);
      }
    }
  });
  return out;
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
}

TORCH_LIBRARY_IMPL(eblvm, CPU, m) { m.impl("philox", philox_cpu); }

TORCH_LIBRARY_IMPL(eblvm, Meta, m) {
  m.impl("philox", [](const at::Tensor& seed, c10::SymInt step, c10::SymInt purpose, c10::SymInt count, c10::SymInt width,
                      c10::SymInt first, int64_t kind) {
    return philox_meta(seed, step, purpose, std::move(count), std::move(width), first, kind);
  });
}
