// How the ranks of a group find each other: by torch's Store, and nothing else.
#include <thread>

#include "collectives/c10d/gloo.h"
#include "collectives/c10d/process_group.h"
#include "collectives/segment.h"
#include "collectives/shared_memory.h"
#include "dispatcher/errors.h"

namespace tpu {
namespace {

std::vector<uint8_t> BytesOf(const std::string& text) { return {text.begin(), text.end()}; }
std::string TextOf(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::shared_ptr<Group> ShareMemory(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout) {
  std::shared_ptr<Segment> segment;
  if (rank == 0) {
    segment = ValueOrThrow(Segment::Create(size));
    store.set("tpu/segment", BytesOf(segment->Address()));
  } else {
    segment = ValueOrThrow(Segment::Open(TextOf(store.get("tpu/segment")), size));
  }
  std::shared_ptr<Group> group = MakeSharedMemoryGroup(segment, rank, timeout);
  // The address holds while rank 0 does: nobody goes on before everybody has opened it.
  if (store.add("tpu/opened", 1) == size) store.set("tpu/ready", BytesOf("1"));
  store.wait({"tpu/ready"}, timeout);
  return group;
}

}  // namespace

bool ProcessGroupTpu::OnOneHost(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  const std::string mine = HostIdentity();
  store->set("tpu/host/" + std::to_string(rank), BytesOf(mine));
  bool same = size <= kMaxLocalRanks;
  for (int r = 0; r < size; ++r) same &= TextOf(store->get("tpu/host/" + std::to_string(r))) == mine;
  return same;
}

c10::intrusive_ptr<ProcessGroupTpu> ProcessGroupTpu::Make(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                          int size, std::chrono::milliseconds timeout,
                                                          c10::intrusive_ptr<c10d::Backend> gloo) {
  std::shared_ptr<Group> group =
      gloo ? std::shared_ptr<Group>(MakeGlooGroup(gloo, timeout)) : ShareMemory(*store, rank, size, timeout);
  return c10::intrusive_ptr<ProcessGroupTpu>::unsafe_steal_from_new(
      new ProcessGroupTpu(rank, size, timeout, std::move(group), std::move(gloo)));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupTpu::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                         const std::vector<int>& ranks,
                                                         const c10::intrusive_ptr<Options>& options) {
  const auto mine = std::find(ranks.begin(), ranks.end(), getRank());
  // Gloo's groups are made of the ranks that are in them, as ours are.
  if (mine == ranks.end()) return nullptr;
  const int rank = static_cast<int>(mine - ranks.begin()), size = static_cast<int>(ranks.size());
  c10::intrusive_ptr<Backend> gloo;
  if (gloo_ && !OnOneHost(store, rank, size)) gloo = gloo_->split(store, ranks, gloo_->getBackendOptions());
  auto group = Make(store, rank, size, options->timeout, std::move(gloo));
  group->options_->group_name = options->group_name;
  group->options_->group_desc = options->group_desc;
  group->options_->global_ranks_in_group = options->global_ranks_in_group;
  return group;
}

}  // namespace tpu
