#include "runtime.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "dse.h"
#include "float_mode.h"
#include "fork_safe_mutex.h"
#include "lanes.h"
#include "parking.h"
#include "placement.h"
#include "places.h"
#include "ready_pool.h"
#include "run_state.h"
#include "team.h"
#include "usable_cores.h"

namespace aspen {
namespace {

using Clock = std::chrono::steady_clock;

// Threads that the system refused are asked for again after so long: what it costs to be refused is then no more than a part in
// thousands.
constexpr auto kAskAgainTime = std::chrono::milliseconds(100);
// A tile that may pause leaves the worker to others after so long: as long as other tiles take, much longer than to take one up.
constexpr int64_t kTurnNs = 200'000;
// At exit, workers get this long to finish the tiles they are in.
constexpr auto kExitTime = std::chrono::seconds(1);
// Threads without a place that are kept for the next time. More than devices that anybody gives a process; one takes a stack.
constexpr int kMostSpare = 64;

void check_worker_count(int64_t count, const std::string& what) {
  if (count < 1 || count > kMaxWorkers) {
    throw std::invalid_argument(what + " is " + std::to_string(count) + "; use a number from 1 to " +
                                std::to_string(kMaxWorkers));
  }
}

int workers_by_default() {
  const char* const text = std::getenv("ASPEN_NUM_WORKERS");
  if (text == nullptr || *text == '\0') return std::min(usable_cores(), kMaxWorkers);
  int count = 0;
  const char* const end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, count);
  if (error != std::errc() || rest != end) {
    throw std::invalid_argument(std::string("the environment variable ASPEN_NUM_WORKERS is '") + text +
                                "'; set it to a number from 1 to " + std::to_string(kMaxWorkers) + " or unset it");
  }
  check_worker_count(count, "the environment variable ASPEN_NUM_WORKERS");
  return count;
}

void name_thread([[maybe_unused]] const std::string& name) noexcept {
#ifdef __linux__
  pthread_setname_np(pthread_self(), name.c_str());
#endif
}

int64_t now_ns() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

// Of a worker that is in `done`: the place that it had.
struct Away {
  int place = Places::kNone;
  Places::Holder holder = 0;
};
thread_local Away away;

// Gives the run's state back before anybody hears of the end, so that the next run finds it.
void complete(RunState* run) noexcept {
  const auto call = run->take_call();
  const Failure failure = run->take_failure();
  RunStateCache& states = call.states == nullptr ? call.plan->run_states() : *call.states;
  states.keep(std::unique_ptr<RunState>(run));
  call.done(failure);
}

void check_counts(const Plan& plan, size_t num_operands, size_t num_results) {
  if (num_operands == plan.num_operands() && num_results == plan.num_results()) return;
  throw std::invalid_argument("the graph has " + std::to_string(plan.num_operands()) + " operands and " +
                              std::to_string(plan.num_results()) + " results, the call has " + std::to_string(num_operands) +
                              " and " + std::to_string(num_results));
}

std::unique_ptr<RunState> take_state(const Plan& plan, RunStateCache& states) {
  try {
    return states.take(plan);
  } catch (const std::bad_alloc&) {
    throw OutOfMemory("out of memory: a run needs a workspace of " + std::to_string(plan.graph().workspace_bytes) +
                      " bytes and counters for " + std::to_string(plan.num_tiles()) +
                      " tiles; free some memory or run fewer at once");
  }
}

}  // namespace

// Never destroyed: workers are detached, and a process may exit while they work.
class Runtime::Impl {
 public:
  // Takes the call along only if it does not throw.
  void submit(RunState::Call& call, std::span<const void* const> operands, std::span<void* const> results,
              std::optional<int64_t> run_key);

  std::shared_ptr<ArrivingRun> start(RunState::Call& call, std::span<const void* const> operands, std::span<void* const> results,
                                     std::optional<int64_t> run_key);

  int num_workers() {
    if (const int count = configured_.load(std::memory_order_relaxed)) return count;
    const std::lock_guard lock(mutex);
    return configured();
  }

  void set_num_workers(int count);

  void lend(Errand errand);

