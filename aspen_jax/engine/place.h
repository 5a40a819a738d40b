// What a compiled policy of the scheduling lab is: a function that places a tile, by the C calling convention.
//
// A C++ file of your own includes this header and defines `aspen_place`; aspen_jax.schedule.NativePolicy compiles and loads it.
#pragma once

#include <cstdint>

#include "policy.h"

extern "C" {

// The resource of a tile that has become ready, `now` nanoseconds after the run began. `earliest_finish` says when the tile is
// expected to end on each of `num_resources`, copies included: kNever (virtual_machine.h) or more where there is no kernel.
// Called by one thread at a time, from several. aspen::kRaised says that it failed: the run ends with an error.
int32_t aspen_place(int64_t tile, int64_t now, const int64_t* earliest_finish, int64_t num_resources);

// May be left out: in which order lanes take tiles (policy.h).
extern const aspen::Policy aspen_order;
}

namespace aspen {

using CompiledPlace = decltype(&aspen_place);

inline constexpr int32_t kRaised = INT32_MIN;

}  // namespace aspen
