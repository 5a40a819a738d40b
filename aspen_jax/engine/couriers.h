// Real copies between memories: a thread for each link that carries one copy at a time, at the pace that `Transfers` computes.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <queue>
#include <span>
#include <thread>
#include <vector>

#include "transfers.h"
#include "virtual_graph.h"
#include "virtual_machine.h"

namespace aspen {

class Couriers {
 public:
  // What copies need of the run. All are called by several threads at once, without a lock.
  struct Run {
    std::function<int64_t()> now;
    std::function<void(uint32_t tile, int from, int to)> copy;
    std::function<void(std::span<const uint32_t> tiles)> arrived;  // all that they read is where they asked for it
  };

  // Throws std::system_error where a thread cannot be started.
  Couriers(const VirtualGraph& graph, const VirtualMachine& machine, Run run);
  ~Couriers();

  void computed(uint32_t tile, int memory, int64_t now);
  bool is_there(uint32_t tile, int memory);

  // True if all that a tile reads is there. Otherwise asks for copies of the rest; `arrived` follows. Throws
  // std::invalid_argument where no link leads there, and std::bad_alloc; `arrived` does not follow then, and each later call
  // throws the same, for who asks next may rely on a copy that was not asked for.
  bool fetch(uint32_t tile, int memory, int64_t now);

  // The run has failed: copies under way need not keep to the pace of their links.
  void hurry() noexcept;

  // What was copied, in the order in which it arrived. Call it when all tiles have run.
  std::vector<Copy>& copies() { return carried_; }

 private:
  struct Link {
    std::queue<Copy> asked;
    std::condition_variable has_work;
  };

  size_t index(uint32_t tile, int memory) const {
    return size_t{tile} * static_cast<size_t>(machine_.num_memories()) + static_cast<size_t>(memory);
  }
  bool ask(uint32_t tile, int memory, int64_t now);
  void carry(Link& link);
  void stop() noexcept;

  const VirtualGraph& graph_;
  const VirtualMachine& machine_;
  const Run run_;

  std::mutex mutex_;  // guards what follows
  Transfers transfers_;
  std::vector<bool> is_there_;                  // of each tile and memory
  std::vector<std::vector<uint32_t>> waiting_;  // for each tile and memory
  std::vector<uint32_t> num_missing_;           // of each tile that waits
  std::vector<Copy> carried_;
  std::vector<Link> links_;
  bool is_over_ = false, is_hurried_ = false;
  std::condition_variable hurried_;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

}  // namespace aspen
