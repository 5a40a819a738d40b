// The matrix instructions of a warpgroup, four warps (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"; sm_90a), and
// what they do on the host: there the bits of a matrix descriptor are taken apart and followed through the swizzle.
//
// Operands are read from shared memory, by the asynchronous proxy, while threads go on. So what threads wrote must be made
// visible to it (Block::publish), buffers may be filled again only after `wait`, and sums may be looked at only then.
//
// The instruction cuts off the bits of float32 that we round. So rows come from registers, where threads round them, and columns
// were rounded when they became known. It takes columns of float32 along the depth alone. Rows of 16-bit elements come from
// registers where they were made there (held_rows.h).
#pragma once

#include "block.h"
#include "warp_mma.h"

namespace aspen::cuda {

// Says whether code is compiled for warpgroups. The host plays either kind of device.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(ASPEN_PLAY_WARPGROUPS)
inline constexpr bool kHasWarpgroups = true;
#else
inline constexpr bool kHasWarpgroups = false;
#endif

// Lines of 64 elements of 16 bits, 128 bytes, in shared memory: of 8 lines each, unit u of 16 bytes of line l is at unit u ^ l.
// Then neither 8 lines at one unit nor the units of one line meet in a bank. It begins at a multiple of 1024 bytes, which is
// where the pattern begins in the addresses that the hardware permutes. A line of float32 has 32 elements. place(line, at) ->
// where element (line, at) of [lines, kLineBytes / sizeof(Element)] is, counted in elements.
struct Swizzle {
  static constexpr int kLine = 64, kLineBytes = 128, kAlignment = 1024;
  template <class Kind>
  static constexpr int kLineOf = kLineBytes / static_cast<int>(sizeof(typename Kind::Element));
  template <class Element = uint16_t>
  static ASPEN_DEVICE int place(int line, int at) {
    constexpr int kSize = static_cast<int>(sizeof(Element)), kUnit = 16 / kSize;
    return line * (kLineBytes / kSize) + ((at / kUnit ^ line % 8) * kUnit + at % kUnit);
  }
};

// The place of a matrix of 32 bytes along the depth in shared memory, in such lines: [lines, 32 bytes]. Where lines of memory lie
// across the depth: [lines / 64, 16 of the depth, 64].
struct MatrixDescriptor {
  uint64_t bits;
#ifndef __CUDACC__
  const unsigned char* matrix;  // for the upper bits of addresses, which have 18 bits on the device
#endif

  // `leading`: bytes from 64 elements across the depth to the next 64, where lines lie across it. `stride`: bytes from 8 lines to
  // the next 8. Bits 0-13, 16-29 and 32-45 are address, leading and stride in units of 16 bytes; 62-63 say 128 bytes of swizzle.
  static ASPEN_DEVICE MatrixDescriptor of(const void* matrix, int leading, int stride) {
#ifdef __CUDACC__
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(matrix));
#else
    const auto address = reinterpret_cast<uintptr_t>(matrix);
    if (address % Swizzle::kAlignment != 0) __builtin_trap();
#endif
    MatrixDescriptor descriptor;
    descriptor.bits = (address & 0x3ffff) >> 4 | static_cast<uint64_t>(leading >> 4) << 16 |
                      static_cast<uint64_t>(stride >> 4) << 32 | uint64_t{1} << 62;
#ifndef __CUDACC__
    descriptor.matrix = static_cast<const unsigned char*>(matrix);
#endif
    return descriptor;
  }

