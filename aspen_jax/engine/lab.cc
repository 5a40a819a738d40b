// What Python sees of the scheduling lab. Documented in _engine.pyi.
#include "lab.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "expectation.h"
#include "place.h"
#include "placed_run.h"
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

// A new array that owns its numbers.
template <typename Row, size_t kColumns, typename Fill>
nb::object rows_of(size_t count, const Fill& fill) {
  auto numbers = std::make_unique<Row[]>(count * kColumns);
  for (size_t row = 0; row < count; ++row) fill(row, numbers.get() + row * kColumns);
  Row* const data = numbers.release();
  const nb::capsule owner(data, [](void* owned) noexcept { delete[] static_cast<Row*>(owned); });
  return nb::cast(nb::ndarray<nb::numpy, Row>(data, {count, kColumns}, owner));
}

// By its name, or by the address of one that a policy has compiled.
const Policy& order_of(const nb::object& order) {
  if (nb::isinstance<nb::int_>(order)) return *reinterpret_cast<const Policy*>(nb::cast<uintptr_t>(order));
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
  View(nb::object graph, nb::object machine, const Array<int64_t>& nanoseconds)
      : graph_(std::move(graph)),
        machine_(std::move(machine)),
        nanoseconds_(nanoseconds.data(), nanoseconds.data() + nanoseconds.size()),
        expectation_(nb::cast<const VirtualGraph&>(graph_), nb::cast<const VirtualMachine&>(machine_), nanoseconds_) {}

  nb::object earliest_finish(int64_t tile) const {
    const auto count = static_cast<size_t>(expectation_.machine().num_resources());
    const nb::object rows = rows_of<int64_t, 1>(count, [&](size_t resource, int64_t* number) {
      *number = expectation_.earliest_finish(checked(tile), static_cast<int>(resource), now_);
    });
    return rows.attr("reshape")(-1);
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

  nb::object graph_, machine_;
  std::vector<int64_t> nanoseconds_;
  Expectation expectation_;
  int64_t now_ = 0;
};

// A policy's places as the engine asks for them: none, an array, the earliest finish, a function of Python, or the address of one
// that was compiled.
PlaceTile placing(const nb::object& graph, const nb::object& machine, const Array<int64_t>& nanoseconds,
                  const nb::object& place) {
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
      const int resource = nb::cast<int>(place(seen, tile));
      if (resource >= 0 && resource < view->num_resources()) view->assign(tile, resource);
      return resource;
    };
  }
  if (nb::isinstance<nb::int_>(place)) {
    const auto compiled = reinterpret_cast<CompiledPlace>(nb::cast<uintptr_t>(place));
    const auto view = std::make_shared<View>(graph, machine, nanoseconds);
    return [view, compiled, ends = std::vector<int64_t>(static_cast<size_t>(view->num_resources()))](uint32_t tile,
                                                                                                     int64_t now) mutable {
      view->advance(now);
      view->earliest_finishes(tile, ends);
      const int resource = compiled(tile, now, ends.data(), view->num_resources());
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

nb::object rows_of_tiles(const std::vector<Placed>& tiles) {
  std::vector<size_t> position(tiles.size());
  for (size_t i = 0; i < tiles.size(); ++i) position[tiles[i].tile] = i;
  return rows_of<int64_t, 3>(tiles.size(), [&](size_t tile, int64_t* row) {
    const Placed& placed = tiles[position[tile]];
    row[0] = placed.lane;
    row[1] = placed.begin;
    row[2] = placed.end;
  });
}

nb::object rows_of_copies(const std::vector<Copy>& copies) {
  return rows_of<int64_t, 5>(copies.size(), [&](size_t i, int64_t* row) {
    const Copy& copy = copies[i];
    row[0] = copy.tile;
    row[1] = copy.from;
    row[2] = copy.to;
    row[3] = copy.begin;
    row[4] = copy.end;
  });
}

nb::tuple simulated(const nb::object& graph, const nb::object& machine, const Array<int64_t>& nanoseconds,
                    const nb::object& place, const nb::object& order) {
  const Simulation simulation = simulate(nb::cast<const VirtualGraph&>(graph), nb::cast<const VirtualMachine&>(machine),
                                         span_of(nanoseconds), order_of(order), placing(graph, machine, nanoseconds, place));
  return nb::make_tuple(rows_of_tiles(simulation.tiles), rows_of_copies(simulation.copies));
}

}  // namespace

void define_lab(nb::module_& module) {
  module.attr("NEVER") = kNever;
  nb::class_<VirtualGraph>(module, "VirtualGraph")
      .def(
          "__init__",
          [](VirtualGraph* self, const Array<int64_t>& child_counts, const Array<int64_t>& children,
             const Array<int64_t>& tile_ops, const Array<int64_t>& depths, const Array<int64_t>& bytes,
             const Array<uint8_t>& is_read) {
            new (self) VirtualGraph(span_of(child_counts), span_of(children), span_of(tile_ops), span_of(depths), span_of(bytes),
                                    span_of(is_read));
          },
          nb::arg("child_counts"), nb::arg("children"), nb::arg("tile_ops"), nb::arg("depths"), nb::arg("bytes"),
          nb::arg("is_read"))
      .def_prop_ro("num_tiles", &VirtualGraph::num_tiles);
  nb::class_<VirtualMachine>(module, "VirtualMachine")
      .def(
          "__init__",
          [](VirtualMachine* self, std::vector<int> lanes, std::vector<int> memories,
             const std::vector<std::pair<int64_t, double>>& links) {
            new (self) VirtualMachine(machine_of(std::move(lanes), std::move(memories), links));
          },
          nb::arg("lanes"), nb::arg("memories"), nb::arg("links"))
      .def_prop_ro("num_resources", &VirtualMachine::num_resources);
  nb::class_<View>(module, "Expectation")
      .def(nb::init<nb::object, nb::object, const Array<int64_t>&>(), nb::arg("graph"), nb::arg("machine"),
           nb::arg("nanoseconds"))
      .def("earliest_finish", &View::earliest_finish, nb::arg("tile"))
      .def("earliest_resource", &View::earliest_resource, nb::arg("tile"))
      .def("assign", &View::assign, nb::arg("tile"), nb::arg("resource"))
      .def_prop_ro("num_resources", &View::num_resources)
      .def_prop_ro("now", &View::now);
  module.def("simulate", &simulated, nb::arg("graph"), nb::arg("machine"), nb::arg("nanoseconds"), nb::arg("place").none(),
             nb::arg("order"));
}

nb::tuple run_in_lab(const std::shared_ptr<const Plan>& plan, std::span<const void* const> operands,
                     std::span<void* const> results, nb::args lab) {
  const nb::object graph = lab[0], machine = lab[1], place = lab[3];
  const auto& tiles = nb::cast<const VirtualGraph&>(graph);
  const auto& resources = nb::cast<const VirtualMachine&>(machine);
  const auto nanoseconds = nb::cast<Array<int64_t>>(lab[2]);
  const Policy& policy = order_of(lab[4]);
  std::vector<LaneKind> kinds;
  for (auto& [repeat, cores] : nb::cast<std::vector<std::pair<int, std::vector<int>>>>(lab[5])) {
    kinds.push_back({repeat, std::move(cores)});
  }
  check_times(tiles, resources, span_of(nanoseconds));
  const PlaceTile where = placing(graph, machine, nanoseconds, place);
  // Policies that decide during the run do so one tile at a time; what that takes, with the wait for others, is their price.
  std::mutex turn;
  std::atomic<int64_t> price_ns{0};
  const PlaceTile in_turn = [&](uint32_t tile, int64_t now) {
    const auto begin = std::chrono::steady_clock::now();
    const std::lock_guard lock(turn);
    const int resource = where(tile, now);
    price_ns += std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count();
    return resource;
  };
  const bool decides = !place.is_none() && !nb::isinstance<Array<int32_t>>(place);
  Simulation real;
  {
    const nb::gil_scoped_release release;
    real = run_placed(plan, operands, results, tiles, resources, kinds, policy, decides ? in_turn : where);
  }
  return nb::make_tuple(rows_of_tiles(real.tiles), rows_of_copies(real.copies), price_ns.load());
}

}  // namespace aspen
