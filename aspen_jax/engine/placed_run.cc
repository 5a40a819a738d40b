#include "placed_run.h"

#include <pthread.h>
#ifdef __linux__
#include <sched.h>
#endif
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <latch>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "algorithm1.h"
#include "arena.h"
#include "couriers.h"
#include "float_mode.h"
#include "limits.h"
#include "parking.h"
#include "ready_tiles.h"
#include "run_state.h"
#include "spin.h"

namespace aspen {
namespace {

using Clock = std::chrono::steady_clock;

// As in the runtime: longer than the gaps between the tiles of a run.
constexpr auto kSearchTime = std::chrono::microseconds(30);

// For lanes to come back from what they are in, when the caller has been interrupted.
constexpr auto kPatience = std::chrono::milliseconds(300);

// All bits set are NaN in every format of floats.
constexpr int kPoison = 0xFF;

// A run's buffers in one memory: a workspace, and results of its own unless the caller's are there.
class Memory {
 public:
  Memory(const std::shared_ptr<const Plan>& plan, const Policy& policy, std::span<const void* const> operands,
         std::span<void* const> results)
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
    state_->start(std::move(call), operands, own);
  }
  ~Memory() {
    // The plan lives: the run that owns this memory holds it.
    state_->take_call();
    plan_.run_states().keep(std::move(state_));
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

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

// Lanes that share what is ready.
struct Domain {
  Domain(const Policy& policy, int lane, int lanes, Traversal& traversal, std::span<const int32_t> levels)
      : ready(policy, lanes, traversal, levels), first_lane(lane), num_lanes(lanes) {}

  ReadyTiles ready;
  const int first_lane, num_lanes;
  Parking parking;
  std::atomic<unsigned> next_row{0};  // for the next tile that comes from outside
};

class PlacedRun final : public Traversal {
 public:
  PlacedRun(std::shared_ptr<const Plan> plan, std::span<const void* const> operands, std::span<void* const> results,
            const VirtualGraph& graph, const VirtualMachine& machine, std::span<const LaneKind> kinds, const Policy& policy,
            const PlaceTile& place, const Attendant& attendant, std::shared_ptr<Watch> watch)
      : Traversal(graph.tiles(), graph.children().data(), graph.depths().size()),
        plan_(std::move(plan)),
        graph_(graph),
        machine_(machine),
        kinds_(kinds),
        place_(place),
        attendant_(attendant),
        watch_(std::move(watch)),
        resources_(place ? graph.num_tiles() : 0, kNowhere),
        rewrites_(plan_->graph().ops.size()),
        tiles_(graph.num_tiles()),
        tiles_left_(static_cast<int64_t>(graph.num_tiles())),
        ready_(machine.num_lanes()) {
    restart(policy, graph.parents(), [&](size_t op) { return graph.depths()[op]; }, graph.max_depth());
    for (int i = 0; i < machine.num_memories(); ++i) {
      memories_.push_back(std::make_unique<Memory>(plan_, policy, operands, i == 0 ? results : std::span<void* const>()));
      if (machine.num_memories() > 1) memories_.back()->poison();
    }
    const Graph& ops = plan_->graph();
    for (size_t i = 0; i < rewrites_.size(); ++i) {
      const Value& output = ops.values[ops.ops[i].output];
      for (const Input& input : ops.inputs_of(ops.ops[i])) {
        const Value& value = ops.values[input.value];
        rewrites_[i] = rewrites_[i] || (value.buffer == output.buffer && value.offset == output.offset);
      }
    }
    const int num_domains = place ? machine.num_resources() : 1;
    for (int i = 0; i < num_domains; ++i) {
      const int first_lane = place ? machine.first_lane(i) : 0, num_lanes = place ? machine.lanes(i) : machine.num_lanes();
      domains_.push_back(std::make_unique<Domain>(policy, first_lane, num_lanes, *this, graph.depths()));
    }
    if (machine.num_memories() > 1) {
      couriers_.emplace(graph, machine,
                        Couriers::Run{[this] { return now(); }, [this](uint32_t tile, int from, int to) { copy(tile, from, to); },
                                      [this](std::span<const uint32_t> tiles) { arrived(tiles); }});
    }
  }

  // False where a lane was given up: then the run must never end.
  bool run() {
    if (tiles_.empty()) return true;
    std::vector<std::thread> threads;
    try {
      start(threads);
    } catch (...) {
      fail(std::current_exception());
      ready_.count_down(machine_.num_lanes() - static_cast<std::ptrdiff_t>(threads.size()));
      end();
    }
    const bool all_come_back = attend();
    for (std::thread& thread : threads) all_come_back ? thread.join() : thread.detach();
    return all_come_back;
  }

  [[noreturn]] void rethrow() const { std::rethrow_exception(interrupted_); }

  // When it has run.
  Simulation result() {
    if (interrupted_) std::rethrow_exception(interrupted_);
    if (error_) std::rethrow_exception(error_);
    gather_results();
    return {std::move(tiles_), couriers_ ? std::move(couriers_->copies()) : std::vector<Copy>()};
  }

 private:
  static constexpr int kNowhere = -1;

  struct Company {
    PlacedRun& run;
    int lane;
    uint32_t tile;

    static bool is_last_parent(uint32_t& parents_left) noexcept { return is_last_parent_of_shared(parents_left); }

    bool may_keep(uint32_t child) const noexcept {
      if (!run.place_) return true;
      const int resource = run.resource_of(child, run.tiles_[tile].end);
      return resource == run.machine_.resource(lane) &&
             (!run.couriers_ || run.couriers_->is_there(child, run.machine_.memory(resource)));
    }

    void push(const Batch& batch) const noexcept {
      if (!run.place_) {
        run.push(*run.domains_[0], lane, batch);
        return;
      }
      run.admit(batch, run.tiles_[tile].end, lane);
    }
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
        fail(interrupted_);
        if (!until) until = Clock::now() + kPatience;
      }
      may_go_on();  // a copy on a slow link is no tile that would ask
      if (until && Clock::now() > *until && attendant_.is_lost()) return is_over();
    }
    return true;
  }

