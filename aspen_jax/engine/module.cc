// aspen_jax._engine: what Python sees of the engine. After a change to a signature or docstring run tools/engine_stub.py, which
// writes _engine.pyi. Only this file, lab.cc, python_arrivals.cc, python_recorder.cc and cuda/python.cc include nanobind.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
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

// Whether Ctrl-C was pressed and Python itself answers it. It is told again, to raise KeyboardInterrupt once the call is over.
bool is_interrupted() noexcept {
  const nb::gil_scoped_acquire acquire;
  if (!PyOS_InterruptOccurred()) return false;
  bool is_pythons = false;
  try {
    const nb::module_ signal = nb::module_::import_("_signal");
    is_pythons = signal.attr("getsignal")(signal.attr("SIGINT")).is(signal.attr("default_int_handler"));
  } catch (const nb::python_error&) {  // the run goes on
  }
  PyErr_SetInterrupt();  // behind all that runs Python's code, which would answer it here
  return is_pythons;
}

nb::typed<nb::dict, nb::str, nb::capsule> registrations() {
  const FfiHandlers handlers = ffi_handlers(is_interrupted);
  nb::dict stages;
  stages["instantiate"] = nb::capsule(handlers.instantiate);
  stages["execute"] = nb::capsule(handlers.execute);
  return stages;
}

