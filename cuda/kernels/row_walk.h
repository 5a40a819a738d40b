// The rows of a box of the output, as many at once as a thread block has teams for (teams.h).
#pragma once

#include "boxes.h"
#include "elements.h"
#include "teams.h"

namespace aspen::cuda {

// The output has all axes of the inputs, or lacks those of the rows.
struct RowsShape {
  int rank;                // of the inputs
  Axes across;             // their axes that choose a row
  Axes along;              // their axes that make up a row
  int extents[kMostAxes];  // of the axes along a row
  int length;              // of a row, in elements
  int threads;             // of a block
  int lanes, warps;        // that walk a row together
};

// kRank: of the output.
template <int kRank, RowsShape kShape>
class RowWalk {
 public:
  static constexpr int kThreads = kShape.threads, kLength = kShape.length;
  using Team = aspen::cuda::Team<kThreads, kShape.lanes, kShape.warps>;
  static constexpr int kSteps = kLength > Team::kWalkers ? (kLength + Team::kWalkers - 1) / Team::kWalkers : 1;

  static ASPEN_DEVICE int num_rows(const int32_t* box) {
    constexpr RowsShape shape = kShape;
    int count = 1;
    ASPEN_UNROLL for (int i = 0; i < shape.across.count; ++i) {
      const int axis = of_output(i);
      count *= box[kRank + axis] - box[axis];
    }
    return count;
  }

  // Turns to the rows of a box from number `first` on, one for each team.
  ASPEN_DEVICE void begin(Block<kThreads>& block, const int32_t* box, int first) {
    block.each_thread([&](int thread) {
      constexpr RowsShape shape = kShape;
      Place place = {};
      place.row = first + Team::row(thread);
      int rest = place.row;
      ASPEN_UNROLL for (int i = shape.across.count - 1; i >= 0; --i) {
        const int axis = of_output(i), extent = box[kRank + axis] - box[axis];
        place.at[shape.across.of[i]] = box[axis] + (i == 0 ? rest : rest % extent);
        rest /= extent;
      }
      places_[thread] = place;
    });
    num_rows_ = num_rows(box);
  }

  // Calls visit(thread, at) for each thread that has a row, at the first element of the row.
  template <class Visit>
  ASPEN_DEVICE void each_row(Block<kThreads>& block, const Visit& visit) {
    block.each_thread([&](int thread) {
      if (places_[thread].row < num_rows_) visit(thread, static_cast<const int*>(places_[thread].at));
    });
  }

  // Calls visit(thread, at, step) for each element of a row, by the thread of its team that walks it. `step` counts the elements
  // of a thread. The coordinates are those of the row itself: a copy of them would cost up to 16 registers.
  template <class Visit>
  ASPEN_DEVICE void each_element(Block<kThreads>& block, const Visit& visit) {
    block.each_thread([&](int thread) {
      if (places_[thread].row >= num_rows_) return;
      constexpr RowsShape shape = kShape;
      int* const at = places_[thread].at;
      for (int step = 0, element = Team::walker(thread); element < kLength; ++step, element += Team::kWalkers) {
        int rest = element;
        ASPEN_UNROLL for (int i = shape.along.count - 1; i >= 0; --i) {
          at[shape.along.of[i]] = i == 0 ? rest : rest % shape.extents[i];
          rest /= shape.extents[i];
        }
        visit(thread, static_cast<const int*>(at), step);
      }
      ASPEN_UNROLL for (int i = 0; i < shape.along.count; ++i) at[shape.along.of[i]] = 0;
    });
  }

  // Calls visit(thread, out) with the row's coordinates in an output that lacks the axes of rows, by one thread of a team.
  template <class Visit>
  ASPEN_DEVICE void each_result(Block<kThreads>& block, const Visit& visit) {
    each_row(block, [&](int thread, const int* row) {
      constexpr RowsShape shape = kShape;
      int out[kRank + 1];
      ASPEN_UNROLL for (int i = 0; i < kRank; ++i) out[i] = row[shape.across.of[i]];
      if (Team::walker(thread) == 0) visit(thread, static_cast<const int*>(out));
    });
  }

  // Whether a box has an element, in an output that has the axes of rows.
  static ASPEN_DEVICE bool is_in(const int32_t* box, const int* at) {
    constexpr RowsShape shape = kShape;
    bool is_in = true;
    ASPEN_UNROLL for (int i = 0; i < shape.along.count; ++i) {
      const int axis = shape.along.of[i];
      is_in = is_in && at[axis] >= box[axis] && at[axis] < box[kRank + axis];
    }
    return is_in;
  }

 private:
  struct Place {
    int row;
    int at[kShape.rank + 1];  // one too many, for a rank of 0
  };

  // The output's axis of axis number i across rows.
  static ASPEN_DEVICE constexpr int of_output(int i) { return kShape.rank == kRank ? kShape.across.of[i] : i; }

  PerThread<Place, kThreads> places_;
  int num_rows_ = 0;
};

}  // namespace aspen::cuda
