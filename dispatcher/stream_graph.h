// torch.accelerator.Graph for this device: what a thread records between capture_begin and capture_end, replayed from
// the storages that it read to those that it wrote, without PyTorch's dispatcher and without Python.
//
// As a CUDA graph is: nothing runs while it is captured; storages stand for addresses; a replay takes what they hold
// then, random numbers are the generators' next, numbers and shapes are those of the capture. What it read is kept
// alive; what it wrote is written as long as somebody has it. Like eager operations a replay goes through the window.
// Captured by one thread, on any of its streams; other threads run as ever, but on storages that the capture has seen:
// those can't be read until it is over, and what others write to them is lost. Replayed by any.
#pragma once

#include <ATen/core/GraphImplInterface.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dispatcher/capture.h"
#include "dispatcher/storage.h"

namespace tpu {

class StreamCapture;

class StreamGraph final : public at::GraphImplInterface {
 public:
  explicit StreamGraph(const at::GraphImplArgs& args);
  ~StreamGraph() override;

  void capture_begin(at::MempoolId_t pool, at::GraphCaptureMode mode) override;
  void capture_end() override;
  // Takes nothing that can fail: a replay compiles as everything does, while it runs.
  void instantiate() override;
  void replay() override;
  void reset() override;
  // Values are counted, so that pools are but names here.
  at::MempoolId_t pool() const override;
  void enable_debug_mode() override {}
  // The calls and what flows between them, as a graph of Graphviz's language.
  void debug_dump(const std::string& path) override;

 private:
  friend class StreamCapture;
  struct Read {
    c10::intrusive_ptr<TpuStorage> storage;
    const Layout* layout = nullptr;  // as the calls take it
    int32_t slot = -1;
  };
  struct Write {
    c10::weak_intrusive_ptr<TpuStorage> storage;
    const Layout* layout = nullptr;
  };

  void CheckCaptured() const;

  std::unique_ptr<StreamCapture> capture_;  // while it captures
  bool captured_ = false;
  at::MempoolId_t pool_{0, 0};
  std::mutex replaying_;  // one replay takes what the one before it wrote, on whichever thread
  CapturedCalls calls_;
  std::vector<Read> reads_;
  std::vector<Write> writes_;
  std::vector<int32_t> written_slots_;  // their values, in increasing order
};

// Makes torch.accelerator.Graph find it, once the device has its name.
void RegisterStreamGraphs();
// Whether this thread captures the stream.
bool IsCapturing(const Stream& stream);

}  // namespace tpu