  // Gives the matrix that begins so many bytes further.
  ASPEN_DEVICE MatrixDescriptor operator+(int bytes) const {
    MatrixDescriptor further = *this;
    further.bits += static_cast<uint64_t>(bytes >> 4);
    return further;
  }

#ifndef __CUDACC__
  // Reads element (line, k) across and along the depth; kAcross: lines of memory lie across the depth.
  template <bool kAcross, class Element = uint16_t>
  Element at(int line, int k) const {
    static_assert(!kAcross || sizeof(Element) == 2);
    const uint64_t start = (bits & 0x3fff) << 4, leading = (bits >> 16 & 0x3fff) << 4, stride = (bits >> 32 & 0x3fff) << 4;
    if (bits >> 62 != 1 || (bits >> 49 & 7) != 0) __builtin_trap();
    const auto l = static_cast<uint64_t>(line), d = static_cast<uint64_t>(k);
    const uint64_t linear = start + (kAcross ? l / 64 * leading + l % 64 * 2 + d / 8 * stride + d % 8 * 128
                                             : l / 8 * stride + l % 8 * 128 + d * sizeof(Element));
    const uint64_t address = linear ^ (linear >> 7 & 7) << 4;
    Element element;
    std::memcpy(&element, matrix + ((address - reinterpret_cast<uintptr_t>(matrix)) & 0x3ffff), sizeof element);
    return element;
  }
#endif
};

// Rows in registers, 16 of each warp, as deep as one instruction takes: [4 warps] of [16, Kind::kDepth].
using RowFragments = PerWarp<FragmentA, kWarpgroup / kWarp>;

// Sums of a warpgroup's products, [64, kColumns] in float32; of B, lines of memory lie across the depth where kAcross.
template <class Kind, int kColumns, bool kAcross>
class WarpgroupSums {
 public:
  using Element = typename Kind::Element;
  static constexpr bool kFromRegisters = sizeof(Element) == 4;  // whether A always comes from them
  static_assert(kColumns == 64 || kColumns == 128 || kColumns == 256);
  static_assert(!kFromRegisters || (kIsSame<Kind, RoundedTf32> && !kAcross));

  // Calls visit(row, column, sum), every thread for its own; they lie as those of `mma` do, in 16 rows a warp.
  template <class Visit>
  ASPEN_DEVICE void each(const Visit& visit) {
    each_of<kColumns>(0, visit);
  }
  // Visits part `part` of the columns alone, [64, kWide]. Code is spelt out for each part, since registers have no numbers at run
  // time.
  template <int kWide, class Visit>
  ASPEN_DEVICE void each_of(int part, const Visit& visit) {
    static_assert(kColumns % kWide == 0 && kWide % 8 == 0);
    constexpr int kOwn = kWide / 2;  // sums of a thread
#ifdef __CUDACC__
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    ASPEN_UNROLL for (int own = 0; own < kColumns / kWide; ++own) {
      if (kWide < kColumns && own != part) continue;
      ASPEN_UNROLL for (int i = own * kOwn; i < (own + 1) * kOwn; ++i) visit(row_of(thread, i), column_of(thread, i), own_[i]);
    }
#else
    if (!issued_.empty() || !open_.empty()) __builtin_trap();
    fenced_ = false;
    for (int thread = 0; thread < kWarpgroup; ++thread) {
      for (int i = part * kOwn; i < (part + 1) * kOwn; ++i) visit(row_of(thread, i), column_of(thread, i), all_[thread][i]);
    }
#endif
  }

  // Sum i of a thread of the warpgroup; i is known when this is compiled. Four sums are those that `mma` leaves a lane of 8
  // columns.
  ASPEN_DEVICE float& of([[maybe_unused]] int thread, int i) {
#ifdef __CUDACC__
    return own_[i];
#else
    if (!issued_.empty() || !open_.empty()) __builtin_trap();
    fenced_ = false;
    return all_[thread][i];
#endif
  }

  // Stands between whatever else was done with the sums, and multiply_add.
  ASPEN_DEVICE void fence() {
#ifdef __CUDACC__
    keep();
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
    fenced_ = true;
#endif
  }
  // Ends a group of multiply_add; `wait<n>` waits for all groups but the last n.
  ASPEN_DEVICE void commit() {
#ifdef __CUDACC__
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
    issued_.push_back(std::move(open_));
    open_.clear();
#endif
  }
  template <int kLeft>
  ASPEN_DEVICE void wait() {
#ifdef __CUDACC__
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
    if constexpr (kLeft == 0) keep();
#else
    while (issued_.size() > kLeft) {
      for (const Product& product : issued_.front()) product.add_to(all_);
      issued_.erase(issued_.begin());
    }
#endif
  }

