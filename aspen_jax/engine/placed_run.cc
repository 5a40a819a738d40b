#include "placed_run.h"

#include <pthread.h>
#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <latch>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "algorithm1.h"
#include "arena.h"
#include "couriers.h"
#include "dse.h"
#include "float_mode.h"
#include "lanes.h"
#include "limits.h"
#include "parking.h"
#include "placing.h"
#include "run_state.h"
#include "runtime.h"
#include "spin.h"

namespace aspen {
namespace {

using Clock = std::chrono::steady_clock;

// For lanes to come back from what they are in, when the caller has been interrupted.
constexpr auto kPatience = std::chrono::milliseconds(300);

// All bits set are NaN in every format of floats.
constexpr int kPoison = 0xFF;

// A run's buffers in one memory: a workspace, and results of its own unless the caller's are there.
class Memory {
 public:
  Memory(const std::shared_ptr<const Plan>& plan, const Policy& policy, std::span<const void* const> operands,
         std::span<void* const> results, std::shared_ptr<Watch> watch)
      : plan_(*plan), state_(plan->run_states().take(*plan)) {
    std::vector<void*> own(results.begin(), results.end());
    if (results.empty()) {
      arenas_.resize(plan->num_results());
      for (size_t i = 0; i < arenas_.size(); ++i) {
        if (!arenas_[i].grow(static_cast<size_t>(plan->result(i).bytes))) throw std::bad_alloc();
        own.push_back(arenas_[i].data());
      }
    }
    RunState::Call call;
    call.plan = plan;
    call.policy = &policy;
    call.watch = std::move(watch);
    state_->start(std::move(call), operands, own);
  }
  ~Memory() {
    // The plan lives: the run that owns this memory holds it.
    state_->take_call();
    state_->take_failure();
    plan_.run_states().keep(std::move(state_));
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  RunState& state() const { return *state_; }
  const RunOp& op(uint32_t index) const { return state_->op(index); }

  void poison() {
    const Graph& graph = plan_.graph();
    for (uint32_t i = 0; i < graph.ops.size(); ++i) {
      const auto poison_output = [](void* output, const Value& value) {
        std::memset(output, kPoison, static_cast<size_t>(value.bytes));
      };
      poison_output(op(i).output, graph.values[graph.ops[i].output]);
      const auto further = graph.further_of(graph.ops[i]);
      for (size_t k = 0; k < further.size(); ++k) poison_output(op(i).further[k], graph.values[further[k]]);
    }
  }

 private:
  const Plan& plan_;
  std::unique_ptr<RunState> state_;
  std::vector<Arena> arenas_;
};

// The elements [box[0], box[rank]) ... of a dense tensor that lies in two places.
void copy_box(const TensorView& tensor, const int32_t* box, const std::byte* from, std::byte* to) {
  const int64_t size = size_of(tensor.dtype);
  const int32_t *const lo = box, *const hi = box + tensor.rank;
  // What is contiguous: the last dimension that is not covered, and all behind it.
  int last = tensor.rank - 1;
  while (last > 0 && lo[last] == 0 && hi[last] == tensor.shape[last]) --last;
  int64_t offset = 0, bytes = size;
  for (int d = 0; d < tensor.rank; ++d) {
    if (hi[d] <= lo[d]) return;
    offset += lo[d] * tensor.strides[d] * size;
    if (d >= last) bytes *= hi[d] - lo[d];
  }
  for (int64_t at[kMaxRank] = {};;) {
    std::memcpy(to + offset, from + offset, static_cast<size_t>(bytes));
    int d = last - 1;
    for (; d >= 0; --d) {
      offset += tensor.strides[d] * size;
      if (++at[d] < hi[d] - lo[d]) break;
      offset -= at[d] * tensor.strides[d] * size;
      at[d] = 0;
    }
    if (d < 0) return;
  }
}

// Keeps the calling thread on these cores, if there are any.
class Bound {
 public:
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;
#ifdef __linux__
  explicit Bound(std::span<const int> cores) noexcept {
    if (cores.empty() || pthread_getaffinity_np(pthread_self(), sizeof(before_), &before_) != 0) return;
    cpu_set_t wanted;
    CPU_ZERO(&wanted);
    for (const int core : cores) {
      if (core >= 0 && core < CPU_SETSIZE) CPU_SET(core, &wanted);
    }
    is_bound_ = pthread_setaffinity_np(pthread_self(), sizeof(wanted), &wanted) == 0;
  }
  ~Bound() {
    if (is_bound_) pthread_setaffinity_np(pthread_self(), sizeof(before_), &before_);
  }

