// torch_tpu._C.CompiledGraph: what the `tpu` backend of torch.compile gives back as a compiled graph. Beside it, what
// torch.tpu needs of torch.accelerator.Graph.
//
// Called with the list of the graph's inputs, which it empties. The first call with inputs of a kind runs the graph's
// Python once over placeholders (dispatcher/graph.h); later ones replay that capture without Python. Graphs that can't
// be captured, and all graphs in the strict and debug modes, run operation by operation. Under the interpreter lock.
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>

#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "bindings/bindings.h"
#include "dispatcher/graph.h"
#include "dispatcher/stream_graph.h"
#include "dispatcher/streams.h"
#include "jit/engine.h"
#include "jit/metrics.h"
#include "runtime/flags.h"

namespace tpu {

namespace py = pybind11;

namespace {

constexpr size_t kMaxCaptures = 1024;                     // of one graph; forgotten when there are more
enum Word : uint64_t { kNone = 3, kBool, kInt, kFloat };  // beside those of dispatcher/graph.cc

class CompiledGraph {
 public:
  // `run`: the graph as a Python function of its inputs. `wait`: calls are fragments of their own, and the first of a
  // kind returns when they are compiled. `device`: where all of its tensors are.
  CompiledGraph(py::object run, bool wait, int device)
      : run_(std::move(run)), wait_(wait), device_(static_cast<c10::DeviceIndex>(device)) {}

  py::object Call(py::list inputs) {
    Metrics::Get().graph_calls.fetch_add(1, std::memory_order_relaxed);
    std::vector<GraphInput> in(inputs.size());
    words_.clear();
    for (size_t i = 0; i < in.size(); ++i) {
      PyObject* const object = PyList_GET_ITEM(inputs.ptr(), i);
      if (!Read(object, in[i])) {
        return RunUncaptured(inputs, std::string("an input is a ") + Py_TYPE(object)->tp_name + " of another kind");
      }
    }
    CurrentStream(device_);  // makes the devices
    if (Engine::Get().mode() != Mode::kFused) return Run(inputs);
    bool is_new = false;
    const std::shared_ptr<const Captured> found = Find(inputs, in, &is_new);
    if (!found) return Run(inputs);
    if (!found->graph) return RunUncaptured(inputs, found->reason);
    return Replay(*found, inputs, in, is_new);
  }

 private:
  struct Captured {
    std::unique_ptr<CapturedGraph> graph;  // null: can't be captured, for this reason
    std::string reason;
    std::vector<py::object> constants;  // by output: what is no tensor
  };

  bool Read(PyObject* object, GraphInput& input) {
    if (THPVariable_Check(object)) return Describe(THPVariable_Unpack(object), input, words_);
    if (object == Py_None) {
      words_.push_back(kNone);
    } else if (PyBool_Check(object)) {
      words_.insert(words_.end(), {kBool, object == Py_True});
    } else if (PyLong_CheckExact(object)) {
      int overflow = 0;
      words_.insert(words_.end(), {kInt, static_cast<uint64_t>(PyLong_AsLongLongAndOverflow(object, &overflow))});
      return overflow == 0;
    } else if (PyFloat_CheckExact(object)) {
      words_.insert(words_.end(), {kFloat, std::bit_cast<uint64_t>(PyFloat_AS_DOUBLE(object))});
    } else if (THPGenerator_Check(object)) {
      return Describe(THPGenerator_Unwrap(object), input, words_);
    } else {
      return false;
    }
    return true;
  }

  // Shared: another thread may make room by forgetting it while this one waits without the interpreter lock. None: it
  // would have to be captured now, inside the graph of a stream.
  std::shared_ptr<const Captured> Find(const py::list& inputs, const std::vector<GraphInput>& in, bool* is_new) {
    if (latest_ != nullptr && latest_words_ == words_) return latest_;
    auto it = captures_.find(words_);
    if (it == captures_.end()) {
      if (Capture::Current() != nullptr) return nullptr;
      if (captures_.size() >= kMaxCaptures) captures_.clear();
      std::vector<uint64_t> words = words_;
      auto made = Make(inputs, in);  // runs Python: may come back here from another thread
      it = captures_.insert_or_assign(std::move(words), std::move(made)).first;
      *is_new = true;
    }
    latest_words_ = it->first;
    latest_ = it->second;
    return latest_;
  }

