// A stack: parts one behind the other, a block of the output at a time. Values between lie in shared memory, in two places taken
// in turn (BrainSlug, section 4.1). A block computes the halo of each of its parts itself.
//
// A part says what it reads and what it makes of it; its element-wise program is generated code, `Op::part`.
#pragma once

#include "pool.h"

namespace aspen::cuda {

template <int kNumber>
struct PartNumber {};

struct StackShape {
  int rank;
  int block[kMostAxes];  // of the output at a time
  int lanes;             // of each of the two places
  int threads;
};

// An element-wise part.
struct BlockPart {
  template <int kRank>
  static ASPEN_DEVICE void region(const int32_t* box, int32_t* read) {
    ASPEN_UNROLL for (int i = 0; i < 2 * kRank; ++i) read[i] = box[i];
  }
  template <class Read>
  static ASPEN_DEVICE uint32_t lane(const int* at, const Read& read) {
    return read(at);
  }
};

template <uint32_t (*kCombine)(uint32_t, uint32_t), PoolShape kShape>
struct PoolPart {
  template <int kRank>
  static ASPEN_DEVICE void region(const int32_t* box, int32_t* read) {
    Windows<kCombine, kShape>::region(box, read);
  }
  template <class Read>
  static ASPEN_DEVICE uint32_t lane(const int* at, const Read& read) {
    return Windows<kCombine, kShape>::combined(at, read);
  }
};

template <int kNumber, class First, class... Others>
struct PartOf : PartOf<kNumber - 1, Others...> {};
template <class First, class... Others>
struct PartOf<0, First, Others...> {
  using Type = First;
};

template <class Op, class Input, StackShape kShape, class... Parts>
struct Stack : Op {
  using Addresses = typename Op::Addresses;
  static constexpr int kThreads = kShape.threads, kRank = kShape.rank, kLast = sizeof...(Parts) - 1;
  struct Memory {
    uint32_t lanes[2][kShape.lanes];
  };

  static ASPEN_DEVICE void tile(const Addresses& buffers, const int32_t* box, Memory& memory) {
    constexpr StackShape shape = kShape;
    Block<kThreads> block;
    int count = 1;
    ASPEN_UNROLL for (int d = 0; d < kRank; ++d) count *= (box[kRank + d] - box[d] + shape.block[d] - 1) / shape.block[d];
    for (int number = 0; number < count; ++number) {
      int32_t boxes[kLast + 1][2 * kRank];
      int rest = number;
      ASPEN_UNROLL for (int d = kRank - 1; d >= 0; --d) {
        const int along = (box[kRank + d] - box[d] + shape.block[d] - 1) / shape.block[d];
        boxes[kLast][d] = box[d] + rest % along * shape.block[d];
        boxes[kLast][kRank + d] = min_of(boxes[kLast][d] + shape.block[d], box[kRank + d]);
        rest /= along;
      }
      regions<kLast>(boxes);
      pass<0>(buffers, boxes, memory, block);
    }
  }

 private:
  using Boxes = int32_t[kLast + 1][2 * kRank];
  template <int kPart>
  using Part = typename PartOf<kPart, Parts...>::Type;

  // The boxes of the parts before, from what each reads of the one before it.
  template <int kPart>
  static ASPEN_DEVICE void regions(Boxes& boxes) {
    if constexpr (kPart > 0) {
      Part<kPart>::template region<kRank>(boxes[kPart], boxes[kPart - 1]);
      regions<kPart - 1>(boxes);
    }
  }

  // Where an element lies in the place of a part's box.
  static ASPEN_DEVICE int place(const int32_t* box, const int* at) {
    int found = 0;
    ASPEN_UNROLL for (int d = 0; d < kRank; ++d) found = found * (box[kRank + d] - box[d]) + at[d] - box[d];
    return found;
  }

  // The parts from kPart on.
  template <int kPart>
  static ASPEN_DEVICE void pass(const Addresses& buffers, const Boxes& boxes, Memory& memory, Block<kThreads>& block) {
    each_element<kRank>(block, boxes[kPart], [&](const int* at) {
      const uint32_t own = Part<kPart>::lane(at, [&](const int* from) {
        if constexpr (kPart == 0) {
          return Input::lane(buffers, from);
        } else {
          return memory.lanes[(kPart - 1) % 2][place(boxes[kPart - 1], from)];
        }
      });
      const uint32_t result = Op::part(buffers, at, PartNumber<kPart>(), own);
      if constexpr (kPart == kLast) {
        Op::finish(buffers, at, result);
      } else {
        memory.lanes[kPart % 2][place(boxes[kPart], at)] = result;
      }
    });
    block.sync();  // the next part reads this, and the one behind it takes the other place
    if constexpr (kPart < kLast) pass<kPart + 1>(buffers, boxes, memory, block);
  }
};

}  // namespace aspen::cuda
