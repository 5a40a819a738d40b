// A custom call that does nothing: the least that a call into foreign code costs in XLA.
#include "xla/ffi/api/ffi.h"

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    aspen_empty_call, [](xla::ffi::AnyBuffer, xla::ffi::Result<xla::ffi::AnyBuffer>) { return xla::ffi::Error::Success(); },
    xla::ffi::Ffi::Bind().Arg<xla::ffi::AnyBuffer>().Ret<xla::ffi::AnyBuffer>());
