// The process-wide pool of DSEs. Runs of any plans are in flight side by side; their tiles share the Ready Pool.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "arena.h"
#include "arrivals.h"
#include "failure.h"
#include "limits.h"
#include "observer.h"
#include "plan.h"
#include "policy.h"
#include "run_state.h"
#include "selection.h"

namespace aspen {

// Called exactly once for each run, from a worker or from inside `submit`; the failure is empty if the run succeeded. Must not
// throw.
using Done = std::function<void(const Failure& failure)>;

// What a thread is lent for. Must not throw.
using Errand = std::function<void(Arena& scratch)>;

// Below this estimated cost a run is finished sooner on the caller's thread than a parked worker can be woken.
inline constexpr int64_t kWakeUpNs = 30'000;

inline constexpr int kMaxWorkers = 1024;

inline constexpr int kMostArriving = 31;

// What a run needs to go on from another one of its plan: it executes some tiles in the state that the other has left. All tiles
// of the other were counted (RunState::finish) before its state was kept, and `keep` and `take` are a pair: it sees their writes.
struct Continued {
  RunStateCache& states;  // the state's home, with room for it alone; one run at a time, and it outlives them
  std::shared_ptr<const Selection> selection = nullptr;  // null: all tiles
};

class Runtime {
 public:
  // Starts a run. `operands` and `results` are the buffers of the call, in order, of the sizes the plan says; they must stay
  // valid until `done` is called. Workers are started by the first run that needs them. Never throws: whatever goes wrong
  // reaches `done`. A run in flight when the process exits is abandoned: its `done` is not called.
  //
  // The run key says when the run is due after its arrival, in nanoseconds; of several runs the one that is due first goes first
  // (run_order.h). Where none is given it is the graph's own. Larger ones than kMostRunKey count as that.
  //
  // A run that is watched ends at its next tile, with an error, once its watch says that it is over.
  void submit(std::shared_ptr<const Plan> plan, std::span<const void* const> operands, std::span<void* const> results, Done done,
              std::shared_ptr<Observer> observer = nullptr, std::optional<int64_t> run_key = std::nullopt,
              const Continued* continued = nullptr, std::shared_ptr<Watch> watch = nullptr) noexcept;

  // Starts a run whose operands are not complete (arrivals.h). Likewise, but what is missing of the operands may be written until
  // the piece that holds it has arrived, and errors before the run begins are thrown: std::invalid_argument, std::bad_alloc,
  // std::runtime_error where no worker can be started. `done` is called by a worker or by who brings the last piece. A tile that
  // fails does not end the run before all pieces have arrived or it is cancelled. `policy` is the process's own if null.
  //
  // While it waits for pieces it has a slot in the Ready Pool. At most kMostArriving such runs have one, so that peers who send
  // nothing keep no other run from it; the rest wait outside.
  //
  // A watch ends tiles, not waits: who waits for pieces that do not come asks the watch, and cancels the run.
  std::shared_ptr<ArrivingRun> start(std::shared_ptr<const Arrivals> arrivals, std::span<const void* const> operands,
                                     std::span<void* const> results, Done done, std::shared_ptr<Observer> observer = nullptr,
                                     std::optional<int64_t> run_key = std::nullopt, const Policy* policy = nullptr,
                                     std::shared_ptr<Watch> watch = nullptr);

  // Has a thread that is no worker do something, with scratch of its own. The thread is kept for the next time, and so is its
  // scratch. Throws std::system_error where the system refuses a thread, std::bad_alloc, and std::runtime_error at exit.
  void lend(Errand errand);

  // Whether `done` on a worker took so long that another thread stands in; asked inside `done`. False on other threads.
  bool is_replaced() noexcept;

  // Workers that exist or will be started. Throws std::invalid_argument if ASPEN_NUM_WORKERS is set to something that is no
  // number of workers.
  int num_workers();

  // May be called at any time, from any thread. Workers that are too many leave after their current tile, and the others take
  // what lies in their rows. Throws std::invalid_argument outside [1, kMaxWorkers].
  void set_num_workers(int n);

  // Sets the policy of runs submitted from now on. It must have static lifetime.
  void set_policy(const Policy& policy);

  // Watches all runs submitted from now on that bring no observer of their own; nullptr to stop.
  void set_observer(std::shared_ptr<Observer> observer);

 private:
  friend Runtime& runtime();
  class Impl;
  Runtime();
  Impl* impl_;
};

Runtime& runtime();

}  // namespace aspen
