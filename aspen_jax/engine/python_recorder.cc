// What Python sees of all runs of a time: `_engine.Recorder`.
#include "python_recorder.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "plan_cache.h"
#include "recorder.h"
#include "runtime.h"

namespace nb = nanobind;

namespace aspen {
namespace {

// Shared with the runs that it watches, which may outlive Python's object.
class PyRecorder {
 public:
  explicit PyRecorder(size_t capacity) : recorder_(std::make_shared<Recorder>(capacity, plan_in_use)) {}

  void start() const { runtime().set_observer(recorder_); }

  std::tuple<nb::bytes, std::vector<nb::bytes>, size_t, int64_t> stop() const {
    runtime().set_observer(nullptr);
    const std::vector<int64_t> rows = recorder_->rows();
    const size_t left_out = recorder_->num_seen() - rows.size() / Recorder::kColumns;
    std::vector<nb::bytes> graphs;
    for (const std::string& bytes : recorder_->graphs()) graphs.emplace_back(bytes.data(), bytes.size());
    return {nb::bytes(rows.data(), rows.size() * sizeof(int64_t)), std::move(graphs), left_out, recorder_->first_left_out_ns()};
  }

 private:
  std::shared_ptr<Recorder> recorder_;
};

}  // namespace

void define_recorder(nb::module_& module) {
  nb::class_<PyRecorder>(
      module, "Recorder",
      "Where and when each tile ran, of all runs that begin while it watches and are not watched by `Plan.timeline`.")
      .def(nb::init<size_t>(), nb::arg("capacity"), R"(Take memory.

Args:
    capacity: for how many tiles there is room; those after them are only counted.

Raises:
    EngineError: there is not so much memory.)")
      .def("start", &PyRecorder::start, "Watch from now on, instead of any other recorder.")
      .def("stop", &PyRecorder::stop, R"(Watch no more.

Returns:
    Rows of six int64, one for each tile: number of its graph, number of the run, tile, worker (-1: the calling thread),
    begin and end in nanoseconds of a steady clock; the bytes of each graph; how many tiles are missing, and when the
    first of them began that found no room (0: there was room for all).)");
}

}  // namespace aspen