  // Begins sums += a * b; a is RowFragments or a MatrixDescriptor. Registers may change after `wait`.
  // a: [64, Kind::kDepth], b: [Kind::kDepth, kColumns] -> sums: [64, kColumns].
  template <class Rows>
  ASPEN_DEVICE void multiply_add(const Rows& a, const MatrixDescriptor& b) {
    constexpr bool kHeld = kIsSame<Rows, RowFragments>;
    static_assert(kHeld || !kFromRegisters);
#ifdef __CUDACC__
#define ASPEN_FOUR(at) "+f"(own_[at]), "+f"(own_[at + 1]), "+f"(own_[at + 2]), "+f"(own_[at + 3])
#define ASPEN_SIXTEEN(at) ASPEN_FOUR(at), ASPEN_FOUR(at + 4), ASPEN_FOUR(at + 8), ASPEN_FOUR(at + 12)
// Sums by their numbers, and as operands.
#define ASPEN_NAMES_32                                    \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15" \
  ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define ASPEN_NAMES_64                                               \
  ASPEN_NAMES_32                                                     \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
  ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define ASPEN_NAMES_128                                                          \
  ASPEN_NAMES_64                                                                 \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"             \
  ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"             \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
  ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define ASPEN_SUMS_32 ASPEN_SIXTEEN(0), ASPEN_SIXTEEN(16)
#define ASPEN_SUMS_64 ASPEN_SUMS_32, ASPEN_SIXTEEN(32), ASPEN_SIXTEEN(48)
#define ASPEN_SUMS_128 ASPEN_SUMS_64, ASPEN_SIXTEEN(64), ASPEN_SIXTEEN(80), ASPEN_SIXTEEN(96), ASPEN_SIXTEEN(112)
// Sums are added to (the predicate); neither operand is negated; A is not transposed.
#define ASPEN_BEGIN "{\n.reg .pred adds;\nsetp.eq.u32 adds, 0, 0;\nwgmma.mma_async.sync.aligned."
#define ASPEN_WGMMA(shape, type, count, a_name, b_name, across)                                                   \
  asm volatile(ASPEN_BEGIN shape ".f32." type "." type " {" ASPEN_NAMES_##count "}, " a_name ", " b_name          \
                                                                                ", adds, 1, 1, 0, " across ";\n}" \
               : ASPEN_SUMS_##count                                                                               \
               : "l"(a.bits), "l"(b.bits), "n"(kAcross ? 1 : 0))
// A is four registers of each thread.
#define ASPEN_WGMMA_HELD(shape, type, count, a_names, b_name, across)                                          \
  asm volatile(ASPEN_BEGIN shape ".f32." type "." type " {" ASPEN_NAMES_##count "}, {" a_names "}, " b_name    \
                                                                                ", adds, 1, 1, " across ";\n}" \
               : ASPEN_SUMS_##count                                                                            \
               : "r"(a.own.own[0]), "r"(a.own.own[1]), "r"(a.own.own[2]), "r"(a.own.own[3]), "l"(b.bits), "n"(kAcross ? 1 : 0))
#define ASPEN_WGMMA_TF32(shape, count, a_names, b_name)                                                                \
  asm volatile(ASPEN_BEGIN shape ".f32.tf32.tf32 {" ASPEN_NAMES_##count "}, {" a_names "}, " b_name ", adds, 1, 1;\n}" \
               : ASPEN_SUMS_##count                                                                                    \
               : "r"(a.own.own[0]), "r"(a.own.own[1]), "r"(a.own.own[2]), "r"(a.own.own[3]), "l"(b.bits))
#define ASPEN_HELD_64(type) ASPEN_WGMMA_HELD("m64n64k16", type, 32, "%32,%33,%34,%35", "%36", "%37")
#define ASPEN_HELD_128(type) ASPEN_WGMMA_HELD("m64n128k16", type, 64, "%64,%65,%66,%67", "%68", "%69")
#define ASPEN_WGMMA_64(type) ASPEN_WGMMA("m64n64k16", type, 32, "%32", "%33", "%34")
#define ASPEN_WGMMA_128(type) ASPEN_WGMMA("m64n128k16", type, 64, "%64", "%65", "%66")
#define ASPEN_WGMMA_256(type) ASPEN_WGMMA("m64n256k16", type, 128, "%128", "%129", "%130")
    if constexpr (kFromRegisters && kColumns == 64) {
      ASPEN_WGMMA_TF32("m64n64k8", 32, "%32,%33,%34,%35", "%36");
    } else if constexpr (kFromRegisters && kColumns == 128) {
      ASPEN_WGMMA_TF32("m64n128k8", 64, "%64,%65,%66,%67", "%68");
    } else if constexpr (kFromRegisters) {
      ASPEN_WGMMA_TF32("m64n256k8", 128, "%128,%129,%130,%131", "%132");
    } else if constexpr (kHeld) {
      static_assert(kColumns <= 128, "more sums than a thread has registers");
      if constexpr (kIsSame<Kind, Bf16> && kColumns == 64) {
        ASPEN_HELD_64("bf16");
      } else if constexpr (kIsSame<Kind, Bf16>) {
        ASPEN_HELD_128("bf16");
      } else if constexpr (kColumns == 64) {
        ASPEN_HELD_64("f16");
      } else {
        ASPEN_HELD_128("f16");
      }
    } else if constexpr (kIsSame<Kind, Bf16> && kColumns == 64) {
      ASPEN_WGMMA_64("bf16");
    } else if constexpr (kIsSame<Kind, Bf16> && kColumns == 128) {
      ASPEN_WGMMA_128("bf16");
    } else if constexpr (kIsSame<Kind, Bf16>) {
      ASPEN_WGMMA_256("bf16");
    } else if constexpr (kColumns == 64) {
      ASPEN_WGMMA_64("f16");
    } else if constexpr (kColumns == 128) {
      ASPEN_WGMMA_128("f16");
    } else {
      ASPEN_WGMMA_256("f16");
    }
#undef ASPEN_WGMMA_256
#undef ASPEN_WGMMA_128
#undef ASPEN_WGMMA_64
#undef ASPEN_HELD_128
#undef ASPEN_HELD_64
#undef ASPEN_WGMMA_TF32
#undef ASPEN_WGMMA_HELD
#undef ASPEN_WGMMA
#undef ASPEN_BEGIN
#undef ASPEN_SUMS_128
#undef ASPEN_SUMS_64
#undef ASPEN_SUMS_32
#undef ASPEN_NAMES_128
#undef ASPEN_NAMES_64
#undef ASPEN_NAMES_32
#undef ASPEN_SIXTEEN
#undef ASPEN_FOUR
#else
    if (!fenced_) __builtin_trap();
    open_.push_back(Product(a, b));
#endif
  }

