// Thread blocks of a cluster, which run at the same time and read each other's shared memory (compute capability 9.0).
//
// The host plays each block by a thread of its own, for blocks wait for each other in the middle of a kernel.
#pragma once

#include <cstdint>

#include "block.h"

#ifndef __CUDACC__
#include <barrier>
#include <memory>
#include <thread>
#include <vector>
#endif

namespace aspen::cuda {

#ifndef __CUDACC__
// What the threads that play a cluster share. Shared memory of all blocks looks alike.
struct PlayedCluster {
  explicit PlayedCluster(int blocks) : memories(static_cast<size_t>(blocks)), barrier(blocks) {}
  std::vector<char*> memories;  // where each block's begins
  std::barrier<> barrier;
};
struct PlayedBlock {
  PlayedCluster* cluster = nullptr;
  int rank = 0;
};
inline thread_local PlayedBlock played_block;
#endif

template <int kBlocks>
struct Cluster {
  // This block's number.
  static ASPEN_DEVICE int rank() {
    if constexpr (kBlocks == 1) {
      return 0;
    } else {
#ifdef __CUDACC__
      uint32_t rank;
      asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
      return static_cast<int>(rank);
#else
      return played_block.rank;
#endif
    }
  }

  // Where block `rank` has what this one has at `own` in shared memory.
  template <class T>
  static ASPEN_DEVICE const T* of(const T* own, [[maybe_unused]] int rank) {
    if constexpr (kBlocks == 1) {
      return own;
    } else {
#ifdef __CUDACC__
      uint64_t theirs;
      asm("mapa.u64 %0, %1, %2;" : "=l"(theirs) : "l"(own), "r"(rank));
      return reinterpret_cast<const T*>(theirs);
#else
      const std::vector<char*>& memories = played_block.cluster->memories;
      const auto offset = reinterpret_cast<const char*>(own) - memories[static_cast<size_t>(played_block.rank)];
      return reinterpret_cast<const T*>(memories[static_cast<size_t>(rank)] + offset);
#endif
    }
  }

  // All threads of all blocks come here before one goes on. What they wrote into shared memory before is seen after it: the
  // arrival releases, the wait acquires. Outside of phases.
  template <int kThreads>
  static ASPEN_DEVICE void sync(Block<kThreads>& block) {
    block.sync();
    if constexpr (kBlocks > 1) {
#ifdef __CUDACC__
      asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
      played_block.cluster->barrier.arrive_and_wait();
#endif
    }
  }
};

#ifndef __CUDACC__
// A tile on the host, whose blocks begin with NaN in shared memory.
template <class Op>
void play_tile(const typename Op::Addresses& buffers, const int32_t* box) {
  constexpr int kBlocks = Op::kSlices;
  using Memory = typename Op::Memory;
  std::vector<std::unique_ptr<Memory>> memories;
  PlayedCluster cluster(kBlocks);
  for (int rank = 0; rank < kBlocks; ++rank) {
    memories.push_back(std::make_unique<Memory>());
    std::memset(static_cast<void*>(memories.back().get()), 0xff, sizeof(Memory));
    cluster.memories[static_cast<size_t>(rank)] = reinterpret_cast<char*>(memories.back().get());
  }
  const auto play = [&](int rank) {
    played_block = {&cluster, rank};
    Op::tile(buffers, box, *memories[static_cast<size_t>(rank)]);
    played_block = {};
  };
  std::vector<std::jthread> others;
  for (int rank = 1; rank < kBlocks; ++rank) others.emplace_back(play, rank);
  play(0);
}
#endif

}  // namespace aspen::cuda
