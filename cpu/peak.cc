#include "peak.h"

#include <algorithm>
#include <chrono>

#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

double measure_peak();

namespace {

// Two multiply-adds a cycle at a latency of 4 or 5 need 10 independent chains.
constexpr int kChains = 12;

// Returns the sum so that nothing is optimised away.
float chains(int64_t steps, float factor) {
  Floats sum[kChains];
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) sum[i] = broadcast(static_cast<float>(i));
  const Floats a = broadcast(factor);
  const Floats b = broadcast(1.0f - factor);
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) sum[i] = fma(sum[i], a, b);
  }
  Floats total = {};
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) total += sum[i];
  return total[0];
}

}  // namespace

double measure_peak() {
  constexpr int64_t kSteps = 100'000;
  double best = 0;
  volatile float sink = 0.5f;
  for (int run = 0; run < 12; ++run) {
    const auto start = std::chrono::steady_clock::now();
    sink = chains(kSteps, sink * 0.0f + 0.5f);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, 2.0 * kLanes * kChains * kSteps / seconds.count());
  }
  return best;
}

}  // namespace aspen::cpu::ASPEN_TARGET