  void set_policy(const Policy& policy) { policy_.store(&policy, std::memory_order_release); }

  void set_observer(std::shared_ptr<Observer> observer) {
    const std::lock_guard lock(mutex);
    observed_.store(observer != nullptr, std::memory_order_relaxed);
    observer_.swap(observer);
  }

 private:
  // Company of the runs in the pool.
  struct Pooled {
    Impl& impl;
    int self;
    static bool is_last_parent(uint32_t& parents_left) noexcept { return is_last_parent_of_shared(parents_left); }
    bool may_keep(uint32_t) const noexcept { return self < impl.target_.load(std::memory_order_relaxed); }
    bool is_overtaken(const Traversal& run) const noexcept { return impl.pool_.is_overtaken(self, run, run.policy()); }
    bool wants_pause(const RunState& run, int64_t& since) const noexcept;
    void push(const Batch& batch) const noexcept {
      impl.pool_.push(self, batch.first->traversal->policy(), batch);
      impl.parking_.wake(batch.size);
    }
  };

  // Company of a run that the caller's thread walks from begin to end: nobody to wake.
  struct OfOneThread : Alone {
    Queues& queues;
    Watch* watch;
    static bool may_keep(uint32_t) noexcept { return true; }
    bool is_overtaken(const Traversal&) const noexcept { return watch != nullptr && watch->wants_look(); }
    bool wants_pause(const RunState& run, int64_t&) const noexcept { return is_overtaken(run); }
    void push(const Batch& batch) const noexcept { queues.push(batch); }
  };

  // A worker that looks for work.
  struct Worker : Seeker<Worker> {
    Worker(Impl& its_impl, int self, Arena& its_scratch) noexcept
        : Seeker(its_impl.placement_, self), impl(its_impl), scratch(its_scratch) {}
    Impl& impl;
    Arena& scratch;

    // A tile, if need be after helping with one for as long as there is no other.
    Node* take() const noexcept {
      Node* const node = pop();
      if (node != nullptr || !impl.team_.has_seat()) return node;
      impl.team_.join(scratch, [this] { return !impl.pool_.has_work() && !is_over(); });
      return pop();
    }
    Node* pop() const noexcept { return impl.pool_.pop(number(), *impl.policy_.load(std::memory_order_acquire)); }
    bool has_work() const noexcept { return impl.pool_.has_work() || impl.team_.has_seat(); }
    bool is_over() const noexcept { return number() >= impl.target_.load(std::memory_order_seq_cst); }
    int num_lanes() const noexcept { return impl.target_.load(std::memory_order_relaxed); }
  };

  int configured();
  bool ensure_workers();
  void start_workers();
  void start_worker(int self);
  void start_thread(int place);
  void ask_later() noexcept;
  void serve(int place) noexcept;
  bool work(int self, Arena& scratch) noexcept;
  bool leave(int self) noexcept;
  std::unique_ptr<RunState> begin(RunState::Call& call, std::span<const void* const> operands, std::span<void* const> results,
                                  std::optional<int64_t> run_key);
  void admit(RunState& run) noexcept;
  bool may_enter(const RunState& run) const noexcept;
  int enter(const RunState& run) noexcept;
  void end(RunState* run) noexcept;
  bool end_at(int self, RunState* run) noexcept;
  bool is_replaced() noexcept;
  RunState* release_slot(const RunState& run) noexcept;
  bool someone_works() noexcept;
  bool call_stand_in() noexcept;
  void call_spare();
  int wait_for_place(Arena& scratch) noexcept;
  std::optional<int> watch(std::unique_lock<ForkSafeMutex>& lock) noexcept;
  void spread(RunState& run) noexcept;
  void arrive(RunState& run, size_t piece) noexcept;
  static void run_alone(RunState* run) noexcept;

  void handle_exit();
  void stop() noexcept;
  static void begin_anew() noexcept;

  // Of the one runtime that there is.
  static ForkSafeMutex mutex;

