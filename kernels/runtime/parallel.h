// torch's parallel loop. ThreadSanitizer does not see how OpenMP's threads wait for each other, so under it the threads are
// std::thread.

#pragma once

#include <ATen/Parallel.h>

#ifdef __SANITIZE_THREAD__
#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>
#endif

namespace {

#ifdef __SANITIZE_THREAD__
thread_local bool inside = false;

inline bool in_parallel_region() { return inside; }

template <typename Body>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Body& body) {
  const int64_t most = (end - begin + grain - 1) / grain, count = inside ? 1 : std::min<int64_t>(at::get_num_threads(), most);
  if (count <= 1) {
    if (begin < end) body(begin, end);
    return;
  }
  const int64_t chunk = (end - begin + count - 1) / count;
  std::vector<std::thread> threads;
  for (int64_t from = begin; from < end; from += chunk) {
    threads.emplace_back([&body, from, to = std::min(end, from + chunk)] {
      inside = true;
      body(from, to);
    });
  }
  for (std::thread& thread : threads) thread.join();
}
#else
using at::in_parallel_region;
using at::parallel_for;
#endif

}  // namespace
