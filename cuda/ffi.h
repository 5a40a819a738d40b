// The custom call `aspen_run` for CUDA, as XLA wants it registered. What is behind it includes XLA's headers; this does not.
#pragma once

namespace aspen::cuda {

struct FfiHandlers {
  void* instantiate;
  void* initialize;
  void* execute;
};

// Pointers to XLA_FFI_Handler. The call has the attributes `graph` and `image`, arrays of uint8, `kernels`, an array of int32,
// and `executor`, an int32 (executable.h); the graph's operands; its results and, where it has one, its workspace as the last
// result. XLA plans that workspace for runs which it captures into a command buffer, and for graphs that want a large one. It
// alone decides when it replays a command buffer, so it alone can keep the memory free. Other runs use the executable's.
FfiHandlers ffi_handlers();

}  // namespace aspen::cuda