  ReadyPool pool_;
  Parking parking_;
  Placement placement_;
  Team team_{parking_};
  // Written by every run; what follows is read by every tile and hardly ever written.
  alignas(64) std::atomic<uint64_t> num_runs_{0};
  alignas(64) std::atomic<const Policy*> policy_{&kShallowFirst};
  // Workers with a row at or above this number leave. 0 when the process exits.
  std::atomic<int> target_{0};
  std::atomic<int> configured_{0};    // 0: not yet known
  std::atomic<bool> started_{false};  // as many workers as configured
  std::atomic<bool> exiting_{false};
  std::atomic<bool> observed_{false};

  // Guarded by `mutex`, as are all changes of the number of workers.
  Places places_;
  enum class StandIn { kNone, kCalled, kWatching } stand_in_ = StandIn::kNone;
  int num_spare_ = 0;                     // threads without a place that wait for a call
  std::atomic<uint32_t> spare_calls_{0};  // what they wait for; only ever grows
  std::deque<Errand> errands_;            // for which a spare thread has been called
  RunState* waiting_ = nullptr;           // for a slot of the pool; what is due first comes first
  int num_arriving_ = 0;                  // runs with a slot that wait for pieces
  bool handles_exit_ = false;
  Clock::time_point ask_again_{};  // for workers that were refused
  std::shared_ptr<Observer> observer_;

  friend class Runtime;
};

ForkSafeMutex Runtime::Impl::mutex(begin_anew);

int Runtime::Impl::configured() {
  if (configured_.load(std::memory_order_relaxed) == 0) configured_.store(workers_by_default(), std::memory_order_relaxed);
  return configured_.load(std::memory_order_relaxed);
}

void Runtime::Impl::set_num_workers(int count) {
  check_worker_count(count, "the number of workers");
  const std::lock_guard lock(mutex);
  configured_.store(count, std::memory_order_relaxed);
  if (places_.num_taken() == 0) return;
  start_workers();
}

// Whether there are any: a limit on threads may leave us without. Some are enough to finish every run, and those who are missing
// are asked for again by a later run; where there are none, by the next.
bool Runtime::Impl::ensure_workers() {
  // acquire, with the release in start_workers: the rows exist.
  if (started_.load(std::memory_order_acquire)) [[likely]]
    return true;
  const std::lock_guard lock(mutex);
  const auto have_some = [this] { return places_.num_taken() > 0; };
  const bool may_ask = !have_some() || Clock::now() >= ask_again_ || exiting_.load(std::memory_order_relaxed);
  if (may_ask) {
    configured();
    start_workers();
  }
  return have_some();
}

// As many as configured: starts those who are missing, lets those who are too many go.
void Runtime::Impl::start_workers() {
  if (exiting_.load(std::memory_order_relaxed)) throw std::runtime_error("the process is exiting: no new run can be started");
  handle_exit();
  const int count = configured_.load(std::memory_order_relaxed);
  started_.store(false, std::memory_order_relaxed);
  pool_.ensure_rows(count);
  // seq_cst, before the parked are woken: see parking.h, where leaving counts as work.
  target_.store(count, std::memory_order_seq_cst);
  parking_.wake_all();
  try {
    for (int self = 0; self < count; ++self) {
      if (!places_.is_taken(self)) start_worker(self);
    }
  } catch (const std::system_error&) {
    return ask_later();
  } catch (const std::bad_alloc&) {
    return ask_later();
  }
  started_.store(true, std::memory_order_release);
}

void Runtime::Impl::ask_later() noexcept { ask_again_ = Clock::now() + kAskAgainTime; }

void Runtime::Impl::start_worker(int self) {
  places_.take(self);
  try {
    start_thread(self);
  } catch (...) {
    places_.give_up(self);
    throw;
  }
}

// Throws std::system_error.
void Runtime::Impl::start_thread(int place) {
  masked_thread([this, place] { serve(place); }).detach();
}

// A thread's life: at one place after another, or at none.
void Runtime::Impl::serve(int place) noexcept {
  Arena scratch;
  do {
    if (place != Places::kNone && !work(place, scratch)) return;
    place = wait_for_place(scratch);
  } while (place != Places::kNone);
}

