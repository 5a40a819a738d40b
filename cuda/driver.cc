#include "driver.h"

#include <dlfcn.h>

#include <string>

#include "aspen_jax/engine/made_once.h"

namespace aspen::cuda {
namespace {

constexpr int kOldestDriver = 12'000;  // CUDA 12.0

Driver load() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw DeviceError("CUDA's driver is not here (libcuda.so.1); install NVIDIA's driver, or run on the CPU (JAX_PLATFORMS=cpu)");
  }
  Driver driver;
  const auto look_for = [library](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
  };
  const auto find = [&](auto& function, const char* symbol) {
    look_for(function, symbol);
    if (function == nullptr) {
      throw DeviceError(std::string("CUDA's driver has no ") + symbol + "; install a driver of CUDA 12 or later");
    }
  };
#define ASPEN_DRIVER_FUNCTION(name, symbol, parameters) find(driver.name, symbol);
#define ASPEN_LATER_DRIVER_FUNCTION(name, symbol, parameters) look_for(driver.name, symbol);
#include "driver_functions.inc"
#undef ASPEN_LATER_DRIVER_FUNCTION
#undef ASPEN_DRIVER_FUNCTION
  driver.check(driver.cuInit(0), "cuInit");
  int version = 0;
  driver.check(driver.cuDriverGetVersion(&version), "cuDriverGetVersion");
  if (version < kOldestDriver) {
    throw DeviceError("CUDA's driver is of CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10) +
                      "; install one of CUDA 12 or later");
  }
  return driver;
}

const char* remedy(Result result) {
  switch (result) {
    case kOutOfMemory:
      return "; use a smaller batch or a smaller model, or leave the device more memory (XLA_PYTHON_CLIENT_MEM_FRACTION)";
    case kNoDevice:
      return "; this process may use no GPU: look at CUDA_VISIBLE_DEVICES, or run on the CPU (JAX_PLATFORMS=cpu)";
    case kUnsupportedPtxVersion:
      return "; the code is of a newer CUDA than the driver: install a newer driver, or trace the function on this machine";
    case kNoBinaryForGpu:
      return "; the code was compiled for another GPU: trace the function on this machine";
    case kInvalidImage:
    case kInvalidPtx:
      return "; the code is damaged: delete what is in ASPEN_CACHE_DIR, and trace the function again";
    case kNotFound:
      return "; the code lacks a kernel of the graph: trace the function again, by one build of aspen_jax";
    case kSystemDriverMismatch:
      return "; the driver has been replaced while it was in use: restart the machine, or run on the CPU (JAX_PLATFORMS=cpu)";
    default:
      return "; the run is lost, and perhaps the device: start again, or run on the CPU (JAX_PLATFORMS=cpu)";
  }
}

}  // namespace

const Driver& Driver::get() {
  static constinit MadeOnce<Driver> driver;
  return driver.get(load);
}

const char* Driver::name_of(Result result) const noexcept {
  const char* name = nullptr;
  return cuGetErrorName(result, &name) == kSuccess && name != nullptr ? name : "an unknown error";
}

void Driver::check(Result result, const char* call) const {
  if (result == kSuccess) return;
  const char* text = nullptr;
  if (cuGetErrorString(result, &text) != kSuccess || text == nullptr) text = "no description";
  throw DeviceError(std::string(call) + " failed with " + name_of(result) + " (" + text + ")" + remedy(result));
}

}  // namespace aspen::cuda
