// Ranks that are threads of one process, with a device each, all of one plugin: their devices exchange the elements
// themselves, by programs that they run together (runtime/exchange.h). Nothing is read to the host.
//
// A collective has these steps; the group announces, compares and waits, so that errors are the same as by way of the
// host (collective.h):
//
//   each rank puts down its part; Group::Run: all are there, and do the same
//   alike parts:  rank 0 launches the whole exchange on all devices; Group::Turn: it has been launched
//   other parts:  each packs its own into blocks; Turn; rank 0 launches the exchange of blocks; Turn; each unpacks
//
// Launches are asynchronous, results are values like any other: what fails on the devices is told by whoever reads
// them. With P ranks and blocks of N bytes (pieces of different sizes are padded to the largest):
//
//   verb                       program                            bytes that a device brings and gets
//   all_reduce, reduce         all_reduce (to all, root uses it)  N and N
//   reduce_scatter             reduce_scatter                     P*N and N
//   all_gather, gather         all_gather (likewise)              N and P*N
//   all_to_all, scatter        all_to_all (others bring zeros)    P*N and P*N
//   broadcast                  all_reduce of the bits, with zeros N and N
//   send, recv                 collective_permute of two          N and N
//
// Bitwise operators, minima and maxima of floats, and products of complex numbers are gathered and folded: P*N.
// Shared by the ranks, in a shared_ptr each; calls as of Group.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "collectives/collective.h"
#include "runtime/device.h"
#include "runtime/exchange.h"

namespace tpu {

class DeviceRanks {
 public:
  DeviceRanks(int size, ExchangeCompiler compile) : parts_(static_cast<size_t>(size)), compile_(std::move(compile)) {}
  // The one that ranks of this process share by this name, made by the first to ask.
  static std::shared_ptr<DeviceRanks> Named(const std::string& name, int size, const ExchangeCompiler& compile);

  // What a rank brings to a collective: its operands in `inputs`, and where the collective's pieces are in them and in
  // its results.
  struct Part {
    Device* device = nullptr;
    const Stream* stream = nullptr;  // whose task runs it
    Collective collective;           // by_devices
    std::vector<Strip> sources, targets;
    std::vector<Argument> inputs;
    std::vector<BufferRef> outputs;  // made here, one for each target
    BufferRef blocks;
  };
  using PartRef = std::shared_ptr<Part>;

  // Of every verb but barriers and messages. False, on all ranks: nothing was done, the caller goes by way of the host;
  // so it is from the first time on that two ranks have the same device or the plugin does not take the program. After
  // an error the caller makes the group fail.
  absl::StatusOr<bool> Run(Group& group, const PartRef& part);
  // A message is posted before its sender runs it in the group, and fetched after its receiver has.
  absl::Status Post(int from, int to, const PartRef& part);
  absl::Status Fetch(int from, int to, const PartRef& part);

 private:
  using Parts = std::vector<PartRef>;
  using Key = std::pair<std::vector<Device*>, Exchange>;
  template <typename T>
  using Cache = absl::flat_hash_map<Key, std::shared_ptr<T>>;

  absl::Status RunLocally(Part& part, Exchange exchange, Exchange::Stage stage);
  absl::StatusOr<std::shared_ptr<JointExecutable>> FindJoint(absl::Span<const PartRef> parts, Exchange exchange,
                                                             Exchange::Stage stage);
  static absl::Status RunJointly(JointExecutable& program, absl::Span<const PartRef> parts, Exchange::Stage stage);
  template <typename T, typename Load>
  absl::StatusOr<std::shared_ptr<T>> Find(Cache<T>& cache, Key key, const Load& load);

  std::mutex mutex_;  // guards what follows
  Parts parts_;       // of the collective that is under way, by rank
  bool by_host_ = false;
  std::map<std::pair<int, int>, std::deque<PartRef>> messages_;
  Cache<Executable> local_;
  Cache<JointExecutable> joint_;
  const ExchangeCompiler compile_;
};

}  // namespace tpu
