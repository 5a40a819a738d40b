#include "runtime.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "dse.h"
#include "float_mode.h"
#include "parking.h"
#include "placement.h"
#include "ready_pool.h"
#include "run_state.h"
#include "spin.h"
#include "usable_cores.h"

namespace aspen {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than the gaps between the tiles of a run, shorter than anyone would notice in a profile.
constexpr auto kSearchTime = std::chrono::microseconds(30);
// Much longer than it takes to read a clock; a thread that has not run for so long waits for its core.
constexpr auto kLookTime = std::chrono::microseconds(15);
// While others walk. Longer than most tiles: nobody who sleeps sees that a walker has lost its core.
constexpr auto kWatchTime = std::chrono::microseconds(300);
// At exit, workers get this long to finish the tiles they are in.
constexpr auto kExitTime = std::chrono::seconds(1);

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

int64_t now_ns() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

// Gives the run's state back before anybody hears of the end, so that the next run finds it.
void complete(RunState* run) noexcept {
  const auto call = run->take_call();
  const std::string error = run->take_error();
  RunStateCache& states = call.states == nullptr ? call.plan->run_states() : *call.states;
  states.keep(std::unique_ptr<RunState>(run));
  call.done(error);
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
    throw std::runtime_error("out of memory: a run needs a workspace of " + std::to_string(plan.graph().workspace_bytes) +
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
    const std::lock_guard lock(mutex_);
    return configured();
  }

  void set_num_workers(int count);

  void set_policy(const Policy& policy) { policy_.store(&policy, std::memory_order_release); }

  void set_observer(std::shared_ptr<Observer> observer) {
    const std::lock_guard lock(mutex_);
    observed_.store(observer != nullptr, std::memory_order_relaxed);
    observer_.swap(observer);
  }

 private:
  // Company of the runs in the pool.
  struct Pooled {
    Impl& impl;
    int self;
    static bool is_last_parent(uint32_t& parents_left) noexcept { return is_last_parent_of_shared(parents_left); }
    bool may_keep(uint32_t) const noexcept { return !leaving(); }
    bool is_overtaken(const RunState& run) const noexcept { return impl.pool_.is_overtaken(self, run, run.policy()); }
    void push(const Batch& batch) const noexcept {
      impl.pool_.row(batch.first->traversal->policy().row_of(self)).push(batch);
      impl.parking_.wake(batch.size);
    }
    bool leaving() const noexcept { return self >= impl.target_.load(std::memory_order_relaxed); }
  };

  // Company of a run that the caller's thread walks from begin to end: nobody to wake.
  struct OfOneThread : Alone {
    Queues& queues;
    Watch* watch;
    static bool may_keep(uint32_t) noexcept { return true; }
    bool is_overtaken(const RunState&) const noexcept { return watch != nullptr && watch->wants_look(); }
    void push(const Batch& batch) const noexcept { queues.push(batch); }
  };

  int configured();
  bool ensure_workers();
  void start_workers();
  void start_worker(int self);
  void work(int self) noexcept;
  Node* search(int self) noexcept;
  bool leave(int self) noexcept;
  std::unique_ptr<RunState> begin(RunState::Call& call, std::span<const void* const> operands, std::span<void* const> results,
                                  std::optional<int64_t> run_key);
  void admit(RunState& run) noexcept;
  bool may_enter(const RunState& run) const noexcept;
  int enter(const RunState& run) noexcept;
  void end(RunState* run) noexcept;
  void release_slot(const RunState& run) noexcept;
  void spread(RunState& run) noexcept;
  void arrive(RunState& run, size_t piece) noexcept;
  static void run_alone(RunState* run) noexcept;

  void handle_process_events();
  void stop() noexcept;

  ReadyPool pool_;
  Parking parking_;
  Placement placement_;
  // Written by every run; what follows is read by every tile and hardly ever written.
  alignas(64) std::atomic<uint64_t> num_runs_{0};
  alignas(64) std::atomic<const Policy*> policy_{&kShallowFirst};
  // Workers with a row at or above this number leave. 0 when the process exits.
  std::atomic<int> target_{0};
  std::atomic<int> configured_{0};    // 0: not yet known
  std::atomic<bool> started_{false};  // as many workers as configured
  std::atomic<bool> exiting_{false};
  std::atomic<bool> observed_{false};

  std::mutex mutex_;  // guards what follows, and all changes of the number of workers
  std::array<bool, kMaxWorkers> alive_{};
  std::atomic<int> num_alive_{0};
  RunState* waiting_ = nullptr;  // for a slot of the pool; what is due first comes first
  int num_arriving_ = 0;         // runs with a slot that wait for pieces
  bool handles_process_events_ = false;
  std::shared_ptr<Observer> observer_;

  friend class Runtime;
};

int Runtime::Impl::configured() {
  if (configured_.load(std::memory_order_relaxed) == 0) configured_.store(workers_by_default(), std::memory_order_relaxed);
  return configured_.load(std::memory_order_relaxed);
}

void Runtime::Impl::set_num_workers(int count) {
  check_worker_count(count, "the number of workers");
  const std::lock_guard lock(mutex_);
  configured_.store(count, std::memory_order_relaxed);
  if (num_alive_.load(std::memory_order_relaxed) == 0) return;
  start_workers();
}

// Whether there are any: a limit on threads may leave us without.
bool Runtime::Impl::ensure_workers() {
  // acquire, with the release in start_workers: the rows exist.
  if (started_.load(std::memory_order_acquire)) return true;
  const std::lock_guard lock(mutex_);
  configured();
  start_workers();
  return started_.load(std::memory_order_relaxed);
}

// As many as configured: starts those who are missing, lets those who are too many go. Some are enough to finish every run; where
// none can be started, the next run tries again.
void Runtime::Impl::start_workers() {
  if (exiting_.load(std::memory_order_relaxed)) throw std::runtime_error("the process is exiting: no new run can be started");
  handle_process_events();
  const int count = configured_.load(std::memory_order_relaxed);
  started_.store(false, std::memory_order_relaxed);
  pool_.ensure_rows(count);
  // seq_cst, before the parked are woken: see parking.h, where leaving counts as work.
  target_.store(count, std::memory_order_seq_cst);
  parking_.wake_all();
  try {
    for (int self = 0; self < count; ++self) {
      if (!alive_[self]) start_worker(self);
    }
  } catch (const std::system_error&) {
    if (num_alive_.load(std::memory_order_relaxed) == 0) return;
  }
  started_.store(true, std::memory_order_release);
}

void Runtime::Impl::start_worker(int self) {
  // Signals are for the threads of the application, whose handlers know nothing of ours.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  alive_[self] = true;
  num_alive_.fetch_add(1, std::memory_order_relaxed);
  try {
    std::thread([this, self] { work(self); }).detach();
  } catch (...) {
    alive_[self] = false;
    num_alive_.fetch_sub(1, std::memory_order_relaxed);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Runtime::Impl::work(int self) noexcept {
#ifdef __linux__
  pthread_setname_np(pthread_self(), ("aspen-" + std::to_string(self)).c_str());
#endif
  const FloatMode mode;
  Arena scratch;
  const Dse dse{scratch, self};
  const Pooled company{*this, self};
  placement_.enter(self);
  for (;;) {
    if (company.leaving() && leave(self)) return;
    Node* head = pool_.pop(self, *policy_.load(std::memory_order_acquire));
    if (head == nullptr) head = search(self);
    if (head == nullptr) continue;
    placement_.begin_walk(self);
    RunState* const finished = walk(head, dse, company);
    placement_.end_walk(self);
    if (finished != nullptr) end(finished);
  }
}

// Looks for work for a while, then sleeps until there may be some; null after a sleep.
Node* Runtime::Impl::search(int self) noexcept {
  const Policy& policy = *policy_.load(std::memory_order_acquire);
  const auto leaving = [&] { return self >= target_.load(std::memory_order_seq_cst); };
  parking_.start_search();
  Node* node = nullptr;
  const auto search_for = [&](Clock::duration time) {
    for (const auto end = Clock::now() + time; node == nullptr && !leaving() && Clock::now() < end;) {
      for (int i = 0; i < 16 && !pool_.has_work(); ++i) pause_core();
      node = pool_.pop(self, policy);
    }
  };
  search_for(kSearchTime);
  std::optional<int> waiting;
  for (const auto end = Clock::now() + kWatchTime; node == nullptr && !waiting && !leaving() && Clock::now() < end;) {
    const Placement::Look look = placement_.look(self, target_.load(std::memory_order_relaxed));
    if (look.empty()) break;
    search_for(kLookTime);
    if (node == nullptr) waiting = placement_.waiting(look);
  }
  const bool last = parking_.stop_search();
  if (node != nullptr) {
    if (last && pool_.has_work()) parking_.wake(1);
    return node;
  }
  if (waiting) placement_.make_way(*waiting);
  const uint32_t ticket = parking_.prepare();
  if (pool_.has_work() || leaving()) {
    parking_.cancel();
  } else {
    parking_.park(ticket);
    placement_.spread(self, target_.load(std::memory_order_relaxed));
  }
  return nullptr;
}

bool Runtime::Impl::leave(int self) noexcept {
  const std::lock_guard lock(mutex_);
  if (self < target_.load(std::memory_order_relaxed)) return false;
  placement_.leave(self);
  alive_[self] = false;
  num_alive_.fetch_sub(1, std::memory_order_relaxed);
  // We may have been woken for work that we now leave to others.
  if (pool_.has_work()) parking_.wake(1);
  return true;
}

std::unique_ptr<RunState> Runtime::Impl::begin(RunState::Call& call, std::span<const void* const> operands,
                                               std::span<void* const> results, std::optional<int64_t> run_key) {
  const Plan& plan = *call.plan;
  if (call.observer == nullptr && observed_.load(std::memory_order_relaxed)) {
    const std::lock_guard lock(mutex_);
    call.observer = observer_;
  }
  if (call.policy == nullptr) call.policy = policy_.load(std::memory_order_acquire);
  call.id = num_runs_.fetch_add(1, std::memory_order_relaxed);
  call.due = now_ns() + std::clamp(run_key.value_or(plan.graph().run_key), -kMostRunKey, kMostRunKey);
  auto run = take_state(plan, call.states == nullptr ? plan.run_states() : *call.states);
  run->start(std::move(call), operands, results);
  return run;
}

void Runtime::Impl::submit(RunState::Call& call, std::span<const void* const> operands, std::span<void* const> results,
                           std::optional<int64_t> run_key) {
  const Plan& plan = *call.plan;
  check_counts(plan, operands.size(), results.size());
  const int64_t cost = call.selection == nullptr ? plan.total_cost() : call.selection->cost;
  const bool is_small = cost < kWakeUpNs;
  if (is_small) num_workers();  // a wrong ASPEN_NUM_WORKERS is an error for small runs too
  const bool alone = is_small || !ensure_workers();
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
                                   .fail = [&run](const std::string& why) { run.fail([&] { return why; }); }});
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
    const std::lock_guard lock(mutex_);
    const int slot = enter(run);
    if (slot == RunOrder::kNoSlot) {
      RunState** place = &waiting_;
      while (*place != nullptr && (*place)->due() <= run.due()) place = &(*place)->next_waiting;
      run.next_waiting = std::exchange(*place, &run);
      return;
    }
    run.set_slot(slot);
  }
  spread(run);
}

