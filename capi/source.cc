#include "source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace aspen {
namespace {

class File final : public Source {
 public:
  explicit File(const std::string& path) : path_(path), descriptor_(::open(path.c_str(), kFlags)) {
    struct stat status;
    if (descriptor_ < 0) fail("open", errno);
    if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
      ::close(descriptor_);
      throw IoError("'" + path + "' is no regular file; name one, such as a copy of what a pipe or a device gives");
    }
    size_ = static_cast<size_t>(status.st_size);
  }
  ~File() override { ::close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  size_t size() const override { return size_; }

  void read(size_t offset, std::span<std::byte> bytes) const override {
    while (!bytes.empty()) {
      const ssize_t count = ::pread(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail("read", errno);
      if (count == 0) throw IoError("'" + path_ + "' became shorter while it was read");
      offset += static_cast<size_t>(count);
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
  }

 private:
  // Without O_NONBLOCK, opening a pipe would wait for a writer.
  static constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

  [[noreturn]] void fail(const char* what, int error) const {
    throw IoError(std::string("cannot ") + what + " '" + path_ + "': " + std::generic_category().message(error));
  }

  std::string path_;
  int descriptor_;
  size_t size_ = 0;
};

class Memory final : public Source {
 public:
  explicit Memory(std::span<const std::byte> bytes) : bytes_(bytes) {}
  size_t size() const override { return bytes_.size(); }
  void read(size_t offset, std::span<std::byte> bytes) const override {
    if (!bytes.empty()) std::memcpy(bytes.data(), bytes_.data() + offset, bytes.size());
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

std::unique_ptr<Source> open_file(const std::string& path) { return std::make_unique<File>(path); }

std::unique_ptr<Source> in_memory(std::span<const std::byte> bytes) { return std::make_unique<Memory>(bytes); }

}  // namespace aspen
