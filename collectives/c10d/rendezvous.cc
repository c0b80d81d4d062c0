// How the ranks of a group find each other: by torch's Store, and nothing else.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/c10d/gloo.h"
#include "collectives/c10d/process_group.h"
#include "collectives/segment.h"
#include "collectives/shared_memory.h"
#include "dispatcher/errors.h"
#include "jit/engine.h"

namespace tpu {
namespace {

std::vector<uint8_t> BytesOf(const std::string& text) { return {text.begin(), text.end()}; }
std::string TextOf(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

// What `writer` says under the key, which the store's own timeout (often that of the whole program) has no say in.
std::string Await(c10d::Store& store, const std::string& key, int writer, std::chrono::milliseconds timeout) {
  try {
    store.wait({key}, timeout);
  } catch (const c10::Error& error) {
    TORCH_CHECK_WITH(DistBackendError, false, "tpu process group: no word from rank ", writer,
                     " (timeout: ", timeout.count(), " ms): ", error.what_without_backtrace());
  }
  return TextOf(store.get(key));
}

// Unlike every other of any process.
std::string Nonce(int rank) {
  static std::atomic<int> made{0};
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return absl::StrCat(rank, "-", getpid(), "-", now, "-", ++made);
}

std::string Roster(const std::vector<std::string>& nonces) {
  std::string roster;
  for (const std::string& n : nonces) roster += n + " ";
  return roster;
}

struct Shared {
  std::shared_ptr<Group> group;
  std::shared_ptr<DeviceRanks> ranks;  // null where the ranks are processes
};

Shared ShareMemory(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout) {
  std::shared_ptr<Segment> segment;
  std::string address;
  if (rank == 0) {
    segment = ValueOrThrow(Segment::Create(size));
    address = segment->Address();
    store.set("tpu/devices", BytesOf(Nonce(rank)));
    store.set("tpu/segment", BytesOf(address));
  } else {
    address = Await(store, "tpu/segment", 0, timeout);
    segment = ValueOrThrow(Segment::Open(address, size));
  }
  Shared shared{MakeSharedMemoryGroup(segment, rank, timeout), nullptr};
  if (Segment::IsOfThisProcess(address)) store.add("tpu/threads", 1);
  // The address holds while rank 0 does: nobody goes on before everybody has opened it.
  if (store.add("tpu/opened", 1) == size) store.set("tpu/ready", BytesOf("1"));
  store.wait({"tpu/ready"}, timeout);
  if (store.add("tpu/threads", 0) == size) {
    shared.ranks = DeviceRanks::Named(TextOf(store.get("tpu/devices")), size, [](const Exchange& exchange) {
      return Engine::Get().backend().CompileExchange(exchange);
    });
  }
  return shared;
}

}  // namespace

// A store may hold what ranks wrote that have died since (a restart by torchrun), or of an earlier group of the same
// name. So every rank says who it is, rank 0 reads who there is to a roster, and the roster holds once each rank on it
// has agreed to it; until then rank 0 reads again.
std::string ProcessGroupTpu::Meet(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                  std::chrono::milliseconds timeout) {
  const auto key = [](const char* what, int r) { return std::string("tpu/") + what + "/" + std::to_string(r); };
  const std::string nonce = Nonce(rank);
  const auto end = std::chrono::steady_clock::now() + timeout;
  store->set(key("here", rank), BytesOf(nonce));
  std::string agreed;
  while (true) {
    if (rank == 0) {
      std::vector<std::string> nonces{nonce};
      for (int r = 1; r < size; ++r) nonces.push_back(Await(*store, key("here", r), r, timeout));
      const std::string roster = Roster(nonces);
      if (roster != agreed) store->set("tpu/roster", BytesOf(agreed = roster));
      bool all = true;
      for (int r = 1; r < size && all; ++r) {
        all = store->check({key("agreed", r)}) && TextOf(store->get(key("agreed", r))) == roster;
      }
      if (all) break;
    } else {
      const std::string roster = Await(*store, "tpu/roster", 0, timeout);
      if (roster != agreed && absl::StrContains(roster, nonce)) {
        store->set(key("agreed", rank), BytesOf(agreed = roster));
      }
      if (!agreed.empty() && store->check({"tpu/met"}) && TextOf(store->get("tpu/met")) == agreed) break;
    }
    TORCH_CHECK_WITH(DistBackendError, std::chrono::steady_clock::now() < end, "tpu process group: rank ", rank, " of ",
                     size, " did not meet the others within ", timeout.count(), " ms");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (rank == 0) store->set("tpu/met", BytesOf(agreed));
  return agreed.substr(0, agreed.find(' '));
}

bool ProcessGroupTpu::OnOneHost(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                std::chrono::milliseconds timeout) {
  const std::string mine = HostIdentity();
  store->set("tpu/host/" + std::to_string(rank), BytesOf(mine));
  bool same = size <= kMaxLocalRanks;
  for (int r = 0; r < size; ++r) same &= Await(*store, "tpu/host/" + std::to_string(r), r, timeout) == mine;
  return same;
}

c10::intrusive_ptr<ProcessGroupTpu> ProcessGroupTpu::Make(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                          int size, std::chrono::milliseconds timeout,
                                                          c10::intrusive_ptr<c10d::Backend> gloo) {
  Shared shared = gloo ? Shared{MakeGlooGroup(gloo, timeout), nullptr} : ShareMemory(*store, rank, size, timeout);
  return c10::intrusive_ptr<ProcessGroupTpu>::unsafe_steal_from_new(new ProcessGroupTpu(
      rank, size, timeout, store, std::move(shared.group), std::move(shared.ranks), std::move(gloo)));
}

// The store that torch gives has a prefix that differs from rank to rank once they have been in different groups.
c10::intrusive_ptr<c10d::Backend> ProcessGroupTpu::split(const c10::intrusive_ptr<c10d::Store>&,
                                                         const std::vector<int>& ranks,
                                                         const c10::intrusive_ptr<Options>& options) {
  const auto mine = std::find(ranks.begin(), ranks.end(), getRank());
  // Gloo's groups are made of the ranks that are in them, as ours are.
  if (mine == ranks.end()) return nullptr;
  const int rank = static_cast<int>(mine - ranks.begin()), size = static_cast<int>(ranks.size());
  int number = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    number = splits_[ranks]++;
  }
  const std::string prefix = absl::StrCat("tpu/split/", absl::StrJoin(ranks, ","), "/", number);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, store_);
  const std::string name = Meet(store, rank, size, options->timeout);
  const c10::intrusive_ptr<c10d::Store> own = c10::make_intrusive<c10d::PrefixStore>(name, store);
  c10::intrusive_ptr<Backend> gloo;
  if (gloo_ && !OnOneHost(own, rank, size, options->timeout)) {
    gloo = gloo_->split(own, ranks, gloo_->getBackendOptions());
  }
  auto group = Make(own, rank, size, options->timeout, std::move(gloo));
  group->options_->group_name = options->group_name;
  group->options_->group_desc = options->group_desc;
  group->options_->global_ranks_in_group = options->global_ranks_in_group;
  return group;
}

}  // namespace tpu
