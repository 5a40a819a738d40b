// What Python sees of the scheduling lab.
#include "lab.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "addresses.h"
#include "desk.h"
#include "expectation.h"
#include "limits.h"
#include "place.h"
#include "placed_run.h"
#include "turns.h"
#include "virtual_time.h"

namespace nb = nanobind;

namespace aspen {
namespace {

template <typename T>
using Array = nb::ndarray<const T, nb::numpy, nb::c_contig, nb::device::cpu>;

template <typename T>
std::span<const T> span_of(const Array<T>& array) {
  return {array.data(), array.size()};
}

// How arguments and results are named to Python; what is behind `Lab...` is looked at when it is used.
using LabGraph = nb::typed<nb::object, VirtualGraph>;
using LabMachine = nb::typed<nb::object, VirtualMachine>;
using LabOrder = nb::typed<nb::object, std::variant<nb::str, nb::int_>>;
template <nb::ssize_t... kShape>
using NewArray = nb::typed<nb::object, nb::ndarray<nb::numpy, int64_t, nb::shape<kShape...>>>;

// A new array that owns its numbers.
template <size_t kColumns, typename Fill>
NewArray<-1, kColumns> rows_of(size_t count, const Fill& fill) {
  auto numbers = std::make_unique<int64_t[]>(count * kColumns);
  for (size_t row = 0; row < count; ++row) fill(row, numbers.get() + row * kColumns);
  int64_t* const data = numbers.release();
  const nb::capsule owner(data, [](void* owned) noexcept { delete[] static_cast<int64_t*>(owned); });
  return nb::cast(nb::ndarray<nb::numpy, int64_t>(data, {count, kColumns}, owner));
}

// The number itself. An address that was found good is not looked up again. Throws std::invalid_argument for what cannot be one.
template <typename Check>
uintptr_t checked_address(const nb::object& number, const char* what, const Check& is_good) {
  static std::set<uintptr_t> good;  // under the GIL, as all that comes here
  const nb::object in_range = nb::module_::import_("operator").attr("and_")(number, nb::int_(~uintptr_t{0}));
  if (in_range.equal(number)) {
    const auto address = nb::cast<uintptr_t>(number);
    if (good.contains(address) || is_good(address)) {
      good.insert(address);
      return address;
    }
  }
  throw std::invalid_argument(std::string(nb::str(number).c_str()) + " is not the address of " + what +
                              "; give what Compiled or NativePolicy gives, or the address of a C function");
}

// By its name, or by the address of one that a policy has compiled.
const Policy& order_of(const nb::object& order) {
  if (nb::isinstance<nb::int_>(order)) {
    return *reinterpret_cast<const Policy*>(checked_address(order, "an order (engine/policy.h)", [](uintptr_t address) {
      if (address % alignof(Policy) != 0 || !is_data(address, sizeof(Policy))) return false;
      const auto is_function = [](auto* function) { return is_code(reinterpret_cast<uintptr_t>(function)); };
      const auto& policy = *reinterpret_cast<const Policy*>(address);
      return is_function(policy.column) && is_function(policy.victim) && (policy.prefer == nullptr || is_function(policy.prefer));
    }));
  }
  const auto name = nb::cast<std::string>(order);
  return name == "exact" ? kExact : policy_called(name);
}

VirtualMachine machine_of(std::vector<int> lanes, std::vector<int> memories,
                          const std::vector<std::pair<int64_t, double>>& links) {
  std::vector<VirtualLink> all;
  for (const auto& [latency_ns, ns_per_byte] : links) all.push_back({latency_ns, ns_per_byte});
  return {std::move(lanes), std::move(memories), std::move(all)};
}

// An expectation that keeps what it reads, and knows the time.
class View {
 public:
  View(LabGraph graph, LabMachine machine, const Array<int64_t>& nanoseconds)
      : graph_(std::move(graph)),
        machine_(std::move(machine)),
        nanoseconds_(nanoseconds.data(), nanoseconds.data() + nanoseconds.size()),
        expectation_(nb::cast<const VirtualGraph&>(graph_), nb::cast<const VirtualMachine&>(machine_), nanoseconds_) {}

