// "Code for a GPU" as the fake of CUDA's driver wants it: op0 adds two vectors of floats, op1 copies one. Both wait for launches
// before them where ASPEN_WAITS is 1.
#include "cuda/kernels/kernel_shape.h"

namespace {

void (*played_wait)() = nullptr;

void wait_for_parents() {
  if (ASPEN_WAITS && played_wait != nullptr) played_wait();
}

}  // namespace

extern "C" {

#if ASPEN_SAYS_THAT_IT_WAITS
int32_t aspen_kernels_wait = 1;
#endif
void aspen_play_wait(void (*wait)()) { played_wait = wait; }

aspen::cuda::KernelShape op0_shape{32, 0, 3};
aspen::cuda::KernelShape op1_shape{64, 50 << 10, 2};

void op0(const void* const* addresses, const int32_t* boxes, int /* ops */, int tiles) {
  wait_for_parents();
  const auto* const a = static_cast<const float*>(addresses[0]);
  const auto* const b = static_cast<const float*>(addresses[1]);
  auto* const sum = static_cast<float*>(const_cast<void*>(addresses[2]));
  for (int tile = 0; tile < tiles; ++tile) {
    for (int32_t i = boxes[2 * tile]; i < boxes[2 * tile + 1]; ++i) sum[i] = a[i] + b[i];
  }
}

void op1(const void* const* addresses, const int32_t* boxes, int /* ops */, int tiles) {
  wait_for_parents();
  const auto* const a = static_cast<const float*>(addresses[0]);
  auto* const copy = static_cast<float*>(const_cast<void*>(addresses[1]));
  for (int tile = 0; tile < tiles; ++tile) {
    for (int32_t i = boxes[2 * tile]; i < boxes[2 * tile + 1]; ++i) copy[i] = a[i];
  }
}

}  // extern "C"
