// Work that a library of NVIDIA's does in the place of a kernel of ours.
#pragma once

#include <dlfcn.h>

#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "driver.h"

namespace aspen::cuda {

// Of one op, in the current context and without a workspace: so runs may overlap.
class LibraryCall {
 public:
  LibraryCall() = default;
  virtual ~LibraryCall() = default;
  LibraryCall(const LibraryCall&) = delete;
  LibraryCall& operator=(const LibraryCall&) = delete;

  // Gives it to a stream, or to what captures the stream's work. `addresses`: of the op's inputs, then its output. Throws
  // DeviceError.
  virtual void give(Stream stream, std::span<const DevicePointer> addresses) = 0;
};

// A library that is looked for when it is first asked for. Building needs none: declarations are ours, and hold for the binary
// interface of several versions.
class OpenedLibrary {
 public:
  // `names`: of the file, the newest version first. Throws DeviceError where none is there, which begins with `what`.
  OpenedLibrary(const char* what, std::initializer_list<const char*> names) : what_(what) {
    for (const char* const name : names) {
      if (handle_ == nullptr) handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (handle_ != nullptr) return;
    throw DeviceError(what_ + " is not here (" + *names.begin() +
                      "), but ops were tuned to be its; pip install 'aspen_jax[cuda13]', or tune again");
  }

  template <class Function>
  void find(Function& function, const char* symbol) const {
    function = reinterpret_cast<std::remove_reference_t<Function>>(dlsym(handle_, symbol));
    if (function == nullptr) throw DeviceError(what_ + " has no " + symbol + "; install a newer one");
  }

 private:
  std::string what_;
  void* handle_ = nullptr;
};

// Throws DeviceError unless the status is 0; `call` is what failed.
inline void check_status(int status, const char* call, const char* library) {
  if (status == 0) return;
  throw DeviceError(std::string(call) + " failed with status " + std::to_string(status) + " of " + library +
                    "; tune again, which refuses what the library does not take, or run on the CPU (JAX_PLATFORMS=cpu)");
}

}  // namespace aspen::cuda
