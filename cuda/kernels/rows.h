// Row programs and reductions: a team of threads walks each row, once for each stage that is reduced. A tile is any box of the
// output; it computes the whole of each row that it has a part of.
//
// A stage is generated code over the inputs and what earlier stages give. What it gives for each element is kept by the thread
// that computed it, in shared memory, or computed again where it is read.
#pragma once

#include "row_walk.h"

namespace aspen::cuda {

template <int kNumber>
struct StageNumber {};

// What becomes of a stage. The last of a program is its result; others may be stored beside it.
struct NumberStage {  // a number for each row, which every thread computes that walks it
  static constexpr bool kIsReduced = false, kOfElements = false;
  static constexpr int kKept = 0;     // arrays in shared memory
  static constexpr int kStored = -1;  // the further output that it is stored in
};
template <uint32_t (*kCombine)(uint32_t, uint32_t), uint32_t kStart_>
struct ReducedStage : NumberStage {  // a number for each row, combined of those of its elements
  static constexpr bool kIsReduced = true;
  static constexpr uint32_t kStart = kStart_;
  static ASPEN_DEVICE uint32_t combine(uint32_t a, uint32_t b) { return kCombine(a, b); }
};
struct ElementStage : NumberStage {  // a value for each element, computed where it is read
  static constexpr bool kOfElements = true;
};
template <int kPlace_>
struct KeptStage : ElementStage {  // a value for each element, computed once
  static constexpr int kKept = 1, kPlace = kPlace_;
};

template <class Own, int kStored_>
struct StoredStage : Own {
  static constexpr int kStored = kStored_;
};

template <int kNumber, class First, class... Others>
struct StageOf : StageOf<kNumber - 1, Others...> {};
template <class First, class... Others>
struct StageOf<0, First, Others...> {
  using Type = First;
};

template <class Op, RowsShape kShape, class... Stages>
struct Rows : Op {
  using Addresses = typename Op::Addresses;
  using Walk = RowWalk<Op::kRank, kShape>;
  using Team = typename Walk::Team;
  static constexpr int kThreads = Walk::kThreads, kNumStages = sizeof...(Stages), kNumKept = (Stages::kKept + ...);
  struct Memory {
    typename Team::template Memory<uint32_t> team;
    uint32_t kept[kNumKept > 0 ? kNumKept : 1][kNumKept > 0 ? Walk::kSteps : 1][kNumKept > 0 ? kThreads : 1];
  };

  static ASPEN_DEVICE void tile(const Addresses& buffers, const int32_t* box, Memory& memory) {
    State state{buffers, box, memory, {}, {}, {}};
    for (int first = 0; first < Walk::num_rows(box); first += Team::kRows) {
      state.walk.begin(state.block, box, first);
      state.block.each_thread([&](int thread) { state.numbers[thread] = {}; });
      pass<0, Stages...>(state);
    }
  }

 private:
  template <int kStage>
  using Stage = typename StageOf<kStage, Stages...>::Type;

  // What stages of numbers give for a thread's row.
  struct Numbers {
    uint32_t of[kNumStages];
  };
  struct State {
    const Addresses& buffers;
    const int32_t* box;
    Memory& memory;
    Block<kThreads> block;
    Walk walk;
    PerThread<Numbers, kThreads> numbers;
  };

  // What a stage reads of earlier ones, at an element of a row.
  struct Known {
    State& state;
    int thread;
    const int* at;
    int step;

    template <int kStage>
    ASPEN_DEVICE uint32_t of() const {
      if constexpr (Stage<kStage>::kKept > 0) {
        return state.memory.kept[Stage<kStage>::kPlace][step][thread];
      } else if constexpr (Stage<kStage>::kOfElements) {
        return computed<kStage>();
      } else {
        return state.numbers[thread].of[kStage];
      }
    }
    template <int kStage>
    ASPEN_DEVICE uint32_t computed() const {
      return Op::stage(state.buffers, at, StageNumber<kStage>(), *this);
    }
  };

  // Stages from number kStage on, for all rows of the walk.
  template <int kStage, class Own, class... Others>
  static ASPEN_DEVICE void pass(State& state) {
    constexpr bool kIsLast = sizeof...(Others) == 0;
    if constexpr (Own::kIsReduced) {
      reduce<kStage>(state);
    } else if constexpr (!Own::kOfElements) {
      state.walk.each_row(state.block, [&](int thread, const int* at) {
        const uint32_t number = Known{state, thread, at, 0}.template computed<kStage>();
        state.numbers[thread].of[kStage] = number;
      });
      if constexpr (Own::kStored >= 0) {
        state.walk.each_result(state.block, [&](int thread, const int* out) {
          Op::store(state.buffers, out, StageNumber<kStage>(), state.numbers[thread].of[kStage]);
        });
      }
    } else if constexpr (kIsLast) {
      state.walk.each_element(state.block, [&](int thread, const int* at, int step) {
        if (!Walk::is_in(state.box, at)) return;
        Op::finish(state.buffers, at, Known{state, thread, at, step}.template computed<kStage>());
      });
    } else if constexpr (Own::kKept > 0 || Own::kStored >= 0) {
      state.walk.each_element(state.block, [&](int thread, const int* at, int step) {
        const uint32_t value = Known{state, thread, at, step}.template computed<kStage>();
        if constexpr (Own::kKept > 0) state.memory.kept[Own::kPlace][step][thread] = value;
        if constexpr (Own::kStored >= 0) {
          if (Walk::is_in(state.box, at)) Op::store(state.buffers, at, StageNumber<kStage>(), value);
        }
      });
    }
    if constexpr (!kIsLast) {
      pass<kStage + 1, Others...>(state);
    } else if constexpr (!Own::kOfElements) {
      state.walk.each_result(
          state.block, [&](int thread, const int* out) { Op::finish(state.buffers, out, state.numbers[thread].of[kStage]); });
    }
  }

  template <int kStage>
  static ASPEN_DEVICE void reduce(State& state) {
    using Own = Stage<kStage>;
    PerThread<uint32_t, kThreads> found;
    state.block.each_thread([&](int thread) { found[thread] = Own::kStart; });
    state.walk.each_element(state.block, [&](int thread, const int* at, int step) {
      found[thread] = Own::combine(found[thread], Known{state, thread, at, step}.template computed<kStage>());
    });
    Team::reduce(state.block, state.memory.team, found, Own::combine);
    state.block.each_thread([&](int thread) { state.numbers[thread].of[kStage] = found[thread]; });
  }
};

}  // namespace aspen::cuda
