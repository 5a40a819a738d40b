// Reading an op when it is prepared: its views and its parameter words, each checked as it is read.
//
//   SpecReader reader(spec);
//   const TensorView& x = reader.input(0, "x", {.rank = 4, .dtypes = kFloats});
//   const TensorView& out = reader.output({.rank = 4, .dense = true});
//   const auto padding = reader.list(4, -kMaxExtent, kMaxExtent, "padding");
//
// All checks throw GraphError, in one form: what it is about, what that is, and what is needed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "aspen_jax/engine/kernel.h"
#include "aspen_jax/engine/words.h"
#include "shapes.h"

namespace aspen::cpu {

class DTypes {
 public:
  constexpr DTypes(DType only) : DTypes({only}) {}
  constexpr DTypes(std::initializer_list<DType> dtypes) {
    for (const DType dtype : dtypes) bits_ |= 1u << static_cast<int>(dtype);
  }
  constexpr bool has(DType dtype) const { return (bits_ >> static_cast<int>(dtype) & 1u) != 0; }

 private:
  uint32_t bits_ = 0;
};

inline constexpr DTypes kFloats = {DType::kF32, DType::kBF16, DType::kF16};
inline constexpr DTypes kIntegers = {DType::kI8, DType::kI16, DType::kI32, DType::kI64,
                                     DType::kU8, DType::kU16, DType::kU32, DType::kU64};
inline constexpr DTypes kAnyDType = {DType::kBool, DType::kI8,  DType::kI16, DType::kI32,  DType::kI64, DType::kU8, DType::kU16,
                                     DType::kU32,  DType::kU64, DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

struct Ranks {
  int least, most;
  constexpr Ranks(int only) : least(only), most(only) {}
  constexpr Ranks(int least_rank, int most_rank) : least(least_rank), most(most_rank) {}
};

// What a kernel needs of a view. Besides, every extent has to lie in [0, kMaxExtent].
struct Wanted {
  Ranks rank = {0, kMaxRank};
  DTypes dtypes = kAnyDType;
  bool dense = false;     // and row-major
  bool adjacent = false;  // the elements along the last axis
};

void check_view(const TensorView& view, const std::string& what, const Wanted& wanted);

void check_shape(const TensorView& view, const std::string& what, std::span<const int64_t> wanted);
inline void check_shape(const TensorView& view, const std::string& what, std::initializer_list<int64_t> wanted) {
  check_shape(view, what, std::span(wanted.begin(), wanted.size()));
}

// Checks an extent that follows from an op's parameters.
void check_extent(const TensorView& view, const std::string& what, int axis, int64_t wanted);

class SpecReader : public WordReader {
 public:
  explicit SpecReader(const OpSpec& spec) : WordReader(spec.params), spec_(spec) {}

  // The words that are left, of an op that has other views.
  SpecReader with_views(std::span<const TensorView> inputs, const TensorView& output) const {
    return {static_cast<const WordReader&>(*this), OpSpec{inputs, output, spec_.params}};
  }

  // Input `index`, which `what` names in errors. References are to the op's own views.
  const TensorView& input(size_t index, std::string what, Wanted wanted) const;
  const TensorView& output(Wanted wanted) const;

  std::span<const TensorView> inputs() const { return spec_.inputs; }
  std::span<const TensorView> inputs_from(size_t first) const;
  const TensorView& output() const { return spec_.output; }

  // The op has no inputs from `count` on. One with an epilogue may have more (Epilogue::parse).
  void end_inputs(size_t count) const;

 private:
  SpecReader(const WordReader& words, const OpSpec& spec) : WordReader(words), spec_(spec) {}

  OpSpec spec_;
};

// What `prepare` gives for an op that is a part of another one. Its errors begin with `what`.
PreparedOp prepare_part(const char* what, PreparedOp (*prepare)(const OpSpec&), const OpSpec& spec);

}  // namespace aspen::cpu
