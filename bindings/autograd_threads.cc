#include "bindings/autograd_threads.h"

#include <ATen/ops/empty.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include "dispatcher/streams.h"

namespace tpu {
namespace {

struct Threads : torch::autograd::Engine {
  static bool Started(const Engine& engine) { return !(engine.*&Threads::device_ready_queues_).empty(); }
};

}  // namespace

// A thread drops a task before it takes the next: one more, which holds nothing of Python's, is waited for.
void WaitForAutogradThreads() {
  torch::autograd::Engine& engine = torch::autograd::Engine::get_default_engine();
  if (!Threads::Started(engine)) return;
  torch::autograd::AnomalyMode::set_enabled(false);  // it would give the task something of Python's
  for (int device = 0; device < DeviceCount(); ++device) {
    const auto options =
        at::TensorOptions().device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device));
    const at::Tensor leaf = at::empty({0}, options).requires_grad_(true);
    const at::Tensor gradient = at::empty({0}, options);
    // After the first use of the device, which may be the line above: it has this thread's backwards run here.
    c10::AutogradState::get_tls_state().set_multithreading_enabled(true);
    engine.execute({torch::autograd::impl::gradient_edge(leaf)}, {gradient}, /*keep_graph=*/false,
                   /*create_graph=*/false, /*accumulate_grad=*/true);
  }
}

}  // namespace tpu