// After the last tile of a run in the pool, and the last of its pieces.
void Runtime::Impl::end(RunState* run) noexcept {
  release_slot(*run);
  complete(run);
}

// Hands the slot to whoever waits for it. Where slots are free only runs that wait for pieces are outside, and as many as may be
// are in the pool. So there is never a second one to let in.
void Runtime::Impl::release_slot(const RunState& run) noexcept {
  RunState* next = nullptr;
  {
    const std::lock_guard lock(mutex_);
    pool_.order().leave(run.slot());
    if (run.arrivals() != nullptr) --num_arriving_;
    RunState** place = &waiting_;
    while (*place != nullptr && !may_enter(**place)) place = &(*place)->next_waiting;
    next = *place;
    if (next == nullptr) return;
    *place = next->next_waiting;
    next->set_slot(enter(*next));
  }
  spread(*next);
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
    const FloatMode mode;  // neither for `done` nor for a look, which are the caller's
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
    pool_.row(run.policy().row_of(static_cast<int>((run.id() + piece + part) % rows))).push(ready);
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
  spread_roots(run, roots, rows, run.id() % rows,
               [&](int row, const Batch& batch) { pool_.row(policy.row_of(row)).push(batch); });
  parking_.wake(parts);
}

// Registered once: a forked child inherits the registrations.
void Runtime::Impl::handle_process_events() {
  if (std::exchange(handles_process_events_, true)) return;
  std::atexit([] { runtime().impl_->stop(); });
  pthread_atfork([] { runtime().impl_->mutex_.lock(); }, [] { runtime().impl_->mutex_.unlock(); },
                 [] {
                   // The child has none of our threads. What they were walking belongs to the parent.
                   Impl& impl = *runtime().impl_;
                   impl.alive_.fill(false);
                   impl.num_alive_.store(0, std::memory_order_relaxed);
                   impl.started_.store(false, std::memory_order_relaxed);
                   impl.parking_.reset();
                   impl.placement_.reset();
                   impl.pool_.reset();
                   impl.waiting_ = nullptr;
                   impl.num_arriving_ = 0;
                   impl.mutex_.unlock();
                 });
}

