#include "ffi.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aspen_jax/engine/ffi_buffers.h"
#include "executable.h"

namespace aspen::cuda {
namespace {

using Bytes = ffi::Span<const uint8_t>;
using Numbers = ffi::Span<const int32_t>;

std::span<const std::byte> as_bytes(Bytes bytes) { return std::as_bytes(std::span(bytes.begin(), bytes.size())); }

// What XLA keeps for a compiled call.
struct CudaCallState {
  static ffi::TypeId id;
  Executable executable;

  CudaCallState(Bytes graph, Bytes image, Numbers kernels, Numbers launched_with, int32_t executor)
      : executable(parse_graph(as_bytes(graph)),
                   {{as_bytes(image).begin(), as_bytes(image).end()},
                    {kernels.begin(), kernels.end()},
                    {launched_with.begin(), launched_with.end()}},
                   static_cast<Executor>(executor)) {}
};
ffi::TypeId CudaCallState::id = {};

ffi::ErrorOr<std::unique_ptr<CudaCallState>> instantiate(Bytes graph, Bytes image, Numbers kernels, Numbers launched_with,
                                                         int32_t executor) {
  try {
    return std::make_unique<CudaCallState>(graph, image, kernels, launched_with, executor);
  } catch (...) {
    return ffi::Unexpected(current_error());
  }
}

ffi::Error initialize(Stream stream, CudaCallState* state) {
  try {
    state->executable.load(stream);
    return ffi::Error::Success();
  } catch (...) {
    return current_error();
  }
}

// Nothing, or why these arguments are not those of the graph.
std::optional<std::string> take_all(std::vector<void*>& buffers, const Graph& graph, const ffi::RemainingArgs& args,
                                    ffi::RemainingRets& rets) {
  const size_t expected = graph.results.size() + (graph.workspace_bytes > 0);
  const size_t num_results = count_results(rets, expected);
  if (args.size() != graph.operands.size()) return count_mismatch("operand", args.size(), graph.operands.size());
  if (num_results != expected) return count_mismatch("result", num_results, expected);
  for (size_t i = 0; i < args.size(); ++i) {
    const auto buffer = args.get<ffi::AnyBuffer>(i);
    if (buffer.has_error()) return buffer.error().message();
    if (auto wrong = take(buffers, "operand", buffer.value(), graph.values[graph.operands[i]].dense)) return wrong;
  }
  for (size_t i = 0; i < graph.results.size(); ++i) {
    auto buffer = rets.get<ffi::AnyBuffer>(i);
    if (buffer.has_error()) return buffer.error().message();
    if (auto wrong = take(buffers, "result", *buffer.value(), graph.values[graph.results[i]].dense)) return wrong;
  }
  if (graph.workspace_bytes > 0) {
    auto buffer = rets.get<ffi::AnyBuffer>(graph.results.size());
    if (buffer.has_error()) return buffer.error().message();
    const size_t bytes = buffer.value()->size_bytes();
    if (bytes != static_cast<size_t>(graph.workspace_bytes)) {
      return "the workspace has " + std::to_string(bytes) + " bytes, but the graph needs " +
             std::to_string(graph.workspace_bytes) + "; trace the function again";
    }
    buffers.push_back(buffer.value()->untyped_data());
  } else {
    buffers.push_back(nullptr);
  }
  return std::nullopt;
}

ffi::Error execute(Stream stream, CudaCallState* state, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  try {
    std::vector<void*> buffers;
    if (auto wrong = take_all(buffers, state->executable.graph(), args, rets)) {
      return error_of(ffi::ErrorCode::kInvalidArgument, *wrong);
    }
    std::vector<DevicePointer> addresses;
    for (void* const buffer : buffers) addresses.push_back(reinterpret_cast<DevicePointer>(buffer));
    state->executable.run(stream, addresses);
    return ffi::Error::Success();
  } catch (...) {
    return current_error();
  }
}

// Stages of a call all get its attributes; those that need none of them say so.
XLA_FFI_DEFINE_HANDLER(kInstantiate, instantiate,
                       ffi::Ffi::BindInstantiate()
                           .Attr<Bytes>("graph")
                           .Attr<Bytes>("image")
                           .Attr<Numbers>("kernels")
                           .Attr<Numbers>("launched_with")
                           .Attr<int32_t>("executor"));
XLA_FFI_DEFINE_HANDLER(
    kInitialize,
    [](Stream stream, CudaCallState* state, ffi::RemainingArgs, ffi::RemainingRets, ffi::Dictionary) {
      return initialize(stream, state);
    },
    ffi::Ffi::BindInitialize()
        .Ctx<ffi::PlatformStream<Stream>>()
        .Ctx<ffi::State<CudaCallState>>()
        .RemainingArgs()
        .RemainingRets()
        .Attrs());
XLA_FFI_DEFINE_HANDLER(kExecute,
                       [](Stream stream, CudaCallState* state, ffi::RemainingArgs args, ffi::RemainingRets rets,
                          ffi::Dictionary) { return execute(stream, state, args, rets); },
                       ffi::Ffi::BindExecute()
                           .Ctx<ffi::PlatformStream<Stream>>()
                           .Ctx<ffi::State<CudaCallState>>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attrs(),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_Error* instantiate_handler(XLA_FFI_CallFrame* frame) {
  if (frame->extension_start != nullptr && frame->extension_start->type == XLA_FFI_Extension_Metadata) {
    if (XLA_FFI_Error* error = register_type<CudaCallState>(frame->api, "aspen_run_cuda_state")) return error;
  }
  return guarded<kInstantiate>(frame);
}

}  // namespace

FfiHandlers ffi_handlers() {
  return {reinterpret_cast<void*>(&instantiate_handler), reinterpret_cast<void*>(&guarded<kInitialize>),
          reinterpret_cast<void*>(&guarded<kExecute>)};
}

}  // namespace aspen::cuda