 private:
  cpu_set_t before_;
  bool is_bound_ = false;
#else
  explicit Bound(std::span<const int>) noexcept {}
  ~Bound() {}
#endif
};

class PlacedRun final : public Placing<PlacedRun, Parking> {
 public:
  PlacedRun(std::shared_ptr<const Plan> plan, std::span<const void* const> operands, std::span<void* const> results,
            const VirtualGraph& graph, const VirtualMachine& machine, std::span<const LaneKind> kinds, const Policy& policy,
            const PlaceTile& place, const Attendant& attendant, std::shared_ptr<Watch> watch)
      : Placing(graph, machine, policy, place),
        plan_(std::move(plan)),
        kinds_(kinds),
        attendant_(attendant),
        rewrites_(plan_->graph().ops.size()),
        tiles_(graph.num_tiles()),
        placement_(machine.num_lanes()),
        ready_(machine.num_lanes()) {
    memories_.push_back(std::make_unique<Memory>(plan_, policy, operands, results, std::move(watch)));
    for (int i = 1; i < machine.num_memories(); ++i) {
      memories_.push_back(std::make_unique<Memory>(plan_, policy, operands, std::span<void* const>(), nullptr));
    }
    const Graph& ops = plan_->graph();
    for (size_t i = 0; i < rewrites_.size(); ++i) {
      const Value& output = ops.values[ops.ops[i].output];
      for (const Input& input : ops.inputs_of(ops.ops[i])) {
        const Value& value = ops.values[input.value];
        rewrites_[i] = rewrites_[i] || (value.buffer == output.buffer && value.offset == output.offset);
      }
    }
    if (machine.num_memories() == 1) return;
    for (const auto& memory : memories_) memory->poison();
    couriers_.emplace(graph, machine,
                      Couriers::Run{[this] { return now(); }, [this](uint32_t tile, int from, int to) { copy(tile, from, to); },
                                    [this](std::span<const uint32_t> tiles) { arrived(tiles); }});
  }

  // False where a lane was given up: then the run must never end.
  bool run() {
    if (tiles_.empty()) return true;
    // Shared with the last lane, which may still be inside when nobody waits any more.
    const auto gone = std::make_shared<std::latch>(machine_.num_lanes());
    int num_lent = 0;
    try {
      for (; num_lent < machine_.num_lanes(); ++num_lent) {
        runtime().lend([this, gone, lane = num_lent](Arena& scratch) {
          work(lane, scratch);
          gone->count_down();
        });
      }
    } catch (...) {
      fail_with(std::current_exception());
      ready_.count_down(machine_.num_lanes() - num_lent);
      gone->count_down(machine_.num_lanes() - num_lent);
      end();
    }
    const bool all_come_back = attend();
    if (all_come_back) gone->wait();
    return all_come_back;
  }

  [[noreturn]] void rethrow() const { std::rethrow_exception(interrupted_); }

  // When it has run.
  Simulation result() {
    if (interrupted_) std::rethrow_exception(interrupted_);
    if (error_) std::rethrow_exception(error_);
    if (const Failure failure = run_state().take_failure(); !failure.empty()) throw RunError(failure.text());
    gather_results();
    return {std::move(tiles_), couriers_ ? std::move(couriers_->copies()) : std::vector<Copy>()};
  }