 private:
  static ASPEN_DEVICE int row_of(int thread, int i) { return thread / kWarp * 16 + thread % kWarp / 4 + i / 2 % 2 * 8; }
  static ASPEN_DEVICE int column_of(int thread, int i) { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

#ifdef __CUDACC__
  // The compiler does not see that sums are written until `wait` returns: it must not move them beyond.
  ASPEN_DEVICE void keep() { ASPEN_UNROLL for (float& sum : own_) asm volatile("" : "+f"(sum)::"memory"); }
  float own_[kColumns / 2];  // [kColumns / 8, 2, 2] of a thread: (j, h, i) is element (16 w + g + 8 h, 8 j + 2 t + i) of warp w
#else
  // Operands may be read at any time between multiply_add and wait: what they are then must not differ.
  class Product {
   public:
    template <class Rows>
    Product(const Rows& a, const MatrixDescriptor& b) : read_([a, b] { return elements(a, b); }), first_(read_()) {}
    void add_to(float (&sums)[kWarpgroup][kColumns / 2]) const {
      if (read_() != first_) __builtin_trap();
      std::vector<float> numbers;
      for (const Bits bits : first_) numbers.push_back(number(bits));
      for (int thread = 0; thread < kWarpgroup; ++thread) {
        for (int i = 0; i < kColumns / 2; ++i) {
          const float* const row = &numbers[static_cast<size_t>(Kind::kDepth * row_of(thread, i))];
          const float* const column = &numbers[static_cast<size_t>(Kind::kDepth * (64 + column_of(thread, i)))];
          float sum = 0;
          for (int k = 0; k < Kind::kDepth; ++k) sum += row[k] * column[k];
          sums[thread][i] += sum;
        }
      }
    }

   private:
    using Bits = typename Either<kFromRegisters, uint32_t, uint16_t>::Type;
    static float number(Bits bits) {
      if constexpr (kFromRegisters) {
        return cut_off(bits);
      } else {
        return widened(Kind(), bits);
      }
    }
    static Bits row_element(const MatrixDescriptor& a, int row, int k) { return a.template at<false, Bits>(row, k); }
    // A lane has one element of float32, or two of 16 bits, of each square; the rows' second eight and the depth's second half
    // are other squares.
    static Bits row_element(RowFragments& a, int row, int k) {
      constexpr int kPack = Kind::kDepth / 8;
      const int lane = row % 8 * 4 + k / kPack % 4, square = row % 16 / 8 + 2 * (k / (4 * kPack));
      return static_cast<Bits>(a[row / 16].of(lane, square) >> (16 * (k % kPack)));
    }
    static Bits column_element(const MatrixDescriptor& b, int column, int k) {
      const Bits bits = b.template at<kAcross, Bits>(column, k);
      if constexpr (kFromRegisters) {
        // What was not rounded is refused, for it would be cut off.
        if (cut_off(bits) != as_float(bits) && as_float(bits) == as_float(bits)) __builtin_trap();
      }
      return bits;
    }
    template <class Rows>
    static std::vector<Bits> elements(Rows a, const MatrixDescriptor& b) {
      std::vector<Bits> all;
      for (int line = 0; line < 64 + kColumns; ++line) {
        for (int k = 0; k < Kind::kDepth; ++k) {
          all.push_back(line < 64 ? row_element(a, line, k) : column_element(b, line - 64, k));
        }
      }
      return all;
    }
    std::function<std::vector<Bits>()> read_;
    std::vector<Bits> first_;
  };
  float all_[kWarpgroup][kColumns / 2];
  bool fenced_ = false;
  std::vector<Product> open_;
  std::vector<std::vector<Product> > issued_;
#endif
};

// Warpgroups of 64 rows and all columns: a Core like those of product.h. Rows of float32 pass through registers.
template <class Kind, int kRows_, int kColumns_, bool kAlongDepth_ = false, int kStages_ = 4>
struct WgmmaCore {
  using Element = typename Kind::Element;
  static constexpr int kRows = kRows_, kColumns = kColumns_;
  static constexpr bool kAlongDepth = kAlongDepth_;
  using GroupSums = WarpgroupSums<Kind, kColumns, !kAlongDepth>;
  static constexpr int kGroups = kRows / 64, kThreads = kGroups * kWarpgroup;
  static constexpr int kDepth = Swizzle::kLineOf<Kind>, kAlignment = Swizzle::kAlignment;
  static constexpr int kRowElements = kRows * kDepth, kColumnElements = kColumns * kDepth;
  static constexpr int kStages = kStages_;  // one is multiplied, one perhaps still, the others are being copied
  // Registers that are read may be written only when the instruction is over: of float32 no chunk is left behind.
  static constexpr int kInFlight = GroupSums::kFromRegisters ? 0 : 1;
  static constexpr bool kReadsByProxy = true;
  static constexpr int kSteps = kDepth / Kind::kDepth;  // instructions of a chunk
  static_assert(kRows % 64 == 0);

