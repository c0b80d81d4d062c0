#include "collectives/device_ranks.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <set>

#include "collectives/return_if_error.h"

namespace tpu {
namespace {

constexpr size_t kMostPrograms = 512;

// A group uses few; shapes that change at every step would grow without end.
template <typename Programs>
void KeepFew(Programs& programs) {
  if (programs.size() >= kMostPrograms) programs.clear();
}

int64_t Largest(const std::vector<Strip>& strips) {
  int64_t largest = 0;
  for (const Strip& strip : strips) {
    for (int64_t count : strip.pieces) largest = std::max(largest, count);
  }
  return largest;
}

// Devices that run a program together wait for one another, without end or until the plugin ends the process: none
// begins before its operands are there. Their errors go on to the results.
void AwaitInputs(const DeviceRanks::Part& part) {
  for (const Argument& input : part.inputs) {
    if (input.buffer) (void)part.device->Wait(input.buffer);
  }
}

// The exchange of these parts, less its strips.
Exchange ExchangeOf(absl::Span<const std::shared_ptr<DeviceRanks::Part>> parts) {
  const Collective& c = parts[0]->collective;
  Exchange exchange{.verb = c.verb, .op = c.op, .dtype = c.dtype, .ranks = static_cast<int32_t>(parts.size())};
  if (c.verb == Verb::kScatter) exchange.root = c.peer;
  for (const auto& part : parts) {
    exchange.block = std::max({exchange.block, Largest(part->sources), Largest(part->targets)});
  }
  return exchange;
}

// Whether one program does for all ranks, with results on each.
bool Alike(absl::Span<const std::shared_ptr<DeviceRanks::Part>> parts) {
  for (const auto& part : parts) {
    if (part->targets.empty() || part->targets != parts[0]->targets || part->sources != parts[0]->sources) return false;
  }
  return true;
}

// The scalar that the elements are multiplied by.
Argument ScaleOf(const Collective& c) {
  Argument scale;
  scale.scalar_bits = ScaleType(c.dtype) == DType::kFloat32 ? std::bit_cast<uint32_t>(static_cast<float>(c.scale))
                                                            : std::bit_cast<uint64_t>(c.scale);
  return scale;
}

bool Scales(const Collective& c) { return Reduces(c.verb) && c.op == ReduceOp::kPremulSum; }

// Results without elements.
absl::Status MakeEmpty(DeviceRanks::Part& part) {
  for (size_t i = 0; i < part.targets.size(); ++i) {
    absl::StatusOr<BufferRef> buffer = part.device->MakeValue(part.targets[i].type, nullptr);
    if (!buffer.ok()) return buffer.status();
    part.outputs[i] = *std::move(buffer);
  }
  return absl::OkStatus();
}

}  // namespace

std::shared_ptr<DeviceRanks> DeviceRanks::Named(const std::string& name, int size, const ExchangeCompiler& compile) {
  static auto* mutex = new std::mutex();
  static auto* all = new std::map<std::string, std::weak_ptr<DeviceRanks>>();
  std::lock_guard lock(*mutex);
  std::erase_if(*all, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<DeviceRanks> ranks = (*all)[name].lock();
  if (ranks == nullptr) (*all)[name] = ranks = std::make_shared<DeviceRanks>(size, compile);
  return ranks;
}

absl::StatusOr<bool> DeviceRanks::Run(Group& group, const PartRef& part) {
  part->outputs.resize(part->targets.size());
  AwaitInputs(*part);
  if (Scales(part->collective)) part->inputs.push_back(ScaleOf(part->collective));
  {
    std::lock_guard lock(mutex_);
    if (by_host_) return false;
    parts_[static_cast<size_t>(group.rank())] = part;
  }
  RETURN_IF_ERROR(group.Run(part->collective));
  Parts parts;
  {
    std::lock_guard lock(mutex_);
    parts = parts_;
  }
  std::set<Device*> devices;
  for (const PartRef& p : parts) devices.insert(p->device);
  const bool apart = devices.size() == parts.size();
  const Exchange exchange = ExchangeOf(parts);
  const bool moves = apart && exchange.block > 0, alike = Alike(parts);
  if (moves && !alike) {
    RETURN_IF_ERROR(RunLocally(*part, exchange, Exchange::Stage::kPack));
    RETURN_IF_ERROR(group.Turn());
  }
  if (group.rank() == 0) {
    bool taken = apart;
    if (moves) {
      const Exchange::Stage stage = alike ? Exchange::Stage::kWhole : Exchange::Stage::kMove;
      const auto program = FindJoint(parts, exchange, stage);
      if (program.ok()) {
        RETURN_IF_ERROR(RunJointly(**program, parts, stage));
      } else {
        taken = false;
        std::fprintf(stderr, "torch_tpu: collectives of this group go by way of the host: %s\n",
                     program.status().ToString().c_str());
      }
    }
    std::lock_guard lock(mutex_);
    by_host_ = !taken;
  }
  parts.clear();  // from here on nobody holds the values of another rank
  RETURN_IF_ERROR(group.Turn());
  {
    std::lock_guard lock(mutex_);
    parts_[static_cast<size_t>(group.rank())] = nullptr;
    if (by_host_) return false;
  }
  if (!moves) {
    RETURN_IF_ERROR(MakeEmpty(*part));
  } else if (!alike && !part->targets.empty()) {
    RETURN_IF_ERROR(RunLocally(*part, exchange, Exchange::Stage::kUnpack));
  }
  return true;
}

absl::Status DeviceRanks::Post(int from, int to, const PartRef& part) {
  const Exchange exchange = ExchangeOf({part});
  if (exchange.block > 0) RETURN_IF_ERROR(RunLocally(*part, exchange, Exchange::Stage::kPack));
  part->inputs.clear();  // the sender's operand is its own again
  std::lock_guard lock(mutex_);
  messages_[{from, to}].push_back(part);
  return absl::OkStatus();
}

absl::Status DeviceRanks::Fetch(int from, int to, const PartRef& part) {
  part->outputs.resize(part->targets.size());
  PartRef sent;
  {
    std::lock_guard lock(mutex_);
    std::deque<PartRef>& messages = messages_[{from, to}];
    sent = messages.front();
    messages.pop_front();
  }
  const Parts parts{sent, part};
  const Exchange exchange = ExchangeOf(parts);
  if (exchange.block == 0) return MakeEmpty(*part);
  if (sent->device == part->device) {
    part->blocks = sent->blocks;
  } else {
    RETURN_IF_ERROR(RunLocally(*part, exchange, Exchange::Stage::kPack));
    const auto program = FindJoint(parts, exchange, Exchange::Stage::kMove);
    if (!program.ok()) return program.status();
    RETURN_IF_ERROR(RunJointly(**program, parts, Exchange::Stage::kMove));
  }
  return RunLocally(*part, exchange, Exchange::Stage::kUnpack);
}

absl::Status DeviceRanks::RunLocally(Part& part, Exchange exchange, Exchange::Stage stage) {
  const bool packs = stage == Exchange::Stage::kPack;
  exchange.stage = stage;
  (packs ? exchange.sources : exchange.targets) = packs ? part.sources : part.targets;
  auto found = Find(local_, {{part.device}, exchange}, [&](const Program& p) { return part.device->Load(p); });
  if (!found.ok()) return found.status();
  Argument blocks;
  blocks.buffer = std::exchange(part.blocks, nullptr);
  absl::Span<Argument> inputs = packs ? absl::MakeSpan(part.inputs) : absl::MakeSpan(&blocks, 1);
  absl::Span<BufferRef> outputs = packs ? absl::MakeSpan(&part.blocks, 1) : absl::MakeSpan(part.outputs);
  absl::Status status = (*found)->Launch(inputs, outputs, nullptr);
  if (packs && status.ok()) (void)part.device->Wait(part.blocks);  // as AwaitInputs
  return status;
}

absl::StatusOr<std::shared_ptr<JointExecutable>> DeviceRanks::FindJoint(absl::Span<const PartRef> parts,
                                                                        Exchange exchange, Exchange::Stage stage) {
  exchange.stage = stage;
  if (stage == Exchange::Stage::kWhole) {
    exchange.sources = parts[0]->sources;
    exchange.targets = parts[0]->targets;
  }
  std::vector<Device*> devices;
  for (const PartRef& p : parts) devices.push_back(p->device);
  return Find(joint_, {devices, exchange}, [&](const Program& p) { return devices[0]->LoadJoint(p, devices); });
}

absl::Status DeviceRanks::RunJointly(JointExecutable& program, absl::Span<const PartRef> parts, Exchange::Stage stage) {
  const bool whole = stage == Exchange::Stage::kWhole;
  std::vector<Argument> blocks(parts.size());
  std::vector<Share> shares;
  for (size_t r = 0; r < parts.size(); ++r) {
    Part& part = *parts[r];
    blocks[r].buffer = std::exchange(part.blocks, nullptr);
    shares.push_back({part.stream, whole ? absl::MakeSpan(part.inputs) : absl::MakeSpan(&blocks[r], 1),
                      whole ? absl::MakeSpan(part.outputs) : absl::MakeSpan(&part.blocks, 1)});
  }
  return program.Launch(shares);
}

template <typename T, typename Load>
absl::StatusOr<std::shared_ptr<T>> DeviceRanks::Find(Cache<T>& cache, Key key, const Load& load) {
  {
    std::lock_guard lock(mutex_);
    if (auto it = cache.find(key); it != cache.end()) return it->second;
  }
  absl::StatusOr<Program> program = compile_(key.second);
  if (!program.ok()) return program.status();
  auto loaded = load(*program);
  if (!loaded.ok()) return loaded.status();
  std::lock_guard lock(mutex_);
  KeepFew(cache);
  return cache[std::move(key)] = *std::move(loaded);
}

}  // namespace tpu
