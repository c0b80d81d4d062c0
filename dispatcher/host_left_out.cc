#include "dispatcher/host_left_out.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <string>

namespace tpu {
namespace {

// Of each index the bag that it lies in.
at::Tensor BagOfEach(const at::Tensor& indices, const at::Tensor& offsets) {
  const at::Tensor begun = at::zeros({indices.numel() + 1}, offsets.options());
  begun.index_add_(0, offsets, at::ones_like(offsets));
  return begun.narrow(0, 0, indices.numel()).cumsum(0, offsets.scalar_type()).sub_(1);
}

// How many indices each bag has, beside padding.
at::Tensor SizeOfEach(const at::Tensor& indices, const at::Tensor& offsets, const at::Tensor& bag, int64_t padding) {
  at::Tensor sizes = offsets.neg();
  const int64_t bags = sizes.size(0);
  if (bags > 0) {
    sizes.narrow(0, 0, bags - 1).add_(offsets.narrow(0, 1, bags - 1));
    sizes.narrow(0, bags - 1, 1).add_(indices.numel());
  }
  if (padding >= 0) sizes.index_add_(0, bag, indices.eq(padding).to(sizes.scalar_type()), -1);
  return sizes;
}

void SumBags(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  constexpr int64_t kMax = 2;
  const auto first = stack.end() - 9;
  at::Tensor indices = first[1].toTensor(), offsets = first[2].toTensor();
  const int64_t mode = first[4].toInt(), padding = first[8].toInt();
  const at::Tensor sizes = at::zeros(
      offsets.sizes(), offsets.options().dtype(c10::promoteTypes(indices.scalar_type(), offsets.scalar_type())));
  op.callBoxed(stack);
  const auto results = stack.end() - 4;
  indices = indices.to(sizes.scalar_type());
  offsets = offsets.narrow(0, 0, results->toTensor().size(0)).to(sizes.scalar_type());
  const at::Tensor bag = BagOfEach(indices, offsets);
  sizes.narrow(0, 0, offsets.size(0)).copy_(SizeOfEach(indices, offsets, bag, padding));
  results[1] = bag;
  results[2] = sizes;
  if (mode != kMax) results[3] = at::empty({0}, indices.options());
}

// (x, weight, bias, mean, variance, ..., eps) -> y, mean, 1 / deviation, ...
void NormByGiven(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto first = stack.end() - static_cast<ptrdiff_t>(op.schema().arguments().size());
  const at::Tensor mean = first[3].toTensor().clone();
  const at::Tensor deviation = first[4].toTensor().add(stack.back().toDouble()).sqrt_();
  op.callBoxed(stack);
  const auto results = stack.end() - static_cast<ptrdiff_t>(op.schema().returns().size());
  results[1] = mean;
  results[2] = deviation.reciprocal_();
}

}  // namespace

bool CallWithLeftOut(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const std::string& name = op.schema().name();
  if (name == "aten::_embedding_bag" || name == "aten::_embedding_bag_forward_only") {
    SumBags(op, stack);
  } else if (name == "aten::_native_batch_norm_legit_no_training" ||
             ((name == "aten::_native_batch_norm_legit" || name == "aten::_native_batch_norm_legit_functional") &&
              op.schema().overload_name().empty() && !(stack.end() - 3)->toBool())) {
    NormByGiven(op, stack);
  } else {
    return false;
  }
  return true;
}

}  // namespace tpu
