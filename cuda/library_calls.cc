#include "library_calls.h"

#include <algorithm>
#include <string>
#include <vector>

#include "executable.h"

namespace aspen::cuda {

LibraryCalls::LibraryCalls(const HomeContext& home, const Executable& executable)
    : home_(home), driver_(home.driver()), executable_(executable), cudnn_(home), cublas_(home), recording_(home) {}

bool LibraryCalls::add(size_t op, const KernelShape& shape) {
  if (shape.product.matrices != 0) {
    add_product(op, shape.product);
  } else if (shape.convolution.images != 0) {
    add_convolution(op, shape.convolution);
  } else {
    return false;
  }
  return true;
}

void LibraryCalls::add_product(size_t op, const LibraryProduct& product) {
  std::vector<int32_t> inputs{product.left.input, product.right.input};
  for (const int32_t input : {product.added.input, product.bias}) {
    if (input != -1) inputs.push_back(input);
  }
  check_inputs(op, inputs);
  open_recording();
  if (cublas_.get() == nullptr) Cublas::check(cublas_.take(Cublas::get().cublasLtCreate), "cublasLtCreate");
  calls_[op] = std::make_unique<ProductCall>(cublas_.get(), product);
}

void LibraryCalls::add_convolution(size_t op, const LibraryConvolution& convolution) {
  check_convolution(convolution);
  std::vector<int32_t> inputs{0, 1};
  for (int32_t number = 0; number < convolution.num_operands; ++number) inputs.push_back(convolution.operands[number].input);
  check_inputs(op, inputs);
  open_recording();
  if (cudnn_.get() == nullptr) Cudnn::check(cudnn_.take(Cudnn::get().cudnnCreate), "cudnnCreate");
  calls_[op] = std::make_unique<ConvolutionCall>(cudnn_.get(), convolution);
}

void LibraryCalls::check_inputs(size_t op, std::span<const int32_t> inputs) const {
  const auto num_inputs = static_cast<int32_t>(executable_.graph().ops[op].num_inputs);
  const bool are_its = std::ranges::all_of(inputs, [&](int32_t input) { return input >= 0 && input < num_inputs; });
  const bool is_one = std::ranges::count(executable_.launches().launches, op, &Launch::op) == 1;
  if (is_one && are_its) return;
  throw DeviceError("the code of op '" + executable_.graph().op_names[op] +
                    "' names something for a library that is not the op's; install one build of aspen_jax, and trace the "
                    "function again");
}

void LibraryCalls::open_recording() {
  if (recording_.get() != nullptr) return;
  driver_.check(recording_.take(driver_.cuStreamCreate, kStreamNonBlocking), "cuStreamCreate");
}

bool LibraryCalls::contains(uint32_t launch) const {
  return !calls_.empty() && contains_op(executable_.launches().launches[launch].op);
}

void LibraryCalls::give(Stream stream, uint32_t launch, std::span<const DevicePointer> addresses) {
  const uint32_t op = executable_.launches().launches[launch].op;
  calls_.at(op)->give(stream, executable_.addresses_of(op, addresses));
}

Owned<&Driver::cuGraphDestroy> LibraryCalls::record(uint32_t launch, std::span<const DevicePointer> addresses) {
  const Stream stream = recording_.get();
  // Relaxed: the library may load its code now.
  driver_.check(driver_.cuStreamBeginCapture(stream, kCaptureRelaxed), "cuStreamBeginCapture");
  DeviceGraph graph = nullptr;
  try {
    give(stream, launch, addresses);
  } catch (...) {
    driver_.cuStreamEndCapture(stream, &graph);
    if (graph != nullptr) driver_.cuGraphDestroy(graph);
    throw;
  }
  driver_.check(driver_.cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
  return Owned<&Driver::cuGraphDestroy>(home_, graph);
}

}  // namespace aspen::cuda
