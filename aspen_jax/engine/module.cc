// aspen_jax._engine: what Python sees of the engine. Documented in _engine.pyi. Only this file, lab.cc,
// python_arrivals.cc, python_recorder.cc and cuda/python.cc include nanobind.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cpu/cache.h"
#include "cpu/peak.h"
#include "cpu/target.h"
#include "cuda/driver.h"
#include "cuda/python.h"
#include "ffi.h"
#include "lab.h"
#include "limits.h"
#include "outcome.h"
#include "placed_run.h"
#include "plan.h"
#include "plan_cache.h"
#include "python_arrivals.h"
#include "python_recorder.h"
#include "runtime.h"
#include "selection.h"
#include "signature.h"

namespace nb = nanobind;

namespace aspen {
namespace {

void set_python_error(const char* name, const std::string& message) {
  nb::object type = nb::module_::import_("aspen_jax.errors").attr(name);
  // A message may quote what no graph holds, such as a variable of the environment, which need not be text.
  const nb::object text = nb::steal(PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace"));
  PyErr_SetObject(type.ptr(), text.ptr());
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const GraphError& error) {
    set_python_error("GraphFormatError", error.what());
  } catch (const RunError& error) {
    set_python_error("EngineError", error.what());
  } catch (const cuda::DeviceError& error) {
    set_python_error("EngineError", error.what());
  } catch (const std::invalid_argument& error) {
    set_python_error("InputError", error.what());
  } catch (const OutOfMemory& error) {
    set_python_error("EngineError", error.what());
  } catch (const std::system_error&) {
    set_python_error("EngineError", "the system refuses a thread; end some, or raise the limit on threads (ulimit -u)");
  } catch (const std::bad_alloc&) {
    set_python_error("EngineError", "out of memory; use a smaller batch or a smaller model");
  }
}

nb::dict registrations() {
  const FfiHandlers handlers = ffi_handlers();
  nb::dict stages;
  stages["instantiate"] = nb::capsule(handlers.instantiate);
  stages["execute"] = nb::capsule(handlers.execute);
  return stages;
}

nb::dict block_opcodes() {
  nb::dict opcodes;
#define ASPEN_BLOCK_OP(name, number, arity) opcodes[#name] = nb::make_tuple(number, arity);
#include "cpu/block_ops.inc"
#undef ASPEN_BLOCK_OP
  return opcodes;
}

cpu::Target target_named(const std::string& wanted) {
  std::string choices;
  for (const cpu::Target target : cpu::available_targets()) {
    if (cpu::name(target) == wanted) return target;
    choices += (choices.empty() ? "" : ", ") + std::string(cpu::name(target));
  }
  throw std::invalid_argument("CPU target '" + wanted + "' is not available here; choose one of: " + choices);
}

std::vector<std::string> names_of(const std::vector<cpu::Target>& targets) {
  std::vector<std::string> names;
  for (const cpu::Target target : targets) names.emplace_back(cpu::name(target));
  return names;
}

// Read through numpy's attributes, because the buffer protocol does not know bfloat16.
std::vector<int64_t> shape_of(nb::handle array) { return nb::cast<std::vector<int64_t>>(array.attr("shape")); }
void* data_of(nb::handle array) { return reinterpret_cast<void*>(nb::cast<uintptr_t>(array.attr("ctypes").attr("data"))); }

nb::object dtype_object(DType dtype) {
  return nb::module_::import_("aspen_jax.ir.dtypes").attr("DTYPES")[static_cast<int>(dtype)];
}

// The arrays, or copies of those that kernels could not read.
nb::sequence required(nb::sequence arrays) {
  const nb::object require = nb::module_::import_("numpy").attr("require"), requirements = nb::make_tuple("C", "A");
  nb::list result;
  for (const nb::handle array : arrays) result.append(require(array, nb::none(), requirements));
  return nb::borrow<nb::sequence>(result);
}

nb::list signature(const Plan& plan, size_t count, const Value& (Plan::*value)(size_t) const) {
  nb::list tensors;
  for (size_t i = 0; i < count; ++i) {
    const TensorView& tensor = (plan.*value)(i).dense;
    nb::list shape;
    for (int d = 0; d < tensor.rank; ++d) shape.append(tensor.shape[d]);
    tensors.append(nb::make_tuple(nb::tuple(shape), dtype_object(tensor.dtype)));
  }
  return tensors;
}

// Where and when each tile ran: worker, begin and end, in the tile's own row. Rows are written by many workers and read once the
// run is over, which comes after all of them.
class Timeline : public Observer {
 public:
  explicit Timeline(int64_t (*rows)[3]) : rows_(rows) {}
  void on_tile(const TileEvent& event) noexcept override {
    int64_t* const row = rows_[event.tile];
    row[0] = event.worker;
    row[1] = event.begin_ns;
    row[2] = event.end_ns;
  }

