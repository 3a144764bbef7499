// Common to the native kernels: one body for several instruction sets, and elementary functions that vectorise.
// Built with -ffp-contract=off where bits must equal those of a reference: then every instruction set gives the same.

#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

// One body compiled for several instruction sets, chosen when the library is loaded; needs ifunc, hence glibc.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#if __GNUC__ >= 12
#define EBLVM_CLONES __attribute__((target_clones("avx512f", "arch=x86-64-v3", "default")))
#else
#define EBLVM_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
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

// exp's argument is clamped to +- these. They are defined in native.cpp: a compiler that knows their values turns the clamps
// into masks and blends instead of min and max.
extern const float kExpLimit;
extern const double kExpLimitDouble;

namespace {

// A long chain of dependent operations per element leaves execution units idle: the scheduler's window has room for two or
// three elements. Several loops over a short stage, each with a part of the chain, keep the units busy.
constexpr int64_t kStage = 128;

// log(1+f) = f - f^2/2 + f^3 P(f): Cephes logf, lowest power first.
constexpr float kLog[9] = {3.3333331174e-1f,  -2.4999993993e-1f, 2.0000714765e-1f,  -1.6668057665e-1f, 1.4249322787e-1f,
                           -1.2420140846e-1f, 1.1676998740e-1f,  -1.1514610310e-1f, 7.0376836292e-2f};

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

// The powers 1/k! of exp on [-log(2)/2, log(2)/2], lowest first; the next one is below half a unit in the last place.
constexpr double kExp[14] = {
    1.0,        1.0,         1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,       1.0 / 720,
    1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0};

// exp x = 2^n exp(x - n log 2). Adding 1.5 2^23 rounds to the integer n and leaves it in the low bits.
// Beyond kExpLimit the result is that of the end of the range; NaN stays NaN.
EBLVM_INLINE float exp_clamped(float x) {
  x = x < -kExpLimit ? -kExpLimit : x;
  x = x > kExpLimit ? kExpLimit : x;
  const float shifted = x * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * (r * r) + r + 1.0f;
  return y * std::bit_cast<float>((std::bit_cast<int32_t>(shifted) - 0x4B400000 + 127) << 23);
}

EBLVM_INLINE double exp_clamped(double x) {
  x = x < -kExpLimitDouble ? -kExpLimitDouble : x;
  x = x > kExpLimitDouble ? kExpLimitDouble : x;
  const double shifted = x * 1.4426950408889634 + 6755399441055744.0;
  const double n = shifted - 6755399441055744.0;
  const double r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10;
  double y = kExp[13];
  for (int i = 12; i >= 0; --i) y = y * r + kExp[i];
  return y * std::bit_cast<double>((std::bit_cast<int64_t>(shifted) - 0x4338000000000000 + 1023) << 52);
}

// exp(x) - 1 for x <= 0 (meaningless above), with its relative precision near 0: 2^n (exp(r) - 1) + (2^n - 1).
EBLVM_INLINE float expm1_negative(float x) {
  x = x < -kExpLimit ? -kExpLimit : x;
  const float shifted = x * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * (r * r) + r;
  const float scale = std::bit_cast<float>((std::bit_cast<int32_t>(shifted) - 0x4B400000 + 127) << 23);
  return scale * y + (scale - 1.0f);
}

EBLVM_INLINE double expm1_negative(double x) {
  x = x < -kExpLimitDouble ? -kExpLimitDouble : x;
  const double shifted = x * 1.4426950408889634 + 6755399441055744.0;
  const double n = shifted - 6755399441055744.0;
  const double r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10;
  double y = kExp[13];
  for (int i = 12; i >= 1; --i) y = y * r + kExp[i];
  y = y * r;
  const double scale = std::bit_cast<double>((std::bit_cast<int64_t>(shifted) - 0x4338000000000000 + 1023) << 52);
  return scale * y + (scale - 1.0);
}

template <typename T>
EBLVM_INLINE T sigmoid(T x) {
  return T(1) / (T(1) + exp_clamped(-x));
}

// log(1+y) for y in [0, 1], by Kahan: the rounding of 1+y cancels in the ratio.
EBLVM_INLINE float log1p_unit(float y) {
  const float u = 1.0f + y;
  const float ratio = log_positive(u) * y / (u == 1.0f ? 1.0f : u - 1.0f);
  return u == 1.0f ? y : ratio;
}

EBLVM_INLINE double log1p_unit(double y) { return std::log1p(y); }

// log(1 + exp x).
template <typename T>
EBLVM_INLINE T softplus(T x) {
  return (x > T(0) ? x : T(0)) + log1p_unit(exp_clamped(x > T(0) ? -x : x));
}

}  // namespace
