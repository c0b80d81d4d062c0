#include "jit/cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utime.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "jit/metrics.h"
#include "runtime/bytes.h"
#include "runtime/flags.h"

namespace tpu {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMagic = 0x31304d5255505454ull;  // "TTPURM01", little-endian
constexpr size_t kChecksumBytes = 16;

void WriteTypes(ByteWriter& w, const std::vector<TensorType>& types) {
  w.U64(types.size());
  for (const TensorType& t : types) {
    w.U64(static_cast<uint64_t>(t.dtype));
    w.I64s(t.dims);
  }
}

bool ReadTypes(ByteReader& r, std::vector<TensorType>* types) {
  const uint64_t n = r.Count(16);
  for (uint64_t i = 0; i < n && r.ok(); ++i) {
    TensorType t;
    const uint64_t dtype = r.U64();
    if (dtype >= kNumDTypes) return false;
    t.dtype = static_cast<DType>(dtype);
    const std::vector<int64_t> dims = r.I64s();
    t.dims.assign(dims.begin(), dims.end());
    types->push_back(std::move(t));
  }
  return r.ok();
}

std::optional<std::string> ReadFile(const std::string& path, std::string* error) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // whatever lies there
  if (fd < 0) {
    if (errno != ENOENT && errno != ENOTDIR) *error = std::strerror(errno);
    return std::nullopt;
  }
  std::string data;
  struct stat st;
  if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) data.reserve(st.st_size);
  char block[1 << 16];
  ssize_t n;
  while ((n = read(fd, block, sizeof block)) > 0 || (n < 0 && errno == EINTR)) {
    if (n > 0) data.append(block, n);
  }
  if (n < 0) *error = std::strerror(errno);
  close(fd);
  if (n < 0) return std::nullopt;
  return data;
}

bool WriteFile(const std::string& path, const std::string& data, std::string* error) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) {
    *error = std::strerror(errno);
    return false;
  }
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t n = write(fd, data.data() + done, data.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      *error = std::strerror(errno);
      close(fd);
      return false;
    }
    done += n;
  }
  if (close(fd) != 0) {
    *error = std::strerror(errno);
    return false;
  }
  return true;
}

}  // namespace

ProgramCache::ProgramCache(std::vector<std::string> directories, int64_t max_bytes)
    : directories_(std::move(directories)), max_bytes_(max_bytes) {}

ProgramCache ProgramCache::FromFlags() {
  const Flags& flags = Flags::Get();
  std::vector<std::string> directories = absl::StrSplit(flags.cache_dir, ':', absl::SkipEmpty());
  return ProgramCache(std::move(directories), flags.cache_bytes);
}

std::string ProgramCache::Encode(const std::string& key, const Program& program) {
  ByteWriter w;
  w.U64(kMagic);
  w.String(key);
  w.String(program.format);
  WriteTypes(w, program.inputs);
  WriteTypes(w, program.outputs);
  w.String(program.bytes);
  std::string file = std::move(w).Take();
  const XXH128_hash_t hash = XXH3_128bits(file.data(), file.size());
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  file.append(reinterpret_cast<const char*>(canonical.digest), kChecksumBytes);
  return file;
}

std::optional<Program> ProgramCache::Decode(const std::string& key, const std::string& file) {
  if (file.size() < kChecksumBytes) return std::nullopt;
  const size_t size = file.size() - kChecksumBytes;
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(file.data(), size));
  if (std::memcmp(canonical.digest, file.data() + size, kChecksumBytes) != 0) return std::nullopt;
  ByteReader r(std::string_view(file).substr(0, size));
  if (r.U64() != kMagic || r.String() != key) return std::nullopt;
  Program program;
  program.format = r.String();
  if (!ReadTypes(r, &program.inputs) || !ReadTypes(r, &program.outputs)) return std::nullopt;
  program.bytes = r.String();
  if (!r.ok() || !r.AtEnd()) return std::nullopt;
  return program;
}

std::string ProgramCache::PathOf(const std::string& directory, const std::string& key) const {
  return absl::StrCat(directory, "/", key.substr(0, 2), "/", key, ".ttp");
}

std::optional<Program> ProgramCache::Load(const std::string& key) {
  for (size_t i = 0; i < directories_.size(); ++i) {
    const std::string path = PathOf(directories_[i], key);
    std::string error;
    const std::optional<std::string> file = ReadFile(path, &error);
    if (!file) {
      if (!error.empty()) WarnOnce(absl::StrCat("can't read ", path, ": ", error));
      continue;
    }
    std::optional<Program> program = Decode(key, *file);
    if (program) {
      if (i == 0 && writable_) utime(path.c_str(), nullptr);  // recently used
      return program;
    }
    WarnOnce(absl::StrCat(path, " is damaged", i == 0 ? " and was removed" : ""));
    if (i == 0) unlink(path.c_str());
  }
  return std::nullopt;
}

void ProgramCache::Store(const std::string& key, const Program& program) {
  if (directories_.empty() || !writable_) return;
  const std::string path = PathOf(directories_[0], key);
  std::error_code ec;
  fs::create_directories(fs::path(path).parent_path(), ec);
  const std::string file = Encode(key, program);
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".", reinterpret_cast<uintptr_t>(&program), ".tmp");
  std::string error = ec ? ec.message() : "";
  if (ec || !WriteFile(temporary, file, &error) || rename(temporary.c_str(), path.c_str()) != 0) {
    if (error.empty()) error = std::strerror(errno);
    unlink(temporary.c_str());
    writable_ = false;
    WarnOnce(absl::StrCat("can't write ", path, ": ", error,
                          "; programs are not kept (TORCH_TPU_CACHE names another directory, or none: ':')"));
    return;
  }
  bool scan;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const bool first = written_since_scan_ == 0;
    written_since_scan_ += static_cast<int64_t>(file.size());
    scan = first || written_since_scan_ > max_bytes_ / 16;
    if (scan) written_since_scan_ = 1;
  }
  if (scan) Evict();
}

// Down to 3/4 of the cap, oldest first; temporaries of processes that died are an hour old at most.
void ProgramCache::Evict() {
  struct File {
    fs::path path;
    fs::file_time_type time;
    int64_t bytes;
  };
  std::vector<File> files;
  int64_t total = 0;
  std::error_code ec;
  const auto now = fs::file_time_type::clock::now();
  for (fs::recursive_directory_iterator it(directories_[0], fs::directory_options::skip_permission_denied, ec), end;
       !ec && it != end; it.increment(ec)) {
    std::error_code file_ec;
    if (!it->is_regular_file(file_ec)) continue;
    const std::string extension = it->path().extension();
    const auto time = it->last_write_time(file_ec);
    const int64_t bytes = static_cast<int64_t>(it->file_size(file_ec));
    if (file_ec) continue;
    if (extension == ".tmp" && now - time > std::chrono::hours(1)) fs::remove(it->path(), file_ec);
    if (extension != ".ttp") continue;
    files.push_back({it->path(), time, bytes});
    total += bytes;
  }
  if (total <= max_bytes_) return;
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.time < b.time; });
  for (const File& f : files) {
    if (total <= max_bytes_ / 4 * 3) break;
    std::error_code file_ec;
    if (fs::remove(f.path, file_ec)) total -= f.bytes;
  }
}

void ProgramCache::WarnOnce(const std::string& message) {
  Metrics::Get().disk_cache_errors.fetch_add(1, std::memory_order_relaxed);
  std::lock_guard<std::mutex> lock(mutex_);
  if (std::exchange(warned_, true)) return;
  std::fprintf(stderr, "torch_tpu: program cache: %s\n", message.c_str());
}

}  // namespace tpu
