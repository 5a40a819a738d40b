// What Python sees of all runs of a time: `_engine.Recorder`.
#include "python_recorder.h"

#include <memory>
#include <string>
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

  nb::tuple stop() const {
    runtime().set_observer(nullptr);
    const std::vector<int64_t> rows = recorder_->rows();
    const size_t left_out = recorder_->num_seen() - rows.size() / Recorder::kColumns;
    nb::list graphs;
    for (const std::string& bytes : recorder_->graphs()) graphs.append(nb::bytes(bytes.data(), bytes.size()));
    return nb::make_tuple(nb::bytes(rows.data(), rows.size() * sizeof(int64_t)), graphs, left_out,
                          recorder_->first_left_out_ns());
  }

 private:
  std::shared_ptr<Recorder> recorder_;
};

}  // namespace

void define_recorder(nb::module_& module) {
  nb::class_<PyRecorder>(module, "Recorder")
      .def(nb::init<size_t>(), nb::arg("capacity"))
      .def("start", &PyRecorder::start)
      .def("stop", &PyRecorder::stop);
}

}  // namespace aspen
