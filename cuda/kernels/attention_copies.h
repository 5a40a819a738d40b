// How keys and values of attention come into shared memory: threads copy them, or the tensor memory accelerator does in boxes.
// Both offer the same:
//   begin          copies the first keys and values; those of the queries have begun
//   load_keys      begins to copy keys from a number on, or nothing behind the last; load_values likewise
//   wait_for_keys  waits until they are there, keys and values in turn; wait_for_values likewise
//   end            waits for what nobody waited for
// All are for all threads, outside of phases.
//
// A filling of memory.keys is keys [kKeys, depth of the scores], and one of memory.values is values [kKeys, num_columns].
#pragma once

#include "product.h"
#include "tensor_copy.h"

namespace aspen::cuda {

// Stands for boxes where no map describes keys or values.
struct NoBoxes {
  static constexpr bool kAny = false;
};
// Boxes of the first keys, and of the first of the values' columns.
template <class Keys, class Columns>
struct KeyBoxes {
  static constexpr bool kAny = true;
  Keys keys;
  Columns values;
};

// Own is an Attention.
template <class Own, class Keys, class Columns>
class CopiesByThreads {
 public:
  using Scores = typename Own::ScoresCore;
  using Values = typename Own::ValuesCore;
  using Memory = typename Own::Memory;

  ASPEN_DEVICE CopiesByThreads(Block<Own::kThreads>& block, Memory& memory, const Keys& keys, const Columns& values,
                               const NoBoxes&, int num_keys, int num_columns)
      : block_(block), memory_(memory), keys_(keys), values_(values), num_keys_(num_keys), num_columns_(num_columns) {}

  ASPEN_DEVICE void begin() {
    load_keys(0);
    load_values(0);
  }
  // keys_: [num_keys, depth of the scores] -> memory.keys: [kScoreChunks] of kKeys columns; zeros from num_keys on.
  ASPEN_DEVICE void load_keys(int first) {
    if (first < num_keys_) {
      block_.each_thread([&](int thread) {
        ASPEN_UNROLL for (int chunk = 0; chunk < Own::kScoreChunks; ++chunk) {
          load_columns<Scores>(block_, thread, memory_.keys[chunk], keys_, chunk * Scores::kDepth, first, num_keys_ - first);
        }
      });
    }
    block_.commit();
  }
  // values_: [num_keys, num_columns] -> memory.values: [kValueChunks] of kColumns columns; zeros from num_columns on.
  ASPEN_DEVICE void load_values(int first) {
    if (first < num_keys_) {
      block_.each_thread([&](int thread) {
        ASPEN_UNROLL for (int chunk = 0; chunk < Own::kValueChunks; ++chunk) {
          load_columns<Values>(block_, thread, memory_.values[chunk], values_, first + chunk * Values::kDepth, 0, num_columns_);
        }
      });
    }
    block_.commit();
  }
  ASPEN_DEVICE void wait_for_keys() { wait_for_all_but_the_last(); }
  ASPEN_DEVICE void wait_for_values() { wait_for_all_but_the_last(); }
  ASPEN_DEVICE void end() { block_.template wait<0>(); }

 private:
  ASPEN_DEVICE void wait_for_all_but_the_last() {
    block_.template wait<1>();
    if constexpr (Scores::kReadsByProxy) block_.publish();
    block_.sync();
  }

  Block<Own::kThreads>& block_;
  Memory& memory_;
  const Keys& keys_;
  const Columns& values_;
  const int num_keys_, num_columns_;
};

// One thread begins the copies. Keys arrive at barrier 0 and values at barrier 1; of each, filling n is phase n.
template <class Own, class Keys, class Columns, class Boxes>
class CopiesInBoxes {
 public:
  using Scores = typename Own::ScoresCore;
  using Values = typename Own::ValuesCore;
  using Memory = typename Own::Memory;
  static_assert(Scores::kReadsByProxy && Values::kReadsByProxy && Values::kDepth == Swizzle::kLine);

  ASPEN_DEVICE CopiesInBoxes(Block<Own::kThreads>& block, Memory& memory, const Keys&, const Columns&, const Boxes& boxes,
                             int num_keys, int)
      : block_(block), memory_(memory), boxes_(boxes), num_keys_(num_keys), copies_(block, memory.barriers.arrived) {}

  ASPEN_DEVICE void begin() {
    load_keys(0);
    load_values(0);
    // Waits for the queries, which threads copy.
    block_.commit();
    block_.template wait<0>();
    block_.publish();
    block_.sync();
  }
  ASPEN_DEVICE void load_keys(int first) {
    if (first >= num_keys_) return;
    auto keys = boxes_.keys;
    keys.first.at[1 - decltype(keys)::kDepthAxis] += first;
    begun_[0] += 1;
    block_.each_thread([&](int thread) {
      if (thread != 0) return;
      copies_.expect(0, static_cast<int>(sizeof memory_.keys));
      ASPEN_UNROLL for (int chunk = 0; chunk < Own::kScoreChunks; ++chunk) {
        copy_columns<Scores>(block_, copies_, memory_.keys[chunk], keys, chunk, 0);
      }
    });
  }
  ASPEN_DEVICE void load_values(int first) {
    if (first >= num_keys_) return;
    begun_[1] += 1;
    block_.each_thread([&](int thread) {
      if (thread != 0) return;
      copies_.expect(1, static_cast<int>(sizeof memory_.values));
      ASPEN_UNROLL for (int chunk = 0; chunk < Own::kValueChunks; ++chunk) {
        copy_columns<Values>(block_, copies_, memory_.values[chunk], boxes_.values, first / Values::kDepth + chunk, 1);
      }
    });
  }
  ASPEN_DEVICE void wait_for_keys() { wait_for(0); }
  ASPEN_DEVICE void wait_for_values() { wait_for(1); }
  ASPEN_DEVICE void end() {
    ASPEN_UNROLL for (int barrier = 0; barrier < 2; ++barrier) {
      if (waited_[barrier] < begun_[barrier]) wait_for(barrier);
    }
    block_.sync();
    copies_.end(block_);
  }

 private:
  ASPEN_DEVICE void wait_for(int barrier) { copies_.wait(barrier, waited_[barrier]++ % 2); }

  Block<Own::kThreads>& block_;
  Memory& memory_;
  const Boxes& boxes_;
  const int num_keys_;
  BoxCopies<Own::kThreads, 2> copies_;
  int begun_[2] = {}, waited_[2] = {};  // [keys, values]: fillings that were begun, and waited for
};

}  // namespace aspen::cuda
