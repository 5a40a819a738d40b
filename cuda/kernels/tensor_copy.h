// Products whose operands the tensor memory accelerator copies (PTX ISA, "cp.async.bulk.tensor" and "mbarrier"; sm_90a), and what
// it does on the host.
//
// One thread begins the copies of a chunk; a barrier in shared memory tells when they have arrived. The host plays both: where a
// copy goes there are NaN until its barrier was waited for, and it refuses a wait that would never end, a barrier that was not
// made visible to the asynchronous proxy, and copies that nobody waited for.
#pragma once

#include <cstdint>

#include "block.h"
#include "kernel_shape.h"
#include "product.h"
#include "tile.h"
#include "warpgroup_mma.h"

namespace aspen::cuda {

// The addresses of a kernel that copies in boxes where the device can.
template <int kInputs, int kFurther = 0>
using MappedBuffers = typename Either<kHasWarpgroups, TensorBuffers<kInputs, kFurther>, Buffers<kInputs, kFurther>>::Type;

// A box of a tensor, by its first element.
template <int kRank>
struct TensorBox {
  static_assert(kRank >= 3 && kRank <= kTensorRank);
  const TensorMap* map;
  int32_t at[kRank];
};

// An operand of a product, a matrix of a tensor: its boxes follow each other along kDepthAxis. To a map elements of float32 are
// two of 16 bits; they lie along the depth, whose axis counts those. Such operands say which box is a
// chunk's (`chunk(number, across)`, columns so many further across the depth), and rows how many lines it has, 0 for all of a
// block's.
template <int kRank, int kDepthAxis_>
struct MatrixBoxes {
  static constexpr int kDepthAxis = kDepthAxis_, kLines = 0;
  TensorBox<kRank> first;

  ASPEN_DEVICE TensorBox<kRank> chunk(int number, int across = 0) const {
    TensorBox<kRank> box = first;
    box.at[kDepthAxis] += number * Swizzle::kLine;
    box.at[0] += across;
    return box;
  }
};

// Rows of a convolution: a box of kLines_ pixels of its input [N, H, W, C], for each tap in turn kChunks chunks of its channels.
// What is outside of the image is zeros, and so are channels that fill the last chunk of a tap.
template <int kLines_, int kChunks, int kKernelWidth, int kYDilation, int kXDilation>
struct PixelBoxes {
  static constexpr int kDepthAxis = 0, kLines = kLines_;
  const TensorMap* map;
  int x, y, image;  // of the first tap, perhaps in the padding
  int first_chunk;

  ASPEN_DEVICE TensorBox<4> chunk(int number) const {
    const int tap = (first_chunk + number) / kChunks, channel = (first_chunk + number) % kChunks * Swizzle::kLine;
    return {map, {channel, x + tap % kKernelWidth * kXDilation, y + tap / kKernelWidth * kYDilation, image}};
  }
};
// And its columns: of weights [taps, C, O], or lines along the depth of weights [O, taps, C].
template <int kChunks>
struct TapBoxes {
  static constexpr int kDepthAxis = 1;
  const TensorMap* map;
  int column;
  int first_chunk;

  ASPEN_DEVICE TensorBox<3> chunk(int number, int across) const {
    const int tap = (first_chunk + number) / kChunks, channel = (first_chunk + number) % kChunks * Swizzle::kLine;
    return {map, {column + across, channel, tap}};
  }
};

template <int kChunks>
struct TapLines {
  static constexpr int kDepthAxis = 0;
  const TensorMap* map;
  int column;
  int first_chunk;

  ASPEN_DEVICE TensorBox<3> chunk(int number, int across) const {
    const int tap = (first_chunk + number) / kChunks, channel = (first_chunk + number) % kChunks * Swizzle::kLine;
    return {map, {channel, tap, column + across}};
  }
};

#ifndef __CUDACC__
// What the host puts into a map.
struct PlayedMap {
  const unsigned char* data;
  uint64_t strides[kTensorRank - 1];
  uint64_t extents[kTensorRank];
  uint16_t rank, box[kTensorRank], steps[kTensorRank];

