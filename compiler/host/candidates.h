// Knobs that are turned in a plan, and which of all may matter to a program, told by its plan: the cost model in front
// of what jit measures.
//
// Called by the host compiler on compile threads.
#pragma once

#include <vector>

#include "compiler/tuning.h"
#include "runtime/host/plan.h"
#include "runtime/program.h"

namespace tpu::host {

// The plan's f32 products by kind (size, transposition), those with most work first: those of the kinds whose bits are
// set go by panels instead of the matrix library, or the other way round.
void TurnProducts(Plan& plan, int kinds);

// As CompilerBackend::Candidates.
std::vector<Tuning> Candidates(const Program& program, const Tuning& tuning);

}  // namespace tpu::host
