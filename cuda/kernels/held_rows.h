// Sums of one product that are the rows of the next, and never leave a warp's registers (Bolt, section 3.1.1, RF-resident
// fusion).
//
// A warp has all columns of its rows. Where a lane has sums in m16n8 there are, for 16-bit elements, just those that it needs as
// A of m16n8k16: it only packs two by two. For float32 a lane has columns 2 t and 2 t + 1 of eight, and m16n8k8 wants t and t
// + 4. A sum has no order, so the weights change places instead: when they are copied, lines 2 t and 2 t + 1 become t and t + 4.
//
// A warpgroup's instructions leave and take 16-bit elements just as those of its four warps do.
#pragma once

#include "product.h"

namespace aspen::cuda {

// An MmaCore whose warps have all columns: each warp has sums [16 * kTall, kColumns], in fragments c[kTall][kColumns / 8].
// kReadsHeld: what it multiplies with its columns is held.
template <class Kind_, class Core, bool kReadsHeld>
struct HeldCore : Core {
  using Kind = Kind_;
  using Element = typename Core::Element;
  static constexpr int kTall = Core::kRows / (Core::kThreads / kWarp) / 16, kSteps = Core::kColumns / Kind::kDepth;
  static constexpr bool kPairs = sizeof(Element) == 2, kPermuted = kReadsHeld && !kPairs;
  static_assert(Core::kWarpsAcross == 1);
  static_assert(!kPermuted || !Core::kAlongDepth, "vectors along the depth cannot change places");

  // Rows that a warp holds, as wide as this core has columns: [16 * kTall, kSteps * Kind::kDepth].
  struct Rows {
    static constexpr int kCount = kSteps;
    FragmentA a[kTall][kSteps];  // [kTall, kSteps] of [16, Kind::kDepth]
  };

  static ASPEN_DEVICE int column_place(int line, int at) {
    const int of_eight = line % 8;
    return Core::column_place(kPermuted ? line - of_eight + of_eight / 2 + of_eight % 2 * 4 : line, at);
  }

  // Makes rows of the sums: `element(row, column, sum)` is what the next product reads, as its bits.
  // sums: [kRows, kColumns] -> rows: [kRows, kColumns], whose columns are the next product's depth.
  template <class Make>
  ASPEN_DEVICE void hold(Block<Core::kThreads>& block, PerWarp<Rows, Core::kThreads / kWarp>& rows, const Make& element) {
    block.each_warp([&](int warp) {
      ASPEN_UNROLL for (int i = 0; i < kTall; ++i) {
        ASPEN_UNROLL for (int step = 0; step < kSteps; ++step) {
          rows[warp].a[i][step].each([&](int lane, int r, uint32_t& bits) {
            const int lower = r % 2, row = (warp * kTall + i) * 16 + lane / 4 + 8 * lower, pair = lane % 4 * 2;
            const auto made = [&](int eight, int j) {
              const uint32_t sum = this->held[warp].c[i][eight].of(lane, 2 * lower + j);
              return static_cast<uint32_t>(element(row, 8 * eight + pair + j, as_float(sum)));
            };
            if constexpr (kPairs) {
              bits = made(2 * step + r / 2, 0) | made(2 * step + r / 2, 1) << 16;
            } else {
              bits = rounded_to_tf32(made(step, r / 2));
            }
          });
        }
      }
    });
  }

  // Calls visit(thread, half, sum) for each sum, where half says which of a lane's two rows it is of, 8 apart; what visit makes
  // of it is kept. `half` is known when this is compiled, so what is kept for each stays in registers.
  template <class Visit>
  ASPEN_DEVICE void each_half(Block<Core::kThreads>& block, const Visit& visit) {
    block.each_warp([&](int warp) {
      ASPEN_UNROLL for (int i = 0; i < kTall; ++i) {
        ASPEN_UNROLL for (int j = 0; j < Core::kColumns / 8; ++j) {
          this->held[warp].c[i][j].each([&](int lane, int r, uint32_t& bits) {
            float sum = as_float(bits);
            visit(warp * kWarp + lane, r / 2, sum);
            bits = as_bits(sum);
          });
        }
      }
    });
  }

