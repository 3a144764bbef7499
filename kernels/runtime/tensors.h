// The parts of torch that the kernels use: tensors, the few functions that make them, registration. ATen/ATen.h declares all
// operators and takes twice as long to compile.

#pragma once

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>