  int count(int axis) const { return (box[axis] + steps[axis] - 1) / steps[axis]; }
};
static_assert(sizeof(PlayedMap) <= sizeof(TensorMap));

// Whether CUDA's manual allows such a map (cuTensorMapEncodeTiled).
inline bool is_allowed(const TensorShape& shape, const void* data) {
  bool allowed = reinterpret_cast<uintptr_t>(data) % 16 == 0 && shape.rank >= 1 && shape.rank <= kTensorRank;
  for (int axis = 0; allowed && axis < shape.rank; ++axis) {
    const uint64_t extent = shape.extents[axis], stride = axis == 0 ? 16 : shape.strides[axis - 1];
    allowed = extent >= 1 && extent <= uint64_t{1} << 32 && shape.box[axis] >= 1 && shape.box[axis] <= 256;
    allowed = allowed && stride % 16 == 0 && stride >= 16 && stride < uint64_t{1} << 40;
    allowed = allowed && shape.steps[axis] >= 1 && shape.steps[axis] <= (axis == 0 ? 1 : 8);
  }
  return allowed && shape.box[0] * 2 <= 128 && shape.box[0] * 2 % 16 == 0;
}
inline TensorMap played_map(const TensorShape& shape, const void* data) {
  if (!is_allowed(shape, data)) __builtin_trap();
  PlayedMap played{static_cast<const unsigned char*>(data), {}, {}, static_cast<uint16_t>(shape.rank), {}, {}};
  for (int axis = 0; axis < shape.rank; ++axis) {
    if (axis > 0) played.strides[axis - 1] = shape.strides[axis - 1];
    played.extents[axis] = shape.extents[axis];
    played.box[axis] = static_cast<uint16_t>(shape.box[axis]);
    played.steps[axis] = static_cast<uint16_t>(shape.steps[axis]);
  }
  TensorMap map{};
  std::memcpy(map.opaque, &played, sizeof played);
  return map;
}
// A kernel's first argument.
template <class Buffers>
Buffers played_buffers(const void* addresses, const KernelShape& shape) {
  Buffers buffers;
  std::memcpy(static_cast<void*>(&buffers), addresses, Buffers::kNumAddresses * sizeof(void*));
  if constexpr (Buffers::kNumTensors > 0) {
    for (int i = 0; i < shape.num_tensors; ++i) {
      buffers.maps[i] = played_map(shape.tensors[i], buffers.inputs[shape.tensors[i].input]);
    }
  }
  return buffers;
}
#endif

// An mbarrier: a phase is over when so many threads have arrived, and so many bytes as they said. Phases have parities: 0 is a
// barrier's first, 1 its second, 0 its third, and so on. On the host, one of copies ends its phase only when it is waited for.
struct Barrier {
#ifdef __CUDACC__
  uint64_t state;
#else
  static constexpr uint32_t kLive = 0x6d626172;
  uint32_t live, phase;
  int32_t expected, arrivals;  // of a phase, and those that are missing
  int64_t bytes;               // that are missing
#endif

  // By one thread, for `arrivals` a phase. Others may use it after `are_there` and a sync.
  ASPEN_DEVICE void begin(int arrivals_of_phase) {
#ifdef __CUDACC__
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals_of_phase) : "memory");
#else
    if (live == kLive) __builtin_trap();
    *this = {kLive, 0, arrivals_of_phase, arrivals_of_phase, 0};
#endif
  }
  static ASPEN_DEVICE void are_there() {
#ifdef __CUDACC__
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }

  // One arrival; what this thread did before is seen by who waits for the phase.
  ASPEN_DEVICE void arrive() {
#ifdef __CUDACC__
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
#else
    if (live != kLive || arrivals <= 0) __builtin_trap();
    --arrivals;
    end_phase();
#endif
  }

  // One arrival, which says how many bytes are to come; by the thread that then begins their copies.
  ASPEN_DEVICE void expect([[maybe_unused]] int bytes_to_come) {
#ifdef __CUDACC__
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes_to_come) : "memory");
#else
    if (live != kLive || arrivals <= 0) __builtin_trap();
    --arrivals;
    bytes += bytes_to_come;
#endif
  }

  // Until the phase of this parity is over. The next one must not end meanwhile.
  ASPEN_DEVICE void wait(int parity) {
#ifdef __CUDACC__
    uint32_t is_over = 0;
    while (is_over == 0) {
      asm volatile("{\n.reg .pred over;\nmbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\nselp.u32 %0, 1, 0, over;\n}"
                   : "=r"(is_over)
                   : "r"(address()), "r"(parity)
                   : "memory");
    }
#else
    if (is_over(parity)) return;
    if (!end_phase()) __builtin_trap();  // a device would wait for ever
#endif
  }

  // Gives the memory back: by one thread, when nobody waits any more.
  ASPEN_DEVICE void end() {
#ifdef __CUDACC__
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(address()) : "memory");
#else
    if (live != kLive || arrivals != expected || bytes != 0) __builtin_trap();
    live = 0;
#endif
  }

#ifdef __CUDACC__
  ASPEN_DEVICE uint32_t address() const { return static_cast<uint32_t>(__cvta_generic_to_shared(this)); }
#else
  bool is_over(int parity) const {
    if (live != kLive) __builtin_trap();
    return phase % 2 != static_cast<uint32_t>(parity);
  }
  bool end_phase() {
    if (arrivals != 0 || bytes != 0) return false;
    ++phase;
    arrivals = expected;
    return true;
  }
#endif
};

