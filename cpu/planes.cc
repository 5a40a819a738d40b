#include "planes.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "elements.h"
#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

namespace {

// Up to kLanes adjacent elements; the other lanes are zero.
template <class T>
ASPEN_INLINE Ints to_some_lanes(const T* from, int n) {
  if (n == kLanes) return to_lanes(from);
  if constexpr (std::is_same_v<T, int32_t>) return load_partial(from, n);
  if constexpr (Narrow<T>) return as_ints(load_partial(from, n));
  T padded[kLanes] = {};
  std::memcpy(padded, from, static_cast<size_t>(n) * sizeof(T));
  return to_lanes(padded);
}

// Elements as lanes by squares whose columns are each in adjacent memory: a whole one,
template <class T>
ASPEN_INLINE void load_square(const T* from, int64_t col_stride, int32_t* to, int64_t to_row_stride) {
  Ints square[kLanes];
#pragma GCC unroll 16
  for (int col = 0; col < kLanes; ++col) square[col] = to_lanes(from + col * col_stride);
  transpose(square);
#pragma GCC unroll 16
  for (int row = 0; row < kLanes; ++row) store(to + row * to_row_stride, square[row]);
}

// and some rows and columns of one. Partial stores take some processors eleven cycles each.
template <class T>
void load_part_of_square(const T* from, int64_t col_stride, int rows, int cols, int32_t* to, int64_t to_row_stride) {
  Ints square[kLanes];
#pragma GCC unroll 16
  for (int col = 0; col < kLanes; ++col) {
    square[col] = col < cols ? to_some_lanes(from + col * col_stride, rows) : Ints{};
  }
  transpose(square);
#pragma GCC unroll 16
  for (int row = 0; row < kLanes; ++row) {
    if (row < rows) store_partial(to + row * to_row_stride, square[row], cols);
  }
}

// Elements as lanes.
template <class T>
void load_lanes_of(const T* from, int64_t row_stride, int64_t col_stride, int64_t rows, int64_t cols, int32_t* to,
                   int64_t to_row_stride) {
  constexpr int64_t kFew = 3;  // rows or columns that are not worth a square
  if (cols == 0) return;       // there may be no element to read
  if (row_stride == 1 && col_stride != 1 && rows > kFew && cols > kFew) {
    for (int64_t row = 0; row < rows; row += kLanes) {
      for (int64_t col = 0; col < cols; col += kLanes) {
        const T* const corner = from + row + col * col_stride;
        int32_t* const to_corner = to + row * to_row_stride + col;
        if (row + kLanes <= rows && col + kLanes <= cols) {
          load_square(corner, col_stride, to_corner, to_row_stride);
        } else {
          load_part_of_square(corner, col_stride, static_cast<int>(std::min<int64_t>(kLanes, rows - row)),
                              static_cast<int>(std::min<int64_t>(kLanes, cols - col)), to_corner, to_row_stride);
        }
      }
    }
  } else if (col_stride == 1) {
    for (int64_t row = 0; row < rows; ++row, from += row_stride, to += to_row_stride) {
      int64_t col = 0;
      for (; col + kLanes <= cols; col += kLanes) store(to + col, to_lanes(from + col));
      if constexpr (Narrow<T>) {
        if (col < cols) {
          const int tail = static_cast<int>(cols - col);
          store_partial(to + col, as_ints(load_partial(from + col, tail)), tail);
        }
      } else {
        for (; col < cols; ++col) to[col] = to_lane(from[col]);
      }
    }
  } else if (col_stride == 0) {
    for (int64_t row = 0; row < rows; ++row, from += row_stride, to += to_row_stride) {
      const int32_t lane = to_lane(*from);
      int64_t col = 0;
      for (; col + kLanes <= cols; col += kLanes) store(to + col, broadcast(lane));
      for (; col < cols; ++col) to[col] = lane;
    }
  } else if (std::abs(row_stride) < std::abs(col_stride)) {
    for (int64_t col = 0; col < cols; ++col) {
      for (int64_t row = 0; row < rows; ++row) to[row * to_row_stride + col] = to_lane(from[row * row_stride + col * col_stride]);
    }
  } else {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) to[row * to_row_stride + col] = to_lane(from[row * row_stride + col * col_stride]);
    }
  }
}

