// Sizes of a GRBM op's arguments, and errors that name the argument that does not fit.
// Shape tags: B batch, D visible, H latent; leading axes are replicas.

#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "../runtime/tensors.h"

namespace {

// Pointers to the parts of a replica in several contiguous tensors.
template <typename T>
struct Parts {
  std::vector<T*> data;
  std::vector<int64_t> size;

  std::vector<T*> of(int64_t replica) const {
    std::vector<T*> pointers = data;
    for (size_t i = 0; i < pointers.size(); ++i) pointers[i] += replica * size[i];
    return pointers;
  }
};

constexpr int64_t kFewProducts = 1 << 20;  // multiply-adds of one thread in the time that a second one needs to start

struct Sizes {
  const char* op;
  at::Tensor W;
  std::vector<int64_t> lead;
  int64_t replicas, B, D, H;

  Sizes(const char* op_, const at::Tensor& v, const at::Tensor& W_) : op(op_), W(W_) {
    TORCH_CHECK_VALUE(W.dim() >= 2, op, " got W of shape ", W.sizes(), "; expected [..., D, H]");
    TORCH_CHECK_VALUE(W.scalar_type() == at::kFloat || W.scalar_type() == at::kDouble, op, " got W of dtype ", W.scalar_type(),
                      "; expected float32 or float64");
    TORCH_CHECK_VALUE(v.dim() == W.dim(), op, " got v of shape ", v.sizes(), "; expected [..., B, D] for W ", W.sizes());
    lead = W.sizes().slice(0, W.dim() - 2).vec();
    replicas = c10::multiply_integers(lead);
    B = v.size(-2), D = W.size(-2), H = W.size(-1);
    expect("v", v, {B, D});
  }

  // The number of replicas from which a second thread pays, with `passes` over the data of each.
  int64_t replicas_per_thread(int64_t passes) const {
    return std::max<int64_t>(1, kFewProducts / std::max<int64_t>(1, passes * B * H * (D + 8)));
  }

  std::vector<int64_t> with(std::initializer_list<int64_t> own) const {
    std::vector<int64_t> sizes = lead;
    sizes.insert(sizes.end(), own);
    return sizes;
  }

  void expect(const char* name, const at::Tensor& t, std::initializer_list<int64_t> own) const {
    const std::vector<int64_t> sizes = with(own);
    TORCH_CHECK_VALUE(t.sizes() == at::IntArrayRef(sizes), op, " got ", name, " of shape ", t.sizes(), "; expected ",
                      at::IntArrayRef(sizes));
    TORCH_CHECK_VALUE(t.scalar_type() == W.scalar_type(), op, " got ", name, " of dtype ", t.scalar_type(),
                      "; expected that of W, ", W.scalar_type());
  }

  void expect_parameters(const at::Tensor& b, const at::Tensor& c, const at::Tensor& log_sigma) const {
    expect("b", b, {D});
    expect("c", c, {H});
    expect("log_sigma", log_sigma, {D});
  }

  at::Tensor made(std::initializer_list<int64_t> own) const { return at::empty(with(own), W.options()); }

  // torch's checked access to a pointer costs more than a loop of a small model. T is const for tensors that are only read.
  template <typename T>
  Parts<T> parts(const std::vector<at::Tensor>& tensors) const {
    Parts<T> parts;
    for (const at::Tensor& t : tensors) {
      parts.size.push_back(replicas ? t.numel() / replicas : 0);
      if constexpr (std::is_const_v<T>) {
        parts.data.push_back(t.const_data_ptr<std::remove_const_t<T>>());
      } else {
        parts.data.push_back(t.mutable_data_ptr<T>());
      }
    }
    return parts;
  }

  // The part of replica r in a contiguous tensor.
  template <typename T>
  const T* part(const at::Tensor& t, int64_t r) const {
    return t.const_data_ptr<T>() + r * (t.numel() / replicas);
  }
  template <typename T>
  T* part_of(at::Tensor& t, int64_t r) const {
    return t.mutable_data_ptr<T>() + r * (t.numel() / replicas);
  }
};

inline std::vector<at::Tensor> contiguous(const std::vector<at::Tensor>& list) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& t : list) tensors.push_back(t.contiguous());
  return tensors;
}

}  // namespace
