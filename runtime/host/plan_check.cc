#include "runtime/host/plan_check.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/host/conv.h"
#include "runtime/host/gemm.h"
#include "runtime/host/tile_cut.h"

namespace tpu::host {
namespace {

template <typename... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("host plan: ", parts...));
}

// [offset, offset + bytes) within [0, total), without overflow.
bool Within(uint64_t offset, uint64_t bytes, uint64_t total) { return offset <= total && bytes <= total - offset; }

class Checker {
 public:
  explicit Checker(const Plan& plan)
      : plan_(plan), call_made_(plan.num_call_buffers > kMost ? 0 : plan.num_call_buffers) {}

  absl::Status Run() {
    if (plan_.num_inputs > kMost || plan_.num_call_buffers > kMost) return Bad("too many inputs or call buffers");
    if (plan_.arena_bytes > kMostBytes) return Bad("arena of ", plan_.arena_bytes, " bytes");
    if (plan_.thread_bytes > kMostThreadBytes) return Bad("arena of ", plan_.thread_bytes, " bytes a thread");
    if (absl::Status s = Outputs(); !s.ok()) return s;
    for (size_t i = 0; i < plan_.slots.size(); ++i) {
      if (absl::Status s = OneSlot(i); !s.ok()) return s;
    }
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      if (absl::Status s = OneStep(i); !s.ok()) return s;
    }
    if (absl::Status s = TileLoops(); !s.ok()) return s;
    for (const OutputSpec& output : plan_.outputs) {
      if (output.kind == OutputSpec::Kind::kCall && !call_made_[output.source]) {
        return Bad("an output is call buffer ", output.source, ", which no step makes");
      }
    }
    return absl::OkStatus();
  }

 private:
  static constexpr uint32_t kMost = 1 << 24;
  static constexpr uint64_t kMostBytes = uint64_t{1} << 60, kMostThreadBytes = uint64_t{1} << 40;
  static constexpr int64_t kMostExtent = int64_t{1} << 60;  // a product of two is a number of elements in 128 bits

  absl::Status Outputs() {
    for (size_t i = 0; i < plan_.outputs.size(); ++i) {
      const OutputSpec& o = plan_.outputs[i];
      if (o.bytes > kMostBytes) return Bad("output ", i, " of ", o.bytes, " bytes");
      if (o.may_overwrite < -1 ||
          (o.may_overwrite >= 0 && static_cast<uint32_t>(o.may_overwrite) >= plan_.num_inputs)) {
        return Bad("output ", i, " may overwrite input ", o.may_overwrite, " of ", plan_.num_inputs);
      }
      switch (o.kind) {
        case OutputSpec::Kind::kFresh:
          continue;
        case OutputSpec::Kind::kInput:
          if (o.source >= plan_.num_inputs) return Bad("output ", i, " is input ", o.source);
          continue;
        case OutputSpec::Kind::kOutput:
          if (o.source >= i) return Bad("output ", i, " is output ", o.source, ", which is not an earlier one");
          continue;
        case OutputSpec::Kind::kCall:
          if (o.source >= plan_.num_call_buffers) return Bad("output ", i, " is call buffer ", o.source);
          continue;
      }
      return Bad("output ", i, " of unknown kind");
    }
    return absl::OkStatus();
  }

  absl::Status OneSlot(size_t i) const {
    const Slot& s = plan_.slots[i];
    if (s.bytes > kMostBytes) return Bad("slot ", i, " of ", s.bytes, " bytes");
    switch (s.kind) {
      case Slot::Kind::kInput:
        return s.index < plan_.num_inputs ? absl::OkStatus() : Bad("slot ", i, " is input ", s.index);
      case Slot::Kind::kOutput:
        if (s.index >= plan_.outputs.size()) return Bad("slot ", i, " is output ", s.index);
        if (plan_.outputs[s.index].kind != OutputSpec::Kind::kFresh) {
          return Bad("slot ", i, " is output ", s.index, ", which is another value's buffer");
        }
        return Within(s.offset, s.bytes, plan_.outputs[s.index].bytes) ? absl::OkStatus()
                                                                       : Bad("slot ", i, " leaves output ", s.index);
      case Slot::Kind::kTemp:
        return Within(s.offset, s.bytes, plan_.arena_bytes) ? absl::OkStatus() : Bad("slot ", i, " leaves the arena");
      case Slot::Kind::kCall:
        return s.index < plan_.num_call_buffers ? absl::OkStatus() : Bad("slot ", i, " is call buffer ", s.index);
      case Slot::Kind::kConstant:
        return Within(s.offset, s.bytes, plan_.constants.size()) ? absl::OkStatus()
                                                                 : Bad("slot ", i, " leaves the constants");
      case Slot::Kind::kTile:
        return absl::OkStatus();  // by the loop that uses it
    }
    return Bad("slot ", i, " of unknown kind");
  }

  // Operands exist, and a call buffer is made by an earlier step than the one that uses it.
  absl::Status Operands(size_t step, const std::vector<uint32_t>& slots, size_t count) const {
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots[i] >= plan_.slots.size()) return Bad("step ", step, " names slot ", slots[i]);
      const Slot& slot = plan_.slots[slots[i]];
      if (i < count && slot.kind == Slot::Kind::kCall && !call_made_[slot.index]) {
        return Bad("step ", step, " uses call buffer ", slot.index, " before it is made");
      }
    }
    return absl::OkStatus();
  }

  absl::Status OneStep(size_t i) {
    const Step& s = plan_.steps[i];
    if (s.num_inputs > s.slots.size()) return Bad("step ", i, " has more inputs than operands");
    const size_t uses = s.kind == Step::Kind::kCall ? s.num_inputs : s.slots.size();
    if (absl::Status status = Operands(i, s.slots, uses); !status.ok()) return status;
    for (size_t j = s.num_inputs; j < s.slots.size(); ++j) {
      const Slot::Kind kind = plan_.slots[s.slots[j]].kind;
      if (kind == Slot::Kind::kInput || kind == Slot::Kind::kConstant) {
        return Bad("step ", i, " writes an input or a constant");
      }
    }
    switch (s.kind) {
      case Step::Kind::kKernel:
        if (s.kernel.kernel >= plan_.kernels.size()) return Bad("step ", i, " names kernel ", s.kernel.kernel);
        if (s.kernel.rows < 0 || s.kernel.row < 0 || s.kernel.block < 1 || s.kernel.grain < 1) {
          return Bad("step ", i, " has a negative extent, no block or no grain");
        }
        if (static_cast<__int128>(s.kernel.rows) * s.kernel.row > kMostExtent || s.kernel.block > kMostExtent) {
          return Bad("step ", i, " has too many items");
        }
        return absl::OkStatus();
      case Step::Kind::kGemm:
        return Gemm(i, s);
      case Step::Kind::kCall:
        return CallOutputs(i, s);
      case Step::Kind::kCopy:
        if (s.slots.size() != 2 || s.num_inputs != 1) {
          return Bad("step ", i, " copies among ", s.slots.size(), " operands");
        }
        return Copy(i, s);
      case Step::Kind::kConv:
        return Conv(i, s);
    }
    return Bad("step ", i, " of unknown kind");
  }

  absl::Status Copy(size_t i, const Step& s) const {
    const uint64_t from = plan_.slots[s.slots[0]].bytes, to = plan_.slots[s.slots[1]].bytes;
    const auto beyond = [&] { return Bad("step ", i, " copies more than its destination holds"); };
    if (s.copy.sizes.empty()) return from > to ? beyond() : absl::OkStatus();
    if (s.copy.run < 1 || s.copy.strides.size() != s.copy.sizes.size()) return Bad("step ", i, " copies no runs");
    __int128 bytes = s.copy.run, last = s.copy.run;
    for (size_t d = 0; d < s.copy.sizes.size(); ++d) {
      if (s.copy.sizes[d] < 1 || s.copy.strides[d] < 0) return Bad("step ", i, " has a negative stride or no runs");
      bytes *= s.copy.sizes[d];
      last += static_cast<__int128>(s.copy.sizes[d] - 1) * s.copy.strides[d];
      if (bytes > static_cast<__int128>(from)) return Bad("step ", i, " copies more than its source holds");
      if (last > static_cast<__int128>(to)) return beyond();
    }
    return absl::OkStatus();
  }

  absl::Status CallOutputs(size_t i, const Step& s) {
    for (size_t j = s.num_inputs; j < s.slots.size(); ++j) {
      const Slot& slot = plan_.slots[s.slots[j]];
      if (slot.kind == Slot::Kind::kCall) {
        call_made_[slot.index] = true;
      } else if (slot.kind != Slot::Kind::kOutput) {
        return Bad("step ", i, " is a call whose result is neither an output nor a call buffer");
      }
    }
    return absl::OkStatus();
  }

  // The last element that matrix `which` of a product touches lies in its slot.
  absl::Status Matrix(size_t step, const Slot& slot, DType dtype, const GemmStep& g, int64_t rows, int64_t cols,
                      int64_t ld, int64_t offset, const std::vector<int64_t>& strides, char which) const {
    if (std::min({rows, cols, ld, offset}) < 0 || strides.size() != g.batch.size()) {
      return Bad("step ", step, ": matrix ", std::string(1, which), " has a negative or missing extent");
    }
    if (std::max({rows, cols, ld, offset}) > kMostExtent) {
      return Bad("step ", step, ": matrix ", std::string(1, which), " has an extent beyond any memory");
    }
    if (rows > 1 && ld < cols) return Bad("step ", step, ": rows of matrix ", std::string(1, which), " overlap");
    __int128 last = offset;
    bool empty = rows == 0 || cols == 0;
    for (size_t d = 0; d < strides.size(); ++d) {
      if (strides[d] < 0 || g.batch[d] < 0) return Bad("step ", step, " has a negative stride or batch");
      empty |= g.batch[d] == 0;
      last += static_cast<__int128>(g.batch[d] - 1) * strides[d];
    }
    if (empty) return absl::OkStatus();
    last += static_cast<__int128>(rows - 1) * ld + cols;
    if (last * static_cast<__int128>(SizeOf(dtype)) > static_cast<__int128>(slot.bytes)) {
      return Bad("step ", step, ": matrix ", std::string(1, which), " leaves its slot of ", slot.bytes, " bytes");
    }
    return absl::OkStatus();
  }

  absl::Status Gemm(size_t i, const Step& s) const {
    const GemmStep& g = s.gemm;
    if (s.slots.size() != 3 || s.num_inputs != 2) {
      return Bad("step ", i, " is a product of ", s.slots.size(), " operands");
    }
    if (static_cast<int>(g.dtype) >= kNumDTypes || static_cast<int>(g.out_dtype) >= kNumDTypes) {
      return Bad("step ", i, " has an unknown element type");
    }
    const bool widens = (g.dtype == DType::kFloat16 || g.dtype == DType::kBFloat16) && g.out_dtype == DType::kFloat32;
    if (g.dtype > DType::kComplex128 || (g.out_dtype != g.dtype && !widens)) {
      return Bad("step ", i, ": no product of ", std::string(NameOf(g.dtype)), " into ",
                 std::string(NameOf(g.out_dtype)));
    }
    if (g.triangle > Triangle::kLhsUpper) return Bad("step ", i, " has an unknown triangle");
    if (g.method > Method::kLibrary) return Bad("step ", i, " has an unknown method");
    if (g.batch.size() > 3) return Bad("step ", i, " has ", g.batch.size(), " batch dimensions");
    // Rows and positions of the depth are numbered over the whole batch in 64 bits.
    __int128 most = std::max<int64_t>({g.m, g.k, 1});
    for (int64_t b : g.batch) {
      if (b < 0 || b > (int64_t{1} << 40)) return Bad("step ", i, " has a batch of ", b);
      most *= std::max<int64_t>(b, 1);
      if (most > kMostExtent) return Bad("step ", i, " has too many rows, or too great a depth");
    }
    const Slot* slot[3];
    for (int j = 0; j < 3; ++j) slot[j] = &plan_.slots[s.slots[j]];
    const bool ta = g.trans_a, tb = g.trans_b;
    absl::Status status =
        Matrix(i, *slot[0], g.dtype, g, ta ? g.k : g.m, ta ? g.m : g.k, g.lda, g.offset_a, g.stride_a, 'A');
    if (status.ok()) {
      status = Matrix(i, *slot[1], g.dtype, g, tb ? g.n : g.k, tb ? g.k : g.n, g.ldb, g.offset_b, g.stride_b, 'B');
    }
    if (status.ok()) status = Matrix(i, *slot[2], g.out_dtype, g, g.m, g.n, g.ldc, g.offset_c, g.stride_c, 'C');
    return status;
  }

  absl::Status Conv(size_t i, const Step& s) const {
    const ConvStep& c = s.conv;
    if (s.slots.size() != 3 || s.num_inputs != 2) {
      return Bad("step ", i, " is a convolution of ", s.slots.size(), " operands");
    }
    if (c.kind > ConvStep::Kind::kWeight) return Bad("step ", i, " is a convolution of unknown kind");
    if (!CanConvolve(c)) return Bad("step ", i, " is a convolution that this machine or program does not do");
    const bool forward = c.kind == ConvStep::Kind::kForward;
    const auto fits = [&](size_t slot, int64_t elements, DType dtype) {
      return static_cast<uint64_t>(elements) * SizeOf(dtype) <= plan_.slots[s.slots[slot]].bytes;
    };
    const int64_t x = c.batch * c.in * c.rows.in * c.cols.in, y = c.batch * c.out * c.rows.out * c.cols.out,
                  w = c.out * (c.in / c.groups) * c.rows.kernel * c.cols.kernel;
    if (!fits(0, x, c.dtype) || !fits(1, forward ? w : y, c.dtype) || !fits(2, forward ? y : w, DType::kFloat32)) {
      return Bad("step ", i, ": an operand of the convolution leaves its slot");
    }
    return absl::OkStatus();
  }

  // What a step of a loop (null: of none) touches of values that threads have a tile of.
  absl::Status Tiles(size_t step, const TileLoop* loop) const {
    const Step& s = plan_.steps[step];
    for (size_t j = 0; j < s.slots.size(); ++j) {
      const Slot& slot = plan_.slots[s.slots[j]];
      if (slot.kind != Slot::Kind::kTile) continue;
      if (loop == nullptr) return Bad("step ", step, " is in no tile loop and uses a value of one");
      if (slot.bytes % static_cast<uint64_t>(loop->parts) != 0 ||
          !Within(slot.offset, BytesOfTile(*loop, slot.bytes), plan_.thread_bytes)) {
        return Bad("step ", step, ": a tile of slot ", s.slots[j], " leaves its thread's part of the arena");
      }
      if (s.kind != Step::Kind::kGemm) continue;
      const GemmStep& g = s.gemm;
      if (g.n == 0 || g.k == 0 || RowsOf(g) == 0) return Bad("step ", step, " is a product of nothing, in tiles");
      const uint64_t size = SizeOf(j == 2 ? g.out_dtype : g.dtype);
      const int64_t elements = static_cast<int64_t>(slot.bytes / size);
      const auto cuts = CutsOf(g, {elements, elements, elements}, IsByDepth(*loop, s));
      if (slot.bytes % size != 0 || cuts[j] % loop->parts != 0) {
        return Bad("step ", step, ": a tile of the product leaves its part of slot ", s.slots[j]);
      }
    }
    return absl::OkStatus();
  }

  absl::Status TileLoops() const {
    uint64_t next = 0;
    for (const TileLoop& loop : plan_.tile_loops) {
      if (loop.count < 1 || loop.first < next || !Within(loop.first, loop.count, plan_.steps.size())) {
        return Bad("a tile loop over steps ", loop.first, " to ", loop.first + uint64_t{loop.count}, " of ",
                   plan_.steps.size());
      }
      if (absl::Status status = CheckTiles(loop); !status.ok()) return status;
      for (; next < loop.first; ++next) {
        if (absl::Status status = Tiles(next, nullptr); !status.ok()) return status;
      }
      next = uint64_t{loop.first} + loop.count;
      for (uint64_t i = loop.first; i < next; ++i) {
        const Step& s = plan_.steps[i];
        if (s.kind != Step::Kind::kKernel && s.kind != Step::Kind::kGemm) return Bad("step ", i, " has no tiles");
        if (ExtentIn(loop, s) % loop.parts != 0) {
          return Bad("step ", i, " does not divide into ", loop.parts, " parts");
        }
        // A task has all of a matrix's depth, so that C[b] is one task's.
        if (IsByDepth(loop, s) && loop.groups() != BatchesOf(s.gemm)) {
          return Bad("step ", i, ": a group of the loop's parts is no matrix");
        }
        if (absl::Status status = Tiles(i, &loop); !status.ok()) return status;
      }
    }
    for (; next < plan_.steps.size(); ++next) {
      if (absl::Status status = Tiles(next, nullptr); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const Plan& plan_;
  std::vector<bool> call_made_;
};

}  // namespace

absl::Status CheckPlan(const Plan& plan) { return Checker(plan).Run(); }

}  // namespace tpu::host
