#include "placement.h"

#include "spin.h"

#if defined(__linux__) && __has_include(<sys/rseq.h>)
#define ASPEN_KNOWS_CORES
#include <pthread.h>
#include <sched.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace aspen {

// Those who would move something leave it if somebody else is about to: what they saw is no longer true then.
class Placement::Lock {
 public:
  explicit Lock(Placement& placement) noexcept : flag_(placement.locked_) {
    // acquire, with the release of whoever held it before.
    held_ = !flag_.test_and_set(std::memory_order_acquire);
  }
  ~Lock() {
    if (held_) flag_.clear(std::memory_order_release);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  bool held() const noexcept { return held_; }

 private:
  std::atomic_flag& flag_;
  bool held_;
};

void Placement::leave(int worker) noexcept {
  // Whoever holds the lock may be reading in this thread's memory.
  for (Backoff backoff;; backoff.wait()) {
    const Lock lock(*this);
    if (!lock.held()) continue;
    seats_[worker].core.store(nullptr, std::memory_order_relaxed);
    return;
  }
}

void Placement::reset() noexcept {
  for (Seat& seat : seats_) {
    seat.walking.store(false, std::memory_order_relaxed);
    seat.core.store(nullptr, std::memory_order_relaxed);
  }
  locked_.clear(std::memory_order_relaxed);
}

int Placement::core_of(int worker) const noexcept {
  const Seat& seat = seats_[worker];
  // acquire, with the release in `enter`: what the thread's memory was before it was a worker's is not read.
  const uint32_t* const core = seat.core.load(std::memory_order_acquire);
  if (core == nullptr || !seat.walking.load(std::memory_order_relaxed)) return -1;
  return static_cast<int>(__atomic_load_n(core, __ATOMIC_RELAXED));
}

#ifdef ASPEN_KNOWS_CORES
namespace {

constexpr pid_t kThisThread = 0;
// The shortest that Linux gives.
constexpr uint64_t kSliceNs = 100'000;

// Without binding it there.
void move(pid_t thread, int core) noexcept {
  cpu_set_t allowed, wanted;
  if (sched_getaffinity(thread, sizeof(allowed), &allowed) != 0 || !CPU_ISSET(core, &allowed)) return;
  CPU_ZERO(&wanted);
  CPU_SET(core, &wanted);
  if (sched_setaffinity(thread, sizeof(wanted), &wanted) == 0) sched_setaffinity(thread, sizeof(allowed), &allowed);
}

// Linux's struct sched_attr as it was first: glibc has it only from 2.41.
struct SchedulingAttributes {
  uint32_t size;
  uint32_t policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period;
};

int64_t nanoseconds(clockid_t clock) noexcept {
  timespec time;
  return clock_gettime(clock, &time) == 0 ? time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec : -1;
}

}  // namespace

void ask_for_short_slices() noexcept {
#if defined(SYS_sched_getattr) && defined(SYS_sched_setattr)
  SchedulingAttributes attributes{};
  if (syscall(SYS_sched_getattr, kThisThread, &attributes, sizeof(attributes), 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;  // somebody's choice
  attributes.runtime = kSliceNs;
  syscall(SYS_sched_setattr, kThisThread, &attributes, 0);
#endif
}

void Placement::enter(int worker) noexcept {
  ask_for_short_slices();
  clockid_t clock;
  if (__rseq_size == 0 || pthread_getcpuclockid(pthread_self(), &clock) != 0) return;
  const auto* const mine = reinterpret_cast<const struct rseq*>(static_cast<char*>(__builtin_thread_pointer()) + __rseq_offset);
  Seat& seat = seats_[worker];
  seat.clock.store(clock, std::memory_order_relaxed);
  seat.thread.store(static_cast<int>(syscall(SYS_gettid)), std::memory_order_relaxed);
  // release, with the acquire in `look` and `core_of`: the clock and the thread are known, and the thread's memory is set up.
  seat.core.store(&mine->cpu_id, std::memory_order_release);
}

void Placement::spread(int worker, int workers) noexcept {
  const Lock lock(*this);
  cpu_set_t free;
  if (!lock.held() || sched_getaffinity(kThisThread, sizeof(free), &free) != 0) return;
  const int here = sched_getcpu();
  bool shared = false;
  for (int other = 0; other < workers; ++other) {
    const int core = other == worker ? -1 : core_of(other);
    if (core < 0 || core >= CPU_SETSIZE) continue;
    shared |= core == here;
    CPU_CLR(core, &free);
  }
  if (!shared || CPU_COUNT(&free) == 0) return;
  int core = here;
  do core = (core + 1) % CPU_SETSIZE;
  while (!CPU_ISSET(core, &free));
  move(kThisThread, core);
}

Placement::Look Placement::look(int worker, int workers) const noexcept {
  Look look;
  for (int i = 1; i < workers && look.size_ < Look::kMost; ++i) {
    const int other = (worker + i) % workers;
    const Seat& seat = seats_[other];
    if (!seat.walking.load(std::memory_order_relaxed) || seat.core.load(std::memory_order_acquire) == nullptr) continue;
    const int64_t ran = nanoseconds(seat.clock.load(std::memory_order_relaxed));
    if (ran >= 0) look.seen_[look.size_++] = {other, ran};
  }
  return look;
}

std::optional<int> Placement::waiting(const Look& look) const noexcept {
  for (int i = 0; i < look.size_; ++i) {
    const auto [worker, ran] = look.seen_[i];
    const Seat& seat = seats_[worker];
    if (!seat.walking.load(std::memory_order_relaxed)) continue;
    if (nanoseconds(seat.clock.load(std::memory_order_relaxed)) == ran) return worker;
  }
  return std::nullopt;
}

void Placement::make_way(int worker) noexcept {
  const Lock lock(*this);
  if (!lock.held()) return;
  const int here = sched_getcpu(), there = core_of(worker);
  if (there < 0) return;
  move(seats_[worker].thread.load(std::memory_order_relaxed), here);
  if (there != here) move(kThisThread, there);
}
#else
void ask_for_short_slices() noexcept {}
void Placement::enter(int) noexcept {}
void Placement::spread(int, int) noexcept {}
Placement::Look Placement::look(int, int) const noexcept { return {}; }
std::optional<int> Placement::waiting(const Look&) const noexcept { return std::nullopt; }
void Placement::make_way(int) noexcept {}
#endif

}  // namespace aspen
