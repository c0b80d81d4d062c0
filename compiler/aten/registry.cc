#include "compiler/aten/registry.h"

#include <algorithm>
#include <memory>

#include "compiler/aten/families.h"
#include "compiler/fragment.h"
#include "compiler/import/import.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/PatternMatch.h"
#include "mlir/IR/TypeUtilities.h"
#include "mlir/IR/Verifier.h"

namespace tpu::aten {
namespace {

Registry MakeRegistry() {
  Registry r;
  RegisterStorage(r);
  RegisterElementwise(r);
  RegisterActivation(r);
  RegisterRecurrent(r);
  RegisterCompare(r);
  RegisterReduce(r);
  RegisterDistance(r);
  RegisterScan(r);
  RegisterMatmul(r);
  RegisterConvolution(r);
  RegisterFft(r);
  RegisterLinalg(r);
  RegisterSort(r);
  RegisterShape(r);
  RegisterFactory(r);
  RegisterIndex(r);
  RegisterBags(r);
  RegisterCompact(r);
  RegisterNorm(r);
  RegisterSoftmax(r);
  RegisterLoss(r);
  RegisterPool(r);
  RegisterResample(r);
  RegisterGridSample(r);
  RegisterSpecial(r);
  RegisterRandom(r);
  RegisterForeach(r);
  RegisterOptim(r);
  RegisterAttention(r);
  RegisterComplex(r);
  return r;
}

// Has elements of type T, or computes in it, as what compares real values with a complex number.
template <typename T>
bool HasElements(ir::AtenOp op) {
  const auto of_type = [](mlir::Type type) { return mlir::isa<T>(mlir::getElementTypeOrSelf(type)); };
  return llvm::any_of(op.getOperandTypes(), of_type) || llvm::any_of(op.getResultTypes(), of_type) ||
         (op.getPromoted() && of_type(*op.getPromoted()));
}

// The value in its declared type; null when it does not fit.
mlir::Value Fit(Tensor value, mlir::RankedTensorType type) {
  if (!value) return nullptr;
  std::optional<Shape> dims = ir::BroadcastDims(value.dims(), type.getShape());
  if (!dims || Ints(*dims) != type.getShape()) return nullptr;
  return ir::Convert(ir::BroadcastTo(value, *dims), ir::DTypeOf(type.getElementType()));
}

// What the lowering makes in front of `op`; declined when it has none, or none for a device with host kernels.
Result TryToLower(ir::AtenOp op, mlir::RewriterBase& rewriter, Emitter& emitter, bool host_kernels,
                  const Accepts& tuned = nullptr) {
  const Entry* entry = Registry::Get().Find(op.getName());
  const bool by_tuning = host_kernels && entry && (entry->flags & kHostKernelFirst);
  if (!entry || (by_tuning && !(tuned && (entry->flags & kTunable)))) return Result::Decline();
  const bool any = entry->flags & kAnyElement;
  const bool apart = !any && !(entry->flags & kComplexToo) && HasElements<mlir::ComplexType>(op);
  const Lowering& lowering = apart ? entry->complex : entry->lowering;
  if (lowering == nullptr || (!any && HasElements<ir::OpaqueType>(op))) return Result::Decline();
  mlir::OpBuilder::InsertionGuard guard(rewriter);
  rewriter.setInsertionPoint(op);
  AtenCall call(op, emitter, host_kernels);
  mlir::Operation* const before = op->getPrevNode();
  Result result = lowering(call);
  if (by_tuning) {
    for (mlir::Operation* made = op->getPrevNode(); made != before; made = made->getPrevNode()) {
      if (!tuned(made)) return Result::Decline();
    }
  }
  return call.misread() ? Result::Decline() : std::move(result);
}

// `use` of the call as the only one of a scratch module, without complaints.
bool OnScratch(const Call& call, llvm::function_ref<bool(mlir::ModuleOp, ir::AtenOp, mlir::RewriterBase&)> use) {
  thread_local const std::unique_ptr<mlir::MLIRContext> context = [] {
    auto made = std::make_unique<mlir::MLIRContext>(mlir::MLIRContext::Threading::DISABLED);
    made->loadDialect<ir::TpuDialect, mlir::func::FuncDialect>();
    return made;
  }();
  mlir::ScopedDiagnosticHandler silent(context.get(), [](mlir::Diagnostic&) { return mlir::success(); });
  Fragment fragment;
  Node node;
  node.call = CallRef(CallRef(), &call);  // the caller's
  for (const OperandType& operand : call.operands) {
    fragment.operands.push_back(InputId(static_cast<int>(fragment.inputs.size())));
    fragment.inputs.push_back(operand);
  }
  fragment.nodes.push_back(node);
  fragment.num_results = call.results.size();
  for (size_t i = 0; i < call.results.size(); ++i) fragment.outputs.push_back(static_cast<ValueId>(i));
  mlir::OwningOpRef<mlir::ModuleOp> module = ImportFragment(*context, fragment);
  mlir::IRRewriter rewriter(context.get());
  ir::AtenOp only;
  module->walk([&](ir::AtenOp op) { only = op; });
  return use(*module, only, rewriter);
}

}  // namespace

const Registry& Registry::Get() {
  static const Registry* registry = new Registry(MakeRegistry());
  return *registry;
}

const Entry* Registry::Find(std::string_view name) const {
  std::string key(name);
  if (auto it = table_.find(key); it != table_.end()) return &it->second;
  size_t end = std::min(key.find('.'), key.size());
  if (end < 2 || key[end - 1] != '_' || key[end - 2] == '_') return nullptr;
  auto it = table_.find(key.erase(end - 1, 1));
  return it == table_.end() ? nullptr : &it->second;
}

mlir::LogicalResult Lower(ir::AtenOp op, mlir::RewriterBase& rewriter, bool host_kernels, const Accepts& tuned) {
  Emitter emitter(rewriter, op.getLoc(), op.getPrecision());
  Result result = TryToLower(op, rewriter, emitter, host_kernels, tuned);
  if (result.declined() || result.values().size() != op.getNumResults()) return mlir::failure();
  mlir::OpBuilder::InsertionGuard guard(rewriter);
  rewriter.setInsertionPoint(op);
  llvm::SmallVector<mlir::Value> values;
  for (auto [value, type] : llvm::zip(result.values(), op.getResultTypes())) {
    values.push_back(Fit(value, mlir::cast<mlir::RankedTensorType>(type)));
    if (!values.back()) return mlir::failure();
  }
  rewriter.replaceOp(op, values);
  return mlir::success();
}

bool CanLower(const Call& call, bool host_kernels) {
  const Entry* entry = Registry::Get().Find(call.op);
  if (!entry || (host_kernels && (entry->flags & kHostKernelFirst))) return false;
  return OnScratch(call, [&](mlir::ModuleOp module, ir::AtenOp op, mlir::RewriterBase& rewriter) {
    return mlir::succeeded(Lower(op, rewriter, host_kernels)) && mlir::succeeded(mlir::verify(module));
  });
}

std::vector<TensorType> Bounds(const Call& call, bool host_kernels) {
  std::vector<TensorType> types;
  const Entry* entry = Registry::Get().Find(call.op);
  if (!entry || !(entry->flags & kBounds)) return types;
  OnScratch(call, [&](mlir::ModuleOp, ir::AtenOp op, mlir::RewriterBase& rewriter) {
    Emitter emitter(rewriter, op.getLoc(), op.getPrecision());
    const Result result = TryToLower(op, rewriter, emitter, host_kernels);
    for (Tensor value : result.values()) types.push_back(ir::FromMlir(value.type()));
    return true;
  });
  return types;
}

std::vector<std::string> LoweredOperators() {
  std::vector<std::string> names;
  for (const auto& [name, entry] : Registry::Get().table()) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

bool StaticScalars(std::string_view op) {
  const Entry* entry = Registry::Get().Find(op);
  return entry && (entry->flags & kStaticScalars);
}

bool IsTunable(std::string_view op) {
  const Entry* entry = Registry::Get().Find(op);
  return entry && (entry->flags & kTunable);
}

bool HasProducts(std::string_view op) {
  const Entry* entry = Registry::Get().Find(op);
  return entry && (entry->flags & kProducts);
}

bool IsBoundary(std::string_view op) {
  const Entry* entry = Registry::Get().Find(op);
  return !entry || (entry->flags & kLibraryCall);
}

}  // namespace tpu::aten
