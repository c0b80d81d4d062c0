// Programs on disk: content-addressed files in one writable directory behind a chain of read-only ones.
//
// File = magic, format version, key, lengths, payload, checksum (XXH3-128 of all before it). Written to a temporary
// name in the same directory and renamed, so that readers and other processes see whole files or none. Whatever can't
// be read, or doesn't check, is a miss and one warning a process; a corrupt file in the writable directory is removed.
// The writable directory is kept under its size cap by removing the least recently used files. Used by the compile
// pool's threads; safe for several threads and processes.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/program.h"

namespace tpu {

class ProgramCache {
 public:
  // directories[0] is written to, the others only read. None: everything is a miss.
  ProgramCache(std::vector<std::string> directories, int64_t max_bytes);
  // As the flags say; by default $XDG_CACHE_HOME/torch_tpu or ~/.cache/torch_tpu (runtime/flags).
  static ProgramCache FromFlags();

  std::optional<Program> Load(const std::string& key);
  void Store(const std::string& key, const Program& program);
  const std::vector<std::string>& directories() const { return directories_; }

  static std::string Encode(const std::string& key, const Program& program);
  // nullopt for anything but the whole, unchanged encoding of this key's program.
  static std::optional<Program> Decode(const std::string& key, const std::string& file);

 private:
  std::string PathOf(const std::string& directory, const std::string& key) const;
  void Evict();
  void WarnOnce(const std::string& message);

  std::vector<std::string> directories_;
  int64_t max_bytes_;
  std::mutex mutex_;
  bool warned_ = false;
  std::atomic<bool> writable_{true};
  int64_t written_since_scan_ = 0;
};

}  // namespace tpu
