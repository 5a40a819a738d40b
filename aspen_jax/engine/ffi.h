// The custom call `aspen_run` as XLA wants it registered. What is behind it includes XLA's headers; this does not.
#pragma once

namespace aspen {

struct FfiHandlers {
  void* instantiate;
  void* execute;
};

// Whether Ctrl-C was pressed, and is to end what the process's main thread waits for.
using IsInterrupted = bool (*)();

// Pointers to XLA_FFI_Handler. The call has one attribute, `graph`, an array of uint8 (docs/graph_format.md), and the operands
// and results of that graph.
FfiHandlers ffi_handlers(IsInterrupted is_interrupted);

}  // namespace aspen
