#include "compiler/host/kernel_frame.h"

#include "llvm/IR/IntrinsicsX86.h"

namespace tpu::host {

using llvm::Value;

KernelFrame::KernelFrame(llvm::Module& module, size_t num_pointers, KernelNumbers& numbers)
    : module_(module), b_(module.getContext()), ops_(b_), numbers_(numbers) {
  llvm::LLVMContext& context = module_.getContext();
  llvm::Type* pointer = llvm::PointerType::get(context, 0);
  auto* type = llvm::FunctionType::get(b_.getVoidTy(), {pointer, b_.getInt64Ty(), b_.getInt64Ty()}, false);
  function_ = llvm::Function::Create(type, llvm::GlobalValue::ExternalLinkage, "kernel", module_);
  function_->addFnAttr(llvm::Attribute::NoUnwind);
  entry_ = llvm::BasicBlock::Create(context, "entry", function_);
  start_ = llvm::BasicBlock::Create(context, "start", function_);
  b_.SetInsertPoint(start_);
  for (size_t i = 0; i < num_pointers + 1; ++i) {
    Value* slot = b_.CreateConstInBoundsGEP1_64(pointer, function_->getArg(0), i);
    pointers_.push_back(b_.CreateLoad(pointer, slot));
  }
  error_ = EntryAlloca(b_.getInt64Ty());
  b_.CreateStore(b_.getInt64(0), error_);
}

Value* KernelFrame::I64(int64_t v) {
  const size_t place = numbers_.asked.size();
  numbers_.asked.push_back(v);
  int parameter = place < numbers_.parameters.size() ? numbers_.parameters[place] : -1;
  if (v == numbers_.open) parameter = 0;
  return parameter < 0 ? b_.getInt64(v) : Parameter(parameter);
}

Value* KernelFrame::Begin(int64_t v) {
  if (!numbers_.open_begins) return I64(v);
  numbers_.begins.push_back(v);
  return Parameter((numbers_.open ? 1 : 0) + numbers_.begins.size() - 1);
}

Value* KernelFrame::Parameter(size_t parameter) {
  if (parameters_.size() <= parameter) parameters_.resize(parameter + 1);
  Value*& read = parameters_[parameter];
  if (read == nullptr) {
    llvm::IRBuilder<> at_entry(entry_);
    llvm::Type* pointer = llvm::PointerType::get(module_.getContext(), 0);
    Value* table = at_entry.CreateLoad(
        pointer, at_entry.CreateConstInBoundsGEP1_64(pointer, function_->getArg(0), pointers_.size()));
    read = at_entry.CreateLoad(b_.getInt64Ty(), at_entry.CreateConstInBoundsGEP1_64(b_.getInt64Ty(), table, parameter));
  }
  return read;
}

Value* KernelFrame::I64(int64_t v, Value* like) {
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(like->getType());
  Value* number = I64(v);
  return vector == nullptr ? number : b_.CreateVectorSplat(vector->getElementCount(), number);
}

Value* KernelFrame::EntryAlloca(llvm::Type* type, int64_t count) {
  llvm::IRBuilder<> at_entry(entry_, entry_->begin());
  llvm::AllocaInst* slot = at_entry.CreateAlloca(type, count == 1 ? nullptr : b_.getInt64(count));
  if (count > 1) slot->setAlignment(llvm::Align(64));
  return slot;
}

void KernelFrame::For(Value* begin, Value* end, int64_t step, const Body& body, llvm::function_ref<void()> enter) {
  llvm::LLVMContext& context = module_.getContext();
  auto* before = b_.GetInsertBlock();
  auto* loop = llvm::BasicBlock::Create(context, "loop", function_);
  auto* after = llvm::BasicBlock::Create(context, "after", function_);
  auto* entered = enter ? llvm::BasicBlock::Create(context, "enter", function_, loop) : loop;
  b_.CreateCondBr(b_.CreateICmpSLT(begin, end), entered, after);
  if (enter) {
    b_.SetInsertPoint(entered);
    enter();
    before = b_.GetInsertBlock();
    b_.CreateBr(loop);
  }
  b_.SetInsertPoint(loop);
  llvm::PHINode* position = b_.CreatePHI(b_.getInt64Ty(), 2);
  position->addIncoming(begin, before);
  body(position);
  Value* next = b_.CreateNSWAdd(position, I64(step));
  position->addIncoming(next, b_.GetInsertBlock());
  b_.CreateCondBr(b_.CreateICmpSLT(next, end), loop, after);
  b_.SetInsertPoint(after);
}

Value* KernelFrame::Either(Value* condition, llvm::function_ref<Value*()> then,
                           llvm::function_ref<Value*()> otherwise) {
  const auto block = [&](const char* name) { return llvm::BasicBlock::Create(module_.getContext(), name, function_); };
  llvm::BasicBlock *first = block("then"), *second = block("otherwise"), *after = block("after");
  b_.CreateCondBr(condition, first, second);
  const auto write = [&](llvm::BasicBlock* from, llvm::function_ref<Value*()> what) {
    b_.SetInsertPoint(from);
    Value* value = what();
    llvm::BasicBlock* end = b_.GetInsertBlock();
    b_.CreateBr(after);
    return std::pair(value, end);
  };
  const auto one = write(first, then), other = write(second, otherwise);
  b_.SetInsertPoint(after);
  llvm::PHINode* value = b_.CreatePHI(one.first->getType(), 2);
  for (auto [v, end] : {one, other}) value->addIncoming(v, end);
  return value;
}

Value* KernelFrame::Checked(Value* index, int64_t size) {
  Value* wrong = b_.CreateICmpUGE(index, I64(size, index));
  Report(wrong, KernelError::kIndex);
  return b_.CreateSelect(wrong, llvm::Constant::getNullValue(index->getType()), index);
}

void KernelFrame::CheckDivisor(Value* divisor) {
  Value* zero = b_.CreateICmpEQ(divisor, llvm::Constant::getNullValue(divisor->getType()));
  if (auto* known = llvm::dyn_cast<llvm::Constant>(zero); known && known->isNullValue()) return;
  Report(zero, KernelError::kDivisor);
}

void KernelFrame::CheckRequirement(Value* holds) { Report(b_.CreateNot(holds), KernelError::kRequirement); }

void KernelFrame::Report(Value* wrong, KernelError error) {
  Value* any = wrong->getType()->isVectorTy() ? b_.CreateOrReduce(wrong) : wrong;
  Value* bits = b_.CreateSelect(any, b_.getInt64(static_cast<int64_t>(error)), b_.getInt64(0));
  b_.CreateStore(b_.CreateOr(b_.CreateLoad(b_.getInt64Ty(), error_), bits), error_);
}

void KernelFrame::Finish(bool fence) {
  llvm::LLVMContext& context = module_.getContext();
  auto* tell = llvm::BasicBlock::Create(context, "tell", function_);
  auto* done = llvm::BasicBlock::Create(context, "done", function_);
  Value* error = b_.CreateLoad(b_.getInt64Ty(), error_);
  b_.CreateCondBr(b_.CreateIsNotNull(error), tell, done);
  b_.SetInsertPoint(tell);
  b_.CreateAlignedStore(error, pointers_.back(), llvm::Align(8));
  b_.CreateBr(done);
  b_.SetInsertPoint(done);
  if (fence) b_.CreateIntrinsic(b_.getVoidTy(), llvm::Intrinsic::x86_sse_sfence, {});
  b_.CreateRetVoid();
  b_.SetInsertPoint(entry_);
  b_.CreateBr(start_);
}

}  // namespace tpu::host