 private:
  int64_t (*rows_)[3];
};

// What a handler of a signal, such as Ctrl-C's, raised while this thread waited for a run.
struct SignalLook {
  std::exception_ptr raised;

  // Runs the handlers of the signals that have come, which Python does on its main thread alone.
  bool operator()() {
    const nb::gil_scoped_acquire acquire;
    if (raised == nullptr && PyErr_CheckSignals() != 0) raised = std::make_exception_ptr(nb::python_error());
    return raised != nullptr;
  }
};

constexpr size_t kCrcOffset = 12;  // in the header of the format (docs/graph_format.md)

// Shared with XLA's executables and immutable; a class of its own because nanobind wants to own what Python holds.
class PyPlan {
 public:
  explicit PyPlan(nb::bytes bytes) {
    const std::span view(static_cast<const std::byte*>(bytes.data()), bytes.size());
    {
      const nb::gil_scoped_release release;
      plan_ = plan_of(view);
    }
    std::memcpy(&crc_, view.data() + kCrcOffset, sizeof(crc_));
  }

  const Plan& operator*() const { return *plan_; }
  uint32_t crc() const { return crc_; }

  nb::list run(nb::sequence arrays, std::optional<int64_t> run_key) const {
    return with_arrays(arrays,
                       [&](const auto& operands, const auto& results) { run_limited(operands, results, nullptr, run_key); });
  }

  // Results that runs of a stream write again and again.
  nb::list new_results() const {
    const nb::object numpy = nb::module_::import_("numpy");
    nb::list arrays;
    for (const nb::handle tensor : signature(*plan_, plan_->num_results(), &Plan::result)) {
      arrays.append(numpy.attr("empty")(tensor[0], tensor[1]));
    }
    return arrays;
  }

  // Runs the tiles that have a byte other than 0, or all, in the state of the run before.
  void run_on(nb::sequence arrays, nb::list results, RunStateCache& states, std::optional<nb::bytes> chosen) const {
    std::shared_ptr<const Selection> selection;
    if (chosen.has_value()) {
      selection = std::make_shared<Selection>(*plan_, std::span(static_cast<const uint8_t*>(chosen->data()), chosen->size()));
    }
    const Continued continued{states, std::move(selection)};
    const Operands operands = operands_of(arrays);
    std::vector<void*> written;
    for (const nb::handle array : results) written.push_back(data_of(array));
    SignalLook signals;
    run_and_wait(operands.data, written, nullptr, std::nullopt, signals,
                 std::make_shared<Watch>(Limits::kNone, std::ref(signals)), &continued);
  }

  nb::object timeline(nb::sequence arrays) const {
    const nb::object rows = nb::module_::import_("numpy").attr("empty")(nb::make_tuple(plan_->num_tiles(), 3), "int64");
    const auto observer = std::make_shared<Timeline>(static_cast<int64_t (*)[3]>(data_of(rows)));
    with_arrays(arrays,
                [&](const auto& operands, const auto& results) { run_limited(operands, results, observer, std::nullopt); });
    return rows;
  }

  nb::tuple start(nb::sequence arrays, const PyArrivals& arrivals, std::optional<int64_t> run_key,
                  const std::string& order) const {
    if (arrivals.arrivals->plan() != plan_) throw std::invalid_argument("the arrivals are those of another plan");
    // The run reads arrays until it is over. They are brought into shape here, so that the run can be told to hold them.
    const nb::sequence held = required(arrays);
    std::shared_ptr<PyArrivingRun> run;
    const nb::list results = with_arrays(
        held, [&](const auto& operands, const auto& taken) { run = start_run(arrivals, operands, taken, run_key, order); });
    run->held = nb::make_tuple(held, results);
    return nb::make_tuple(results, run);
  }

