// Questions of threads that another one answers: the one that made the desk and comes to it again and again.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace aspen {

class Desk {
 public:
  // Waits for the answer, and throws what `question` throws. One at a time.
  int ask(const std::function<int()>& question) {
    if (std::this_thread::get_id() == owner_) return question();
    // Shared: the owner may still be inside when the answer is there and the asker has gone on.
    const auto asked = std::make_shared<std::packaged_task<int()>>(question);
    std::future<int> answer = asked->get_future();
    {
      const std::lock_guard lock(mutex_);
      asked_ = asked;
    }
    changed_.notify_one();
    return answer.get();
  }

  // Answers a question, or returns after some time without one; at once when the desk is closed. The owner calls it.
  void serve(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [&] { return asked_ != nullptr || is_closed_; });
    const auto asked = std::exchange(asked_, nullptr);
    lock.unlock();
    if (asked != nullptr) (*asked)();
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
    }
    changed_.notify_one();
  }

 private:
  const std::thread::id owner_ = std::this_thread::get_id();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<std::packaged_task<int()>> asked_;
  bool is_closed_ = false;
};

}  // namespace aspen