  NewArray<-1> earliest_finish(int64_t tile) const {
    const auto count = static_cast<size_t>(expectation_.machine().num_resources());
    const nb::object rows = rows_of<1>(count, [&](size_t resource, int64_t* number) {
      *number = expectation_.earliest_finish(checked(tile), static_cast<int>(resource), now_);
    });
    return nb::object(rows.attr("reshape")(-1));
  }
  void earliest_finishes(int64_t tile, std::span<int64_t> ends) const {
    expectation_.earliest_finishes(checked(tile), now_, ends);
  }
  int earliest_resource(int64_t tile) const { return expectation_.earliest_resource(checked(tile), now_); }
  void assign(int64_t tile, int resource) { expectation_.assign(checked(tile), resource, now_); }
  int num_resources() const { return expectation_.machine().num_resources(); }
  int64_t now() const { return now_; }
  void advance(int64_t now) { now_ = now; }

 private:
  static uint32_t checked(int64_t tile) {
    if (tile >= 0 && tile < static_cast<int64_t>(kNoSuchTile)) return static_cast<uint32_t>(tile);
    throw std::invalid_argument("there is no tile " + std::to_string(tile));
  }
  static constexpr uint32_t kNoSuchTile = ~uint32_t{0};

  LabGraph graph_;
  LabMachine machine_;
  std::vector<int64_t> nanoseconds_;
  Expectation expectation_;
  int64_t now_ = 0;
};

// What a function of Python answered for a tile.
int answered(const nb::object& answer, uint32_t tile) {
  if (PyIndex_Check(answer.ptr()) && !PyBool_Check(answer.ptr())) {
    const Py_ssize_t number = PyNumber_AsSsize_t(answer.ptr(), nullptr);
    if (number == -1 && PyErr_Occurred()) throw nb::python_error();
    constexpr Py_ssize_t kMost = std::numeric_limits<int>::max();
    return static_cast<int>(std::clamp(number, -kMost, kMost));
  }
  throw nb::type_error(("`place` answered " + std::string(nb::repr(answer).c_str()) + " for tile " + std::to_string(tile) +
                        "; it must answer the number of a resource, such as 0")
                           .c_str());
}

// A policy's places as the engine asks for them: none, an array, the earliest finish, a function of Python, or the address of one
// that was compiled.
PlaceTile placing(const LabGraph& graph, const LabMachine& machine, const Array<int64_t>& nanoseconds, const nb::object& place) {
  if (place.is_none()) return {};
  if (nb::isinstance<nb::str>(place)) {
    if (nb::cast<std::string>(place) != "earliest finish")
      throw std::invalid_argument("tiles are placed by 'earliest finish', an array or a function");
    const auto view = std::make_shared<View>(graph, machine, nanoseconds);
    return [view](uint32_t tile, int64_t now) {
      view->advance(now);
      const int resource = view->earliest_resource(tile);
      if (resource >= 0) view->assign(tile, resource);
      return resource;
    };
  }
  if (nb::isinstance<nb::callable>(place)) {
    const auto view = std::make_shared<View>(graph, machine, nanoseconds);
    const nb::object seen = nb::cast(view);
    return [view, seen, place](uint32_t tile, int64_t now) {
      const nb::gil_scoped_acquire acquire;
      view->advance(now);
      const int resource = answered(place(seen, tile), tile);
      if (resource >= 0 && resource < view->num_resources()) view->assign(tile, resource);
      return resource;
    };
  }
  if (nb::isinstance<nb::int_>(place)) {
    const auto compiled =
        reinterpret_cast<CompiledPlace>(checked_address(place, "a function that places tiles (engine/place.h)", is_code));
    const auto view = std::make_shared<View>(graph, machine, nanoseconds);
    return [view, compiled, ends = std::vector<int64_t>(static_cast<size_t>(view->num_resources()))](uint32_t tile,
                                                                                                     int64_t now) mutable {
      view->advance(now);
      view->earliest_finishes(tile, ends);
      const int resource = compiled(tile, now, ends.data(), view->num_resources());
      if (resource == kRaised) {
        throw RunError("the compiled function that places tiles raised an exception at tile " + std::to_string(tile) +
                       "; call the function itself with this number to see it");
      }
      if (resource >= 0 && resource < view->num_resources()) view->assign(tile, resource);
      return resource;
    };
  }
  const auto array = nb::cast<Array<int32_t>>(place);
  const size_t num_tiles = nb::cast<const VirtualGraph&>(graph).num_tiles();
  if (array.size() != num_tiles) {
    throw std::invalid_argument(std::to_string(array.size()) + " places for " + std::to_string(num_tiles) + " tiles");
  }
  return [array](uint32_t tile, int64_t) { return array.data()[tile]; };
}

NewArray<-1, 3> rows_of_tiles(const std::vector<Placed>& tiles) {
  std::vector<size_t> position(tiles.size());
  for (size_t i = 0; i < tiles.size(); ++i) position[tiles[i].tile] = i;
  return rows_of<3>(tiles.size(), [&](size_t tile, int64_t* row) {
    const Placed& placed = tiles[position[tile]];
    row[0] = placed.lane;
    row[1] = placed.begin;
    row[2] = placed.end;
  });
}

NewArray<-1, 5> rows_of_copies(const std::vector<Copy>& copies) {
  return rows_of<5>(copies.size(), [&](size_t i, int64_t* row) {
    const Copy& copy = copies[i];
    row[0] = copy.tile;
    row[1] = copy.from;
    row[2] = copy.to;
    row[3] = copy.begin;
    row[4] = copy.end;
  });
}

std::pair<NewArray<-1, 3>, NewArray<-1, 5>> simulated(const LabGraph& graph, const LabMachine& machine,
                                                      const Array<int64_t>& nanoseconds, const nb::any& place,
                                                      const LabOrder& order) {
  const Simulation simulation = simulate(nb::cast<const VirtualGraph&>(graph), nb::cast<const VirtualMachine&>(machine),
                                         span_of(nanoseconds), order_of(order), placing(graph, machine, nanoseconds, place));
  return {rows_of_tiles(simulation.tiles), rows_of_copies(simulation.copies)};
}

}  // namespace

void define_lab(nb::module_& module) {
  module.attr("NEVER") = kNever;
  nb::class_<VirtualGraph>(module, "VirtualGraph", "What of a graph the virtual clock reads (engine/virtual_graph.h).")
      .def(
          "__init__",
          [](VirtualGraph* self, const Array<int64_t>& child_counts, const Array<int64_t>& children,
             const Array<int64_t>& tile_ops, const Array<int64_t>& depths, const Array<int64_t>& bytes,
             const Array<uint8_t>& is_read) {
            new (self) VirtualGraph(span_of(child_counts), span_of(children), span_of(tile_ops), span_of(depths), span_of(bytes),
                                    span_of(is_read));
          },
          nb::arg("child_counts"), nb::arg("children"), nb::arg("tile_ops"), nb::arg("depths"), nb::arg("bytes"),
          nb::arg("is_read"), R"(Read the arrows.

Args:
    child_counts: int64 [T].
    children: int64 [E], of the first tile, then of the second.
    tile_ops: int64 [T].
    depths: int64 [T], by which tiles are ordered.
    bytes: int64 [T], what each tile writes; empty where nothing is copied.
    is_read: uint8 [E], whether each arrow carries data; empty where nothing is copied.

Raises:
    InputError: the arrays do not fit together, or the arrows lead in a circle.)")
      .def_prop_ro("num_tiles", &VirtualGraph::num_tiles);
  nb::class_<VirtualMachine>(module, "VirtualMachine", "Resources, memories and links (engine/virtual_machine.h).")
      .def(
          "__init__",
          [](VirtualMachine* self, std::vector<int> lanes, std::vector<int> memories,
             const std::vector<std::pair<int64_t, double>>& links) {
            new (self) VirtualMachine(machine_of(std::move(lanes), std::move(memories), links));
          },
          nb::arg("lanes"), nb::arg("memories"), nb::arg("links"), R"(Describe a machine.

Args:
    lanes: of each resource.
    memories: of each resource.
    links: latency in nanoseconds and nanoseconds a byte, from each memory to each.

Raises:
    InputError: there is no resource, one without lanes, an unknown memory, or a negative time.)")
      .def_prop_ro("num_resources", &VirtualMachine::num_resources);
  nb::class_<View>(module, "Expectation",
                   "The times at which tiles would end, as they are assigned one after the other (engine/expectation.h).")
      .def(nb::init<LabGraph, LabMachine, const Array<int64_t>&>(), nb::arg("graph"), nb::arg("machine"), nb::arg("nanoseconds"),
           "Begin with nothing assigned; `nanoseconds` is int64 [T, resources].")
      .def("earliest_finish", &View::earliest_finish, nb::arg("tile"),
           "Nanoseconds at which the tile would end on each resource, int64; NEVER where it has no kernel.")
      .def("earliest_resource", &View::earliest_resource, nb::arg("tile"),
           "The resource on which the tile ends first; -1 where none has a kernel.")
      .def("assign", &View::assign, nb::arg("tile"), nb::arg("resource"), "Put a tile behind what was assigned to a resource.")
      .def_prop_ro("num_resources", &View::num_resources)
      .def_prop_ro("now", &View::now);
  module.def("simulate", &simulated, nb::arg("graph"), nb::arg("machine"), nb::arg("nanoseconds"), nb::arg("place").none(),
             nb::arg("order"), R"(A run in simulated time (engine/virtual_time.h).

Args:
    graph: what is run.
    machine: on what.
    nanoseconds: int64 [T, resources].
    place: None: idle lanes take what is ready. An int32 array [T]: the resource of each tile. A function of an `Expectation`
        and a tile: likewise, asked when the tile is ready; or the address of a compiled one (engine/place.h). "earliest
        finish": where the tile is expected to end first.
    order: the name of one of the engine's policies (engine/policy.h), such as "shallow first", or a compiled one's address.
        "exact": of what is ready, the tile of the lowest level goes first, and of one level that of the lowest number.

Returns:
    int64 [T, 3]: lane, begin and end of each tile. int64 [copies, 5]: tile, memory from, memory to, begin and end of each.

Raises:
    InputError: something does not fit, or a tile comes to a resource without a kernel for it.)");
}

namespace {

// How often the calling thread looks for signals.
constexpr auto kLook = std::chrono::milliseconds(50);

// A run of the lab with all that it reads, so that it can be left to itself with a lane that does not come back.
class LabRun {
 public:
  LabRun(std::shared_ptr<const Plan> plan, nb::object held, nb::args lab)
      : plan_(std::move(plan)),
        held_(std::move(held)),
        lab_(std::move(lab)),
        tiles_(nb::cast<const VirtualGraph&>(nb::object(lab_[0]))),
        machine_(nb::cast<const VirtualMachine&>(nb::object(lab_[1]))),
        policy_(order_of(lab_[4])) {
    for (auto& [repeat, cores] : nb::cast<std::vector<std::pair<int, std::vector<int>>>>(lab_[5])) {
      kinds_.push_back({repeat, std::move(cores)});
    }
    const nb::object graph = lab_[0], machine = lab_[1], place = lab_[3];
    const auto nanoseconds = nb::cast<Array<int64_t>>(lab_[2]);
    check_times(tiles_, machine_, span_of(nanoseconds));
    where_ = placing(graph, machine, nanoseconds, place);
    is_python_ = nb::isinstance<nb::callable>(place);
    if (!place.is_none() && !nb::isinstance<Array<int32_t>>(place)) {
      in_turn_ = [this](uint32_t tile, int64_t now) { return place_in_turn(tile, now); };
    }
    attendant_.attend = [this] { attend(); };
    attendant_.over = [this] { desk_.close(); };
    attendant_.is_lost = [this] { return !is_python_ && is_placing_.load(std::memory_order_relaxed); };
    attendant_.given_up = [this] { is_given_up_ = true; };
  }