  std::shared_ptr<const Captured> Make(const py::list& inputs, const std::vector<GraphInput>& in) {
    auto captured = std::make_shared<Captured>();
    try {
      GraphCapture capture(in, device_);
      py::list arguments;
      for (size_t i = 0; i < in.size(); ++i) {
        const at::Tensor& placeholder = capture.placeholders()[i];
        arguments.append(placeholder.defined() ? py::reinterpret_steal<py::object>(THPVariable_Wrap(placeholder))
                                               : py::object(inputs[i]));
      }
      std::vector<at::Tensor> outputs;
      const py::object returned = Run(arguments);
      for (py::handle output : returned) {
        const bool tensor = THPVariable_Check(output.ptr());
        outputs.push_back(tensor ? THPVariable_Unpack(output.ptr()) : at::Tensor());
        captured->constants.push_back(tensor ? py::none() : py::reinterpret_borrow<py::object>(output));
      }
      captured->graph = capture.Finish(outputs);
      Metrics::Get().graph_captures.fetch_add(1, std::memory_order_relaxed);
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_Exception)) throw;
      captured->reason = error.what();
    } catch (const c10::Error& error) {
      captured->reason = error.what_without_backtrace();
    }
    captured->reason = captured->reason.substr(0, captured->reason.find('\n'));
    return captured;
  }

  py::object Replay(const Captured& found, py::list& inputs, std::vector<GraphInput>& in, bool is_new) {
    const std::vector<CapturedGraph::Output>& outputs = found.graph->outputs();
    py::list result(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].input < 0) continue;
      PyList_SET_ITEM(result.ptr(), i, Py_NewRef(PyList_GET_ITEM(inputs.ptr(), outputs[i].input)));
    }
    PyList_SetSlice(inputs.ptr(), 0, PyList_GET_SIZE(inputs.ptr()), nullptr);
    const CompileAtOnce compiled;
    if (wait_) Engine::Get().CutStream(CurrentStream(device_), CutReason::kContent, "compiled graph");
    std::vector<at::Tensor> tensors = found.graph->Replay(in);
    if (wait_) {
      Engine::Get().CutStream(CurrentStream(device_), CutReason::kContent, "compiled graph");
      if (is_new) WaitForCompiles();
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].input >= 0) continue;
      PyObject* const object =
          tensors[i].defined() ? THPVariable_Wrap(std::move(tensors[i])) : Py_NewRef(found.constants[i].ptr());
      PyList_SET_ITEM(result.ptr(), i, object);
    }
    return result;
  }

  // As it comes from the compiler: no grad mode and no autocast of the caller's.
  py::object Run(const py::list& arguments) {
    const c10::AutoGradMode no_grad(false);
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    return run_(*arguments);
  }

  py::object RunUncaptured(py::list& inputs, const std::string& reason) {
    TORCH_CHECK_NOT_IMPLEMENTED(Flags::Get().fallback != "error", "tpu: a compiled graph can't be captured: ", reason,
                                " (TORCH_TPU_FALLBACK=error forbids to run it operation by operation)");
    Metrics::Get().CountUncapturedGraph(reason);
    const py::tuple arguments(inputs);
    PyList_SetSlice(inputs.ptr(), 0, PyList_GET_SIZE(inputs.ptr()), nullptr);
    return Run(py::list(arguments));
  }

  py::object run_;
  const bool wait_;
  const c10::DeviceIndex device_;
  std::vector<uint64_t> words_, latest_words_;  // of the inputs: words_ is scratch
  std::shared_ptr<const Captured> latest_;
  absl::flat_hash_map<std::vector<uint64_t>, std::shared_ptr<const Captured>> captures_;
};

}  // namespace

void BindGraphs(py::module_& m) {
  py::class_<CompiledGraph>(m, "CompiledGraph", py::dynamic_attr())
      .def(py::init<py::object, bool, int>(), py::arg("run"), py::arg("wait") = false, py::arg("device") = 0)
      .def("__call__", &CompiledGraph::Call);
  m.def("register_graphs", &RegisterStreamGraphs);
  m.def("is_capturing", [] { return Capture::Current() != nullptr && IsCapturing(CurrentStream()); });
}

}  // namespace tpu
