// The number of threads of a kernel's loop: torch's, or one if the library was built without OpenMP.

#include <atomic>

#include "parallel.h"
#include "tensors.h"

TORCH_LIBRARY_FRAGMENT(eblvm, m) {
  m.def("threads() -> int", []() {
    std::atomic<int64_t> count = 0;
    parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) { ++count; });
    return count.load();
  });
}