  Simulation run(std::span<const void* const> operands, std::span<void* const> results) {
    const nb::gil_scoped_release release;
    return run_placed(plan_, operands, results, tiles_, machine_, kinds_, policy_, in_turn_ ? in_turn_ : where_, attendant_,
                      watched());
  }

  int64_t price_ns() const { return price_ns_.load(); }
  bool is_given_up() const { return is_given_up_; }

 private:
  // Ctrl-C is the attendant's.
  std::shared_ptr<Watch> watched() const {
    try {
      return watch_by_limits(*plan_, nullptr, machine_.num_memories());
    } catch (const std::runtime_error& error) {
      throw RunError(error.what());
    }
  }

  // A lane is in the policy while this lives.
  struct Placing {
    explicit Placing(std::atomic<bool>& is_placing) : is_placing(is_placing) {
      is_placing.store(true, std::memory_order_relaxed);
    }
    ~Placing() { is_placing.store(false, std::memory_order_relaxed); }
    Placing(const Placing&) = delete;
    Placing& operator=(const Placing&) = delete;
    std::atomic<bool>& is_placing;
  };

  // Policies that decide during the run do so one tile at a time; what that takes, with the wait for others, is their price.
  // Those of Python do so in the calling thread, which an exception of a signal can end.
  int place_in_turn(uint32_t tile, int64_t now) {
    const auto begin = std::chrono::steady_clock::now();
    const int resource = turns_.take([&] {
      // Nobody sees this error: the calling thread's own is the one reported.
      if (is_interrupted_.load(std::memory_order_relaxed)) throw RunError("the run has ended");
      const Placing placing(is_placing_);
      return is_python_ ? desk_.ask([&] { return where_(tile, now); }) : where_(tile, now);
    });
    price_ns_ += std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count();
    return resource;
  }

