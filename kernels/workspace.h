// Memory of a step, kept by its thread for the next one: fresh pages would cost more than the loops that fill them.

#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace {

template <typename T>
class Workspace {
 public:
  // The thread's own, with all of it free.
  static Workspace& of_thread() {
    thread_local Workspace kept;
    kept.next = 0;
    return kept;
  }

  T* take(int64_t size) {
    if (next == blocks.size()) blocks.emplace_back();
    at::Tensor& block = blocks[next++];
    if (!block.defined() || block.numel() < size) {
      block = at::empty({size}, at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value));
    }
    return block.template mutable_data_ptr<T>();
  }

 private:
  std::vector<at::Tensor> blocks;
  size_t next = 0;
};

}  // namespace
