#include "jit/places.h"

#include <algorithm>

namespace tpu {
namespace {

const std::vector<int64_t>& ListOf(const Call& call, size_t argument) {
  return std::get<std::vector<int64_t>>(call.arguments[argument].attribute);
}

// The argument behind the tensors: sizes, strides and the offset, which are a view's and an update's alike.
size_t WindowOf(const Call& call) { return call.operands.size(); }
int64_t BeginOf(const Call& call) { return std::get<int64_t>(call.arguments[WindowOf(call) + 2].attribute); }

}  // namespace

int64_t LastOf(const Call& call) {
  const size_t window = WindowOf(call);
  const std::vector<int64_t>&sizes = ListOf(call, window), &strides = ListOf(call, window + 1);
  int64_t last = BeginOf(call);
  for (size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * std::max<int64_t>(strides[d], 0);
  return last;
}

std::vector<Place> PlacesOf(const Fragment& fragment) {
  std::vector<Place> places;
  size_t number = 0;
  for (const OperandType& input : fragment.inputs) number += input.type.dims.size();
  for (const Node& node : fragment.nodes) {
    const Call& call = *node.call;
    if (call.op == "tpu::view" || call.op == "tpu::update") {
      const size_t window = WindowOf(call);
      places.push_back({number + ListOf(call, window).size() + ListOf(call, window + 1).size(), &call});
    }
    number += NumSizes(call);
  }
  return places;
}

Fragment WithoutPlaces(const Fragment& fragment) {
  std::vector<int64_t> numbers = fragment.Sizes();
  for (const Place& place : PlacesOf(fragment)) numbers[place.number] = 0;
  return fragment.WithSizes(numbers);
}

std::optional<Reach> ReachOf(const Call& call, int64_t step) {
  if (NumElements(ListOf(call, WindowOf(call))) == 0) return std::nullopt;
  const int64_t begin = BeginOf(call), last = LastOf(call);
  // In elements of the window's type.
  const TensorType& base = call.operands[0].type;
  const DType dtype = call.op == "tpu::view" ? call.results[0].dtype : call.operands[1].type.dtype;
  std::vector<int64_t> dims(base.dims.begin(), base.dims.end());
  if (SizeOf(base.dtype) != SizeOf(dtype)) dims = {static_cast<int64_t>(base.bytes() / SizeOf(dtype))};
  int64_t unit = 1;
  for (size_t d = dims.size(); d-- > 0; unit *= dims[d]) {
    if (dims[d] == 1 || (d > 0 && step % (unit * dims[d]) == 0)) continue;
    const int64_t first_there = d == 0 ? begin / unit : begin / unit % dims[d];
    const int64_t last_there = d == 0 ? last / unit : last / unit % dims[d];
    if (last_there < first_there) break;
    return Reach{unit, begin - first_there * unit, begin + (dims[d] - 1 - last_there) * unit};
  }
  return Reach{1, 0, begin + NumElements(dims) - 1 - last};
}

}  // namespace tpu