  // Of Placing. A run that has failed asks the policy and the couriers no more.
  int decide(uint32_t tile, int64_t now) noexcept {
    if (!may_go_on()) return 0;
    try {
      return asked(tile, now);
    } catch (...) {
      fail_with(std::current_exception());
    }
    return 0;
  }
  bool fetch(uint32_t tile, int memory, int64_t now) noexcept {
    if (!couriers_ || !may_go_on()) return true;
    try {
      return couriers_->fetch(tile, memory, now);
    } catch (...) {
      fail_with(std::current_exception());
    }
    return true;
  }
  bool is_there(uint32_t tile, int memory, int64_t) { return !couriers_ || couriers_->is_there(tile, memory); }

 private:
  // A lane as Algorithm 1 sees it (algorithm1.h), and who looks for work.
  struct Lane : Seeker<Lane> {
    Lane(PlacedRun& its_run, int number) noexcept
        : Seeker(its_run.placement_, number), run(its_run), domain(its_run.domain_of(number)) {}
    PlacedRun& run;
    Domain<Parking>& domain;
    int64_t now = 0;  // when its last tile ended

    static bool is_last_parent(uint32_t& parents_left) noexcept { return is_last_parent_of_shared(parents_left); }
    static bool is_overtaken(const Traversal&) noexcept { return false; }
    bool may_keep(uint32_t child) const noexcept { return run.may_keep(child, number(), now); }
    void push(const Batch& batch) const noexcept { run.push(batch, number(), now); }

    Node* take() const noexcept { return domain.ready.pop(number() - domain.first_lane); }
    bool has_work() const noexcept { return domain.ready.has_work(); }
    bool is_over() const noexcept { return run.is_over(); }
    int num_lanes() const noexcept { return run.machine_.num_lanes(); }
  };

  // Until the run is over, or lanes that should end do not.
  bool attend() {
    if (!attendant_.attend) return true;
    std::optional<Clock::time_point> until;
    while (!is_over()) {
      try {
        attendant_.attend();
      } catch (...) {
        interrupted_ = std::current_exception();
        fail_with(interrupted_);
        if (!until) until = Clock::now() + kPatience;
      }
      may_go_on();  // a copy on a slow link is no tile that would ask
      if (until && Clock::now() > *until && attendant_.is_lost()) return is_over();
    }
    return true;
  }

  // By one lane, when all are there. Not by the calling thread, which an interrupt must reach wherever `place` is.
  void queue_roots() noexcept {
    ready_.wait();
    push_roots();
    begin_ = Clock::now();
    // release, with the acquire of the lanes that wait.
    may_go_.store(true, std::memory_order_release);
  }

  void work(int number, Arena& scratch) noexcept {
    const LaneKind& kind = kinds_[static_cast<size_t>(machine_.resource(number))];
    const Bound bound(kind.cores);
    const TileFloatMode mode;
    ensure_scratch(run_state(), {scratch, number});
    Lane lane(*this, number);
    placement_.enter(number);
    ready_.count_down();
    if (number == 0) queue_roots();
    // Not asleep: lanes should begin together.
    for (Backoff backoff; !may_go_.load(std::memory_order_acquire) && !is_over();) backoff.wait();
    while (const Node* head = lane.next(lane.domain.waiting)) {
      placement_.begin_walk(number);
      const int64_t walked = walk_path(*this, head, lane, [&](uint32_t tile) {
        execute(tile, number, kind, scratch.data());
        lane.now = tiles_[tile].end;
        return true;
      });
      placement_.end_walk(number);
      if (run_state().finish(walked)) end();
    }
    placement_.leave(number);
  }

