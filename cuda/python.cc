#include "python.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "executable.h"
#include "ffi.h"
#include "launch_graph.h"
#include "schedule.h"
#include "standalone.h"

namespace nb = nanobind;

namespace aspen::cuda {
namespace {

std::span<const std::byte> bytes_of(const nb::bytes& bytes) {
  return std::span(static_cast<const std::byte*>(bytes.data()), bytes.size());
}

nb::typed<nb::dict, nb::str, nb::capsule> registrations() {
  const FfiHandlers handlers = ffi_handlers();
  nb::dict stages;
  stages["instantiate"] = nb::capsule(handlers.instantiate);
  stages["initialize"] = nb::capsule(handlers.initialize);
  stages["execute"] = nb::capsule(handlers.execute);
  return stages;
}

// The launch of each tile, and rows (kind, stream, index) of commands.
using Commands = std::vector<std::tuple<int, uint32_t, uint32_t>>;
std::pair<std::vector<uint32_t>, Commands> cuda_schedule(nb::bytes bytes, uint32_t num_streams, uint32_t fewest_tiles,
                                                         const std::vector<int32_t>& launched_with) {
  const Graph graph = parse_graph(bytes_of(bytes));
  const LaunchGraph launches = group_tiles(graph, fewest_tiles, launched_with);
  const Schedule schedule = traverse(graph, launches, num_streams);
  std::vector<uint32_t> launch_of(graph.num_tiles());
  for (uint32_t launch = 0; launch < launches.size(); ++launch) {
    for (const uint32_t tile : launches.tiles_of(launch)) launch_of[tile] = launch;
  }
  Commands commands;
  for (const Command& command : schedule.commands) {
    commands.emplace_back(static_cast<int>(command.kind), command.stream, command.index);
  }
  return {std::move(launch_of), std::move(commands)};
}

// Without XLA: from addresses of the host to addresses of the host. The caller has looked at shapes and dtypes.
class CudaRun {
 public:
  CudaRun(nb::bytes graph, nb::bytes image, std::vector<int32_t> kernels, std::vector<int32_t> launched_with, int32_t executor) {
    const auto code = bytes_of(image);
    auto executable = std::make_unique<Executable>(parse_graph(bytes_of(graph)),
                                                   Code{{code.begin(), code.end()}, std::move(kernels), std::move(launched_with)},
                                                   static_cast<Executor>(executor));
    run_ = std::make_unique<Standalone>(std::move(executable));
  }

  // Milliseconds on the device and on the host, from each round.
  std::pair<std::vector<float>, std::vector<float>> run(const std::vector<uintptr_t>& operands,
                                                        const std::vector<uintptr_t>& results,
                                                        const std::vector<int32_t>& lies_in, bool captured, int rounds) {
    const Graph& graph = run_->graph();
    if (operands.size() != graph.operands.size() || results.size() != graph.results.size() || lies_in.size() != results.size()) {
      throw std::invalid_argument("the graph takes " + std::to_string(graph.operands.size()) + " operands and gives " +
                                  std::to_string(graph.results.size()) + " results; pass as many addresses");
    }
    const auto bytes_of = [&](int32_t value) { return graph.values[static_cast<size_t>(value)].bytes; };
    for (size_t i = 0; i < lies_in.size(); ++i) {
      if (lies_in[i] < 0) continue;
      const auto operand = static_cast<size_t>(lies_in[i]);
      if (operand < operands.size() && bytes_of(graph.operands[operand]) == bytes_of(graph.results[i])) continue;
      throw std::invalid_argument("result " + std::to_string(i) + " is to lie in operand " + std::to_string(operand) +
                                  ", which there is not or which has another size; pass -1");
    }
    std::vector<const void*> from;
    for (const uintptr_t address : operands) from.push_back(reinterpret_cast<const void*>(address));
    std::vector<void*> to;
    for (const uintptr_t address : results) to.push_back(reinterpret_cast<void*>(address));
    const nb::gil_scoped_release release;
    RunTimes times = run_->run(from, to, lies_in, captured, rounds);
    return {std::move(times.device), std::move(times.host)};
  }

 private:
  std::unique_ptr<Standalone> run_;
};

}  // namespace

void define(nb::module_& module) {
  module.def(
      "cuda_registrations", &registrations,
      "Handlers of the custom call for `jax.ffi.register_ffi_target` on CUDA; they look for CUDA's driver when they are called.");
  module.def("cuda_schedule", &cuda_schedule, nb::arg("graph"), nb::arg("num_streams"), nb::arg("fewest_tiles"),
             nb::arg("launched_with") = std::vector<int32_t>{},
             R"(How a graph would be issued to CUDA streams; needs no GPU.

Args:
    graph: graph bytes (docs/graph_format.md).
    num_streams: DSEs, each with a stream; stream 0 is the caller's.
    fewest_tiles: of an op that are launched together, where it has so many.
    launched_with: [ops], of each the first of those that are launched with it; empty: all are alone.

Returns:
    The launch of each tile, and the commands in the order in which they are issued: (0, stream, launch), (1, stream, event to
    record) or (2, stream, event to wait for).

Raises:
    GraphFormatError: the bytes are no graph.
    InputError: there is no stream.)");
  module.attr("CUDA_STREAMS") = kNumStreams;
  module.attr("CUDA_FEWEST_TILES") = kFewestTiles;
  nb::class_<CudaRun>(module, "CudaRun", "A graph and its code on the first GPU, without XLA. device_run.py checks arrays.")
      .def(nb::init<nb::bytes, nb::bytes, std::vector<int32_t>, std::vector<int32_t>, int32_t>(), nb::arg("graph"),
           nb::arg("image"), nb::arg("kernels"), nb::arg("launched_with"), nb::arg("executor"),
           R"(Read the graph and find the GPU.

Args:
    graph: graph bytes (docs/graph_format.md).
    image: a cubin or PTX with kernels op0, op1 ...
    kernels: the number of each op's kernel.
    launched_with: of each op the first of those that are launched with it; empty: all are alone.
    executor: one of cuda/executable.h.

Raises:
    GraphFormatError: the bytes are no graph.
    InputError: kernels or launches cannot be those of the ops, or the executor is unknown.
    EngineError: there is no driver, an old one, or no GPU.)")
      .def("run", &CudaRun::run, nb::arg("operands"), nb::arg("results"), nb::arg("lies_in"), nb::arg("captured"),
           nb::arg("rounds"),
           R"(Run on memory of the host, whose addresses are given; the caller has looked at shapes and dtypes.

Args:
    operands: where each operand begins.
    results: where each result is to be written.
    lies_in: of each result the operand in whose memory on the device it lies; -1: in its own.
    captured: whether the run is captured into a CUDA graph first.
    rounds: how often it is timed afterwards, between events of the device.

Returns:
    The milliseconds of a run on the device and on the host, from each round.

Raises:
    InputError: there are too few addresses, or too many, or no such operand of the result's size.
    EngineError: CUDA refused something; the message names it, op and tiles.)");
}

}  // namespace aspen::cuda
