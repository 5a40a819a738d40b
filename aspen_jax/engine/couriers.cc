#include "couriers.h"

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

#include "lanes.h"
#include "placement.h"

namespace aspen {
namespace {

// More copies than a tile waits for: it goes on without them, and is not brought in a second time.
constexpr uint32_t kNeverComplete = ~uint32_t{0};

}  // namespace

Couriers::Couriers(const VirtualGraph& graph, const VirtualMachine& machine, Run run)
    : graph_(graph),
      machine_(machine),
      run_(std::move(run)),
      transfers_(graph, machine),
      is_there_(graph.num_tiles() * static_cast<size_t>(machine.num_memories())),
      waiting_(is_there_.size()),
      num_missing_(graph.num_tiles()),
      links_(machine.links().size()) {
  threads_.reserve(links_.size());
  try {
    for (int from = 0; from < machine.num_memories(); ++from) {
      for (int to = 0; to < machine.num_memories(); ++to) {
        const size_t number = machine.link_index(from, to);
        if (from == to || machine.links()[number].latency_ns >= kNever) continue;
        threads_.push_back(masked_thread([this, number] { carry(links_[number]); }));
      }
    }
  } catch (...) {
    stop();
    throw;
  }
}

Couriers::~Couriers() { stop(); }

void Couriers::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  for (Link& link : links_) link.has_work.notify_one();
  hurried_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Couriers::hurry() noexcept {
  {
    const std::lock_guard lock(mutex_);
    is_hurried_ = true;
  }
  hurried_.notify_all();
}

void Couriers::computed(uint32_t tile, int memory, int64_t now) {
  const std::lock_guard lock(mutex_);
  transfers_.computed(tile, memory, now);
  is_there_[index(tile, memory)] = true;
}

bool Couriers::is_there(uint32_t tile, int memory) {
  const std::lock_guard lock(mutex_);
  for (const uint32_t read : graph_.read_by(tile)) {
    if (!is_there_[index(read, memory)]) return false;
  }
  return true;
}

bool Couriers::fetch(uint32_t tile, int memory, int64_t now) {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  try {
    return ask(tile, memory, now);
  } catch (...) {
    failure_ = std::current_exception();
    num_missing_[tile] = kNeverComplete;
    throw;
  }
}

// Under the lock.
bool Couriers::ask(uint32_t tile, int memory, int64_t now) {
  const size_t num_before = transfers_.copies().size();
  if (transfers_.fetch(tile, memory, now) >= kNever) {
    throw std::invalid_argument("no link brings to memory " + std::to_string(memory) + " what tile " + std::to_string(tile) +
                                " reads; add one, or place the tile elsewhere");
  }
  for (const uint32_t read : graph_.read_by(tile)) {
    if (is_there_[index(read, memory)]) continue;
    waiting_[index(read, memory)].push_back(tile);
    ++num_missing_[tile];
  }
  // A courier that carries has no way to say that there is no memory.
  if (const size_t asked = transfers_.copies().size(); carried_.capacity() < asked) carried_.reserve(2 * asked);
  for (size_t i = num_before; i < transfers_.copies().size(); ++i) {
    const Copy& copy = transfers_.copies()[i];
    Link& link = links_[machine_.link_index(copy.from, copy.to)];
    link.asked.push(copy);
    link.has_work.notify_one();
  }
  return num_missing_[tile] == 0;
}

void Couriers::carry(Link& link) {
#ifdef __linux__
  prctl(PR_SET_TIMERSLACK, 1UL);  // otherwise sleeps last 50 us longer
#endif
  ask_for_short_slices();
  for (std::unique_lock lock(mutex_);;) {
    // A box that comes from a memory to which it is only on its way is not there as soon as the plan says.
    link.has_work.wait(lock, [&] {
      return is_over_ || (!link.asked.empty() && is_there_[index(link.asked.front().tile, link.asked.front().from)]);
    });
    if (is_over_) return;
    Copy copy = link.asked.front();
    link.asked.pop();
    lock.unlock();
    run_.copy(copy.tile, copy.from, copy.to);
    // The bytes are there sooner than the link would bring them. A courier that is late is not so for the next copy too: when
    // each should end was computed when it was asked for.
    const std::chrono::nanoseconds left(copy.end - run_.now());
    lock.lock();
    hurried_.wait_for(lock, left, [&] { return is_hurried_ || is_over_; });
    copy.end = run_.now();
    carried_.push_back(copy);
    is_there_[index(copy.tile, copy.to)] = true;
    std::vector<uint32_t> complete = std::exchange(waiting_[index(copy.tile, copy.to)], {});
    std::erase_if(complete, [this](uint32_t tile) { return --num_missing_[tile] != 0; });
    for (Link& other : links_) other.has_work.notify_one();
    lock.unlock();
    if (!complete.empty()) run_.arrived(complete);
    lock.lock();
  }
}

}  // namespace aspen
