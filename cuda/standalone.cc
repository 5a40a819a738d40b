#include "standalone.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

namespace aspen::cuda {
namespace {

// Between two events, so that the time between the host's calls does not count.
constexpr int kCallsARound = 10;

// Memory of the device, one block a buffer of the graph.
class Buffers {
 public:
  explicit Buffers(const Driver& driver) : driver_(driver) {}
  ~Buffers() {
    for (const DevicePointer address : addresses_) {
      if (address != 0) driver_.cuMemFree(address);
    }
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  // Filled with a pattern that is NaN for floats.
  DevicePointer take(int64_t bytes) {
    const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
    addresses_.push_back(0);
    driver_.check(driver_.cuMemAlloc(&addresses_.back(), size), "cuMemAlloc");
    driver_.check(driver_.cuMemsetD8(addresses_.back(), 0xff, size), "cuMemsetD8");
    return addresses_.back();
  }

 private:
  const Driver& driver_;
  std::vector<DevicePointer> addresses_;
};

// Of what is given to a stream.
class Timer {
 public:
  Timer(const Driver& driver, Stream stream) : driver_(driver), stream_(stream) {
    driver_.check(driver_.cuEventCreate(&from_, kEventDefault), "cuEventCreate");
    const Result result = driver_.cuEventCreate(&to_, kEventDefault);
    if (result == kSuccess) return;
    driver_.cuEventDestroy(from_);
    driver_.check(result, "cuEventCreate");
  }
  ~Timer() {
    driver_.cuEventDestroy(from_);
    driver_.cuEventDestroy(to_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  void start() { driver_.check(driver_.cuEventRecord(from_, stream_), "cuEventRecord"); }
  // Waits until what was given to the stream since then has run.
  float milliseconds() {
    driver_.check(driver_.cuEventRecord(to_, stream_), "cuEventRecord");
    driver_.check(driver_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
    float milliseconds = 0;
    driver_.check(driver_.cuEventElapsedTime(&milliseconds, from_, to_), "cuEventElapsedTime");
    return milliseconds;
  }

 private:
  const Driver& driver_;
  const Stream stream_;
  Event from_ = nullptr, to_ = nullptr;
};

}  // namespace

Standalone::Standalone(std::unique_ptr<Executable> executable) : driver_(Driver::get()), executable_(std::move(executable)) {
  int count = 0;
  driver_.check(driver_.cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (count == 0) throw DeviceError("there is no GPU here; run on the CPU (JAX_PLATFORMS=cpu)");
  driver_.check(driver_.cuDeviceGet(&device_, 0), "cuDeviceGet");
  driver_.check(driver_.cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
  try {
    const Current current(driver_, context_);
    driver_.check(driver_.cuStreamCreate(&stream_, kStreamNonBlocking), "cuStreamCreate");
  } catch (...) {
    release();
    throw;
  }
}

Standalone::~Standalone() { release(); }

void Standalone::release() noexcept {
  executable_.reset();
  if (stream_ != nullptr && driver_.cuCtxPushCurrent(context_) == kSuccess) {
    driver_.cuStreamDestroy(stream_);
    Context popped = nullptr;
    driver_.cuCtxPopCurrent(&popped);
  }
  driver_.cuDevicePrimaryCtxRelease(device_);
}

RunTimes Standalone::run(std::span<const void* const> operands, std::span<void* const> results, std::span<const int32_t> lies_in,
                         bool captured, int rounds) {
  const Graph& graph = executable_->graph();
  const Current current(driver_, context_);
  Buffers buffers(driver_);
  const auto bytes_of = [&](int32_t value) { return static_cast<size_t>(graph.values[static_cast<size_t>(value)].bytes); };
  std::vector<DevicePointer> addresses;
  for (size_t i = 0; i < operands.size(); ++i) {
    const size_t bytes = bytes_of(graph.operands[i]);
    addresses.push_back(buffers.take(static_cast<int64_t>(bytes)));
    if (bytes != 0) driver_.check(driver_.cuMemcpyHtoD(addresses.back(), operands[i], bytes), "cuMemcpyHtoD");
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const int64_t bytes = graph.values[static_cast<size_t>(graph.results[i])].bytes;
    addresses.push_back(lies_in[i] < 0 ? buffers.take(bytes) : addresses[static_cast<size_t>(lies_in[i])]);
  }
  addresses.push_back(buffers.take(graph.workspace_bytes));
  driver_.check(driver_.cuCtxSynchronize(), "cuCtxSynchronize");
  RunTimes times;
  try {
    give(addresses, captured);
    driver_.check(driver_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
    // Before it is timed: what lies in an operand is another one after each run.
    for (size_t i = 0; i < results.size(); ++i) {
      const size_t bytes = bytes_of(graph.results[i]);
      if (bytes == 0) continue;
      driver_.check(driver_.cuMemcpyDtoH(results[i], addresses[operands.size() + i], bytes), "cuMemcpyDtoH");
    }
    if (rounds > 0) {
      Timer timer(driver_, stream_);
      for (int round = 0; round < rounds; ++round) {
        timer.start();
        const auto start = std::chrono::steady_clock::now();
        for (int call = 0; call < kCallsARound; ++call) give(addresses, captured);
        const std::chrono::duration<float, std::milli> given = std::chrono::steady_clock::now() - start;
        times.device.push_back(timer.milliseconds() / kCallsARound);
        times.host.push_back(given.count() / kCallsARound);
      }
    }
  } catch (...) {
    driver_.cuStreamSynchronize(stream_);  // before the memory is given back
    throw;
  }
  return times;
}

void Standalone::give(std::span<const DevicePointer> buffers, bool captured) {
  if (!captured) return executable_->run(stream_, buffers);
  executable_->load(stream_);
  driver_.check(driver_.cuStreamBeginCapture(stream_, kCaptureOnlyThisThread), "cuStreamBeginCapture");
  DeviceGraph graph = nullptr;
  GraphExec exec = nullptr;
  try {
    executable_->run(stream_, buffers);
  } catch (...) {
    driver_.cuStreamEndCapture(stream_, &graph);
    if (graph != nullptr) driver_.cuGraphDestroy(graph);
    throw;
  }
  driver_.check(driver_.cuStreamEndCapture(stream_, &graph), "cuStreamEndCapture");
  const Result made = driver_.cuGraphInstantiate(&exec, graph, 0);
  const Result launched = made == kSuccess ? driver_.cuGraphLaunch(exec, stream_) : kSuccess;
  const Result done = launched == kSuccess ? driver_.cuStreamSynchronize(stream_) : kSuccess;
  if (made == kSuccess) driver_.cuGraphExecDestroy(exec);
  driver_.cuGraphDestroy(graph);
  driver_.check(made, "cuGraphInstantiate");
  driver_.check(launched, "cuGraphLaunch");
  driver_.check(done, "cuStreamSynchronize");
}

}  // namespace aspen::cuda