  const std::shared_ptr<const Plan>& shared() const { return plan_; }

  nb::tuple run_placed(nb::sequence arrays, nb::args lab) const {
    const Operands operands = operands_of(arrays);
    const nb::list taken = new_results();
    std::vector<void*> results;
    for (const nb::handle array : taken) results.push_back(data_of(array));
    const nb::tuple ran = run_in_lab(plan_, operands.data, results, nb::make_tuple(operands.arrays, taken), lab);
    return nb::make_tuple(taken, ran);
  }

 private:
  struct Operands {
    nb::list arrays;  // must live until the run has ended
    std::vector<const void*> data;
  };

  // What lies behind arrays, once they are known to fit.
  Operands operands_of(nb::sequence arrays) const {
    Operands operands;
    if (nb::len(arrays) != plan_->num_operands()) {
      throw std::invalid_argument(count_mismatch("operand", nb::len(arrays), plan_->num_operands()));
    }
    for (const nb::handle given : required(arrays)) {
      const size_t index = operands.data.size();
      const nb::object array = nb::borrow(given);
      const TensorView& wanted = plan_->operand(index).dense;
      const std::vector<int64_t> shape = shape_of(array);
      const nb::object dtype = array.attr("dtype");
      if (!dtype.equal(dtype_object(wanted.dtype)) || !matches(wanted, wanted.dtype, shape)) {
        throw std::invalid_argument(mismatch("operand", index, describe(nb::str(dtype).c_str(), shape), wanted));
      }
      operands.data.push_back(data_of(array));
      operands.arrays.append(array);
    }
    return operands;
  }

  // Calls `run` with what lies behind arrays and behind new results, which it gives.
  template <typename Run>
  nb::list with_arrays(nb::sequence arrays, const Run& run) const {
    const Operands operands = operands_of(arrays);
    const nb::list taken = new_results();
    std::vector<void*> results;
    for (const nb::handle array : taken) results.push_back(data_of(array));
    run(operands.data, results);
    return taken;
  }

  void run_limited(const std::vector<const void*>& operands, const std::vector<void*>& results,
                   std::shared_ptr<Observer> observer, std::optional<int64_t> run_key) const {
    SignalLook signals;
    std::shared_ptr<Watch> watch;
    try {
      watch = watch_by_limits(*plan_, std::ref(signals));
    } catch (const std::runtime_error& error) {
      throw RunError(error.what());
    }
    run_and_wait(operands, results, std::move(observer), run_key, signals, std::move(watch));
  }

  void run_and_wait(const std::vector<const void*>& operands, const std::vector<void*>& results,
                    std::shared_ptr<Observer> observer, std::optional<int64_t> run_key, const SignalLook& signals,
                    const std::shared_ptr<Watch>& watch, const Continued* continued = nullptr) const {
    const nb::gil_scoped_release release;
    const auto outcome = std::make_shared<Outcome>();
    runtime().submit(
        plan_, operands, results, [outcome](const Failure& failure) { outcome->set(failure); }, std::move(observer), run_key,
        continued, watch);
    while (!outcome->wait_for(std::chrono::nanoseconds(Watch::kLookNs))) watch->look();
    const Failure failure = outcome->wait();
    if (signals.raised != nullptr) std::rethrow_exception(signals.raised);
    if (!failure.empty()) throw RunError(failure.text());
  }

  std::shared_ptr<const Plan> plan_;
  uint32_t crc_ = 0;
};

// Runs of a plan one after the other, each in the memory of the one before. One at a time: the caller sees to that.
class PyStream {
 public:
  explicit PyStream(const PyPlan& plan) : plan_(plan), results_(plan.new_results()) {}

  nb::list run(nb::sequence arrays, std::optional<nb::bytes> chosen) {
    plan_.run_on(arrays, results_, states_, std::move(chosen));
    return results_;
  }

 private:
  PyPlan plan_;
  nb::list results_;
  RunStateCache states_;
};

}  // namespace
}  // namespace aspen

