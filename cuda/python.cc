#include "python.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
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

nb::dict registrations() {
  const FfiHandlers handlers = ffi_handlers();
  nb::dict stages;
  stages["instantiate"] = nb::capsule(handlers.instantiate);
  stages["initialize"] = nb::capsule(handlers.initialize);
  stages["execute"] = nb::capsule(handlers.execute);
  return stages;
}

// The launch of each tile, and rows (kind, stream, index) of commands.
nb::tuple cuda_schedule(nb::bytes bytes, uint32_t num_streams, uint32_t fewest_tiles, const std::vector<int32_t>& launched_with) {
  const Graph graph = parse_graph(bytes_of(bytes));
  const LaunchGraph launches = group_tiles(graph, fewest_tiles, launched_with);
  const Schedule schedule = traverse(graph, launches, num_streams);
  std::vector<uint32_t> launch_of(graph.num_tiles());
  for (uint32_t launch = 0; launch < launches.size(); ++launch) {
    for (const uint32_t tile : launches.tiles_of(launch)) launch_of[tile] = launch;
  }
  nb::list commands;
  for (const Command& command : schedule.commands) {
    commands.append(nb::make_tuple(static_cast<int>(command.kind), command.stream, command.index));
  }
  return nb::make_tuple(launch_of, commands);
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
  module.def("cuda_registrations", &registrations);
  module.def("cuda_schedule", &cuda_schedule, nb::arg("graph"), nb::arg("num_streams"), nb::arg("fewest_tiles"),
             nb::arg("launched_with") = std::vector<int32_t>{});
  module.attr("CUDA_STREAMS") = kNumStreams;
  module.attr("CUDA_FEWEST_TILES") = kFewestTiles;
  nb::class_<CudaRun>(module, "CudaRun")
      .def(nb::init<nb::bytes, nb::bytes, std::vector<int32_t>, std::vector<int32_t>, int32_t>(), nb::arg("graph"),
           nb::arg("image"), nb::arg("kernels"), nb::arg("launched_with"), nb::arg("executor"))
      .def("run", &CudaRun::run, nb::arg("operands"), nb::arg("results"), nb::arg("lies_in"), nb::arg("captured"),
           nb::arg("rounds"));
}

}  // namespace aspen::cuda
