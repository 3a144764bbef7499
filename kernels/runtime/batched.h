// The vmap rule of every op whose leading axes are replicas: the mapped axis becomes one more of them, in every tensor.

#pragma once

#include <ATen/functorch/BatchedTensorImpl.h>

#include "tensors.h"

namespace {

// In C++, since a rule in Python costs more than a step of a small model.
inline void replica_rule(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  namespace functorch = at::functorch;
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::FuncTorchBatched);
  const size_t count = op.schema().arguments().size();
  const size_t from = stack->size() - count;

  // The innermost level that any argument is mapped at; outer ones follow when the op is called again below.
  int64_t level = -1, size = 0;
  const auto look = [&](const at::Tensor& t) {
    const auto* batched = functorch::maybeGetBatchedImpl(t);
    if (batched != nullptr && batched->level() > level) {
      level = batched->level();
      size = batched->value().size(batched->bdim());
    }
  };
  const auto lead = [&](const at::Tensor& t) {
    const auto* batched = functorch::maybeGetBatchedImpl(t);
    if (batched != nullptr && batched->level() == level) return batched->value().movedim(batched->bdim(), 0);
    auto sizes = t.sizes().vec();
    sizes.insert(sizes.begin(), size);
    return t.expand(sizes);
  };
  for (size_t i = from; i < stack->size(); ++i) {
    const c10::IValue& argument = (*stack)[i];
    if (argument.isTensor()) look(argument.toTensor());
    if (argument.isTensorList()) {
      for (const at::Tensor& t : argument.toTensorVector()) look(t);
    }
  }
  if (level < 0) return op.callBoxed(stack);
  for (size_t i = from; i < stack->size(); ++i) {
    c10::IValue& argument = (*stack)[i];
    if (argument.isTensor()) {
      argument = lead(argument.toTensor());
    } else if (argument.isTensorList()) {
      std::vector<at::Tensor> list = argument.toTensorVector();
      for (at::Tensor& t : list) t = lead(t);
      argument = std::move(list);
    }
  }
  op.callBoxed(stack);
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i) {
    c10::IValue& result = (*stack)[i];
    if (result.isTensor()) {
      result = functorch::makeBatched(result.toTensor(), 0, level);
    } else {
      std::vector<at::Tensor> list = result.toTensorVector();
      for (at::Tensor& t : list) t = functorch::makeBatched(t, 0, level);
      result = std::move(list);
    }
  }
}

}  // namespace
