#include "arena.h"

#include <cstdint>
#include <limits>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace aspen {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

void advise([[maybe_unused]] const void* data, [[maybe_unused]] size_t bytes, [[maybe_unused]] int advice) noexcept {
#ifdef __linux__
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) / kHugePage * kHugePage;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / kHugePage * kHugePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, advice);
#endif
}

#ifdef __linux__
constexpr int kHugePages = MADV_HUGEPAGE;
#else
constexpr int kHugePages = 0;
#endif
constexpr int kCollapse = 25;  // MADV_COLLAPSE, since Linux 6.1; older ones refuse it

}  // namespace

void prefer_huge_pages(void* data, size_t bytes) noexcept { advise(data, bytes, kHugePages); }

void move_to_huge_pages(const void* data, size_t bytes) noexcept { advise(data, bytes, kCollapse); }

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
  prefer_huge_pages(data_.get(), rounded);
  return true;
}

}  // namespace aspen
