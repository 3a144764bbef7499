#pragma once

#include <cstdint>

#include "native.h"

namespace {

// Sums that vectorise: element(i) over 0 .. n-1 in 16 interleaved parts. No element reads what another one writes.
template <typename T, typename Element>
EBLVM_INLINE T sum_of(int64_t n, const Element& element) {
  T parts[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
#pragma GCC ivdep
    for (int64_t j = 0; j < 16; ++j) parts[j] += element(i + j);
  for (int64_t j = 0; i < n; ++i, ++j) parts[j] += element(i);
  T sum = 0;
  for (int64_t j = 0; j < 16; ++j) sum += parts[j];
  return sum;
}

}  // namespace
