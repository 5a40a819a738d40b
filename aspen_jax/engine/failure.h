// Why a run failed.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace aspen {

// Memory was short; the sentence says for what.
class OutOfMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Made where a run fails, also for want of memory, and handed from thread to thread: none of this can fail itself. A copy shares
// the sentence. Where there was no memory for the sentence, the failure is that there was none.
class Failure {
 public:
  enum class Kind : uint8_t { kNone, kFailed, kOutOfMemory };

  Failure() noexcept = default;  // none: the run succeeded

  // A failure with the sentence that `describe` makes.
  template <typename Describe>
  Failure(Kind kind, const Describe& describe) noexcept : kind_(kind) {
    try {
      text_ = std::make_shared<const std::string>(describe());
    } catch (...) {
      kind_ = Kind::kOutOfMemory;
    }
  }

  static Failure out_of_memory() noexcept {
    Failure failure;
    failure.kind_ = Kind::kOutOfMemory;
    return failure;
  }

  // The failure of the exception that is being handled.
  static Failure of_exception() noexcept;

  Kind kind() const noexcept { return kind_; }
  bool empty() const noexcept { return kind_ == Kind::kNone; }
  // "" where the run succeeded.
  const std::string& text() const noexcept;
  operator const std::string&() const noexcept { return text(); }

 private:
  Kind kind_ = Kind::kNone;
  std::shared_ptr<const std::string> text_;
};

}  // namespace aspen