  static ASPEN_DEVICE int row_place(int row, int k) { return Swizzle::place<Element>(row, k); }
  // Columns are [kColumns, kDepth] along the depth. Across it they are [kColumns / 64, kDepth, 64].
  static ASPEN_DEVICE int column_place(int line, int at) {
    return kAlongDepth ? Swizzle::place<Element>(line, at) : at / 64 * (64 * kDepth) + Swizzle::place<Element>(line, at % 64);
  }

  PerThread<GroupSums, kGroups> held;  // [kGroups] of [64, kColumns]

  ASPEN_DEVICE void clear(Block<kThreads>& block) {
    block.each_warpgroup([&](int group) { held[group].each([](int, int, float& sum) { sum = 0; }); });
  }

  // Begins to multiply a chunk; `wait` ends it.
  // rows: [kRows, kDepth], columns: [kDepth, kColumns] as column_place has them -> held += rows * columns: [kRows, kColumns].
  ASPEN_DEVICE void multiply(Block<kThreads>& block, const Element* rows, const Element* columns) {
    expect_published(block);
    block.each_warpgroup([&](int group) {
      const Element* const own = rows + group * 64 * kDepth;
      if constexpr (GroupSums::kFromRegisters) {
        RowFragments a[kSteps];  // [kSteps] of [64, Kind::kDepth]
        ASPEN_UNROLL for (int step = 0; step < kSteps; ++step) load_rounded(block, a[step], own, step * Kind::kDepth);
        begin(group, [&](int step) -> auto& { return a[step]; }, columns);
      } else {
        const auto a = MatrixDescriptor::of(own, 0, kEight);
        begin(group, [&](int step) { return a + step * kStepBytes; }, columns);
      }
    });
  }
  template <int kLeft>
  ASPEN_DEVICE void wait(Block<kThreads>& block) {
    block.each_warpgroup([&](int group) { held[group].template wait<kLeft>(); });
  }