// Where the worker is to leave, and for a run that goes first. After a while the tile's run is as one that has just arrived.
bool Runtime::Impl::Pooled::wants_pause(const RunState& run, int64_t& since) const noexcept {
  if (self >= impl.target_.load(std::memory_order_relaxed)) return true;
  if (!impl.pool_.order().has_many()) return false;
  if (is_overtaken(run)) return true;
  const int64_t now = now_ns();
  if (since == 0) since = now;
  if (now - since < kTurnNs) return false;
  since = now;
  impl.pool_.order().renew(run.slot(), now + run.key());
  return is_overtaken(run);
}

// Until there are too many workers, or, which is true, until another thread has the place.
bool Runtime::Impl::work(int self, Arena& scratch) noexcept {
  name_thread("aspen-" + std::to_string(self));
  const TileFloatMode mode;
  const Dse dse{scratch, self, &team_};
  const Pooled company{*this, self};
  Worker worker(*this, self, scratch);
  placement_.enter(self);
  for (;;) {
    Node* const head = worker.next(parking_);
    if (head == nullptr) {
      if (leave(self)) return false;
      continue;
    }
    placement_.begin_walk(self);
    RunState* const finished = walk(head, dse, company);
    placement_.end_walk(self);
    if (finished != nullptr && !end_at(self, finished)) return true;
  }
}

bool Runtime::Impl::leave(int self) noexcept {
  const std::lock_guard lock(mutex);
  // Whether we stay or not, we may have been woken for more work than we take: see parking.h.
  if (pool_.has_work()) parking_.hand_on();
  if (self < target_.load(std::memory_order_relaxed)) return false;
  placement_.leave(self);
  places_.give_up(self);
  if (places_.all_away() && !pool_.order().is_empty()) call_stand_in();  // those who stay may wait for what we leave
  return true;
}

std::unique_ptr<RunState> Runtime::Impl::begin(RunState::Call& call, std::span<const void* const> operands,
                                               std::span<void* const> results, std::optional<int64_t> run_key) {
  const Plan& plan = *call.plan;
  if (call.observer == nullptr && observed_.load(std::memory_order_relaxed)) {
    const std::lock_guard lock(mutex);
    call.observer = observer_;
  }
  if (call.policy == nullptr) call.policy = policy_.load(std::memory_order_acquire);
  call.id = num_runs_.fetch_add(1, std::memory_order_relaxed);
  call.key = std::clamp(run_key.value_or(plan.graph().run_key), -kMostRunKey, kMostRunKey);
  call.due = now_ns() + call.key;
  auto run = take_state(plan, call.states == nullptr ? plan.run_states() : *call.states);
  run->start(std::move(call), operands, results);
  return run;
}

void Runtime::Impl::submit(RunState::Call& call, std::span<const void* const> operands, std::span<void* const> results,
                           std::optional<int64_t> run_key) {
  const Plan& plan = *call.plan;
  check_counts(plan, operands.size(), results.size());
  const int64_t cost = call.selection == nullptr ? plan.total_cost() : call.selection->cost;
  const bool is_small = cost < kWakeUpNs && !plan.may_not_end();
  if (is_small) num_workers();  // a wrong ASPEN_NUM_WORKERS is an error for small runs too
  const bool alone = is_small || !ensure_workers() || !someone_works();
  auto run = begin(call, operands, results, run_key);
  if (run->num_tiles() == 0) {
    complete(run.release());
  } else if (alone) {
    run_alone(run.release());
  } else {
    admit(*run.release());
  }
}

std::shared_ptr<ArrivingRun> Runtime::Impl::start(RunState::Call& call, std::span<const void* const> operands,
                                                  std::span<void* const> results, std::optional<int64_t> run_key) {
  check_counts(*call.plan, operands.size(), results.size());
  if (!ensure_workers()) throw std::runtime_error("no worker can be started; raise the limit on threads");
  const size_t num_pieces = call.arrivals->num_pieces();
  auto owned = begin(call, operands, results, run_key);
  RunState& run = *owned;
  auto arriving = std::make_shared<ArrivingRun>(
      num_pieces, ArrivingRun::Run{.arrive = [this, &run](size_t piece) { arrive(run, piece); },
                                   .fail = [&run](std::string_view why) { run.fail([&] { return std::string(why); }); }});
  admit(*owned.release());
  return arriving;
}