nb::typed<nb::dict, nb::str, nb::typed<nb::tuple, int, int>> block_opcodes() {
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

using Arrays = nb::typed<nb::sequence, nb::any>;
using NewArrays = nb::typed<nb::list, nb::ndarray<nb::numpy>>;

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
    if (row[1] == 0) row[1] = event.begin_ns;  // of a tile that has paused, where it began
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

  NewArrays run(Arrays arrays, std::optional<int64_t> run_key) const {
    return with_arrays(arrays,
                       [&](const auto& operands, const auto& results) { run_limited(operands, results, nullptr, run_key); });
  }

  // Results that runs of a stream write again and again.
  NewArrays new_results() const {
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

  nb::typed<nb::object, nb::ndarray<nb::numpy, int64_t, nb::shape<-1, 3>>> timeline(Arrays arrays) const {
    const nb::object rows = nb::module_::import_("numpy").attr("zeros")(nb::make_tuple(plan_->num_tiles(), 3), "int64");
    const auto observer = std::make_shared<Timeline>(static_cast<int64_t (*)[3]>(data_of(rows)));
    with_arrays(arrays,
                [&](const auto& operands, const auto& results) { run_limited(operands, results, observer, std::nullopt); });
    return rows;
  }

  std::pair<NewArrays, std::shared_ptr<PyArrivingRun>> start(Arrays arrays, const PyArrivals& arrivals,
                                                             std::optional<int64_t> run_key, const std::string& order) const {
    if (arrivals.arrivals->plan() != plan_) throw std::invalid_argument("the arrivals are those of another plan");
    // The run reads arrays until it is over. They are brought into shape here, so that the run can be told to hold them.
    const nb::sequence held = required(arrays);
    std::shared_ptr<PyArrivingRun> run;
    NewArrays results = with_arrays(
        held, [&](const auto& operands, const auto& taken) { run = start_run(arrivals, operands, taken, run_key, order); });
    run->held = nb::make_tuple(held, results);
    return {std::move(results), std::move(run)};
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
  NewArrays with_arrays(nb::sequence arrays, const Run& run) const {
    const Operands operands = operands_of(arrays);
    NewArrays taken = new_results();
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

  NewArrays run(Arrays arrays, std::optional<nb::bytes> chosen) {
    plan_.run_on(arrays, results_, states_, std::move(chosen));
    return results_;
  }

 private:
  PyPlan plan_;
  NewArrays results_;
  RunStateCache states_;
};

}  // namespace
}  // namespace aspen

NB_MODULE(_engine, module) {
  using namespace aspen;  // NOLINT: the module's body is a list of the names above

  nb::register_exception_translator(translate);
  module.doc() = R"(The extension module (engine/module.cc).

Attributes:
    built_for_jaxlib: version of the jaxlib whose headers the module was compiled with.
    CUDA_STREAMS: streams of a run on CUDA.
    CUDA_FEWEST_TILES: fewest tiles of an op that are launched together on CUDA, where it has so many.
    NEVER: nanoseconds that stand for never, which a resource without a kernel for a tile takes.)";
  module.attr("built_for_jaxlib") = ASPEN_JAXLIB_VERSION;
  module.def("registrations", &registrations, "The handlers of the custom call by stage, for `jax.ffi.register_ffi_target`.");
  module.def(
      "num_workers", [] { return runtime().num_workers(); }, "Workers (DSEs) that exist or that the first run will start.");
  module.def(
      "set_num_workers", [](int n) { runtime().set_num_workers(n); }, nb::arg("n"), nb::call_guard<nb::gil_scoped_release>(),
      "Add or remove workers, at any time.");
  module.def(
      "cpu_targets", [] { return names_of(cpu::available_targets()); },
      "Instruction sets that this build has kernels for and this machine can run, the best last.");
  module.def(
      "cpu_targets_compiled", [] { return names_of(cpu::compiled_targets()); },
      "Instruction sets that this build has kernels for, whatever this machine can run.");
  module.def(
      "cpu_targets_runnable", [] { return names_of(cpu::runnable_targets()); },
      "Instruction sets that this machine can run, whatever this build has kernels for, the best last.");
  module.def(
      "cpu_target", [] { return std::string(cpu::name(cpu::chosen_target())); },
      "The instruction set in use: the best, or what ASPEN_CPU_TARGET says.");
  module.def("cpu_l2_cache_bytes", &cpu::l2_cache_bytes,
             "Bytes of a core's L2 cache, as the operating system says; 1 MiB where it does not.");
  module.def(
      "cpu_few_rows", [] { return cpu::few_rows(cpu::chosen_target()); },
      "Most rows with which the kernels of the target in use read a product's right operand once, in place.");
  module.def(
      "limits",
      [] {
        const Limits now = limits();
        const auto shown = [](int64_t number) { return number == Limits::kNone ? std::optional<int64_t>() : number; };
        return std::pair(shown(now.workspace), shown(now.nanoseconds));
      },
      "The most bytes of workspace and nanoseconds of `Plan.run` and `Plan.timeline`; None where there is no limit.");
  module.def(
      "set_limits",
      [](std::optional<int64_t> workspace, std::optional<int64_t> nanoseconds) {
        set_limits({workspace.value_or(Limits::kNone), nanoseconds.value_or(Limits::kNone)});
      },
      nb::arg("workspace").none(), nb::arg("nanoseconds").none(), "Change the limits, for runs that begin from now on.");
  module.def(
      "peak_flops", [](const std::string& target) { return cpu::peak_flops(target_named(target)); }, nb::arg("target"),
      nb::call_guard<nb::gil_scoped_release>(),
      "Measured float32 FLOP/s of one core with the vectors of an available target; takes about 20 ms.");
  module.def("block_opcodes", &block_opcodes, "Number and number of arguments of each instruction of block programs, by name.");
  cuda::define(module);
  define_lab(module);
  define_arrivals(module);
  define_recorder(module);

  module.def("register_kernels", &register_kernels, nb::arg("path"), nb::call_guard<nb::gil_scoped_release>(),
             R"(Let graphs name the kernels of a shared library, which stays loaded, and give their names.

Raises:
    InputError: it cannot be loaded, shows no kernels, is for another version of the engine, or names a kernel that there is.)");
  module.def(
      "trust", [](nb::bytes graph) { trust({static_cast<const std::byte*>(graph.data()), graph.size()}); }, nb::arg("graph"),
      R"(Leave out, in runs of these graph bytes, what keeps a stranger's graph from reading memory that nobody has written.

Its edges must be known to be right. Only results that ops of the graph read cost time without this.)");

  nb::class_<PyPlan>(module, "Plan", R"(A graph that was checked and made ready to run on this machine's kernels.

Plans of equal bytes share everything, with each other and with the executables of XLA.)")
      .def(nb::init<nb::bytes>(), nb::arg("graph"), R"(Read and check graph bytes (docs/graph_format.md).

Raises:
    GraphFormatError: the bytes are no graph, or one that this machine's kernels refuse.)")
      .def("run", &PyPlan::run, nb::arg("operands"), nb::arg("run_key").none() = nb::none(),
           R"(Run the graph on arrays of exactly the shapes and dtypes it was made for.

Other threads of Python go on meanwhile. What a signal's handler raises, such as Ctrl-C's, ends the run at its next tile.

Args:
    operands: the arrays.
    run_key: nanoseconds after its arrival at which the run is due; of several the one that is due first goes first. The
        graph's own if None.

Raises:
    InputError: number, shapes or dtypes of the arrays are others.
    EngineError: the run failed, or needs more than the limits allow.)")
      .def("timeline", &PyPlan::timeline, nb::arg("operands"),
           R"(Run the graph as `run` does, and say where and when instead of what.

Returns:
    int64 array [T, 3]: of each tile the worker (-1: the calling thread), and when it began and ended, in nanoseconds of a
    steady clock.)")
      .def(
          "arrivals",
          [](const PyPlan& plan, const Numbers& counts, const Numbers& tiles, const Flags& wanted) {
            return make_arrivals(plan.shared(), counts, tiles, wanted);
          },
          nb::arg("counts"), nb::arg("tiles"), nb::arg("wanted"),
          R"(Say which tiles wait for which pieces of operands; for any number of runs.

Args:
    counts: int64 [pieces], how many tiles wait for each piece.
    tiles: int64, those of the first piece, then of the second.
    wanted: uint8 [T], whether the end of each tile is announced.

Raises:
    InputError: the arrays do not fit together, or the graph has no such tile.)")
      .def("start", &PyPlan::start, nb::arg("operands"), nb::arg("arrivals"), nb::arg("run_key").none(), nb::arg("order"),
           R"(Start a run that waits for pieces of its operands (engine/arrivals.h).

Args:
    operands: as `run` takes them. Those of which pieces are to come must be C-contiguous and aligned, or the run reads a
        copy. They are written into until the piece that holds the place has arrived.
    arrivals: which tiles wait for which pieces.
    run_key: as for `run`.
    order: the name of one of the engine's policies (engine/policy.h).

Returns:
    The results, of which a part is valid once the tiles that write it have been announced; and the run.

Raises:
    InputError: something does not fit.
    EngineError: memory is short or beyond the limits, or no worker can be started.)")
      .def("run_placed", &PyPlan::run_placed,
           nb::sig("def run_placed(self, operands: collections.abc.Sequence[typing.Any], graph: VirtualGraph, "
                   "machine: VirtualMachine, nanoseconds: numpy.ndarray, place: typing.Any, order: str | int, "
                   "lanes: collections.abc.Sequence[tuple[int, collections.abc.Sequence[int]]], held: typing.Any, /) -> "
                   "tuple[list[numpy.ndarray], tuple[numpy.ndarray, numpy.ndarray, int]]"),
           R"(Run the graph as a machine of the lab would (engine/placed_run.h).

Args:
    operands: as `run` takes them.
    graph: the same graph as the lab knows it.
    machine: on what.
    nanoseconds: int64 [T, resources], by which "earliest finish" and functions place.
    place: as `simulate` takes it; not None where there is more than one memory.
    order: as `simulate` takes it.
    lanes: of each resource how often it runs a tile, and the cores that it may use, all if there are none.
    held: lives as long as the run, as what a compiled function belongs to.

Functions of Python are called in the calling thread. What a signal's handler raises there ends the run. A lane that is in
a compiled function then, and does not come back, is given up: the run's memory stays held.

Returns:
    The results; and as `simulate` gives them the rows of tiles and copies, in nanoseconds since the lanes began, with
    the nanoseconds that placing took in all, where it is done during the run.

Raises:
    InputError: something does not fit.
    EngineError: a tile failed, the run is beyond the limits, or a compiled function said so. What a function in `place`
        raises is raised here.)")
      .def_prop_ro("num_tiles", [](const PyPlan& plan) { return (*plan).num_tiles(); })
      .def_prop_ro("num_ops", [](const PyPlan& plan) { return (*plan).graph().ops.size(); })
      .def_prop_ro(
          "workspace_bytes", [](const PyPlan& plan) { return (*plan).graph().workspace_bytes; },
          "Memory that each run in flight holds for intermediate values.")
      .def_prop_ro(
          "total_cost", [](const PyPlan& plan) { return (*plan).total_cost(); },
          "Sum of the tiles' estimated costs in nanoseconds.")
      .def_prop_ro("crc", &PyPlan::crc, "CRC-32 of the graph's payload.")
      .def_prop_ro(
          "operands", [](const PyPlan& plan) { return signature(*plan, (*plan).num_operands(), &Plan::operand); },
          nb::sig("def operands(self) -> list[tuple[tuple[int, ...], numpy.dtype]]"), "Shape and dtype of each operand.")
      .def_prop_ro(
          "results", [](const PyPlan& plan) { return signature(*plan, (*plan).num_results(), &Plan::result); },
          nb::sig("def results(self) -> list[tuple[tuple[int, ...], numpy.dtype]]"), "Shape and dtype of each result.");

  nb::class_<PyStream>(
      module, "Stream",
      "Runs of a graph one after the other, each in the memory of the one before. The caller runs one at a time.")
      .def(nb::init<const PyPlan&>(), nb::arg("plan"))
      .def("run", &PyStream::run, nb::arg("operands"), nb::arg("chosen").none(),
           R"(Run some tiles. Values that the others write are those of the runs before.

Args:
    operands: as `Plan.run` takes them.
    chosen: a byte for each tile, 0 for those that do not run; others wait for their parents among them. None: all run.

Returns:
    The results, the same arrays each time.

Raises:
    InputError: number, shapes or dtypes of the arrays, or the number of bytes, are others.
    EngineError: the run failed.)");
}
