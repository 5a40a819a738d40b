// The seam between the engine and its back-ends.
//
// The engine schedules tiles and knows no operation by name; a back-end knows operations and no scheduler. They meet here: a
// back-end registers Kernels; when a graph is loaded the engine asks the kernel of each op to check and prepare that op once
// (`Kernel::prepare`), and afterwards runs its tiles through the plain function pointer that `prepare` returned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace aspen {

inline constexpr int kMaxRank = 8;

// The numbers are part of the graph format (docs/graph_format.md).
enum class DType : uint8_t {
  kBool = 0,
  kI8 = 1,
  kI16 = 2,
  kI32 = 3,
  kI64 = 4,
  kU8 = 5,
  kU16 = 6,
  kU32 = 7,
  kU64 = 8,
  kF16 = 9,
  kBF16 = 10,
  kF32 = 11,
  kF64 = 12,
};
inline constexpr int kNumDTypes = 13;

constexpr int64_t size_of(DType dtype) {
  constexpr int64_t kSizes[kNumDTypes] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8};
  return kSizes[static_cast<int>(dtype)];
}

// numpy's name.
constexpr std::string_view name_of(DType dtype) {
  constexpr std::string_view kNames[kNumDTypes] = {"bool",   "int8",   "int16",   "int32",    "int64",   "uint8",  "uint16",
                                                   "uint32", "uint64", "float16", "bfloat16", "float32", "float64"};
  return kNames[static_cast<int>(dtype)];
}

// How a kernel sees an operand or its output: an n-dimensional strided window. Strides are in elements, may be zero
// (broadcast) or negative (reverse). The engine has checked that every element lies inside the buffer behind it.
struct TensorView {
  DType dtype = DType::kF32;
  int rank = 0;
  int64_t shape[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};
};

// A graph, an op or a parameter that cannot be accepted. Thrown at load time only; it never crosses the FFI border. The engine
// puts the name of the op and of its kernel in front of what `prepare` throws.
class GraphError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Everything known about an op when its graph is loaded. `params` is read with WordReader (words.h).
struct OpSpec {
  std::span<const TensorView> inputs;
  const TensorView& output;
  std::span<const int64_t> params;
  std::span<const TensorView> further = {};  // outputs beside the first: of whole parts of its extents, or written by one tile
};

// What `prepare` derives from an OpSpec; immutable and shared by all workers and runs.
class OpState {
 public:
  virtual ~OpState() = default;
};

// What a tile that may take long asks now and then.
enum class Beat {
  kGoOn,
  kPause,  // it returns `Pulse::paused` soon, to be run once more, by any worker; where it cannot, it goes on
  kEnd,    // its run does not go on: it returns any message; the run has its own reason
};

struct Pulse {
  Beat (*ask)(void* context) noexcept;
  void* context;
  const char* paused;

  Beat operator()() const noexcept { return ask(context); }
};

class Team;  // team.h

// One tile to compute: the box [lo, hi) of the output. Pointers address element 0 of each view. The output may lie where an
// input does that the op's family rewrites (`OpFamily.rewrites`): then no other tile touches the bytes of the box meanwhile.
struct TileArgs {
  const OpState* state;
  const void* const* inputs;
  void* output;
  const int32_t* lo;
  const int32_t* hi;
  std::byte* scratch;              // 64-byte aligned, private to the worker, at least PreparedOp::scratch_bytes
  void* const* further = nullptr;  // the outputs beside the first: the tile writes the box of each, by the same parts
  const Pulse* pulse = nullptr;    // null: it has nothing to ask
  // 64-byte aligned, PreparedOp::kept_bytes of the run's memory. A tile that was paused finds there what it has left. The first 8
  // bytes are 0 before it begins, and the tile leaves them so at its end.
  std::byte* kept = nullptr;
  Team* team = nullptr;  // idle workers who may compute shares of the tile; null: there are none
};

// Returns nullptr on success, otherwise a message of static lifetime; the run then ends with an error naming op and tile.
using RunTile = const char* (*)(const TileArgs&) noexcept;

// A range of indices of each axis.
struct Box {
  int32_t lo[kMaxRank];
  int32_t hi[kMaxRank];
};

// The box of input 0 that a box of the output reads, which may be empty. What a kernel reads lies in it, whatever the op's family
// says: so a stack (cpu/stack.cc) gives it no more of the value.
using ReadByBox = Box (*)(const OpState&, const Box&) noexcept;

struct PreparedOp {
  std::unique_ptr<const OpState> state;
  RunTile run = nullptr;
  size_t scratch_bytes = 0;
  ReadByBox reads = nullptr;  // null: the op cannot be a part of a stack behind another
  size_t kept_bytes = 0;      // of an op of one tile, which may pause
  bool may_not_end = false;   // nobody knows how long a tile takes; it asks its pulse
};

struct Kernel {
  const char* name;
  // Checks shapes, strides, dtypes and params so that `run` is safe on every box inside the output; throws GraphError.
  PreparedOp (*prepare)(const OpSpec&);
  bool has_further = false;  // whether an op may have outputs beside the first
};

}  // namespace aspen
