// Moving planes of elements (rows x cols with any strides, counted in elements) between memory and lanes, and between places in
// memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "aspen_jax/engine/kernel.h"
#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

// Calls visit(T{}) with the unsigned type of `bytes` bytes.
template <class Visitor>
inline void visit_size(int64_t bytes, Visitor visit) {
  switch (bytes) {
    case 1:
      return visit(uint8_t{});
    case 2:
      return visit(uint16_t{});
    case 4:
      return visit(uint32_t{});
    case 8:
      return visit(uint64_t{});
  }
}

// Elements as lanes: bool becomes a mask, integers are widened, 32-bit elements keep their bits.
template <class T, bool kIsBool>
inline void load_lanes_of(const T* from, int64_t row_stride, int64_t col_stride, int64_t rows, int64_t cols, int32_t* to,
                          int64_t to_row_stride) {
  typedef T Narrow __attribute__((vector_size(sizeof(T) * kLanes)));
  const auto widen = [](auto x) { return kIsBool ? -static_cast<int32_t>(x != 0) : static_cast<int32_t>(x); };
  if (col_stride == 1) {
    for (int64_t row = 0; row < rows; ++row, from += row_stride, to += to_row_stride) {
      int64_t col = 0;
      for (; col + kLanes <= cols; col += kLanes) {
        Narrow x;
        std::memcpy(&x, from + col, sizeof x);
        const Ints lanes = __builtin_convertvector(x, Ints);
        store(to + col, kIsBool ? Ints(lanes != 0) : lanes);
      }
      for (; col < cols; ++col) to[col] = widen(from[col]);
    }
  } else if (std::abs(row_stride) < std::abs(col_stride)) {
    for (int64_t col = 0; col < cols; ++col) {
      for (int64_t row = 0; row < rows; ++row) to[row * to_row_stride + col] = widen(from[row * row_stride + col * col_stride]);
    }
  } else {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) to[row * to_row_stride + col] = widen(from[row * row_stride + col * col_stride]);
    }
  }
}

inline void load_lanes(DType dtype, const void* from, int64_t row_stride, int64_t col_stride, int64_t rows, int64_t cols,
                       int32_t* to, int64_t to_row_stride) {
  const auto load_as = [&]<class T, bool kIsBool = false>(T) {
    load_lanes_of<T, kIsBool>(static_cast<const T*>(from), row_stride, col_stride, rows, cols, to, to_row_stride);
  };
  switch (dtype) {
    case DType::kBool:
      return load_as.template operator()<uint8_t, true>(uint8_t{});
    case DType::kI8:
      return load_as(int8_t{});
    case DType::kU8:
      return load_as(uint8_t{});
    case DType::kI16:
      return load_as(int16_t{});
    case DType::kU16:
      return load_as(uint16_t{});
    default:
      return load_as(int32_t{});
  }
}

// Lanes as elements of T: the low bits, or the lowest bit of a mask. `from_step` is 1, or 0 where the lanes of a row are equal.
template <class T, bool kIsBool>
inline void store_lanes_of(const int32_t* from, int64_t from_row_stride, int64_t from_step, T* to, int64_t row_stride,
                           int64_t col_stride, int64_t rows, int64_t cols) {
  typedef T Narrow __attribute__((vector_size(sizeof(T) * kLanes)));
  const auto narrow = [](auto x) { return static_cast<T>(kIsBool ? x & 1 : x); };
  for (int64_t row = 0; row < rows; ++row, from += from_row_stride, to += row_stride) {
    int64_t col = 0;
    if (col_stride == 1) {
      for (; col + kLanes <= cols; col += kLanes) {
        const Ints lanes = load(from + col * from_step);
        const Narrow x = __builtin_convertvector(kIsBool ? lanes & 1 : lanes, Narrow);
        std::memcpy(to + col, &x, sizeof x);
      }
    }
    for (; col < cols; ++col) to[col * col_stride] = narrow(from[col * from_step]);
  }
}

inline void store_lanes(DType dtype, const int32_t* from, int64_t from_row_stride, int64_t from_step, void* to,
                        int64_t row_stride, int64_t col_stride, int64_t rows, int64_t cols) {
  const auto store_as = [&]<class T, bool kIsBool = false>(T) {
    store_lanes_of<T, kIsBool>(from, from_row_stride, from_step, static_cast<T*>(to), row_stride, col_stride, rows, cols);
  };
  if (dtype == DType::kBool) return store_as.template operator()<uint8_t, true>(uint8_t{});
  if (size_of(dtype) == 1) return store_as(uint8_t{});
  if (size_of(dtype) == 2) return store_as(uint16_t{});
  store_as(int32_t{});
}

template <class T>
inline void copy_elements_of(const T* from, int64_t from_row_stride, int64_t from_col_stride, T* to, int64_t to_row_stride,
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

// `to` may be exactly `from`; otherwise they do not overlap.
inline void copy_elements(int64_t element_bytes, const void* from, int64_t from_row_stride, int64_t from_col_stride, void* to,
                          int64_t to_row_stride, int64_t to_col_stride, int64_t rows, int64_t cols) {
  if (from == to) return;
  visit_size(element_bytes, [&]<class T>(T) {
    copy_elements_of(static_cast<const T*>(from), from_row_stride, from_col_stride, static_cast<T*>(to), to_row_stride,
                     to_col_stride, rows, cols);
  });
}

}  // namespace aspen::cpu::ASPEN_TARGET