// Copies of boxes into shared memory. Barriers live as long as this.
template <int kThreads, int kBarriers>
class BoxCopies {
 public:
  // For all threads, outside of phases; so are `wait` and `end`.
  ASPEN_DEVICE BoxCopies(Block<kThreads>& block, Barrier (&barriers)[kBarriers]) : barriers_(barriers) {
    block.each_thread([&](int thread) {
      if (thread != 0) return;
      for (Barrier& barrier : barriers_) barrier.begin(1);
      Barrier::are_there();
    });
#ifndef __CUDACC__
    block.written();
#endif
    // Barriers are there for all threads and for the copies' proxy.
    block.publish();
    block.sync();
  }

  // The one arrival of a phase, and how many bytes it waits for; by the thread that begins the copies, before them. Ends a wait
  // for `barrier` together with these.
  ASPEN_DEVICE void expect(int barrier, int bytes) { barriers_[barrier].expect(bytes); }

  // Begins a copy of a box into lines in shared memory; its bytes arrive at `barrier`.
  template <int kRank>
  ASPEN_DEVICE void copy(const Block<kThreads>& block, void* to, const TensorBox<kRank>& box, int barrier) {
#ifdef __CUDACC__
    const auto map = reinterpret_cast<uint64_t>(box.map);
    const auto lines = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    const uint32_t arrives = barriers_[barrier].address();
    if constexpr (kRank == 3) {
      asm volatile(
          "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
              "r"(lines),
          "l"(map), "r"(box.at[0]), "r"(box.at[1]), "r"(box.at[2]), "r"(arrives)
          : "memory");
    } else if constexpr (kRank == 4) {
      asm volatile(
          "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
          "[%6];" ::"r"(lines),
          "l"(map), "r"(box.at[0]), "r"(box.at[1]), "r"(box.at[2]), "r"(box.at[3]), "r"(arrives)
          : "memory");
    } else {
      asm volatile(
          "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], "
          "[%7];" ::"r"(lines),
          "l"(map), "r"(box.at[0]), "r"(box.at[1]), "r"(box.at[2]), "r"(box.at[3]), "r"(box.at[4]), "r"(arrives)
          : "memory");
    }
#else
    if (!block.is_published() || barriers_[barrier].live != Barrier::kLive) __builtin_trap();
    if (reinterpret_cast<uintptr_t>(to) % Swizzle::kAlignment != 0) __builtin_trap();
    Copy copy{to, {}, {}, barrier};
    std::memcpy(&copy.map, box.map->opaque, sizeof copy.map);
    if (copy.map.rank != kRank || copy.map.box[0] != Swizzle::kLine) __builtin_trap();
    std::memcpy(copy.at, box.at, sizeof box.at);
    std::memset(to, 0xff, copy.bytes());
    copies_.push_back(copy);
#endif
  }

