// Little-endian encoding of plain data: numbers, strings and lists, as plans and cache files hold them.
//
// ByteReader never reads past its input: after the first malformed field ok() is false and every further read gives
// zeros. Counts are checked against the bytes that remain, so damaged input can't ask for huge memory. Not thread-safe.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace tpu {

class ByteWriter {
 public:
  void U64(uint64_t v) { bytes_.append(reinterpret_cast<const char*>(&v), sizeof v); }
  void I64(int64_t v) { U64(static_cast<uint64_t>(v)); }
  void String(std::string_view s) {
    U64(s.size());
    bytes_.append(s);
  }
  void I64s(absl::Span<const int64_t> v) {
    U64(v.size());
    for (int64_t x : v) I64(x);
  }
  std::string Take() && { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  uint64_t U64() {
    uint64_t v = 0;
    if (!Has(sizeof v)) return 0;
    std::memcpy(&v, bytes_.data() + at_, sizeof v);
    at_ += sizeof v;
    return v;
  }
  int64_t I64() { return static_cast<int64_t>(U64()); }
  // A list's length, whose elements take at least `element_bytes` each.
  uint64_t Count(size_t element_bytes) {
    const uint64_t n = U64();
    if (ok_ && n > (bytes_.size() - at_) / element_bytes) ok_ = false;
    return ok_ ? n : 0;
  }
  std::string String() {
    const uint64_t n = Count(1);
    std::string s(bytes_.substr(at_, n));
    at_ += n;
    return s;
  }
  std::vector<int64_t> I64s() {
    std::vector<int64_t> v(Count(8));
    for (int64_t& x : v) x = I64();
    return v;
  }
  bool ok() const { return ok_; }
  bool AtEnd() const { return at_ == bytes_.size(); }

 private:
  bool Has(size_t n) {
    if (bytes_.size() - at_ < n) ok_ = false;
    return ok_;
  }

  std::string_view bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace tpu
