#include "arena.h"

#include <limits>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace aspen {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

bool Arena::grow(size_t bytes) noexcept {
  if (bytes <= size_) return true;
  data_.reset();
  size_ = 0;
  const size_t unit = bytes >= kHugePage ? kHugePage : kPage;
  if (bytes > std::numeric_limits<size_t>::max() - unit) return false;
  const size_t rounded = (bytes + unit - 1) / unit * unit;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(unit, rounded)));
  if (data_ == nullptr) return false;
  size_ = rounded;
#ifdef __linux__
  // Advice only: on machines that hand out huge pages on request, a first run takes 512 times fewer page faults.
  if (unit == kHugePage) madvise(data_.get(), rounded, MADV_HUGEPAGE);
#endif
  return true;
}

}  // namespace aspen
