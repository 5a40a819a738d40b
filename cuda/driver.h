// CUDA's driver, as far as graphs need it. It is looked for when it is first asked for: what is built here also runs where there
// is none.
//
// The declarations repeat those of cuda.h, whose types and numbers are part of the driver's binary interface, so that building
// needs no CUDA. They hold for drivers of CUDA 12 and later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "kernels/kernel_shape.h"

// As in cuda.h, so that its types and ours are the same.
struct CUctx_st;
struct CUmod_st;
struct CUfunc_st;
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphNode_st;
struct CUgraphExec_st;
struct CUkern_st;

namespace aspen::cuda {

using Result = int;  // CUresult
using DevicePointer = uint64_t;
using Device = int;
using Context = CUctx_st*;
using Module = CUmod_st*;
using Function = CUfunc_st*;
using Stream = CUstream_st*;
using Event = CUevent_st*;
using DeviceGraph = CUgraph_st*;
using GraphNode = CUgraphNode_st*;
using GraphExec = CUgraphExec_st*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidImage = 200;
inline constexpr Result kNoBinaryForGpu = 209;
inline constexpr Result kInvalidPtx = 218;
inline constexpr Result kUnsupportedPtxVersion = 222;
inline constexpr Result kNotFound = 500;
inline constexpr Result kSystemDriverMismatch = 803;
inline constexpr int kMaxDynamicSharedSizeBytes = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
inline constexpr unsigned kStreamNonBlocking = 1;     // CU_STREAM_NON_BLOCKING
inline constexpr unsigned kEventDefault = 0;          // CU_EVENT_DEFAULT: one that knows its time
inline constexpr unsigned kEventDisableTiming = 2;    // CU_EVENT_DISABLE_TIMING
inline constexpr unsigned kSetCaptureDependencies = 1;
inline constexpr int kCaptureOnlyThisThread = 1;  // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
inline constexpr int kCaptureRelaxed = 2;         // CU_STREAM_CAPTURE_MODE_RELAXED

// Of tensor maps: elements of 16 bits as they are, lines of 128 bytes swizzled, zeros outside.
inline constexpr int kMapUint16 = 1;        // CU_TENSOR_MAP_DATA_TYPE_UINT16
inline constexpr int kMapNoInterleave = 0;  // CU_TENSOR_MAP_INTERLEAVE_NONE
inline constexpr int kMapSwizzle128 = 3;    // CU_TENSOR_MAP_SWIZZLE_128B
inline constexpr int kMapPromotion128 = 2;  // CU_TENSOR_MAP_L2_PROMOTION_L2_128B
inline constexpr int kMapZeros = 0;         // CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE

enum class CaptureStatus : int { kNone = 0, kActive = 1, kInvalidated = 2 };

// CUDA_KERNEL_NODE_PARAMS_v2.
struct KernelNodeParams {
  Function function;
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  void** arguments;
  void** extra;
  CUkern_st* kernel;
  Context context;
};

// CUgraphEdgeData.
struct EdgeData {
  unsigned char from_port, to_port, type, reserved[5];
};
// The child may start as soon as all blocks of the parent let it, or are over.
inline constexpr unsigned char kProgrammaticPort = 1;  // CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
inline constexpr unsigned char kProgrammaticEdge = 1;  // CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC

// Something that CUDA refuses; says which call, why, and what can be done.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Its functions are named as in CUDA's manual; a later one is nullptr where the driver has none.
struct Driver {
#define ASPEN_DRIVER_FUNCTION(name, symbol, parameters) Result(*name) parameters = nullptr;
#define ASPEN_LATER_DRIVER_FUNCTION ASPEN_DRIVER_FUNCTION
#include "driver_functions.inc"
#undef ASPEN_LATER_DRIVER_FUNCTION
#undef ASPEN_DRIVER_FUNCTION

  // Throws DeviceError where there is no driver, or one that is too old.
  static const Driver& get();

  // "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
  const char* name_of(Result result) const noexcept;
  // Throws DeviceError unless the result is kSuccess; `call` is what failed.
  void check(Result result, const char* call) const;
};

// Makes a context the thread's current one, for as long as this lives.
class Current {
 public:
  Current(const Driver& driver, Context context) : driver_(driver) {
    driver_.check(driver_.cuCtxPushCurrent(context), "cuCtxPushCurrent");
  }
  ~Current() {
    Context before = nullptr;
    driver_.cuCtxPopCurrent(&before);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Driver& driver_;
};

}  // namespace aspen::cuda
