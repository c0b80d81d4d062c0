#include "jit/profile.h"

#include <algorithm>
#include <utility>

#include "runtime/bytes.h"

namespace tpu {
namespace {

constexpr uint64_t kVersion = 2;

}  // namespace

void Profile::Age() {
  for (int64_t& n : runs) n /= 2;
  for (int64_t& n : nanoseconds) n /= 2;
}

void Profile::Merge(const Profile& other) {
  for (size_t tier = 0; tier < runs.size(); ++tier) {
    runs[tier] += other.runs[tier];
    nanoseconds[tier] += other.nanoseconds[tier];
  }
  if (compile_nanoseconds == 0) compile_nanoseconds = other.compile_nanoseconds;
  if (decisions.empty()) tuning = other.tuning, finished = other.finished;
  for (const Decision& theirs : other.decisions) {
    const bool known = std::any_of(decisions.begin(), decisions.end(),
                                   [&](const Decision& ours) { return ours.candidate == theirs.candidate; });
    if (!known) decisions.push_back(theirs);
  }
  if (kernels.empty()) kernels = other.kernels;
}

std::string Profile::Encode() const {
  ByteWriter w;
  w.U64(kVersion);
  w.I64s(runs);
  w.I64s(nanoseconds);
  w.I64(compile_nanoseconds);
  w.String(tuning);
  w.U64(finished ? 1 : 0);
  w.U64(decisions.size());
  for (const Decision& d : decisions) {
    w.String(d.candidate);
    w.I64(d.before);
    w.I64(d.after);
    w.U64(d.adopted ? 1 : 0);
  }
  w.U64(kernels.size());
  for (const KernelTime& k : kernels) {
    w.String(k.label);
    w.I64(k.runs);
    w.I64(k.nanoseconds);
    w.I64(k.bytes);
  }
  return std::move(w).Take();
}

std::optional<Profile> Profile::Decode(const std::string& bytes) {
  ByteReader r(bytes);
  if (r.U64() != kVersion) return std::nullopt;
  Profile profile;
  for (std::array<int64_t, 2>* counts : {&profile.runs, &profile.nanoseconds}) {
    const std::vector<int64_t> read = r.I64s();
    if (read.size() != counts->size()) return std::nullopt;
    std::copy(read.begin(), read.end(), counts->begin());
  }
  profile.compile_nanoseconds = r.I64();
  profile.tuning = r.String();
  profile.finished = r.U64() != 0;
  profile.decisions.resize(r.Count(4 * sizeof(uint64_t)));
  for (Decision& d : profile.decisions) {
    d.candidate = r.String();
    d.before = r.I64();
    d.after = r.I64();
    d.adopted = r.U64() != 0;
  }
  profile.kernels.resize(r.Count(4 * sizeof(uint64_t)));
  for (KernelTime& k : profile.kernels) {
    k.label = r.String();
    k.runs = r.I64();
    k.nanoseconds = r.I64();
    k.bytes = r.I64();
  }
  if (!r.ok() || !r.AtEnd()) return std::nullopt;
  return profile;
}

}  // namespace tpu