  // Starts the lanes.
  void start(std::vector<std::thread>& threads) {
    // Signals are for the threads of the application, whose handlers know nothing of ours.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (int lane = 0; lane < machine_.num_lanes(); ++lane) threads.emplace_back([this, lane] { work(lane); });
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  // By one lane, when all are there. Not by the calling thread, which an interrupt must reach wherever `place` is.
  void queue_roots() noexcept {
    ready_.wait();
    if (place_) {
      Batch roots;
      for (const int32_t root : graph_.roots()) roots.add(&node(static_cast<uint32_t>(root)));
      admit(roots, 0, kNowhere);
    } else {
      Domain& all_lanes = *domains_[0];
      spread_roots(*this, graph_.roots(), static_cast<size_t>(all_lanes.num_lanes), 0,
                   [&](int row, const Batch& batch) { push(all_lanes, row, batch); });
    }
    begin_ = Clock::now();
    // release, with the acquire of the lanes that wait.
    may_go_.store(true, std::memory_order_release);
  }

  void work(int lane) noexcept {
    const int resource = machine_.resource(lane);
    const LaneKind& kind = kinds_[static_cast<size_t>(resource)];
    bind(kind);
    const TileFloatMode mode;
    Arena scratch;
    if (!scratch.grow(plan_->scratch_bytes())) {
      fail_with([&] { return "out of memory: a lane needs " + std::to_string(plan_->scratch_bytes()) + " bytes of scratch"; });
    }
    Domain& domain = *domains_[place_ ? static_cast<size_t>(resource) : 0];
    ready_.count_down();
    if (lane == 0) queue_roots();
    // Not asleep: lanes should begin together.
    for (Backoff backoff; !may_go_.load(std::memory_order_acquire) && !is_over();) backoff.wait();
    while (Node* head = next(domain, lane - domain.first_lane)) {
      int64_t walked = 0;
      ChildCache cache;
      for (uint32_t tile = tile_of(head); tile != kNoTile;
           tile = finished(*this, policy(), tile, cache, Company{*this, lane, tile})) {
        execute(tile, lane, kind, scratch);
        ++walked;
      }
      // acq_rel: whoever counts the last tile, and all who see the end, see what the others wrote.
      if (tiles_left_.fetch_sub(walked, std::memory_order_acq_rel) == walked) end();
    }
  }

  static void bind(const LaneKind& kind) noexcept {
#ifdef __linux__
    if (kind.cores.empty()) return;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (const int core : kind.cores) {
      if (core >= 0 && core < CPU_SETSIZE) CPU_SET(core, &cores);
    }
    pthread_setaffinity_np(pthread_self(), sizeof(cores), &cores);
#endif
  }

  // A lane that looks for work (parking.h).
  struct Seeker {
    const PlacedRun& run;
    Domain& domain;
    int row;

    Node* look() noexcept {
      Node* node = nullptr;
      for (const auto until = Clock::now() + kSearchTime; node == nullptr && !is_over() && Clock::now() < until;) {
        for (int i = 0; i < 16 && !has_work(); ++i) pause_core();
        node = domain.ready.pop(row);
      }
      return node;
    }
    Node* take() const noexcept { return domain.ready.pop(row); }
    bool has_work() const noexcept { return domain.ready.has_work(); }
    bool is_over() const noexcept { return run.is_over(); }
    void before_sleep() const noexcept {}
    void after_sleep() const noexcept {}
  };

  // A head of a path; null when the run is over.
  Node* next(Domain& domain, int row) noexcept {
    if (is_over()) return nullptr;
    if (Node* const node = domain.ready.pop(row)) return node;
    return domain.parking.seek(Seeker{*this, domain, row});
  }

  void execute(uint32_t tile, int lane, const LaneKind& kind, Arena& scratch) noexcept {
    if (!may_go_on()) return;
    const int memory = machine_.memory(machine_.resource(lane));
    const PlannedTile& planned = plan_->tiles()[tile];
    const RunOp& op = memories_[static_cast<size_t>(memory)]->op(planned.op);
    const TileArgs args{op.state, op.inputs, op.output, planned.box, planned.box + op.rank, scratch.data(), op.further};
    const int repeat = rewrites_[planned.op] ? 1 : kind.repeat;
    const int64_t begin = now();
    const char* message = nullptr;
    for (int i = 0; i < repeat && message == nullptr && may_go_on(); ++i) message = op.run(args);
    int64_t end = now();
    if (repeat < kind.repeat) {
      for (const int64_t until = begin + kind.repeat * (end - begin); end < until && may_go_on(); end = now()) pause_core();
    }
    tiles_[tile] = {tile, lane, begin, end};
    if (message != nullptr) fail_with([&] { return plan_->describe_tile(tile) + " failed: " + message; });
    if (couriers_) couriers_->computed(tile, memory, end);
  }

  // Asks the policy once. Only whoever made a tile ready comes here.
  int resource_of(uint32_t tile, int64_t now) noexcept {
    int& resource = resources_[tile];
    if (resource != kNowhere) return resource;
    if (has_failed()) return resource = 0;
    try {
      return resource = machine_.checked_place(tile, place_(tile, now));
    } catch (...) {
      fail(std::current_exception());
    }
    return resource = 0;
  }

  // Tiles that have become ready go to their resources, behind copies of what they read.
  void admit(const Batch& batch, int64_t now, int lane) noexcept {
    Batch there;
    Node* next = batch.first;
    for (int i = 0; i < batch.size; ++i) {
      Node* const node = std::exchange(next, next->next);  // before the node goes into another queue
      if (has_all_it_reads(tile_of(node), now)) there.add(node);
    }
    enter(there, lane);
  }

  // Otherwise it is `arrived` when the copies that this asks for have come.
  bool has_all_it_reads(uint32_t tile, int64_t now) noexcept {
    const int resource = resource_of(tile, now);
    if (!couriers_ || has_failed()) return true;
    try {
      return couriers_->fetch(tile, machine_.memory(resource), now);
    } catch (...) {
      fail(std::current_exception());
    }
    return true;
  }

  void arrived(std::span<const uint32_t> tiles) noexcept {
    Batch batch;
    for (const uint32_t tile : tiles) batch.add(&node(tile));
    enter(batch, kNowhere);
  }

  // Each into the row of the lane that made it ready, or into the next one of its resource where that was another's. Where the
  // order is exact, those of one resource enter at once: no lane takes up one of them before it sees the others.
  void enter(Batch batch, int lane) noexcept {
    const int own = lane == kNowhere ? kNowhere : machine_.resource(lane);
    while (batch.size > 0) {
      const int resource = policy().is_exact ? resources_[tile_of(batch.first)] : own;
      Batch together, others;
      Node* next = batch.first;
      for (int i = 0; i < batch.size; ++i) {
        Node* const node = std::exchange(next, next->next);
        if (resources_[tile_of(node)] == resource) {
          together.add(node);
        } else if (policy().is_exact) {
          others.add(node);
        } else {
          Batch alone;
          alone.add(node);
          push_to(resources_[tile_of(node)], kNowhere, alone);
        }
      }
      if (together.size > 0) push_to(resource, resource == own ? lane : kNowhere, together);
      batch = others;
    }
  }

  void push_to(int resource, int lane, const Batch& batch) noexcept {
    Domain& domain = *domains_[static_cast<size_t>(resource)];
    if (lane != kNowhere) {
      push(domain, lane - domain.first_lane, batch);
    } else {
      const unsigned turn = domain.next_row.fetch_add(1, std::memory_order_relaxed);
      push(domain, static_cast<int>(turn % static_cast<unsigned>(domain.num_lanes)), batch);
    }
  }

  void push(Domain& domain, int row, const Batch& batch) noexcept {
    domain.ready.push(row, batch);
    domain.parking.wake(batch.size);
  }

  void copy(uint32_t tile, int from, int to) const noexcept {
    const PlannedTile& planned = plan_->tiles()[tile];
    const Graph& graph = plan_->graph();
    const auto ops = [&](int memory) -> const RunOp& { return memories_[static_cast<size_t>(memory)]->op(planned.op); };
    const TensorView& first = graph.values[graph.ops[planned.op].output].dense;
    const auto copy_output = [&](int32_t value, void* source, void* target) {
      const TensorView& view = graph.values[value].dense;
      int32_t box[2 * kMaxRank];
      for (int i = 0; i < 2 * view.rank; ++i) {
        const int d = i % view.rank;
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

  bool has_failed() const noexcept { return has_failed_.load(std::memory_order_relaxed); }

  // Fails the run where its watch says that it is over.
  bool may_go_on() noexcept {
    if (has_failed()) return false;
    if (watch_ == nullptr || !watch_->is_over()) return true;
    fail_with([this] { return watch_->why(); });
    return false;
  }

  // The first failure is the one reported; the tiles left are walked through without being executed.
  void fail(std::exception_ptr error) noexcept {
    // Relaxed will do: the threads are joined before the error is read.
    if (has_failed_.exchange(true, std::memory_order_relaxed)) return;
    error_ = std::move(error);
    if (couriers_) couriers_->hurry();
  }

  template <typename Describe>
  void fail_with(const Describe& describe) noexcept {
    try {
      throw RunError(describe());
    } catch (...) {
      fail(std::current_exception());
    }
  }

  bool is_over() const noexcept { return is_over_.load(std::memory_order_seq_cst); }

  void end() noexcept {
    // seq_cst, before the parked are woken: see parking.h, where the end counts as work.
    is_over_.store(true, std::memory_order_seq_cst);
    for (const auto& domain : domains_) domain->parking.wake_all();
    if (attendant_.over) attendant_.over();
  }

  const std::shared_ptr<const Plan> plan_;
  const VirtualGraph& graph_;
  const VirtualMachine& machine_;
  const std::span<const LaneKind> kinds_;
  const PlaceTile& place_;
  const Attendant& attendant_;
  const std::shared_ptr<Watch> watch_;  // null: the run goes on to its last tile
  std::vector<std::unique_ptr<Memory>> memories_;
  std::vector<std::unique_ptr<Domain>> domains_;
  std::vector<int> resources_;  // of each tile that was placed
  std::vector<bool> rewrites_;  // of each op, whether it works in the memory of what it reads
  std::vector<Placed> tiles_;   // by number; each is written by the lane that runs it
  std::exception_ptr error_;
  std::exception_ptr interrupted_;  // of the calling thread
  Clock::time_point begin_;
  // Written by all lanes at the end of each path, so it has a cache line of its own.
  alignas(64) std::atomic<int64_t> tiles_left_;
  alignas(64) std::atomic<bool> has_failed_{false};
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