bool Runtime::Impl::may_enter(const RunState& run) const noexcept {
  return run.arrivals() == nullptr || num_arriving_ < kMostArriving;
}

// A slot, which there may be none of. The caller holds the lock.
int Runtime::Impl::enter(const RunState& run) noexcept {
  const int slot = may_enter(run) ? pool_.order().enter(run.due()) : RunOrder::kNoSlot;
  if (slot != RunOrder::kNoSlot && run.arrivals() != nullptr) ++num_arriving_;
  return slot;
}

// Into the pool, or behind those who wait for a slot there and are due earlier.
void Runtime::Impl::admit(RunState& run) noexcept {
  {
    const std::lock_guard lock(mutex);
    const int slot = enter(run);
    if (slot == RunOrder::kNoSlot) {
      RunState** place = &waiting_;
      while (*place != nullptr && (*place)->due() <= run.due()) place = &(*place)->next_waiting;
      run.next_waiting = std::exchange(*place, &run);
      return;
    }
    run.set_slot(slot);
    // Of several workers the others begin; a thread is woken only for one who stays away.
    if (places_.some_away() && (places_.all_away() || places_.someone_stays_away(now_ns()))) call_stand_in();
  }
  spread(run);
}

// After the last tile of a run in the pool, and the last of its pieces; on a thread that has no place.
void Runtime::Impl::end(RunState* run) noexcept {
  RunState* next = nullptr;
  {
    const std::lock_guard lock(mutex);
    next = release_slot(*run);
  }
  if (next != nullptr) spread(*next);
  complete(run);
}

// Likewise on a worker. False if somebody else has its place now.
bool Runtime::Impl::end_at(int self, RunState* run) noexcept {
  RunState* next = nullptr;
  {
    const std::lock_guard lock(mutex);
    next = release_slot(*run);
    away = {self, places_.go_away(self, now_ns())};
    if (!pool_.order().is_empty()) call_stand_in();
  }
  if (next != nullptr) spread(*next);
  complete(run);
  const auto [place, holder] = std::exchange(away, {});
  const std::lock_guard lock(mutex);
  return places_.come_back(place, holder);
}

bool Runtime::Impl::is_replaced() noexcept {
  if (away.place == Places::kNone) return false;
  const std::lock_guard lock(mutex);
  return !places_.has(away.place, away.holder);
}

// Hands the slot to whoever waits for it, who is then to be spread. Where slots are free only runs that wait for pieces are
// outside, and as many as may be are in the pool. So there is never a second one to let in. The caller holds the lock.
RunState* Runtime::Impl::release_slot(const RunState& run) noexcept {
  pool_.order().leave(run.slot());
  if (run.arrivals() != nullptr) --num_arriving_;
  RunState** place = &waiting_;
  while (*place != nullptr && !may_enter(**place)) place = &(*place)->next_waiting;
  RunState* const next = *place;
  if (next == nullptr) return nullptr;
  *place = next->next_waiting;
  next->set_slot(enter(*next));
  return next;
}

// Whether a new run will find a worker, or at least a thread that stands in.
bool Runtime::Impl::someone_works() noexcept {
  if (!places_.some_away()) return true;
  const std::lock_guard lock(mutex);
  return !places_.all_away() || call_stand_in();
}

// Makes a thread watch whether workers stay away. False where the system refuses one. The caller holds the lock.
bool Runtime::Impl::call_stand_in() noexcept {
  if (stand_in_ != StandIn::kNone) return true;
  stand_in_ = StandIn::kCalled;
  try {
    call_spare();
    return true;
  } catch (...) {
    stand_in_ = StandIn::kNone;
    return false;
  }
}

void Runtime::Impl::lend(Errand errand) {
  const std::lock_guard lock(mutex);
  if (exiting_.load(std::memory_order_relaxed)) throw std::runtime_error("the process is exiting: no new run can be started");
  errands_.push_back(std::move(errand));
  try {
    call_spare();
  } catch (...) {
    errands_.pop_back();
    throw;
  }
}

