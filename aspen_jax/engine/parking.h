// Where idle workers sleep without using the CPU and without missing work.
#pragma once

#include <atomic>
#include <cstdint>

namespace aspen {

// A worker without work is first one who *looks*, and is counted as such. If it finds nothing it announces that it is about to
// sleep, looks once more at whether there is work, and sleeps only if there is none. `seek` is that loop. A thread that brings
// work publishes it and then calls `wake`, which wakes as many as there is work for beyond those who look.
//
// It holds that no worker sleeps for long while work lies in the pool. All accesses named here are seq_cst, so they have one
// order:
//   bringer: (1) publish the work   (2) read looking   (3) read parked   (4) bump epoch, notify
//   idler:   (a) looking -= 1       (b) parked += 1    (c) read epoch    (d) is there work?   (e) sleep while epoch is as in (c)
//   finder:  (a) looking -= 1, and if it was the last one that looks     (d) is there work?   (f) hand on
//
// No wake-up is lost. If an idler's (d) comes after (1) it sees the work, unless somebody has taken it. Otherwise (a), (b) and
// (c) come before (d), which comes before (1), (2), (3) and (4): the bringer no longer counts this idler among those who look,
// sees it as parked, and bumps the epoch after (c) has read it, so (e) does not sleep, or is notified. The epoch would have to
// wrap around between (c) and (e) to hide that.
//
// Nothing is left behind where a bringer wakes nobody because (2) counts somebody who looks, who may have found a tile already
// and not yet done (a). For (2) comes before this (a), so (1) comes before the (d) of whoever makes `looking` 0, now or later. An
// idler that does so sees the work, and looks again, counted. A finder that does so sees it, and hands on: it wakes one worker
// who looks, counted, too. So whoever is counted, or was woken by such a one, has the same duty, and work is taken up, one piece
// after the other, until there is none or nobody sleeps. Who takes a piece that it has seen without being counted leaves the rest
// to nobody. Only who was woken by a bringer may: the bringer has woken others for the rest, and nobody relies on this one.
//
// Handing on: (f1) set a flag  (f2) read parked  (f3) bump epoch, notify. Who wakes up: (g) parked -= 1  (h) take the flag. If
// (f2) counts somebody then its (g) and (h) come later, and it, or another who is awake, takes the flag. If not, nobody sleeps. A
// flag that is left over only makes somebody look who need not.
//
// `parked` may count workers that no longer sleep. That wakes too many, never too few: a notification goes to those who sleep.
class Parking {
 public:
  // What a worker without work does until it has found some, which is returned, or is to stop, which is null. It asks the seeker:
  //   look()               for work, for a while; a pointer, or null
  //   take()               for work, once
  //   has_work()           seq_cst, with whoever publishes it
  //   is_over()            whether to stop; seq_cst, and it becomes true before `wake_all`
  //   before_sleep(), after_sleep()
  // Who stops may have been woken for work, which it leaves to others: it hands on where there is some.
  template <typename Seeker>
  auto seek(Seeker&& seeker) noexcept -> decltype(seeker.look()) {
    for (;;) {
      looking_.fetch_add(1, std::memory_order_seq_cst);
      const auto found = seeker.look();
      const bool last = looking_.fetch_sub(1, std::memory_order_seq_cst) == 1;  // (a)
      if (found != nullptr) {
        if (last && seeker.has_work()) hand_on();  // (d), (f)
        return found;
      }
      seeker.before_sleep();
      parked_.fetch_add(1, std::memory_order_seq_cst);                // (b)
      const uint32_t epoch = epoch_.load(std::memory_order_seq_cst);  // (c)
      const bool sleeps = !seeker.has_work() && !seeker.is_over();    // (d)
      if (sleeps) epoch_.wait(epoch, std::memory_order_seq_cst);      // (e)
      parked_.fetch_sub(1, std::memory_order_seq_cst);                // (g)
      if (sleeps) seeker.after_sleep();
      if (seeker.is_over()) return nullptr;
      if (!sleeps || takes_flag()) continue;
      if (const auto brought = seeker.take()) return brought;
    }
  }

  // Wakes one who goes on to wake others while there is work, if none looks who does that.
  void hand_on() noexcept {
    if (looking_.load(std::memory_order_seq_cst) > 0) return;
    is_handed_on_.store(true, std::memory_order_seq_cst);  // (f1)
    wake(1);
  }

  // Wakes as many as there is new work for, except for what those who look will take.
  void wake(int work) noexcept {
    const int wanted = work - looking_.load(std::memory_order_seq_cst);  // (2)
    if (wanted <= 0) return;
    const int parked = parked_.load(std::memory_order_seq_cst);  // (3), (f2)
    if (parked == 0) return;
    epoch_.fetch_add(1, std::memory_order_seq_cst);  // (4), (f3)
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

  // Forgets all workers: the child of a fork has none.
  void reset() noexcept {
    looking_.store(0, std::memory_order_relaxed);
    parked_.store(0, std::memory_order_relaxed);
  }

 private:
  // (h)
  bool takes_flag() noexcept {
    return is_handed_on_.load(std::memory_order_seq_cst) && is_handed_on_.exchange(false, std::memory_order_seq_cst);
  }

  // These lie on lines of their own: every push reads the first two, only the idle write them.
  alignas(64) std::atomic<int> looking_{0};
  std::atomic<int> parked_{0};
  std::atomic<bool> is_handed_on_{false};
  alignas(64) std::atomic<uint32_t> epoch_{0};
};
static_assert(sizeof(Parking) == 2 * 64, "and nobody else is on these lines");

}  // namespace aspen
