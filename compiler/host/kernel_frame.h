// What every generated kernel has: the function, its pointers, loops, and the flag for an index out of range.
//
// Base of the emitters (kernel_emitter.cc, special_kernels.cc); one for each kernel, on one thread.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "compiler/host/element_ops.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Module.h"
#include "runtime/host/plan.h"

namespace tpu::host {

// The numbers in a kernel's code. Code for several sizes is written at each of them; where a number differs, it is read
// from the step's parameters.
struct KernelNumbers {
  std::vector<int64_t> asked;   // all that the code asked for, in order
  std::vector<int> parameters;  // of each, which parameter it is; -1, or none told: it is the same for all sizes
  bool many = false;            // one at which a number is zero has the code of the others
  // Instead, of code at one size: the number that is a parameter, and, where `open_begins`, after it those that `Begin`
  // was asked for.
  std::optional<int64_t> open = {};
  bool open_begins = false;
  std::vector<int64_t> begins = {};
};

class KernelFrame {
 public:
  KernelFrame(llvm::Module& module, size_t num_pointers, KernelNumbers& numbers);

 protected:
  using Body = std::function<void(llvm::Value* position)>;
  // for (position = begin; position < end; position += step). What `enter` writes runs once, before the first position.
  void For(llvm::Value* begin, llvm::Value* end, int64_t step, const Body& body,
           llvm::function_ref<void()> enter = nullptr);
  // What one of the two writes, each in blocks of its own.
  llvm::Value* Either(llvm::Value* condition, llvm::function_ref<llvm::Value*()> then,
                      llvm::function_ref<llvm::Value*()> otherwise);
  // Stores the error code if there is one, and returns.
  void Finish(bool fence);
  llvm::Value* EntryAlloca(llvm::Type* type, int64_t count = 1);
  // `index` where it is within [0, size), else 0 and the kernel reports it.
  llvm::Value* Checked(llvm::Value* index, int64_t size);
  // The kernel reports an integer divisor that is zero.
  void CheckDivisor(llvm::Value* divisor);
  // The kernel reports a requirement (tpu.require) that does not hold.
  void CheckRequirement(llvm::Value* holds);

  bool many() const { return numbers_.many; }
  llvm::Value* I64(int64_t v);
  // Where something begins: kernels that differ in that alone may share their code.
  llvm::Value* Begin(int64_t v);
  // The number as an operand beside `like`: in each of its lanes.
  llvm::Value* I64(int64_t v, llvm::Value* like);
  llvm::Value* begin() { return function_->getArg(1); }
  llvm::Value* end() { return function_->getArg(2); }
  llvm::Value* At(llvm::Value* pointer, mlir::Type element, llvm::Value* index) {
    return b_.CreateInBoundsGEP(b_.getIntNTy(static_cast<unsigned>(ElementOps::BytesOf(element) * 8)), pointer, index);
  }

  llvm::Module& module_;
  llvm::IRBuilder<> b_;
  ElementOps ops_;
  llvm::Function* function_ = nullptr;
  std::vector<llvm::Value*> pointers_;  // the last is the error code's

 private:
  void Report(llvm::Value* wrong, KernelError error);
  llvm::Value* Parameter(size_t parameter);

  KernelNumbers& numbers_;
  llvm::BasicBlock* entry_ = nullptr;
  llvm::BasicBlock* start_ = nullptr;
  llvm::Value* error_ = nullptr;          // i64 slot
  std::vector<llvm::Value*> parameters_;  // read so far
};

}  // namespace tpu::host