// For one more stand-in or errand than before. Of those who wait, each takes one; where they are too few, a new thread comes. The
// caller holds the lock.
void Runtime::Impl::call_spare() {
  const size_t called = errands_.size() + (stand_in_ == StandIn::kCalled);
  if (static_cast<size_t>(num_spare_) < called) return start_thread(Places::kNone);
  spare_calls_.fetch_add(1, std::memory_order_relaxed);  // the lock orders it; the waiting only have to see it
  spare_calls_.notify_one();
}

// Of a thread that has none; kNone if the thread is to end.
int Runtime::Impl::wait_for_place(Arena& scratch) noexcept {
  name_thread("aspen spare");
  std::unique_lock lock(mutex);
  for (;;) {
    if (exiting_.load(std::memory_order_relaxed)) return Places::kNone;
    if (stand_in_ == StandIn::kCalled) {
      if (const auto place = watch(lock)) return *place;
      continue;
    }
    if (!errands_.empty()) {
      const Errand errand = std::move(errands_.front());
      errands_.pop_front();
      lock.unlock();
      errand(scratch);
      lock.lock();
      continue;
    }
    if (num_spare_ == kMostSpare) return Places::kNone;
    ++num_spare_;
    const uint32_t ticket = spare_calls_.load(std::memory_order_relaxed);
    lock.unlock();
    spare_calls_.wait(ticket, std::memory_order_relaxed);
    lock.lock();
    --num_spare_;
  }
}

// Waits until a place has been empty for long, or no run needs it.
std::optional<int> Runtime::Impl::watch(std::unique_lock<ForkSafeMutex>& lock) noexcept {
  stand_in_ = StandIn::kWatching;
  std::optional<int> place;
  while (!place && places_.some_away() && !pool_.order().is_empty() && !exiting_.load(std::memory_order_relaxed)) {
    lock.unlock();
    std::this_thread::sleep_for(Places::kAbsence);
    lock.lock();
    place = places_.stand_in(target_.load(std::memory_order_relaxed), now_ns());
  }
  stand_in_ = StandIn::kNone;
  if (!place) return std::nullopt;
  placement_.leave(*place);  // the thread that was there may end before we enter
  if (places_.some_away()) call_stand_in();
  return place;
}

void Runtime::Impl::run_alone(RunState* run) noexcept {
  thread_local Arena scratch;
  Queues queues;
  queues.clear();
  Batch roots;
  for (const int32_t root : run->roots()) roots.add(&run->node(static_cast<uint32_t>(root)));
  queues.push(roots);
  const Dse dse{scratch, kCallerThread};
  const OfOneThread company{{}, queues, run->watch()};
  RunState* finished = nullptr;
  while (finished == nullptr) {
    if (company.is_overtaken(*run)) run->watch()->look();
    const TileFloatMode mode;  // neither for `done` nor for a look, which are the caller's
    do {
      finished = walk(queues.pop(), dse, company);
    } while (finished == nullptr && !company.is_overtaken(*run));
  }
  complete(finished);
}

// Counts down what waits for a piece, and pushes what has become ready. The run does not end meanwhile: the piece is counted
// last.
void Runtime::Impl::arrive(RunState& run, size_t piece) noexcept {
  const auto tiles = run.arrivals()->tiles_of(piece);
  const auto rows = static_cast<size_t>(std::max(1, target_.load(std::memory_order_acquire)));
  const size_t parts = std::min(rows, tiles.size());
  size_t next = 0;
  for (size_t part = 0; part < parts; ++part) {
    Batch ready;
    for (; next < tiles.size() * (part + 1) / parts; ++next) {
      if (is_last_parent_of_shared(run.parents_left(tiles[next]))) ready.add(&run.node(tiles[next]));
    }
    if (ready.size == 0) continue;
    pool_.push(static_cast<int>((run.id() + piece + part) % rows), run.policy(), ready);
    parking_.wake(ready.size);
  }
  if (run.finish(1)) end(&run);
}

