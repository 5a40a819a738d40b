#include "box.h"

#include "planes.h"

namespace aspen::cpu::ASPEN_TARGET {

void copy_box(int64_t element_bytes, int rank, const int64_t* extents, const void* from, const int64_t* from_strides, void* to,
              const int64_t* to_strides) noexcept {
  LoopNest<2> nest(2);
  for (int axis = rank - 1; axis >= 0; --axis) {
    if (extents[axis] <= 0) return;
    nest.add_outside(extents[axis], [&](int i) { return i == 0 ? to_strides[axis] : from_strides[axis]; });
  }
  const int rows = nest.row_loop();
  nest.for_each_plane(rows, [&](const int64_t* offsets) {
    const auto stride = [&](int loop, int i) { return loop < 0 || loop >= nest.depth ? 1 : nest.strides[loop][i]; };
    copy_elements(element_bytes, static_cast<const std::byte*>(from) + offsets[1] * element_bytes, stride(rows, 1), stride(0, 1),
                  static_cast<std::byte*>(to) + offsets[0] * element_bytes, stride(rows, 0), stride(0, 0),
                  rows < 0 ? 1 : nest.extents[rows], nest.depth == 0 ? 1 : nest.extents[0]);
  });
}

}  // namespace aspen::cpu::ASPEN_TARGET