// At exit: lets the workers finish their current tiles, for these may use what is destroyed next. Not longer than kExitTime: a
// worker may be waiting for us in a `done` callback.
void Runtime::Impl::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    exiting_.store(true, std::memory_order_relaxed);
    started_.store(false, std::memory_order_relaxed);
    target_.store(0, std::memory_order_seq_cst);
  }
  parking_.wake_all();
  for (const auto end = Clock::now() + kExitTime; num_alive_.load(std::memory_order_relaxed) > 0 && Clock::now() < end;) {
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
  std::string error;
  try {
    impl_->submit(call, operands, results, run_key);
    return;
  } catch (const std::bad_alloc&) {
    error = "out of memory";  // short enough to need none
  } catch (const std::exception& exception) {
    error = exception.what();
  }
  call.done(error);
}

std::shared_ptr<ArrivingRun> Runtime::start(std::shared_ptr<const Arrivals> arrivals, std::span<const void* const> operands,
                                            std::span<void* const> results, Done done, std::shared_ptr<Observer> observer,
                                            std::optional<int64_t> run_key, const Policy* policy) {
  RunState::Call call{.plan = arrivals->plan(), .done = std::move(done), .observer = std::move(observer), .policy = policy};
  call.arrivals = std::move(arrivals);
  return impl_->start(call, operands, results, run_key);
}

int Runtime::num_workers() { return impl_->num_workers(); }
void Runtime::set_num_workers(int n) { impl_->set_num_workers(n); }
void Runtime::set_policy(const Policy& policy) { impl_->set_policy(policy); }
void Runtime::set_observer(std::shared_ptr<Observer> observer) { impl_->set_observer(std::move(observer)); }

Runtime& runtime() {
  static Runtime instance;
  return instance;
}

}  // namespace aspen
