// Knobs that are turned in a plan, and which of all may matter to a program: the cost model in front of what jit
// measures, corrected by what it measured.
//
// Called by the host compiler on compile threads.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "compiler/tuning.h"
#include "runtime/device.h"
#include "runtime/host/plan.h"
#include "runtime/program.h"

namespace tpu::host {

// The plan's f32 products by kind (size, transposition), those with most work first: those of the kinds whose bits are
// set go by panels instead of the matrix library, or the other way round.
void TurnProducts(Plan& plan, int kinds);

// As CompilerBackend::Candidates.
std::vector<Candidate> Candidates(const Program& program, const Tuning& tuning, absl::Span<const KernelTime> measured);

}  // namespace tpu::host
