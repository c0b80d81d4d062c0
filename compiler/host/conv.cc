#include "compiler/host/conv.h"

#include "compiler/ir/types.h"
#include "runtime/host/conv.h"

namespace tpu::host {

std::optional<ConvStep> PlanConv(ir::ConvOp conv) {
  const auto lhs = ir::TensorTypeOf(conv.getLhs()), rhs = ir::TensorTypeOf(conv.getRhs());
  const auto result = ir::TensorTypeOf(conv.getResult());
  const int64_t spatial = lhs.getRank() - 2;
  if (spatial < 1 || spatial > 2 || !result.getElementType().isF32()) return std::nullopt;
  ConvStep step;
  step.dtype = ir::DTypeOf(lhs.getElementType());
  // Swapped: the gradient of the weight, whose window is moved by what the forward one is dilated by, and conversely.
  const bool swapped = conv.getSwapped();
  if ((swapped ? conv.getFeatureGroups() : conv.getBatchGroups()) != 1) return std::nullopt;
  step.kind = swapped ? ConvStep::Kind::kWeight : ConvStep::Kind::kForward;
  const auto y = swapped ? rhs : result, w = swapped ? result : rhs;
  step.batch = lhs.getDimSize(0);
  step.in = lhs.getDimSize(1);
  step.out = w.getDimSize(0);
  step.groups = swapped ? conv.getBatchGroups() : conv.getFeatureGroups();
  const llvm::ArrayRef<int64_t> strides = swapped ? conv.getDilation() : conv.getStrides();
  const llvm::ArrayRef<int64_t> dilation = swapped ? conv.getStrides() : conv.getDilation();
  const llvm::ArrayRef<int64_t> low = conv.getLow();
  for (unsigned d = 0; d < spatial; ++d) {
    ConvStep::Dim& dim = d + 1 < spatial ? step.rows : step.cols;  // a signal is an image of one row
    dim.in = lhs.getDimSize(d + 2);
    dim.out = y.getDimSize(d + 2);
    dim.kernel = w.getDimSize(d + 2);
    dim.stride = strides[d];
    dim.dilation = dilation[d];
    dim.low = low[d];
    dim.spread = conv.getBaseDilation()[d];
  }
  return CanConvolve(step) ? std::optional(step) : std::nullopt;
}

bool IsHostConvolution(mlir::Operation* op) {
  auto conv = mlir::dyn_cast<ir::ConvOp>(op);
  return !conv || PlanConv(conv);
}

}  // namespace tpu::host
