// Where idle workers sleep without using the CPU and without missing work.
#pragma once

#include <atomic>
#include <cstdint>

namespace aspen {

// A worker that finds no work announces itself (`prepare`), looks once more, and only then sleeps (`park`). A thread that brings
// work publishes it and then calls `wake`.
//
// No wake-up is lost. All accesses named here are seq_cst, so they have one order:
//   bringer: (1) publish the work    (2) read searching    (3) read parked    (4) bump epoch, notify
//   idler:   (a) searching -= 1      (b) parked += 1       (c) read epoch     (d) look for work    (e) sleep while epoch is (c)'s
// If (d) comes after (1), the idler sees the work, or someone has taken it: it need not sleep. Otherwise (a), (b) and (c) come
// before (d), which comes before (1), (2), (3) and (4): the bringer no longer counts this idler as searching, sees it as parked,
// and bumps the epoch after (c) has read it, so (e) does not sleep, or is notified. The epoch would have to wrap around between
// (c) and (e) to hide that.
//
// While somebody is searching, waking another is a waste of a system call. That is safe for the same reason: if (2) still counts
// an idler as searching then (1) comes before its (a), so it sees the work before it can sleep. And it is enough: the last to
// stop searching because it has found work wakes another if there is more (Runtime::Impl::search).
class Parking {
 public:
  void start_search() noexcept { searching_.fetch_add(1, std::memory_order_seq_cst); }
  // True for the last one.
  bool stop_search() noexcept { return searching_.fetch_sub(1, std::memory_order_seq_cst) == 1; }

  uint32_t prepare() noexcept {
    parked_.fetch_add(1, std::memory_order_seq_cst);
    return epoch_.load(std::memory_order_seq_cst);
  }
  void cancel() noexcept { parked_.fetch_sub(1, std::memory_order_relaxed); }
  void park(uint32_t ticket) noexcept {
    epoch_.wait(ticket, std::memory_order_seq_cst);
    parked_.fetch_sub(1, std::memory_order_relaxed);
  }

  // Wakes as many as there is new work for, except for what those who are searching will take.
  void wake(int work) noexcept {
    const int wanted = work - searching_.load(std::memory_order_seq_cst);
    if (wanted <= 0) return;
    const int parked = parked_.load(std::memory_order_seq_cst);
    if (parked == 0) return;
    epoch_.fetch_add(1, std::memory_order_seq_cst);
    if (wanted >= parked) {
      epoch_.notify_all();
    } else {
      for (int i = 0; i < wanted; ++i) epoch_.notify_one();
    }
  }

  void wake_all() noexcept {
    epoch_.fetch_add(1, std::memory_order_seq_cst);
    epoch_.notify_all();
  }

  // For the child of a fork, which has no workers.
  void reset() noexcept {
    searching_.store(0, std::memory_order_relaxed);
    parked_.store(0, std::memory_order_relaxed);
  }

 private:
  // On lines of their own: every push reads the first two, only the idle write them.
  alignas(64) std::atomic<int> searching_{0};
  std::atomic<int> parked_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};
};
static_assert(sizeof(Parking) == 2 * 64, "and nobody else is on these lines");

}  // namespace aspen