// Small runs begin at different rows. The run may end, and its plan with it, as soon as its last root is pushed.
void Runtime::Impl::spread(RunState& run) noexcept {
  if (const Arrivals* const arrivals = run.arrivals()) {
    arrive(run, arrivals->entry());
    return;
  }
  // acquire, with the store in start_workers: these rows exist. It is 0 when the process exits.
  const auto rows = static_cast<size_t>(std::max(1, target_.load(std::memory_order_acquire)));
  const auto roots = run.roots();
  const auto parts = static_cast<int>(std::min(rows, roots.size()));
  const Policy policy = run.policy();
  spread_roots(run, roots, rows, run.id() % rows, [&](int row, const Batch& batch) { pool_.push(row, policy, batch); });
  parking_.wake(parts);
}

// Registered once: a forked child inherits the registration.
void Runtime::Impl::handle_exit() {
  if (!std::exchange(handles_exit_, true)) std::atexit([] { runtime().impl_->stop(); });
}

// The child of a fork has none of our threads, nor is it exiting. What they were walking belongs to the parent.
void Runtime::Impl::begin_anew() noexcept {
  Impl& impl = *runtime().impl_;
  impl.places_.reset();
  impl.stand_in_ = StandIn::kNone;
  impl.num_spare_ = 0;
  impl.errands_.clear();
  impl.started_.store(false, std::memory_order_relaxed);
  impl.exiting_.store(false, std::memory_order_relaxed);
  impl.parking_.reset();
  impl.team_.reset();
  impl.placement_.reset();
  impl.pool_.reset();
  impl.waiting_ = nullptr;
  impl.num_arriving_ = 0;
}

// At exit: lets the workers finish their current tiles, for these may use what is destroyed next. Not longer than kExitTime: a
// worker may be waiting for us in a `done` callback.
void Runtime::Impl::stop() noexcept {
  {
    const std::lock_guard lock(mutex);
    exiting_.store(true, std::memory_order_relaxed);
    started_.store(false, std::memory_order_relaxed);
    target_.store(0, std::memory_order_seq_cst);
  }
  parking_.wake_all();
  for (const auto end = Clock::now() + kExitTime; places_.num_taken() > 0 && Clock::now() < end;) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

Runtime::Runtime() : impl_(std::make_unique<Impl>().release()) {}

void Runtime::submit(std::shared_ptr<const Plan> plan, std::span<const void* const> operands, std::span<void* const> results,
                     Done done, std::shared_ptr<Observer> observer, std::optional<int64_t> run_key, const Continued* continued,
                     std::shared_ptr<Watch> watch) noexcept {
  RunState::Call call{std::move(plan), std::move(done), std::move(observer)};
  call.watch = std::move(watch);
  if (continued != nullptr) {
    call.states = &continued->states;
    call.selection = continued->selection;
  }
  try {
    impl_->submit(call, operands, results, run_key);
  } catch (...) {
    call.done(Failure::of_exception());
  }
}

std::shared_ptr<ArrivingRun> Runtime::start(std::shared_ptr<const Arrivals> arrivals, std::span<const void* const> operands,
                                            std::span<void* const> results, Done done, std::shared_ptr<Observer> observer,
                                            std::optional<int64_t> run_key, const Policy* policy, std::shared_ptr<Watch> watch) {
  RunState::Call call{.plan = arrivals->plan(), .done = std::move(done), .observer = std::move(observer), .policy = policy};
  call.arrivals = std::move(arrivals);
  call.watch = std::move(watch);
  return impl_->start(call, operands, results, run_key);
}

bool Runtime::is_replaced() noexcept { return impl_->is_replaced(); }
int Runtime::num_workers() { return impl_->num_workers(); }
void Runtime::set_num_workers(int n) { impl_->set_num_workers(n); }
void Runtime::lend(Errand errand) { impl_->lend(std::move(errand)); }
void Runtime::set_policy(const Policy& policy) { impl_->set_policy(policy); }
void Runtime::set_observer(std::shared_ptr<Observer> observer) { impl_->set_observer(std::move(observer)); }

Runtime& runtime() {
  static Runtime instance;
  return instance;
}

// When the library is loaded, before anybody can fork in the middle of it.
[[maybe_unused]] static const Runtime& kMadeAtLoad = runtime();

}  // namespace aspen