  void execute(uint32_t tile, int lane, const LaneKind& kind, std::byte* scratch) noexcept {
    if (!may_go_on()) return;
    const int memory = machine_.memory(machine_.resource(lane));
    const RunState& state = memories_[static_cast<size_t>(memory)]->state();
    const int repeat = rewrites_[plan_->tiles()[tile].op] ? 1 : kind.repeat;
    const int64_t begin = now();
    const char* message = nullptr;
    const Pulse pulse{[](void* self) noexcept { return static_cast<PlacedRun*>(self)->may_go_on() ? Beat::kGoOn : Beat::kEnd; },
                      this, kPaused};
    for (int i = 0; i < repeat && message == nullptr && may_go_on(); ++i) message = compute(state, tile, scratch, pulse);
    int64_t end = now();
    if (repeat < kind.repeat) {
      for (const int64_t until = begin + kind.repeat * (end - begin); end < until && may_go_on(); end = now()) pause_core();
    }
    tiles_[tile] = {tile, lane, begin, end};
    if (message != nullptr) fail([&] { return plan_->describe_tile(tile) + " failed: " + message; });
    if (couriers_) couriers_->computed(tile, memory, end);
  }

  void copy(uint32_t tile, int from, int to) const noexcept {
    const PlannedTile& planned = plan_->tiles()[tile];
    const Graph& graph = plan_->graph();
    const auto ops = [&](int memory) -> const RunOp& { return memories_[static_cast<size_t>(memory)]->op(planned.op); };
    const TensorView& first = graph.values[graph.ops[planned.op].output].dense;
    const auto copy_output = [&](int32_t value, void* source, void* target) {
      const TensorView& view = graph.values[value].dense;
      const bool is_part = is_whole_part(view, first);
      int32_t box[2 * kMaxRank];
      for (int i = 0; i < 2 * view.rank; ++i) {
        const int d = i % view.rank;
        // What is no part of the first output has one tile.
        if (!is_part)
          box[i] = i < view.rank ? 0 : static_cast<int32_t>(view.shape[d]);
        else
          box[i] = view.shape[d] == 0 ? 0 : static_cast<int32_t>(planned.box[i] / (first.shape[d] / view.shape[d]));
      }
      copy_box(view, box, static_cast<std::byte*>(source), static_cast<std::byte*>(target));
    };
    copy_output(graph.ops[planned.op].output, ops(from).output, ops(to).output);
    const auto further = graph.further_of(graph.ops[planned.op]);
    for (size_t k = 0; k < further.size(); ++k) copy_output(further[k], ops(from).further[k], ops(to).further[k]);
  }

  // Results that were computed elsewhere, into the caller's memory, when the clock has stopped. Each has one writer
  // (check_apart).
  void gather_results() const noexcept {
    if (!couriers_) return;
    const int32_t workspace = plan_->graph().workspace();
    for (const Placed& placed : tiles_) {
      const int memory = machine_.memory(machine_.resource(placed.lane));
      const Op& op = plan_->graph().ops[plan_->tiles()[placed.tile].op];
      const auto is_result = [&](int32_t value) { return plan_->graph().values[value].buffer != workspace; };
      if (memory != 0 && (is_result(op.output) || std::ranges::any_of(plan_->graph().further_of(op), is_result))) {
        copy(placed.tile, memory, 0);
      }
    }
  }

  int64_t now() const noexcept { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin_).count(); }

  // How far the run has come, and whether it has failed, is told by its state in the caller's memory.
  RunState& run_state() const noexcept { return memories_[0]->state(); }

  bool may_go_on() noexcept {
    if (run_state().is_free() || run_state().may_go_on()) [[likely]]
      return true;
    hurry();
    return false;
  }

  // False where another failure was first.
  template <typename Describe>
  bool fail(const Describe& describe) noexcept {
    const bool is_first = run_state().fail(describe);
    hurry();
    return is_first;
  }

  // With what a policy or the calling thread has thrown, in place of a sentence. Nobody reads it before the threads are joined.
  void fail_with(std::exception_ptr error) noexcept {
    if (fail([] { return std::string(); })) error_ = std::move(error);
  }

