// The host device's program: a straight list of steps over slots of memory. Plain data, serialisable.
//
// Made by compiler/host (which decides steps, memory and grain), run by runtime/host/executable.cc (which knows bytes,
// threads and the matrix library, but no operator). Slots are numbered; a step names its operands by slot.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/convolution.h"
#include "runtime/dtype.h"

namespace tpu::host {

// Where one value's bytes are during a launch.
struct Slot {
  enum class Kind : uint8_t {
    kInput,     // the launch's input number `index` (a scalar input's slot points at its 8 bytes)
    kOutput,    // of the launch's output number `index`, allocated at the launch (or written over a donated input):
                // bytes [offset, offset + bytes)
    kTemp,      // bytes [offset, offset + bytes) of the launch's arena; lifetimes that do not meet share bytes
    kCall,      // a buffer that a call step's kernel returns, used by later steps; `index` numbers these
    kConstant,  // bytes [offset, offset + bytes) of Plan::constants
    kTile,      // a value of one tile loop's own, of which each thread has room for a tile: bytes
                // [offset, offset + BytesOfTile(loop, bytes)) of its part of the arena; a tile is written over the last
  };
  Kind kind = Kind::kTemp;
  uint32_t index = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// What a kernel may find wrong with its input; the step then fails, and the error names its label.
enum class KernelError : int64_t {
  kIndex = 1,        // out of range: OutOfRange
  kDivisor = 2,      // integer zero: Internal, as where ATen's kernel finds it
  kRequirement = 4,  // an operand out of its range: likewise
};

// A loop over [0, extent()) run by TBB in pieces of at least `grain`: fn(pointers, begin, end). `pointers` holds the
// step's slots in order and, after the last, two more: int64_t* error, zero at the launch, and const int64_t*
// parameters. A kernel that finds its input invalid stores KernelErrors, joined, there by a plain store and goes on
// with some valid index or divisor.
struct KernelStep {
  uint32_t kernel = 0;  // index into Plan::kernels
  // An item is a block of so many positions of a row.
  int64_t rows = 1, row = 1, block = 1;
  int64_t grain = 1;
  std::vector<int64_t> parameters;  // the numbers that code for several sizes leaves open
  std::vector<uint32_t> sure;       // places in the step's slots of results that hold whatever the kernel finds wrong
  int64_t extent() const { return rows * ((row + block - 1) / block); }
};

// C[b] = op(A[b]) @ op(B[b]) (+ C[b] when accumulate), row-major, over up to three batch dimensions with element
// strides (0 repeats an operand). lda/ldb/ldc are row strides in elements of the stored, untransposed matrices.
// slots: {A, B, C}; the offsets are in elements.
//
// triangle: what need not be computed. Element (row, column) of C for kResultLower: anything where column > row.
// Element (row, depth) of op(A) is zero for kLhsLower where depth > row, for kLhsUpper where depth < row.
//
// method: who multiplies f32; kSuggested: who is known to be better on this machine. They sum in other orders.
enum class Triangle : uint8_t { kNone, kResultLower, kLhsLower, kLhsUpper };
enum class Method : uint8_t { kSuggested, kPanels, kLibrary };
struct GemmStep {
  DType dtype = DType::kFloat32;      // of A and B
  DType out_dtype = DType::kFloat32;  // of C
  bool trans_a = false, trans_b = false;
  bool accumulate = false;
  Triangle triangle = Triangle::kNone;
  Method method = Method::kSuggested;
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;
  int64_t offset_a = 0, offset_b = 0, offset_c = 0;
  std::vector<int64_t> batch;  // sizes; strides below have as many entries
  std::vector<int64_t> stride_a, stride_b, stride_c;
};

// slots: the operands a and b, then c.
using ConvStep = Convolution;

// Steps [first, first + count), kernels and products, in one parallel loop: a task runs a tile of each in turn, on data
// that is still in its core's cache. All have as many equal `parts`, a kernel of its extent, a product of its rows over
// the whole batch. Tiles are so many parts in a row, or what is left of them, of each group of parts. The compiler sees
// to it that no tile needs another's results.
//
// Where a group has several parts it is one matrix of the batch, and products that SumsOverTiles take their parts of
// the depth over the whole batch instead: all tiles of a group are then one task's, which adds up their C[b].
struct TileLoop {
  uint32_t first = 0, count = 0;
  int64_t parts = 1, of_group = 1, of_tile = 1;
  int64_t groups() const { return parts / of_group; }
  int64_t tiles_of_group() const { return (of_group - 1) / of_tile + 1; }
};

// A node of the fragment that runs as a host kernel through Executable::Launch's run_node. What it writes are kCall or
// kOutput slots, whose buffers the kernel provides.
struct CallStep {
  int32_t node = 0;
};

// slots: {source, destination}. Copies the source's bytes, one after the other; where there are `sizes`, every `run` of
// them to a place of its own: counted row-major, `strides` bytes apart in each dim.
struct CopyStep {
  int64_t run = 0;
  std::vector<int64_t> sizes, strides;
};

struct Step {
  enum class Kind : uint8_t { kKernel, kGemm, kCall, kCopy, kConv };
  Kind kind = Kind::kKernel;
  std::string label;  // for people: the primitives it computes
  std::vector<uint32_t> slots;
  uint32_t num_inputs = 0;  // slots that it only reads: the first ones; it writes the others
  KernelStep kernel;
  GemmStep gemm;
  ConvStep conv;
  CallStep call;
  CopyStep copy;
};

// Position-independent object code of one kernel, symbol "kernel": void(void** pointers, int64_t begin, int64_t end).
struct KernelCode {
  std::string key;  // content hash of its source: equal kernels of different programs are loaded once
  std::string object;
};

struct OutputSpec {
  enum class Kind : uint8_t { kFresh, kInput, kOutput, kCall };
  Kind kind = Kind::kFresh;
  uint32_t source = 0;         // kInput: that input unchanged; kOutput: the same buffer as that earlier output
  int32_t may_overwrite = -1;  // kFresh: an input that this output may be written over if it was donated
  uint64_t bytes = 0;
};

struct Plan {
  std::vector<Slot> slots;
  std::vector<Step> steps;
  std::vector<TileLoop> tile_loops;  // in order, apart
  std::vector<KernelCode> kernels;
  std::vector<OutputSpec> outputs;
  uint32_t num_inputs = 0;
  uint32_t num_call_buffers = 0;
  uint64_t arena_bytes = 0;  // and of it for each thread, behind these
  uint64_t thread_bytes = 0;
  std::string constants;

  std::string Serialize() const;
  // InvalidArgument, naming what is wrong, for bytes that are not a whole, consistent plan (bounds of every index and
  // offset are checked: a plan that parses cannot make a launch touch memory outside its slots' stated sizes).
  static absl::StatusOr<Plan> Parse(std::string_view bytes);

  // What runs, and is timed, as one: the steps of a tile loop, or a step.
  struct Stage {
    size_t first = 0, count = 1;
    const TileLoop* loop = nullptr;
  };
  std::vector<Stage> Stages() const;
  std::string LabelOf(const Stage& stage) const;  // for people

  // All sizes, offsets and strides in a fixed order, and everything else: indices, kinds, texts, the lengths of lists.
  // Plans with the same frame have their numbers in the same places.
  struct Parts {
    std::vector<int64_t> numbers;
    std::string frame;
  };
  Parts Split() const;
  // Changes the numbers at these places, which ascend. InvalidArgument for a place or a number that can't be.
  absl::Status SetNumbers(absl::Span<const std::pair<uint32_t, int64_t>> numbers);
};

}  // namespace tpu::host
