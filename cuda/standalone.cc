#include "standalone.h"

#include <algorithm>
#include <utility>

namespace aspen::cuda {

Standalone::Standalone(std::unique_ptr<Executable> executable) : driver_(Driver::get()), executable_(std::move(executable)) {
  int count = 0;
  driver_.check(driver_.cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (count == 0) throw DeviceError("there is no GPU here; run on the CPU");
  driver_.check(driver_.cuDeviceGet(&device_, 0), "cuDeviceGet");
  driver_.check(driver_.cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
  try {
    const Current current(driver_, context_);
    driver_.check(driver_.cuStreamCreate(&stream_, kStreamNonBlocking), "cuStreamCreate");
    std::vector<int64_t> bytes;
    const Graph& graph = executable_->graph();
    for (const int32_t value : graph.operands) bytes.push_back(graph.values[value].bytes);
    for (const int32_t value : graph.results) bytes.push_back(graph.values[value].bytes);
    bytes.push_back(graph.workspace_bytes);
    for (const int64_t size : bytes) {
      buffers_.push_back(0);
      driver_.check(driver_.cuMemAlloc(&buffers_.back(), static_cast<size_t>(std::max<int64_t>(size, 1))), "cuMemAlloc");
    }
  } catch (...) {
    release();
    throw;
  }
}

Standalone::~Standalone() { release(); }

void Standalone::release() noexcept {
  executable_.reset();
  if (driver_.cuCtxPushCurrent(context_) == kSuccess) {
    for (const DevicePointer buffer : buffers_) {
      if (buffer != 0) driver_.cuMemFree(buffer);
    }
    if (stream_ != nullptr) driver_.cuStreamDestroy(stream_);
    Context popped = nullptr;
    driver_.cuCtxPopCurrent(&popped);
  }
  driver_.cuDevicePrimaryCtxRelease(device_);
}

void Standalone::run(std::span<const void* const> operands, std::span<void* const> results) {
  const Graph& graph = executable_->graph();
  const Current current(driver_, context_);
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto bytes = static_cast<size_t>(graph.values[graph.operands[i]].bytes);
    if (bytes != 0) driver_.check(driver_.cuMemcpyHtoD(buffers_[i], operands[i], bytes), "cuMemcpyHtoD");
  }
  const auto poison = [&](DevicePointer data, int64_t bytes) {
    if (bytes != 0) driver_.check(driver_.cuMemsetD8(data, 0xff, static_cast<size_t>(bytes)), "cuMemsetD8");
  };
  for (size_t i = 0; i < results.size(); ++i) poison(buffers_[operands.size() + i], graph.values[graph.results[i]].bytes);
  poison(buffers_.back(), graph.workspace_bytes);
  driver_.check(driver_.cuCtxSynchronize(), "cuCtxSynchronize");
  executable_->run(stream_, buffers_);
  driver_.check(driver_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
  for (size_t i = 0; i < results.size(); ++i) {
    const auto bytes = static_cast<size_t>(graph.values[graph.results[i]].bytes);
    if (bytes != 0) driver_.check(driver_.cuMemcpyDtoH(results[i], buffers_[operands.size() + i], bytes), "cuMemcpyDtoH");
  }
}

}  // namespace aspen::cuda
