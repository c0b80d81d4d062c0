// Work on a stream that is no fragment but takes part in the flow of values: it reads values, whoever makes them, and
// its results are values that fragments of other streams wait for. A collective is one.
//
// Called by the process group (collectives/c10d). The host never waits here; work runs in the order of Enqueue on its
// stream (Engine::BorrowStream).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "jit/value.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace tpu {

class External {
 public:
  // Runs on the stream's thread once all operands are done. `operands` is the error of one that failed; then, or when
  // it returns an error itself, that is what all results get. A donated argument is held by nobody else: it may become
  // a result.
  using Run = std::function<absl::Status(const absl::Status& operands, absl::Span<Argument> arguments,
                                         absl::Span<BufferRef> results)>;
  struct Queued {
    std::vector<ValueRef> results;
    uint64_t sequence = 0;  // on the stream
  };

  // `results`: their types, interned. `what` names the work for explain() (operands that are pending are cut), `title`
  // on the timeline.
  static Queued Enqueue(Stream& stream, std::vector<ValueRef> operands, absl::Span<const TensorType* const> results,
                        const std::string& what, std::string title, Run run);

 private:
  static void RunNow(Stream& stream, std::vector<ValueRef>& operands, absl::Span<const ValueRef> results,
                     const std::string& title, const Run& run);
};

}  // namespace tpu