  // What is left of a run that has failed does not wait for slow links.
  void hurry() noexcept {
    if (couriers_) couriers_->hurry();
  }

  bool is_over() const noexcept { return is_over_.load(std::memory_order_seq_cst); }

  void end() noexcept {
    // seq_cst, before the parked are woken: see parking.h, where the end counts as work.
    is_over_.store(true, std::memory_order_seq_cst);
    for (const auto& domain : domains_) domain->waiting.wake_all();
    if (attendant_.over) attendant_.over();
  }

  const std::shared_ptr<const Plan> plan_;
  const std::span<const LaneKind> kinds_;
  const Attendant& attendant_;
  std::vector<std::unique_ptr<Memory>> memories_;
  std::vector<bool> rewrites_;      // of each op, whether it works in the memory of what it reads
  std::vector<Placed> tiles_;       // by number; each is written by the lane that runs it
  std::exception_ptr error_;        // of a policy or the calling thread, where that was the first failure
  std::exception_ptr interrupted_;  // of the calling thread
  Clock::time_point begin_;
  Placement placement_;
  std::atomic<bool> may_go_{false};
  std::atomic<bool> is_over_{false};
  std::latch ready_;
  std::optional<Couriers> couriers_;  // last: its threads use the rest
};

// A copy carries a whole box, and may come when others have read of it what they need. So nothing may lie where it goes but the
// box. Throws std::invalid_argument where ops write two values in the same bytes.
void check_apart(const Graph& graph) {
  std::vector<int32_t> written(graph.further);
  for (const Op& op : graph.ops) written.push_back(op.output);
  std::erase_if(written, [&](int32_t value) { return graph.values[value].bytes == 0; });
  const auto place = [&](int32_t value) { return std::pair(graph.values[value].buffer, graph.values[value].offset); };
  std::ranges::sort(written, {}, place);
  for (size_t i = 1; i < written.size(); ++i) {
    const Value &before = graph.values[written[i - 1]], &after = graph.values[written[i]];
    if (before.buffer == after.buffer && after.offset < before.offset + before.bytes) {
      throw std::invalid_argument("values " + std::to_string(written[i - 1]) + " and " + std::to_string(written[i]) +
                                  " share memory, and a late copy of one would spoil the other; with more than one memory run "
                                  "the graph that `apart` gives");
    }
  }
}

}  // namespace

Simulation run_placed(std::shared_ptr<const Plan> plan, std::span<const void* const> operands, std::span<void* const> results,
                      const VirtualGraph& graph, const VirtualMachine& machine, std::span<const LaneKind> kinds,
                      const Policy& policy, const PlaceTile& place, const Attendant& attendant, std::shared_ptr<Watch> watch) {
  if (operands.size() != plan->num_operands() || results.size() != plan->num_results() ||
      graph.num_tiles() != plan->num_tiles()) {
    throw std::invalid_argument("the call or the lab's graph is of another graph than the plan");
  }
  if (kinds.size() != static_cast<size_t>(machine.num_resources())) {
    throw std::invalid_argument(std::to_string(kinds.size()) + " kinds of lanes for " + std::to_string(machine.num_resources()) +
                                " resources");
  }
  for (const LaneKind& kind : kinds) {
    if (kind.repeat < 1) throw std::invalid_argument("lanes run a tile " + std::to_string(kind.repeat) + " times; once is least");
  }
  if (machine.num_memories() > 1 && !place) {
    throw std::invalid_argument(
        "with more than one memory a policy must say where tiles run; take one that places, such as Dmda");
  }
  if (machine.num_memories() > 1) check_apart(plan->graph());
  auto run = std::make_unique<PlacedRun>(std::move(plan), operands, results, graph, machine, kinds, policy, place, attendant,
                                         std::move(watch));
  if (run->run()) return run->result();
  attendant.given_up();
  run.release()->rethrow();
}

}  // namespace aspen
