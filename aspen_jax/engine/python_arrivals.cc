// What Python sees of runs that begin before their operands are complete.
#include "python_arrivals.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <utility>

#include "placed_run.h"
#include "policy.h"
#include "runtime.h"

namespace nb = nanobind;

namespace aspen {

PyArrivingRun::~PyArrivingRun() {
  const nb::gil_scoped_release release;
  // A fork has none of the workers that would end the run, and none of them reads the arrays there.
  if (!run_->is_of_this_process()) return;
  run_->cancel("the run was given up");
  ended_->wait_for_end();
}

EndedTiles& PyArrivingRun::ended() const {
  run_->check_process();
  if (watch_ != nullptr && watch_->is_over()) run_->cancel(watch_->why());
  return *ended_;
}

PyArrivals make_arrivals(std::shared_ptr<const Plan> plan, const Numbers& counts, const Numbers& tiles, const Flags& wanted) {
  if (wanted.size() != plan->num_tiles()) {
    throw std::invalid_argument("the graph has " + std::to_string(plan->num_tiles()) + " tiles, and " +
                                std::to_string(wanted.size()) + " flags say which are announced");
  }
  return {std::make_shared<const Arrivals>(std::move(plan), std::span(counts.data(), counts.size()),
                                           std::span(tiles.data(), tiles.size())),
          {wanted.data(), wanted.data() + wanted.size()}};
}

std::shared_ptr<PyArrivingRun> start_run(const PyArrivals& arrivals, std::span<const void* const> operands,
                                         std::span<void* const> results, std::optional<int64_t> run_key,
                                         const std::string& order) {
  const Policy& policy = policy_called(order);
  const auto ended = std::make_shared<EndedTiles>(arrivals.wanted);
  std::shared_ptr<ArrivingRun> run;
  std::shared_ptr<Watch> watch;
  try {
    const nb::gil_scoped_release release;
    watch = watch_by_limits(*arrivals.arrivals->plan());
    run = runtime().start(
        arrivals.arrivals, operands, results, [ended](const Failure& failure) { ended->close(failure); }, ended, run_key, &policy,
        watch);
  } catch (const std::runtime_error& error) {
    throw RunError(error.what());
  }
  return std::make_shared<PyArrivingRun>(std::move(run), ended, std::move(watch));
}

void define_arrivals(nb::module_& module) {
  nb::class_<PyArrivals>(module, "Arrivals",
                         "Which tiles wait for which pieces of operands, and whose end is announced; see `Plan.arrivals`.")
      .def_prop_ro("num_pieces", [](const PyArrivals& self) { return self.arrivals->num_pieces(); });
  // All let other threads of Python go on: one of them may hold what a tile, or the last piece, waits for.
  nb::class_<PyArrivingRun>(module, "ArrivingRun",
                            R"(A run that waits for pieces. Where it is dropped, it is cancelled, and waited for.

Whoever asks for what has ended when the limit of time is over cancels it.)")
      .def(
          "arrived", [](PyArrivingRun& self, size_t piece) { self.run().arrived(piece); }, nb::arg("piece"),
          nb::call_guard<nb::gil_scoped_release>(),
          R"(Say that the bytes of a piece are in the operand. Does nothing after `cancel`.

Raises:
    InputError: there is no such piece, it has arrived already, or this process is a fork of the run's.)")
      .def(
          "cancel", [](PyArrivingRun& self, const std::string& why) { self.run().cancel(why); }, nb::arg("why"),
          nb::call_guard<nb::gil_scoped_release>(), "End the run with this error. Does nothing if all pieces have arrived.")
      .def(
          "ended", [](PyArrivingRun& self, std::optional<double> seconds) { return self.ended().take(seconds); },
          nb::arg("seconds").none(), nb::call_guard<nb::gil_scoped_release>(),
          R"(The announced tiles that have ended since the last call, in that order.

Args:
    seconds: how long to wait until there is one, or the run is over; forever if None.)")
      .def(
          "error", [](PyArrivingRun& self, std::optional<double> seconds) { return self.ended().error(seconds); },
          nb::arg("seconds").none(), nb::call_guard<nb::gil_scoped_release>(),
          "The run's error, empty if it has succeeded; None if it was not over within so many seconds.");
}

}  // namespace aspen
