#include "failure.h"

#include <exception>
#include <new>

namespace aspen {
namespace {

// Made when the library is loaded, and never destroyed: a run may fail while the process exits.
const std::string& kNothing = *std::make_unique<std::string>().release();
const std::string& kNoMemory =
    *std::make_unique<std::string>("out of memory; free some memory, or use a smaller batch or a smaller model").release();

}  // namespace

Failure Failure::of_exception() noexcept {
  try {
    throw;
  } catch (const OutOfMemory& error) {
    return {Kind::kOutOfMemory, [&] { return error.what(); }};
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  } catch (const std::exception& error) {
    return {Kind::kFailed, [&] { return error.what(); }};
  } catch (...) {
    return {Kind::kFailed, [] { return "an unknown error"; }};
  }
}

const std::string& Failure::text() const noexcept {
  if (text_ != nullptr) return *text_;
  return kind_ == Kind::kNone ? kNothing : kNoMemory;
}

}  // namespace aspen
