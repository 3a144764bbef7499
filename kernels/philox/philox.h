// Philox 4x32-10 words and the most used transforms, for every kernel that draws its noise itself: the bits of reference.py.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "../runtime/native.h"

namespace {

// Blocks of four words handled at once: counters and words stay in the first-level cache.
constexpr int64_t kChunk = 240;
constexpr int64_t kAtOnce = 12;  // a kernel may read so many counters past the last block

constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57, kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;

EBLVM_INLINE float tail(uint32_t r) { return (static_cast<float>(static_cast<int32_t>(r & 0x7FFFFFFFu)) + 0.5f) * 0x1p-31f; }

EBLVM_INLINE float signed_by_top_bit(float x, uint32_t r) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) ^ (r & 0x80000000u));
}

// Words of the first `blocks` blocks, block by block; a full chunk has room for more.
void fill_blocks_plain(const uint32_t* block, const uint32_t* sample, uint32_t step, uint32_t purpose, uint64_t seed,
                       int64_t blocks, uint32_t* words) {
  for (int64_t i = 0; i < blocks; ++i) {
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
// Compilers spend most of a vectorised 32x32->64 multiply on shuffles. Here each word sits in the low half of a 64-bit lane,
// where vpmuludq reads it, and the high half is never read, so a round is 2 multiplies, 2 shifts and 4 xors.
__attribute__((target("avx2"))) void fill_blocks_avx2(const uint32_t* block, const uint32_t* sample, uint32_t step,
                                                      uint32_t purpose, uint64_t seed, int64_t blocks, uint32_t* words) {
  constexpr int kStreams = 3;  // independent chains of four blocks each hide the multiply's latency; more would spill
  static_assert(kChunk % (4 * kStreams) == 0 && 4 * kStreams <= kAtOnce);
  const __m256i m0 = _mm256_set1_epi64x(kMultiplier0), m1 = _mm256_set1_epi64x(kMultiplier1);
  __m256i keys[10][2];  // in memory, where an xor reads them: no register is free
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (auto& key : keys) {
    key[0] = _mm256_set1_epi64x(k0), key[1] = _mm256_set1_epi64x(k1);
    k0 += kWeyl0, k1 += kWeyl1;
  }
  for (int64_t i = 0; i < blocks; i += 4 * kStreams) {
    __m256i c0[kStreams], c1[kStreams], c2[kStreams], c3[kStreams];
    for (int s = 0; s < kStreams; ++s) {
      c0[s] = _mm256_cvtepu32_epi64(_mm_load_si128(reinterpret_cast<const __m128i*>(block + i + 4 * s)));
      c1[s] = _mm256_cvtepu32_epi64(_mm_load_si128(reinterpret_cast<const __m128i*>(sample + i + 4 * s)));
      c2[s] = _mm256_set1_epi64x(step);
      c3[s] = _mm256_set1_epi64x(purpose);
    }
#pragma GCC unroll 1  // across rounds a compiler moves multiplies until registers spill
    for (const auto& key : keys) {
#pragma GCC unroll 3
      for (int s = 0; s < kStreams; ++s) {
        // The key is xored with the old word first, and the compiler must keep it so: only a shift and one xor wait for the
        // multiply.
        __m256i old1 = _mm256_xor_si256(c1[s], key[0]), old3 = _mm256_xor_si256(c3[s], key[1]);
        __asm__("" : "+x"(old1), "+x"(old3));
        c3[s] = _mm256_mul_epu32(c0[s], m0);
        c1[s] = _mm256_mul_epu32(c2[s], m1);
        c0[s] = _mm256_xor_si256(_mm256_srli_epi64(c1[s], 32), old1);
        c2[s] = _mm256_xor_si256(_mm256_srli_epi64(c3[s], 32), old3);
      }
    }
    for (int s = 0; s < kStreams; ++s) {
      const __m256i c01 = _mm256_blend_epi32(c0[s], _mm256_slli_epi64(c1[s], 32), 0xAA);
      const __m256i c23 = _mm256_blend_epi32(c2[s], _mm256_slli_epi64(c3[s], 32), 0xAA);
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

// The polynomials of reference.py, lowest power first.
constexpr float kErfinvCentre[9] = {1.50140941f,      0.246640727f,    -0.00417768164f, -0.00125372503f, 0.00021858087f,
                                    -4.39150654e-06f, -3.5233877e-06f, 3.43273939e-07f, 2.81022636e-08f};
constexpr float kErfinvTail[10] = {
    2.832977056503296f,      1.0016753673553467f,    0.009434619918465614f,    -0.007643571123480797f,  0.00575977610424161f,
    -0.0035907127894461155f, 0.0013160713715478778f, -1.0271419341734145e-05f, -0.0001800694881239906f, 4.527344572125003e-05f};

EBLVM_INLINE float uniform(uint32_t r) { return static_cast<float>(static_cast<int32_t>(r >> 8)) * 0x1p-24f; }

template <int N>
EBLVM_INLINE float half_normal(float p, float t, const float (&c)[N]) {
  return (1.0f - p) * polynomial(t, c) * 1.4142135381698608f;
}

[[maybe_unused]] EBLVM_CLONES void fill_uniform(const uint32_t* __restrict r, float* __restrict out, int64_t size) {
  for (int64_t i = 0; i < size; ++i) out[i] = uniform(r[i]);
}

// sign log((2 - p) / p)
[[maybe_unused]] EBLVM_CLONES void fill_logistic(const uint32_t* __restrict r, float* __restrict out, int64_t size) {
  alignas(64) float ratio[kStage];
  for (int64_t begin = 0; begin < size; begin += kStage, r += kStage, out += kStage) {
    const int64_t n = std::min(kStage, size - begin);
    for (int64_t i = 0; i < n; ++i) {
      const float p = tail(r[i]);
      ratio[i] = (2.0f - p) / p;
    }
    for (int64_t i = 0; i < n; ++i) out[i] = signed_by_top_bit(log_positive(ratio[i]), r[i]);
  }
}

// sign sqrt(2) erfinv(1 - p), by w = -log(p (2 - p))
[[maybe_unused]] EBLVM_CLONES void fill_normal(const uint32_t* __restrict r, float* __restrict out, int64_t size) {
  constexpr int64_t kGroup = 32;
  static_assert(kStage % kGroup == 0);
  alignas(64) float p[kStage], w[kStage] = {};
  for (int64_t begin = 0; begin < size; begin += kStage, r += kStage, out += kStage) {
    const int64_t n = std::min(kStage, size - begin);
    for (int64_t i = 0; i < n; ++i) {
      p[i] = tail(r[i]);
      w[i] = p[i] * (2.0f - p[i]);
    }
    for (int64_t i = 0; i < n; ++i) w[i] = -log_positive(w[i]);
    for (int64_t i = 0; i < n; ++i) out[i] = signed_by_top_bit(half_normal(p[i], w[i] - 2.5f, kErfinvCentre), r[i]);
    // One word in 300 is in the tail: computing these few again is cheaper than both branches for all.
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

// One stream of noise [count, width]: the samples first .. first+count-1 of (seed, step, purpose).
struct Stream {
  uint64_t seed;
  uint32_t step, purpose;
  int64_t first, count, width;

  int64_t blocks_per_sample() const { return (width + 3) / 4; }
  int64_t chunks() const { return (count * blocks_per_sample() + kChunk - 1) / kChunk; }
};

// A chunk of blocks is contiguous in [count, width]: its begin, and its words.
struct Range {
  int64_t offset, size;
};

inline Range draw_words(const Stream& stream, int64_t chunk, uint32_t* words) {
  alignas(64) uint32_t block[kChunk], sample[kChunk];
  const int64_t blocks_per_sample = stream.blocks_per_sample(), width = stream.width;
  const int64_t flat = chunk * kChunk;
  const int64_t blocks = std::min(kChunk, stream.count * blocks_per_sample - flat);
  const int64_t first_sample = flat / blocks_per_sample, first_block = flat % blocks_per_sample;
  const int64_t filled = std::min(kChunk, blocks + kAtOnce);
  if (blocks_per_sample == 1) {
    for (int64_t i = 0; i < filled; ++i) block[i] = 0, sample[i] = static_cast<uint32_t>(stream.first + flat + i);
  }
  for (int64_t i = blocks_per_sample == 1 ? filled : 0, s = first_sample, b = first_block; i < filled; ++s, b = 0) {
    const int64_t run = std::min(filled - i, blocks_per_sample - b);
    for (int64_t j = 0; j < run; ++j) block[i + j] = static_cast<uint32_t>(b + j);
    for (int64_t j = 0; j < run; ++j) sample[i + j] = static_cast<uint32_t>(stream.first + s);
    i += run;
  }
  fill_blocks(block, sample, stream.step, stream.purpose, stream.seed, blocks, words);

  // Drop the words past each sample's width; in place, since they only move down.
  int64_t size = 0;
  if (width % 4 == 0) {
    size = 4 * blocks;
  } else if (width == 2) {
    for (int64_t i = 1; i < blocks; ++i) std::memcpy(words + 2 * i, words + 4 * i, 2 * sizeof(uint32_t));
    size = 2 * blocks;
  } else {
    for (int64_t i = 0, b = first_block; i < blocks; ++i) {
      const int64_t kept = std::min<int64_t>(4, width - 4 * b);
      for (int64_t j = 0; j < kept; ++j) words[size++] = words[4 * i + j];
      if (++b == blocks_per_sample) b = 0;
    }
  }
  return {first_sample * width + 4 * first_block, size};
}

}  // namespace
