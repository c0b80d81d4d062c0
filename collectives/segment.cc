#include "collectives/segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <new>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tpu {
namespace {

constexpr size_t kPage = 4096;

constexpr size_t RoundUp(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

absl::Status SystemError(const char* what) {
  return absl::InternalError(absl::StrCat("memory shared between ranks: ", what, ": ", std::strerror(errno)));
}

}  // namespace

struct Segment::Head {
  enum Failure : uint32_t { kNone, kBeingWritten, kWritten };
  std::atomic<uint32_t> failure{kNone};
  char message[2048];  // of the failure, by whoever moved it from kNone
};

bool ShareCores(int ranks) { return ranks > static_cast<int>(std::thread::hardware_concurrency()); }

size_t Segment::BytesFor(int ranks, int64_t slot_bytes) {
  const size_t n = static_cast<size_t>(ranks);
  return kPage + RoundUp(n * sizeof(Member)) + RoundUp(n * n * sizeof(Mailbox)) +
         n * 2 * static_cast<size_t>(slot_bytes) + n * n * 2 * kMailBytes;
}

absl::StatusOr<std::shared_ptr<Segment>> Segment::Map(int fd, int ranks, int64_t slot_bytes) {
  const size_t bytes = BytesFor(ranks, slot_bytes);
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    absl::Status status = SystemError("mmap");
    close(fd);
    return status;
  }
  return std::shared_ptr<Segment>(new Segment(fd, ranks, slot_bytes, static_cast<char*>(base), bytes));
}

absl::StatusOr<std::shared_ptr<Segment>> Segment::Create(int ranks) {
  const int64_t slot_bytes = ShareCores(ranks) ? kSharedCoreSlotBytes : kSlotBytes;
  const int fd = memfd_create("torch_tpu_group", MFD_CLOEXEC);
  if (fd < 0) return SystemError("memfd_create");
  if (ftruncate(fd, static_cast<off_t>(BytesFor(ranks, slot_bytes))) != 0) {
    absl::Status status = SystemError("ftruncate");
    close(fd);
    return status;
  }
  absl::StatusOr<std::shared_ptr<Segment>> segment = Map(fd, ranks, slot_bytes);
  if (!segment.ok()) return segment;
  new (&(*segment)->head()) Head;
  for (int r = 0; r < ranks; ++r) {
    new (&(*segment)->member(r)) Member;
    for (int to = 0; to < ranks; ++to) new (&(*segment)->mailbox(r, to)) Mailbox;
  }
  return segment;
}

std::string Segment::Address() const { return absl::StrCat("/proc/", getpid(), "/fd/", fd_); }
bool Segment::IsOfThisProcess(const std::string& address) {
  return absl::StartsWith(address, absl::StrCat("/proc/", getpid(), "/"));
}

absl::StatusOr<std::shared_ptr<Segment>> Segment::Open(const std::string& address, int ranks) {
  const int fd = open(address.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return SystemError(address.c_str());
  struct stat info;
  if (fstat(fd, &info) == 0) {
    for (int64_t slot_bytes : {kSlotBytes, kSharedCoreSlotBytes}) {  // as whoever made it found
      if (static_cast<size_t>(info.st_size) == BytesFor(ranks, slot_bytes)) return Map(fd, ranks, slot_bytes);
    }
  }
  close(fd);
  return absl::InternalError(absl::StrCat(address, " is not the memory of a group of ", ranks, " ranks"));
}

Segment::~Segment() {
  munmap(base_, bytes_);
  close(fd_);
}

Member& Segment::member(int rank) const {
  return *reinterpret_cast<Member*>(base_ + kPage + static_cast<size_t>(rank) * sizeof(Member));
}

Mailbox& Segment::mailbox(int from, int to) const {
  const size_t n = static_cast<size_t>(ranks_);
  return *reinterpret_cast<Mailbox*>(base_ + kPage + RoundUp(n * sizeof(Member)) +
                                     (static_cast<size_t>(from) * n + static_cast<size_t>(to)) * sizeof(Mailbox));
}

char* Segment::slot(int rank, uint64_t round) const {
  const size_t n = static_cast<size_t>(ranks_);
  return base_ + kPage + RoundUp(n * sizeof(Member)) + RoundUp(n * n * sizeof(Mailbox)) +
         (static_cast<size_t>(rank) * 2 + round % 2) * static_cast<size_t>(slot_bytes_);
}

char* Segment::mail(int from, int to, uint64_t chunk) const {
  const size_t pair = static_cast<size_t>(from) * static_cast<size_t>(ranks_) + static_cast<size_t>(to);
  return slot(ranks_, 0) + (pair * 2 + chunk % 2) * kMailBytes;
}

bool Segment::SetFailure(const std::string& message) {
  uint32_t none = Head::kNone;
  if (!head().failure.compare_exchange_strong(none, Head::kBeingWritten)) return false;
  const size_t length = std::min(message.size(), sizeof(head().message) - 1);
  std::memcpy(head().message, message.data(), length);
  head().message[length] = '\0';
  head().failure.store(Head::kWritten, std::memory_order_release);
  for (int r = 0; r < ranks_; ++r) Wake(member(r));
  return true;
}

bool Segment::failed() const { return head().failure.load(std::memory_order_acquire) == Head::kWritten; }
std::string Segment::Failure() const { return head().message; }

void Segment::Wake(Member& member) const {
  member.event.fetch_add(1, std::memory_order_seq_cst);
  if (member.sleepers.load(std::memory_order_seq_cst) != 0) FutexWakeAll(member.event);
}

void FutexWait(std::atomic<uint32_t>& word, uint32_t seen, int64_t nanoseconds) {
  const timespec limit{nanoseconds / 1000000000, nanoseconds % 1000000000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

uint64_t ProcessStart(int64_t pid) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/stat"));
  std::stringstream text;
  text << in.rdbuf();
  const std::string line = text.str();
  const size_t name_end = line.rfind(')');  // the name before it may hold anything
  if (name_end == std::string::npos) return 0;
  const std::vector<std::string> fields = absl::StrSplit(line.substr(name_end + 2), ' ');
  constexpr size_t kState = 0, kStart = 19;  // fields 3 and 22 of proc(5)
  uint64_t start = 0;
  if (fields.size() <= kStart || fields[kState] == "Z" || fields[kState] == "X") return 0;
  return absl::SimpleAtoi(fields[kStart], &start) ? start : 0;
}

std::string HostIdentity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  const auto name_of = [](const char* path) {
    char text[128];
    const ssize_t length = readlink(path, text, sizeof text);
    return std::string(text, length > 0 ? static_cast<size_t>(length) : 0);
  };
  return absl::StrCat(boot, " ", name_of("/proc/self/ns/pid"), " ", name_of("/proc/self/ns/net"));
}

}  // namespace tpu