  // Adds the products of a chunk's columns with the rows' elements from step `first` on.
  // rows: [kRows, Held::kCount * Kind::kDepth], columns: [kDepth, kColumns] -> sums += products: [kRows, kColumns].
  template <class Held>
  ASPEN_DEVICE void multiply_held(Block<Core::kThreads>& block, PerWarp<Held, Core::kThreads / kWarp>& rows, int first,
                                  const Element* columns) {
    block.each_warp([&](int warp) {
      ASPEN_UNROLL for (int k = 0; k < Core::kDepth / Kind::kDepth; ++k) {
        if (first + k >= Held::kCount) continue;  // the last chunk is not full
        ASPEN_UNROLL for (int j = 0; j < Core::kColumns / 8; ++j) {
          FragmentB b;
          Core::load_b(b, columns, k * Kind::kDepth, 8 * j);
          ASPEN_UNROLL for (int i = 0; i < kTall; ++i) {
            multiply_add<Kind>(this->held[warp].c[i][j], rows[warp].a[i][first + k], b);
          }
        }
      }
    });
  }
};

// A core like HeldCore by one warpgroup, for 16-bit elements: of the sums [64, kColumns] each warp has [16, kColumns].
template <class Kind_, int kColumns_, bool kAlongDepth_, bool kReadsHeld>
struct HeldGroupCore : WgmmaCore<Kind_, 64, kColumns_, kAlongDepth_> {
  using Core = WgmmaCore<Kind_, 64, kColumns_, kAlongDepth_>;
  using Kind = Kind_;
  using Element = typename Core::Element;
  static constexpr int kTall = 1;
  static_assert(Core::kGroups == 1 && sizeof(Element) == 2);

  struct Rows {
    static constexpr int kCount = Core::kColumns / Kind::kDepth;
    FragmentA a[kCount];  // [kCount] of [16, Kind::kDepth]
  };

  template <class Make>
  ASPEN_DEVICE void hold(Block<Core::kThreads>& block, PerWarp<Rows, Core::kThreads / kWarp>& rows, const Make& element) {
    block.each_warp([&](int warp) {
      ASPEN_UNROLL for (int step = 0; step < Rows::kCount; ++step) {
        rows[warp].a[step].each([&](int lane, int r, uint32_t& bits) {
          const int lower = r % 2, row = warp * 16 + lane / 4 + 8 * lower, eight = 2 * step + r / 2;
          const auto made = [&](int j) {
            const float sum = this->held[0].of(warp * kWarp + lane, 4 * eight + 2 * lower + j);
            return static_cast<uint32_t>(element(row, 8 * eight + lane % 4 * 2 + j, sum));
          };
          bits = made(0) | made(1) << 16;
        });
      }
    });
  }

  template <class Visit>
  ASPEN_DEVICE void each_half(Block<Core::kThreads>& block, const Visit& visit) {
    block.each_thread([&](int thread) {
      ASPEN_UNROLL for (int i = 0; i < Core::kColumns / 2; ++i) visit(thread, i / 2 % 2, this->held[0].of(thread, i));
    });
  }

  // Begins to add the products, and `wait` ends it. The shapes are those of HeldCore.
  template <class Held>
  ASPEN_DEVICE void multiply_held(Block<Core::kThreads>& block, PerWarp<Held, Core::kThreads / kWarp>& rows, int first,
                                  const Element* columns) {
    static_assert(Held::kCount % Core::kSteps == 0);
    this->expect_published(block);
    RowFragments a[Core::kSteps];  // [kSteps] of [64, Kind::kDepth]
    block.each_warp([&](int warp) { ASPEN_UNROLL for (int k = 0; k < Core::kSteps; ++k) a[k][warp] = rows[warp].a[first + k]; });
    block.each_warpgroup([&](int group) { this->begin(group, [&](int step) -> auto& { return a[step]; }, columns); });
  }
};

}  // namespace aspen::cuda