  template <class Visit>
  ASPEN_DEVICE void each(Block<kThreads>& block, const Visit& visit) {
    each_of<kColumns>(block, 0, visit);
  }
  // Visits part `part` of the columns alone, [kRows, kWide].
  template <int kWide, class Visit>
  ASPEN_DEVICE void each_of(Block<kThreads>& block, int part, const Visit& visit) {
    block.each_warpgroup([&](int group) {
      held[group].template each_of<kWide>(part, [&](int row, int column, float& sum) { visit(64 * group + row, column, sum); });
    });
  }

 protected:
  static ASPEN_DEVICE void expect_published([[maybe_unused]] Block<kThreads>& block) {
#ifndef __CUDACC__
    if (!block.is_published()) __builtin_trap();
#endif
  }

  // Begins a group's products with a chunk's columns; `rows_of(step)` are rows as `multiply_add` takes them.
  template <class RowsOf>
  ASPEN_DEVICE void begin(int group, const RowsOf& rows_of, const Element* columns) {
    const auto b = MatrixDescriptor::of(columns, kAlongDepth ? 0 : 64 * Swizzle::kLineBytes, kEight);
    held[group].fence();
    ASPEN_UNROLL for (int step = 0; step < kSteps; ++step) {
      held[group].multiply_add(rows_of(step), b + (kAlongDepth ? step * kStepBytes : step * Kind::kDepth / 8 * kEight));
    }
    held[group].commit();
  }

 private:
  static constexpr int kStepBytes = 32, kEight = 8 * Swizzle::kLineBytes;  // bytes of a step, and of 8 lines

  // Loads elements k to k + 7 of a warpgroup's rows. Squares: the upper 8 rows of a warp, the lower, and both 4 elements later.
  // rows: [64, kDepth] -> a: [64, Kind::kDepth].
  static ASPEN_DEVICE void load_rounded(Block<kThreads>& block, RowFragments& a, const Element* rows, int k) {
    block.each_warp_of_group([&](int warp) {
      load_squares<false>(a[warp], [&](int line) { return rows + row_place(16 * warp + line % 16, k + line / 16 * 4); });
      a[warp].each([](int, int, uint32_t& bits) { bits = with_half_of_tf32(bits); });
    });
  }
};

// What multiplies: warpgroups where a device has their instructions, or else warps.
template <class Groups, class Warps>
using OfDevice = typename Either<kHasWarpgroups, Groups, Warps>::Type;

}  // namespace aspen::cuda