NB_MODULE(_engine, module) {
  using namespace aspen;  // NOLINT: the module's body is a list of the names above

  nb::register_exception_translator(translate);
  module.attr("built_for_jaxlib") = ASPEN_JAXLIB_VERSION;
  module.def("registrations", &registrations);
  module.def("num_workers", [] { return runtime().num_workers(); });
  module.def(
      "set_num_workers", [](int n) { runtime().set_num_workers(n); }, nb::arg("n"), nb::call_guard<nb::gil_scoped_release>());
  module.def("cpu_targets", [] { return names_of(cpu::available_targets()); });
  module.def("cpu_targets_compiled", [] { return names_of(cpu::compiled_targets()); });
  module.def("cpu_targets_runnable", [] { return names_of(cpu::runnable_targets()); });
  module.def("cpu_target", [] { return std::string(cpu::name(cpu::chosen_target())); });
  module.def("cpu_l2_cache_bytes", &cpu::l2_cache_bytes);
  module.def("cpu_few_rows", [] { return cpu::few_rows(cpu::chosen_target()); });
  module.def("limits", [] {
    const Limits now = limits();
    const auto shown = [](int64_t number) { return number == Limits::kNone ? std::optional<int64_t>() : number; };
    return std::pair(shown(now.workspace), shown(now.nanoseconds));
  });
  module.def(
      "set_limits",
      [](std::optional<int64_t> workspace, std::optional<int64_t> nanoseconds) {
        set_limits({workspace.value_or(Limits::kNone), nanoseconds.value_or(Limits::kNone)});
      },
      nb::arg("workspace").none(), nb::arg("nanoseconds").none());
  module.def(
      "peak_flops", [](const std::string& target) { return cpu::peak_flops(target_named(target)); }, nb::arg("target"),
      nb::call_guard<nb::gil_scoped_release>());
  module.def("block_opcodes", &block_opcodes);
  cuda::define(module);
  define_lab(module);
  define_arrivals(module);
  define_recorder(module);

  module.def("register_kernels", &register_kernels, nb::arg("path"), nb::call_guard<nb::gil_scoped_release>());
  module.def(
      "trust", [](nb::bytes graph) { trust({static_cast<const std::byte*>(graph.data()), graph.size()}); }, nb::arg("graph"));

  nb::class_<PyPlan>(module, "Plan")
      .def(nb::init<nb::bytes>(), nb::arg("graph"))
      .def("run", &PyPlan::run, nb::arg("operands"), nb::arg("run_key").none() = nb::none())
      .def("timeline", &PyPlan::timeline, nb::arg("operands"))
      .def(
          "arrivals",
          [](const PyPlan& plan, const Numbers& counts, const Numbers& tiles, const Flags& wanted) {
            return make_arrivals(plan.shared(), counts, tiles, wanted);
          },
          nb::arg("counts"), nb::arg("tiles"), nb::arg("wanted"))
      .def("start", &PyPlan::start, nb::arg("operands"), nb::arg("arrivals"), nb::arg("run_key").none(), nb::arg("order"))
      .def("run_placed", &PyPlan::run_placed)
      .def_prop_ro("num_tiles", [](const PyPlan& plan) { return (*plan).num_tiles(); })
      .def_prop_ro("num_ops", [](const PyPlan& plan) { return (*plan).graph().ops.size(); })
      .def_prop_ro("workspace_bytes", [](const PyPlan& plan) { return (*plan).graph().workspace_bytes; })
      .def_prop_ro("total_cost", [](const PyPlan& plan) { return (*plan).total_cost(); })
      .def_prop_ro("crc", &PyPlan::crc)
      .def_prop_ro("operands", [](const PyPlan& plan) { return signature(*plan, (*plan).num_operands(), &Plan::operand); })
      .def_prop_ro("results", [](const PyPlan& plan) { return signature(*plan, (*plan).num_results(), &Plan::result); });

  nb::class_<PyStream>(module, "Stream")
      .def(nb::init<const PyPlan&>(), nb::arg("plan"))
      .def("run", &PyStream::run, nb::arg("operands"), nb::arg("chosen").none());
}