// Lanes as elements. `from_step` is 1, or 0 where the lanes of a row are equal.
template <class T>
void store_lanes_of(const int32_t* from, int64_t from_row_stride, int64_t from_step, T* to, int64_t row_stride,
                    int64_t col_stride, int64_t rows, int64_t cols) {
  for (int64_t row = 0; row < rows; ++row, from += from_row_stride, to += row_stride) {
    int64_t col = 0;
    if (col_stride == 1) {
      for (; col + kLanes <= cols; col += kLanes) from_lanes(to + col, load(from + col * from_step));
      if constexpr (Narrow<T>) {
        if (col < cols) {
          const int tail = static_cast<int>(cols - col);
          const Ints lanes = from_step == 0 ? load(from) : load_partial(from + col, tail);
          store_partial(to + col, as_floats(lanes), tail);
        }
        continue;
      }
    }
    for (; col < cols; ++col) to[col * col_stride] = from_lane<T>(from[col * from_step]);
  }
}

template <class T>
void copy_elements_of(const T* from, int64_t from_row_stride, int64_t from_col_stride, T* to, int64_t to_row_stride,
                      int64_t to_col_stride, int64_t rows, int64_t cols) {
  if (from_col_stride == 1 && to_col_stride == 1) {
    if (from_row_stride == cols && to_row_stride == cols) {
      cols *= rows;
      rows = 1;
    }
    constexpr int64_t kShort = 16;  // a call of memcpy costs more than this many elements
    for (int64_t row = 0; row < rows; ++row, from += from_row_stride, to += to_row_stride) {
      if (cols >= kShort) {
        std::memcpy(to, from, static_cast<size_t>(cols) * sizeof(T));
      } else {
        for (int64_t col = 0; col < cols; ++col) to[col] = from[col];
      }
    }
    return;
  }
  if (from_col_stride == 0 && to_col_stride == 1) {
    for (int64_t row = 0; row < rows; ++row) std::fill_n(to + row * to_row_stride, cols, from[row * from_row_stride]);
    return;
  }
  // Where the rows of one side are the columns of the other, squares keep the cache lines of both until they are used up.
  const bool is_transposed =
      (std::abs(from_row_stride) < std::abs(from_col_stride)) != (std::abs(to_row_stride) < std::abs(to_col_stride));
  const int64_t square = is_transposed ? 64 / static_cast<int64_t>(sizeof(T)) : std::max(rows, cols);
  for (int64_t row0 = 0; row0 < rows; row0 += square) {
    const int64_t row1 = std::min(rows, row0 + square);
    for (int64_t col0 = 0; col0 < cols; col0 += square) {
      const int64_t col1 = std::min(cols, col0 + square);
      for (int64_t row = row0; row < row1; ++row) {
        for (int64_t col = col0; col < col1; ++col) {
          to[row * to_row_stride + col * to_col_stride] = from[row * from_row_stride + col * from_col_stride];
        }
      }
    }
  }
}

}  // namespace

void load_lanes(DType dtype, const void* from, int64_t row_stride, int64_t col_stride, int64_t rows, int64_t cols, int32_t* to,
                int64_t to_row_stride) {
  visit_element(dtype, [&]<class T>(T) {
    load_lanes_of(static_cast<const T*>(from), row_stride, col_stride, rows, cols, to, to_row_stride);
  });
}

void store_lanes(DType dtype, const int32_t* from, int64_t from_row_stride, int64_t from_step, void* to, int64_t row_stride,
                 int64_t col_stride, int64_t rows, int64_t cols) {
  visit_element(dtype, [&]<class T>(T) {
    store_lanes_of(from, from_row_stride, from_step, static_cast<T*>(to), row_stride, col_stride, rows, cols);
  });
}

void copy_elements(int64_t element_bytes, const void* from, int64_t from_row_stride, int64_t from_col_stride, void* to,
                   int64_t to_row_stride, int64_t to_col_stride, int64_t rows, int64_t cols) {
  if (from == to) return;
  visit_size(element_bytes, [&]<class T>(T) {
    copy_elements_of(static_cast<const T*>(from), from_row_stride, from_col_stride, static_cast<T*>(to), to_row_stride,
                     to_col_stride, rows, cols);
  });
}

}  // namespace aspen::cpu::ASPEN_TARGET