  // Until the phase of this parity is over. Pairs with `expect` and with the bytes of its copies; what these wrote is seen by all
  // threads and by instructions of the asynchronous proxy.
  ASPEN_DEVICE void wait(int barrier, int parity) {
#ifdef __CUDACC__
    barriers_[barrier].wait(parity);
    __syncwarp();  // together again, as instructions of warpgroups want it
#else
    Barrier& from = barriers_[barrier];
    if (from.is_over(parity)) return;  // or so it looks
    for (size_t i = copies_.size(); i-- > 0;) {
      if (copies_[i].barrier != barrier) continue;
      copies_[i].arrive();
      from.bytes -= copies_[i].bytes();
      copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    from.wait(parity);
#endif
  }

  // Gives the barriers' memory back. After a sync that follows every thread's last wait; every copy was waited for.
  ASPEN_DEVICE void end(Block<kThreads>& block) {
    block.each_thread([&](int thread) {
      if (thread != 0) return;
#ifndef __CUDACC__
      if (!copies_.empty()) __builtin_trap();
#endif
      for (Barrier& barrier : barriers_) barrier.end();
    });
  }

 private:
#ifndef __CUDACC__
  struct Copy {
    void* to;
    PlayedMap map;
    int32_t at[kTensorRank];
    int barrier;

    int lines() const {
      int lines = 1;
      for (int axis = 1; axis < map.rank; ++axis) lines *= map.count(axis);
      return lines;
    }
    int bytes() const { return lines() * Swizzle::kLine * 2; }
    void arrive() const {
      for (int line = 0; line < lines(); ++line) {
        for (int i = 0; i < Swizzle::kLine; ++i) {
          bool is_inside = true;
          uint64_t offset = 0;
          for (int axis = 0, rest = line; axis < map.rank; ++axis) {
            const int64_t place = at[axis] + (axis == 0 ? i : rest % map.count(axis) * map.steps[axis]);
            if (axis > 0) rest /= map.count(axis);
            is_inside = is_inside && place >= 0 && static_cast<uint64_t>(place) < map.extents[axis];
            offset += static_cast<uint64_t>(place) * (axis == 0 ? 2 : map.strides[axis - 1]);
          }
          uint16_t element = 0;
          if (is_inside) std::memcpy(&element, map.data + offset, sizeof element);
          std::memcpy(static_cast<unsigned char*>(to) + 2 * Swizzle::place(line, i), &element, sizeof element);
        }
      }
    }
  };
  std::vector<Copy> copies_;
#endif
  Barrier (&barriers_)[kBarriers];
};

template <class Core, int kStages>
struct TensorMemory : ProductMemory<Core, kStages> {
  Barrier arrived[kStages];
};

// Begins the copies of chunk `chunk` of columns as the Core has them; by one thread. Their bytes arrive at barrier `number`.
template <class Core, int kThreads, int kBarriers, class Columns>
ASPEN_DEVICE void copy_columns(const Block<kThreads>& block, BoxCopies<kThreads, kBarriers>& copies, typename Core::Element* to,
                               const Columns& columns, int chunk, int number) {
  static_assert(Columns::kDepthAxis == (Core::kAlongDepth ? 0 : 1));
  static_assert(Core::kDepth * sizeof(typename Core::Element) == Swizzle::kLineBytes && Core::kAlignment == Swizzle::kAlignment);
  constexpr int kPart = Core::kAlongDepth ? Core::kColumns : Swizzle::kLine;
  ASPEN_UNROLL for (int column = 0; column < Core::kColumns; column += kPart) {
    copies.copy(block, to + column * Core::kDepth, columns.chunk(chunk, column), number);
  }
}

// The same of rows and columns, into a stage.
template <class Core, int kThreads, int kBarriers, class Stage, class Rows, class Columns>
ASPEN_DEVICE void copy_chunk(const Block<kThreads>& block, BoxCopies<kThreads, kBarriers>& copies, Stage& stage, const Rows& rows,
                             const Columns& columns, int chunk, int number) {
  static_assert(Rows::kDepthAxis == 0 && Rows::kLines <= Core::kRows);
  constexpr int kRowBytes = (Rows::kLines == 0 ? Core::kRows : Rows::kLines) * Swizzle::kLineBytes;
  copies.expect(number, kRowBytes + static_cast<int>(sizeof stage.columns));
  copies.copy(block, stage.rows, rows.chunk(chunk), number);
  copy_columns<Core>(block, copies, stage.columns, columns, chunk, number);
}

// multiply_tile (product.h) of operands that are copied in boxes, whose extents are the Core's: 128 bytes along the depth by all
// rows, or by fewer lines, and what is in the others is not stored; columns likewise where they lie along the depth, else 64
// columns by 64 of the depth, twice for 128. What lies beside the tile in a tensor is multiplied too, and not stored; outside of
// tensors there are zeros. `depth` is the Core's for each chunk, the last of which may be shorter.
//
// Stages are filled in turn, so of stage s = chunk % kStages the n-th filling, n = chunk / kStages, is phase n of its barrier.
template <int kRun, int kSlices = 1, class Core, int kStages, class Rows, class Columns, class Store>
ASPEN_DEVICE void multiply_tile(TensorMemory<Core, kStages>& memory, const Rows& rows, const Columns& columns, int num_rows,
                                int num_columns, int depth, const Store& store) {
  constexpr int kThreads = Core::kThreads;
  constexpr int kAhead = kStages - 1 - Core::kInFlight;  // chunks that are being copied while one is multiplied
  static_assert(kAhead >= 1);

  Block<kThreads> block;
  Core core;
  core.clear(block);
  BoxCopies<kThreads, kStages> copies(block, memory.arrived);
  const int num_chunks = (depth + Core::kDepth - 1) / Core::kDepth;
  const auto load = [&](int chunk) {
    if (chunk >= num_chunks) return;
    block.each_thread([&](int thread) {
      if (thread == 0) copy_chunk<Core>(block, copies, memory.stages[chunk % kStages], rows, columns, chunk, chunk % kStages);
    });
  };
  for (int chunk = 0; chunk < kAhead; ++chunk) load(chunk);
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    core.template wait<Core::kInFlight>(block);
    // Nobody reads any more the buffer that is filled next: all warpgroups have waited for what they multiplied from it, and a
    // phase of its barrier is not begun before all threads have seen the last one's end.
    block.sync();
    load(chunk + kAhead);
    copies.wait(chunk % kStages, chunk / kStages % 2);
    core.multiply(block, memory.stages[chunk % kStages].rows, memory.stages[chunk % kStages].columns);
  }
  core.template wait<0>(block);
  block.sync();
  copies.end(block);
  store_sums<kRun, kSlices>(block, core, memory.sums, num_rows, num_columns, store);
}

}  // namespace aspen::cuda
