// What copies, polling and parts of a GPU cost a run that shares its work between CPU and GPU: a line of JSON for each figure.
// benchmarks/gpu/programs.py builds it: nvcc -std=c++20 -O3 -arch=sm_90a copies.cu -o copies
#include <cuda.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "report.h"

namespace {

constexpr size_t kLargest = size_t{256} << 20;
constexpr int kBlocks = 2112, kThreads = 256, kSteps = 20000;  // the fixed job: 16 blocks on each of 132 multiprocessors

__global__ void nothing() {}
__global__ void write_word(volatile unsigned* word, unsigned value) {
  if (threadIdx.x == 0) *word = value;
}
__global__ void fixed_job(float* data) {
  auto x = static_cast<float>(threadIdx.x);
  for (int i = 0; i < kSteps; ++i) x = x * 1.0001f + 0.5f;
  data[blockIdx.x * kThreads + threadIdx.x] = x;
}

void check_driver(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: error %d of the driver\n", what, static_cast<int>(result));
  std::exit(1);
}

// A function of the driver, by way of the runtime: the program links to no libcuda and so builds without a driver.
template <typename Function>
Function* driver(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
  constexpr int kVersion = 12080;  // has green contexts' streams
  check(cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &status), name);
  if (status == cudaDriverEntryPointSuccess) return reinterpret_cast<Function*>(found);
  std::fprintf(stderr, "this driver has no %s; one of CUDA 12.8 or later has\n", name);
  std::exit(1);
}
#define DRIVER(name) driver<decltype(name)>(#name)

// Median microseconds of a call, by the host's clock.
template <typename Call>
double microseconds(int rounds, const Call& call) {
  std::vector<double> samples;
  for (int round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    call();
    samples.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  return median(std::move(samples));
}

void copies(char* device, cudaStream_t stream) {
  char* pinned = nullptr;
  check(cudaMallocHost(&pinned, kLargest), "cudaMallocHost");
  std::memset(pinned, 1, kLargest);
  for (const size_t bytes : {size_t{4096}, size_t{65536}, size_t{1} << 20, size_t{16} << 20, kLargest}) {
    for (const bool is_to_host : {false, true}) {
      const double time = microseconds(21, [&] {
        const cudaError_t result = is_to_host ? cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, stream)
                                              : cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, stream);
        check(result, "cudaMemcpyAsync");
        check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
      });
      const std::string what = "pinned copy of " + std::to_string(bytes) + " bytes to the " + (is_to_host ? "host" : "device");
      report(what, time, "us");
      report(what, 1e-3 * static_cast<double>(bytes) / time, "GB/s");
    }
  }
  check(cudaFreeHost(pinned), "cudaFreeHost");
  const std::vector<char> pageable(kLargest);
  const double time =
      microseconds(7, [&] { check(cudaMemcpy(device, pageable.data(), kLargest, cudaMemcpyHostToDevice), "cudaMemcpy"); });
  report("pageable copy of " + std::to_string(kLargest) + " bytes to the device", 1e-3 * kLargest / time, "GB/s");
}

// Until the host knows that a kernel without work is over.
void polling(cudaStream_t stream) {
  constexpr int kRounds = 201;
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  const auto launch_and_record = [&] {
    nothing<<<1, 32, 0, stream>>>();
    check(cudaEventRecord(event, stream), "cudaEventRecord");
  };
  const auto wait = [&] {
    while (cudaEventQuery(event) == cudaErrorNotReady) {
    }
  };
  std::vector<double> returned;
  const double seen = microseconds(kRounds, [&] {
    returned.push_back(microseconds(1, launch_and_record));
    wait();
  });
  report("launch and record, returned", median(std::move(returned)), "us");
  report("launch and record, seen by polling the event", seen, "us");

  unsigned* word = nullptr;
  check(cudaHostAlloc(&word, 64, cudaHostAllocMapped), "cudaHostAlloc");
  unsigned* on_device = nullptr;
  check(cudaHostGetDevicePointer(&on_device, word, 0), "cudaHostGetDevicePointer");
  volatile unsigned* const polled = word;
  unsigned value = 0;
  *polled = value;
  const double by_kernel = microseconds(kRounds, [&] {
    write_word<<<1, 32, 0, stream>>>(on_device, ++value);
    while (*polled != value) {
    }
  });
  report("launch, a word in pinned memory written by the kernel, seen", by_kernel, "us");
  const auto write_value = DRIVER(cuStreamWriteValue32);
  const double by_stream = microseconds(kRounds, [&] {
    nothing<<<1, 32, 0, stream>>>();
    const auto address = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(on_device));
    check_driver(write_value(stream, address, ++value, CU_STREAM_WRITE_VALUE_DEFAULT), "cuStreamWriteValue32");
    while (*polled != value) {
    }
  });
  report("launch and cuStreamWriteValue32, seen", by_stream, "us");
}

double fixed_job_on(cudaStream_t stream, float* data) {
  return microseconds(11, [&] {
    fixed_job<<<kBlocks, kThreads, 0, stream>>>(data);
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  });
}

// The same job on some of the multiprocessors.
void green_contexts(float* data) {
  CUdevice device = 0;
  CUdevResource all{};
  check_driver(DRIVER(cuDeviceGet)(&device, 0), "cuDeviceGet");
  check_driver(DRIVER(cuDeviceGetDevResource)(device, &all, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource");
  report("multiprocessors", all.sm.smCount, "");
  for (const unsigned wanted : {8u, 16u, 32u, 64u}) {
    CUdevResource part{}, rest{};
    unsigned groups = 1;
    check_driver(DRIVER(cuDevSmResourceSplitByCount)(&part, &groups, &all, &rest, 0, wanted), "cuDevSmResourceSplitByCount");
    CUdevResourceDesc description = nullptr;
    CUgreenCtx context = nullptr;
    CUstream stream = nullptr;
    check_driver(DRIVER(cuDevResourceGenerateDesc)(&description, &part, 1), "cuDevResourceGenerateDesc");
    check_driver(DRIVER(cuGreenCtxCreate)(&context, description, device, CU_GREEN_CTX_DEFAULT_STREAM), "cuGreenCtxCreate");
    check_driver(DRIVER(cuGreenCtxStreamCreate)(&stream, context, CU_STREAM_NON_BLOCKING, 0), "cuGreenCtxStreamCreate");
    const std::string what = "a fixed job on " + std::to_string(part.sm.smCount) + " multiprocessors (" + std::to_string(wanted);
    report(what + " asked for)", fixed_job_on(stream, data), "us");
    check_driver(DRIVER(cuStreamDestroy)(stream), "cuStreamDestroy");
    check_driver(DRIVER(cuGreenCtxDestroy)(context), "cuGreenCtxDestroy");
  }
}

}  // namespace

int main() {
  cudaStream_t stream = nullptr;
  char* device = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  check(cudaMalloc(&device, kLargest), "cudaMalloc");
  copies(device, stream);
  polling(stream);
  auto* const data = reinterpret_cast<float*>(device);
  report("a fixed job on all multiprocessors", fixed_job_on(stream, data), "us");
  green_contexts(data);  // last: an older driver has none
  return 0;
}
