// Memory of a step, kept by its thread for the next one: fresh pages would cost more than the loops that fill them.

#pragma once

#include <cstdint>
#include <vector>

#include "tensors.h"

namespace {

template <typename T>
class Workspace {
 public:
  // The thread's own, all of it free.
  static Workspace& of_thread() {
    thread_local Workspace kept;
    kept.next = 0;
    return kept;
  }

  T* allocate(int64_t size) {
    if (next == blocks.size()) blocks.emplace_back();
    Block& block = blocks[next++];
    if (block.data == nullptr || block.size < size) {
      block.memory = at::empty({size}, at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value));
      block.data = block.memory.template mutable_data_ptr<T>();
      block.size = size;
    }
    return block.data;
  }

 private:
  struct Block {
    at::Tensor memory;
    T* data = nullptr;
    int64_t size = 0;
  };
  std::vector<Block> blocks;
  size_t next = 0;
};

}  // namespace
