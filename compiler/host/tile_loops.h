// Tile loops: steps that follow each other over the same leading positions run tile by tile in one parallel loop, so
// that what one step writes is still in the core's cache when the next reads it (a product, the softmax over its rows,
// the next product).
//
// Called by plan_builder.cc once all steps are there, before memory is planned. Plain functions over a Plan.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "compiler/host/kernel_emitter.h"
#include "runtime/host/plan.h"

namespace tpu::host {

// For each slot of a step, how finely the step's tiles cut it (runtime/host/tile_cut.h).
using Slices = std::vector<int64_t>;
Slices SlicesOf(const LoopNest& nest, const KernelShape& shape);  // inputs, then outputs
Slices SlicesOf(const Plan& plan, const Step& product, bool by_depth = false);

struct SizedSteps {
  Plan* plan;
  const std::vector<Slices>* slices;  // of each step, empty where it has no tiles
};

// Fills plan.tile_loops, brings the steps of each together and makes temporaries that no other step uses its own, alike
// in plans of the same steps at several sizes, the largest last. Returns the former number of each step.
std::vector<size_t> FormTileLoops(absl::Span<const SizedSteps> sizes);

}  // namespace tpu::host