  void attend() {
    desk_.serve(kLook);
    if (std::chrono::steady_clock::now() < next_look_) return;
    next_look_ = std::chrono::steady_clock::now() + kLook;
    const nb::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() == 0) return;
    is_interrupted_.store(true, std::memory_order_relaxed);
    throw nb::python_error();
  }

  const std::shared_ptr<const Plan> plan_;
  const nb::object held_;
  const nb::args lab_;
  const VirtualGraph& tiles_;
  const VirtualMachine& machine_;
  const Policy& policy_;
  std::vector<LaneKind> kinds_;
  PlaceTile where_, in_turn_;
  Attendant attendant_;
  Desk desk_;
  bool is_python_ = false, is_given_up_ = false;
  Turns turns_;
  std::atomic<bool> is_placing_{false}, is_interrupted_{false};
  std::atomic<int64_t> price_ns_{0};
  std::chrono::steady_clock::time_point next_look_;
};

}  // namespace

nb::tuple run_in_lab(const std::shared_ptr<const Plan>& plan, std::span<const void* const> operands,
                     std::span<void* const> results, nb::object held, nb::args lab) {
  auto run = std::make_unique<LabRun>(plan, std::move(held), std::move(lab));
  try {
    const Simulation real = run->run(operands, results);
    return nb::make_tuple(rows_of_tiles(real.tiles), rows_of_copies(real.copies), run->price_ns());
  } catch (nb::python_error& error) {
    if (run->is_given_up()) {
      run.release();
      nb::set_leak_warnings(false);  // what it holds is meant to stay
      error.value().attr("add_note")(
          "a lane of the run is still in the policy's compiled function; it was given up, and the memory of the run stays held");
    }
    throw;
  }
}

}  // namespace aspen
