// How many threads a kernel's loop has: as many as torch's, or one where the library was built without OpenMP.

#include <atomic>

#include "parallel.h"
#include "tensors.h"

TORCH_LIBRARY_FRAGMENT(eblvm, m) {
  m.def("threads() -> int", []() {
    std::atomic<int64_t> found = 0;
    parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) { ++found; });
    return found.load();
  });
}
