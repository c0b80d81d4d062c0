// A loop nest as the LLVM function `kernel`: void(void** pointers, i64 begin, i64 end).
//
// The pointers are the nest's inputs, then its outputs, then int64_t* error. The kept loops (in blocks along the
// innermost one, where it is kept) are numbered as items [0, extent), of which a call runs [begin, end). Called by the
// plan builder on compile threads.
#pragma once

#include <cstdint>

#include "compiler/host/kernel_frame.h"
#include "compiler/host/loop_nest.h"
#include "compiler/tuning.h"
#include "llvm/IR/Module.h"

namespace tpu::host {

// Outputs of so much, which no cache would keep, may be stored around it: they must be aligned as allocations are.
constexpr int64_t kNonTemporalBytes = 24 << 20;

struct KernelShape {
  // Items are blocks of so many positions of a row: of the innermost kept loop, where it is the innermost loop of all.
  int64_t rows = 1, row = 1, block = 1;
  int64_t woven = 1;       // of these, the innermost loop's where it is short: rows are of it and the loop around it
  bool row_major = false;  // items are numbered row-major over the kept loops
  int64_t grain = 1;       // items that are worth a task of their own
};

// How many of `extent` items that take so long each are worth a task of their own.
int64_t GrainFor(const Tuning& tuning, double item_nanoseconds, int64_t extent);

KernelShape EmitKernel(const LoopNest& nest, llvm::Module& module, const Tuning& tuning, KernelNumbers& numbers);

}  // namespace tpu::host
