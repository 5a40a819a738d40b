// What Python sees of runs that begin before their operands are complete: `_engine.Arrivals` and `_engine.ArrivingRun`.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arrivals.h"
#include "limits.h"

namespace aspen {

using Numbers = nanobind::ndarray<const int64_t, nanobind::numpy, nanobind::c_contig, nanobind::device::cpu>;
using Flags = nanobind::ndarray<const uint8_t, nanobind::numpy, nanobind::c_contig, nanobind::device::cpu>;

struct PyArrivals {
  std::shared_ptr<const Arrivals> arrivals;
  std::vector<uint8_t> wanted;  // whether the end of each tile is announced
};

// A run, and the arrays that it uses. Where Python drops it, the run is cancelled and waited for.
class PyArrivingRun {
 public:
  PyArrivingRun(std::shared_ptr<ArrivingRun> run, std::shared_ptr<EndedTiles> ended, std::shared_ptr<Watch> watch)
      : run_(std::move(run)), ended_(std::move(ended)), watch_(std::move(watch)) {}
  ~PyArrivingRun();

  ArrivingRun& run() const { return *run_; }
  // What has ended. Cancels the run first if its time is over, so that nobody waits for pieces that come too late. Throws
  // std::invalid_argument in a fork: nobody there would end the tiles.
  EndedTiles& ended() const;

  nanobind::object held;

 private:
  std::shared_ptr<ArrivingRun> run_;
  std::shared_ptr<EndedTiles> ended_;
  std::shared_ptr<Watch> watch_;  // null: no limits
};

PyArrivals make_arrivals(std::shared_ptr<const Plan> plan, const Numbers& counts, const Numbers& tiles, const Flags& wanted);

// Starts a run under the limits of the process. `order` is the name of a policy.
std::shared_ptr<PyArrivingRun> start_run(const PyArrivals& arrivals, std::span<const void* const> operands,
                                         std::span<void* const> results, std::optional<int64_t> run_key,
                                         const std::string& order);

void define_arrivals(nanobind::module_& module);

}  // namespace aspen
