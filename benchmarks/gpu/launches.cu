// What a node of a CUDA graph, a programmatic launch and a hop between multiprocessors cost: a line of JSON for each figure.
// benchmarks/gpu/programs.py builds it: nvcc -std=c++20 -O3 -arch=sm_90a launches.cu -o launches
#include <cuda_runtime.h>

#include <vector>

#include "report.h"

namespace {

constexpr int kThreads = 128;
// As many as an H100 or H200 has multiprocessors; one block on each.
constexpr int kBlocks = 132;
constexpr int kElements = kBlocks * kThreads;
// Blocks read what a neighbour wrote: 32 blocks further.
constexpr int kShift = 4096;
constexpr int kNodes = 200, kPhases = 200;
constexpr int kRounds = 21, kReplays = 10;

// How far the counters of two groups are apart, a sector of the L2 cache, and of two phases: there are no more groups than
// blocks.
constexpr int kCountersAGroup = 8, kCountersAPhase = kBlocks * kCountersAGroup;

// A node of a chain: each thread does `work` multiply-adds that depend on each other.
template <bool kIsProgrammatic>
__global__ void chain_node(float* data, int work) {
  if constexpr (kIsProgrammatic) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
  }
  const auto thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  float x = data[thread];
  for (int i = 0; i < work; ++i) x = x * 1.0001f + 0.5f;
  data[(thread + kShift) % kElements] = x;
}

// A persistent kernel: in each phase all threads compute, and a block goes on when the `group_size` blocks of its group have
// arrived. All add to a counter of the group and one thread polls it. Counters only grow: those of `epoch` runs before are there.
__global__ void phases(unsigned* counters, float* data, int num_phases, int group_size, unsigned epoch) {
  const auto thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const auto num_blocks = static_cast<int>(gridDim.x);
  const int group = static_cast<int>(blockIdx.x) / group_size;
  const int members = min(group_size, num_blocks - group * group_size);
  for (int phase = 0; phase < num_phases; ++phase) {
    data[thread] = data[(thread + phase * kShift) % kElements] * 1.0001f;
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned* const own = counters + phase * kCountersAPhase + group * kCountersAGroup;
      const unsigned needed = epoch * static_cast<unsigned>(members);
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(own) : "memory");
      unsigned seen = 0;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(own) : "memory");
      } while (seen < needed);
    }
    __syncthreads();
  }
}

// Microseconds between two events, by the device's clock.
class Timer {
 public:
  explicit Timer(cudaStream_t stream) : stream_(stream) {
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  void start() { check(cudaEventRecord(begin_, stream_), "cudaEventRecord"); }
  double stop() {
    check(cudaEventRecord(end_, stream_), "cudaEventRecord");
    check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return 1e3 * milliseconds;
  }

 private:
  const cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// Microseconds a node of a chain of `kNodes`, replayed back to back.
template <bool kIsProgrammatic>
double microseconds_a_node(int blocks, int work, float* data, cudaStream_t stream) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = static_cast<unsigned>(blocks);
  launch.blockDim = kThreads;
  launch.stream = stream;
  launch.attrs = &attribute;
  launch.numAttrs = kIsProgrammatic ? 1 : 0;
  for (int i = 0; i < kNodes; ++i) check(cudaLaunchKernelEx(&launch, chain_node<kIsProgrammatic>, data, work), "a launch");
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  Timer timer(stream);
  std::vector<double> samples;
  for (int round = 0; round < kRounds; ++round) {
    timer.start();
    for (int i = 0; i < kReplays; ++i) check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
    samples.push_back(timer.stop() / (kReplays * kNodes));
  }
  check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return median(std::move(samples));
}

// Microseconds a phase whose blocks wait for `group_size`, themselves among them.
double microseconds_a_phase(int group_size, unsigned* counters, float* data, cudaStream_t stream) {
  check(cudaMemset(counters, 0, sizeof(unsigned) * kPhases * kCountersAPhase), "cudaMemset");
  Timer timer(stream);
  std::vector<double> samples;
  for (unsigned epoch = 1; epoch <= kRounds; ++epoch) {
    int num_phases = kPhases;
    void* arguments[] = {&counters, &data, &num_phases, &group_size, &epoch};
    timer.start();
    // Cooperative: it is refused where not all blocks run at a time, instead of waiting for ever.
    check(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(phases), kBlocks, kThreads, arguments, 0, stream),
          "cudaLaunchCooperativeKernel");
    samples.push_back(timer.stop() / kPhases);
  }
  return median(std::move(samples));
}

}  // namespace

int main() {
  cudaStream_t stream = nullptr;
  float* data = nullptr;
  unsigned* counters = nullptr;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  // Chains of 512 blocks go beyond kElements where they read.
  constexpr size_t kBytes = 1 << 20;
  check(cudaMalloc(&data, kBytes), "cudaMalloc");
  check(cudaMemset(data, 0, kBytes), "cudaMemset");
  check(cudaMalloc(&counters, sizeof(unsigned) * kPhases * kCountersAPhase), "cudaMalloc");
  for (const int blocks : {1, kBlocks, 2 * kBlocks, 512}) {
    for (const int work : {0, 400}) {
      const std::string of = " of " + std::to_string(blocks) + " blocks, " + std::to_string(work) + " multiply-adds a thread";
      report("graph node" + of, microseconds_a_node<false>(blocks, work, data, stream), "us");
      report("graph node" + of + ", programmatic launch", microseconds_a_node<true>(blocks, work, data, stream), "us");
    }
  }
  for (const int group_size : {1, 4, 8, 16, 33, 66, kBlocks}) {
    report("hop in a persistent kernel, blocks wait for " + std::to_string(group_size),
           microseconds_a_phase(group_size, counters, data, stream), "us");
  }
  return 0;
}
