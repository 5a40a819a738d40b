#include "rows.h"

#include <algorithm>
#include <string>
#include <utility>

#include "block_draft.h"
#include "total.h"

namespace aspen::cpu::ASPEN_TARGET {

namespace {

// Elements that a stage computes at a time, and rows of a group. A group's rows are worked on together so that short rows cost
// little more an element than long ones.
constexpr int64_t kChunk = 8192;
constexpr int64_t kMaxGroup = 256;
constexpr int64_t kMinAcross = 16;  // elements of a cache line
static_assert(kMaxGroup % kLanes == 0);

// Lane i of the result is lane (i + distance) % kLanes.
ASPEN_INLINE Floats rotated(Floats x, int distance) { return permute(x, (iota() + distance) & (kLanes - 1)); }
ASPEN_INLINE Ints rotated(Ints x, int distance) { return as_ints(rotated(as_floats(x), distance)); }

// All lanes combined, in every lane.
template <class Op>
ASPEN_INLINE typename Op::Vector folded(typename Op::Vector x) {
  for (int distance = kLanes / 2; distance > 0; distance /= 2) x = Op::apply(x, rotated(x, distance));
  return x;
}

// What is reduced: the elements as they are, or (a variance is the mean of these) the squares of their differences from a number.
struct Itself {
  template <class V>
  static ASPEN_INLINE V apply(V x, V) {
    return x;
  }
};
struct SquaredDeviation {
  static ASPEN_INLINE Floats apply(Floats x, Floats shift) {
    const Floats deviation = x - shift;
    return deviation * deviation;
  }
};

// Adds `count` adjacent elements.
template <class Op, class Map, class T>
ASPEN_INLINE void add_elements(Total<Op>& total, const T* from, int64_t count, typename Op::Vector shift) {
  const auto at = [&](int64_t i) { return Map::apply(load(from + i), shift); };
  constexpr int64_t kStride = 4 * kLanes;
  int64_t i = 0;
  while (i + kStride <= count) {
    const int64_t end = std::min(count, i + kPiece * kStride);
    typename Op::Vector sum[4];
    for (int v = 0; v < 4; ++v) sum[v] = at(i + v * kLanes);
    for (i += kStride; i + kStride <= end; i += kStride) {
      for (int v = 0; v < 4; ++v) sum[v] = Op::apply(sum[v], at(i + v * kLanes));
    }
    total.add(Op::apply(Op::apply(sum[0], sum[1]), Op::apply(sum[2], sum[3])));
  }
  if (i == count) return;
  auto sum = broadcast(Op::identity());
  for (; i + kLanes <= count; i += kLanes) sum = Op::apply(sum, at(i));
  const auto tail = static_cast<int>(count - i);
  if (tail > 0) {
    const auto last = Map::apply(load_partial(from + i, tail), shift);
    sum = Op::apply(sum, iota() < tail ? last : broadcast(Op::identity()));
  }
  total.add(sum);
}

// A number for each row of a plane whose columns are adjacent.
template <class Op, class Map, class T>
void reduce_each_row(const Plane& from, int64_t rows, int64_t cols, const Plane& shifts, void* numbers) noexcept {
  const auto* row = static_cast<const T*>(from.data);
  const auto* shift = static_cast<const T*>(shifts.data);
  for (int64_t i = 0; i < rows; ++i, row += from.row_stride, shift += shifts.row_stride) {
    Total<Op> total;
    add_elements<Op, Map>(total, row, cols, broadcast(*shift));
    static_cast<T*>(numbers)[i] = folded<Op>(total.value)[0];
  }
}

// Totals in memory: `count` values, then what each has lost.
template <class Op, class T>
void begin_totals(void* totals, int64_t count) noexcept {
  std::fill_n(static_cast<T*>(totals), count, Op::identity());
  std::fill_n(static_cast<T*>(totals) + count, count, T{});
}

// Adds the first `lanes` columns of a plane, whose columns are adjacent, to the total's lanes of the same number.
template <class Op, class Map, class T>
ASPEN_INLINE void add_down(Total<Op>& total, const T* from, int64_t row_stride, int64_t rows, int lanes,
                           typename Op::Vector shift) {
  using Vector = typename Op::Vector;
  const auto add_rows = [&](auto at) {
    int64_t row = 0;
    while (row + 4 <= rows) {
      const int64_t end = std::min(rows, row + 4 * kPiece);
      Vector sum[4] = {at(row), at(row + 1), at(row + 2), at(row + 3)};
      for (row += 4; row + 4 <= end; row += 4) {
        for (int v = 0; v < 4; ++v) sum[v] = Op::apply(sum[v], at(row + v));
      }
      total.add(Op::apply(Op::apply(sum[0], sum[1]), Op::apply(sum[2], sum[3])));
    }
    for (; row < rows; ++row) total.add(at(row));
  };
  if (lanes >= kLanes) {
    add_rows([&](int64_t row) { return Map::apply(load(from + row * row_stride), shift); });
  } else {
    add_rows([&](int64_t row) {
      const Vector x = Map::apply(load_partial(from + row * row_stride, lanes), shift);
      return iota() < lanes ? x : broadcast(Op::identity());
    });
  }
}

// Adds all elements of a plane, whose columns are adjacent, to a total of kLanes lanes.
template <class Op, class Map, class T>
void add_plane(const Plane& from, int64_t rows, int64_t cols, const Plane& shifts, void* totals) noexcept {
  auto* const lanes = static_cast<T*>(totals);
  Total<Op> total{load(lanes), load(lanes + kLanes)};
  const auto* row = static_cast<const T*>(from.data);
  const auto shift = broadcast(*static_cast<const T*>(shifts.data));
  if (from.row_stride == cols) {
    cols *= rows;
    rows = 1;
  }
  if (cols < rows * kLanes) {
    for (int64_t col = 0; col < cols; col += kLanes) {
      add_down<Op, Map>(total, row + col, from.row_stride, rows, static_cast<int>(std::min<int64_t>(kLanes, cols - col)), shift);
    }
  } else {
    for (int64_t i = 0; i < rows; ++i, row += from.row_stride) add_elements<Op, Map>(total, row, cols, shift);
  }
  store(lanes, total.value);
  store(lanes + kLanes, total.lost);
}
template <class Op, class T>
void fold_total(const void* totals, void* number) noexcept {
  *static_cast<T*>(number) = folded<Op>(load(static_cast<const T*>(totals)))[0];
}

// Adds each column of a plane, whose columns are adjacent, to a total of its own; there are `count` totals, no fewer than
// columns.
template <class Op, class Map, class T>
void add_columns(const Plane& from, int64_t rows, int64_t cols, const Plane& shifts, void* totals, int64_t count) noexcept {
  auto* const values = static_cast<T*>(totals);
  for (int64_t col = 0; col < cols; col += kLanes) {
    const auto lanes = static_cast<int>(std::min<int64_t>(kLanes, cols - col));
    Total<Op> total{load(values + col), load(values + count + col)};
    add_down<Op, Map>(total, static_cast<const T*>(from.data) + col, from.row_stride, rows, lanes,
                      load_partial(static_cast<const T*>(shifts.data) + col, lanes));
    store(values + col, total.value);
    store(values + count + col, total.lost);
  }
}

// Where nothing is subtracted: a zero for each row of a group.
alignas(64) constexpr std::byte kNoShift[kMaxGroup * 4] = {};

[[noreturn]] void refuse(const std::string& what) { throw GraphError("row program: " + what); }

int64_t padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// How many rows are worked on together.
int64_t rows_of_group(int64_t length, bool across) {
  if (across) return std::clamp(kChunk / length / kMinAcross * kMinAcross, kMinAcross, kMaxGroup);
  return std::clamp<int64_t>(kChunk / length, 1, kMaxGroup);
}

}  // namespace

struct RowProgram::Reduction {
  void (*each_row)(const Plane&, int64_t, int64_t, const Plane&, void*) noexcept;
  void (*begin)(void*, int64_t) noexcept;
  void (*add_plane)(const Plane&, int64_t, int64_t, const Plane&, void*) noexcept;
  void (*fold)(const void*, void*) noexcept;
  void (*add_columns)(const Plane&, int64_t, int64_t, const Plane&, void*, int64_t) noexcept;
};

template <class Op, class Map, class T>
const RowProgram::Reduction* RowProgram::reduction() {
  static constexpr Reduction kReduction = {reduce_each_row<Op, Map, T>, begin_totals<Op, T>, add_plane<Op, Map, T>,
                                           fold_total<Op, T>, add_columns<Op, Map, T>};
  return &kReduction;
}

const RowProgram::Reduction* RowProgram::reduction_of(int kind, DType dtype) {
  const auto of = []<class T>(T, int kind) {
    return visit_combination<T>(static_cast<Combination>(kind), []<class Op>(Op) { return reduction<Op, Itself, T>(); });
  };
  return dtype == DType::kF32 ? of(float{}, kind) : of(int32_t{}, kind);
}

// Leaves to the reduction what it can do while it reads: squares, and the differences that are squared.
void RowProgram::reduce_squares(Stage& stage, Draft& draft) const {
  const bool is_float_sum = stage.kind == static_cast<int>(Combination::kSum) && stage.dtype == DType::kF32;
  if (!is_float_sum || !take_square(draft)) return;
  stage.reduction = reduction<Combine<float, Combination::kSum>, SquaredDeviation, float>();
  stage.shift = take_subtrahend(draft, [&](int reg) {
    const auto input = static_cast<size_t>(reg);
    return input >= num_inputs_ && stages_[input - num_inputs_].kind != kRow && dtypes_[input] == DType::kF32;
  });
}

int64_t RowNest::length() const {
  int64_t length = 1;
  for (int loop = 0; loop < depth; ++loop) length *= extents[loop];
  return length;
}

RowProgram RowProgram::parse(WordReader& words, std::span<const DType> inputs, DType output) {
  RowProgram program;
  program.num_inputs_ = inputs.size();
  program.dtypes_.assign(inputs.begin(), inputs.end());
  program.reads_once_.resize(inputs.size());
  const int64_t num_stages = words.integer(1, BlockProgram::kMaxInputs, "a row program's number of stages");
  if (inputs.size() + static_cast<size_t>(num_stages) > BlockProgram::kMaxInputs) {
    refuse(std::to_string(inputs.size()) + " inputs and " + std::to_string(num_stages) + " stages are too many");
  }
  std::vector<bool> is_read;
  for (int64_t index = 0; index < num_stages; ++index) {
    const bool is_last = index + 1 == num_stages;
    Stage stage;
    stage.kind = static_cast<int>(words.integer(is_last ? kRow : 0, kNumber, "the kind of a row program's stage"));
    stage.dtype = static_cast<DType>(words.integer(0, kNumDTypes - 1, "the dtype of a row program's stage"));
    if (is_last ? stage.dtype != output : stage.dtype != DType::kF32 && stage.dtype != DType::kI32) {
      refuse("stage " + std::to_string(index) + " has dtype number " + std::to_string(static_cast<int>(stage.dtype)) +
             "; the last has the output's, and what is kept between stages is float32 or int32");
    }
    Draft draft = read_draft(words, program.dtypes_, stage.dtype);
    if (stage.kind < kRow) stage.reduction = reduction_of(stage.kind, stage.dtype);
    program.reduce_squares(stage, draft);
    stage.program = BlockProgram::of(std::move(draft), program.dtypes_, stage.dtype);
    for (size_t reg = 0; reg < program.dtypes_.size(); ++reg) {
      if (!stage.program.reads(static_cast<int>(reg)) && stage.shift != static_cast<int>(reg)) continue;
      if (reg < inputs.size()) {
        if (stage.kind == kNumber) program.reads_once_[reg] = true;
        continue;
      }
      const Stage& source = program.stages_[reg - inputs.size()];
      is_read[reg - inputs.size()] = true;
      if (stage.kind == kNumber && source.kind == kRow) refuse("a number is computed from elements that are not reduced");
      // A reduction is complete when its sweep is; a number is computed before its sweep.
      stage.sweep = std::max(stage.sweep, source.sweep + (source.kind < kRow ? 1 : 0));
    }
    if (!is_last) stage.place = stage.kind == kRow ? program.num_rows_++ : program.num_numbers_++;
    program.num_sweeps_ = std::max(program.num_sweeps_, stage.sweep + 1);
    program.block_bytes_ = std::max(program.block_bytes_, stage.program.scratch_bytes());
    program.dtypes_.push_back(stage.dtype);
    is_read.push_back(is_last);
    program.stages_.push_back(std::move(stage));
  }
  // So the result is in the last sweep, and may overwrite an input.
  const auto unread = std::ranges::find(is_read, false);
  if (unread != is_read.end()) refuse("stage " + std::to_string(unread - is_read.begin()) + " is not read");
  return program;
}

// The parts of the scratch memory.
struct RowProgram::Scratch {
  Scratch(const RowProgram& program, int64_t length, bool across) {
    const auto take = [&](int64_t elements) {
      const int64_t begin = bytes;
      bytes += padded(elements * 4);
      return begin;
    };
    numbers = take(program.num_numbers_ * kMaxGroup);
    totals = take(program.num_numbers_ * 2 * kMaxGroup);
    kept_bytes = padded(rows_of_group(length, across) * length * 4);
    rows = bytes;
    bytes += program.num_rows_ * kept_bytes;
    chunk = take(kChunk);
    block = bytes;
    bytes += static_cast<int64_t>(program.block_bytes_);
  }

  // Offsets in bytes; a number and a total have room for kMaxGroup rows.
  int64_t numbers, totals, rows, kept_bytes, chunk, block;
  int64_t bytes = 0;
};

size_t RowProgram::scratch_bytes(int64_t length, bool across) const {
  return static_cast<size_t>(Scratch(*this, length, across).bytes);
}

// Rows that are worked on together.
struct RowProgram::Group {
  const RowNest& nest;
  const RowOperand* inputs;
  RowOperand out;
  int64_t first;  // row
  int64_t rows;
  bool across;
  bool whole;  // a plane holds whole rows
  // Of the inputs and the stages; made once for all groups.
  RowOperand* operands;
  Plane* planes;
};

void RowProgram::run(const RowNest& nest, const RowOperand* inputs, const RowOperand& out, int64_t rows, bool across,
                     std::byte* scratch) const noexcept {
  const int64_t length = nest.length();
  const bool whole = !across && nest.depth == 1 && length <= kChunk;
  const int64_t most = across || whole ? rows_of_group(length, across) : 1;
  RowOperand operands[BlockProgram::kMaxInputs];
  Plane planes[BlockProgram::kMaxInputs];
  for (int64_t row = 0; row < rows; row += most) {
    run_group({nest, inputs, out, row, std::min(most, rows - row), across, whole, operands, planes}, scratch);
  }
}

void RowProgram::run_group(const Group& group, std::byte* scratch) const noexcept {
  const RowNest& nest = group.nest;
  const Scratch parts(*this, nest.length(), group.across);
  RowOperand* const operands = group.operands;
  const auto first_row = [&](RowOperand operand, DType dtype) {
    operand.data = static_cast<const std::byte*>(operand.data) + group.first * operand.row_stride * size_of(dtype);
    return operand;
  };
  for (size_t i = 0; i < num_inputs_; ++i) operands[i] = first_row(group.inputs[i], dtypes_[i]);
  for (size_t i = 0; i < stages_.size(); ++i) {
    RowOperand& operand = operands[num_inputs_ + i];
    const Stage& stage = stages_[i];
    if (i + 1 == stages_.size()) {
      operand = first_row(group.out, stage.dtype);
    } else if (stage.kind == kRow) {
      operand.data = scratch + parts.rows + stage.place * parts.kept_bytes;
      operand.row_stride = group.across ? 1 : nest.length();
      int64_t stride = group.across ? group.rows : 1;
      for (int loop = 0; loop < nest.depth; stride *= nest.extents[loop++]) operand.strides[loop] = stride;
    } else {
      operand.data = scratch + parts.numbers + stage.place * kMaxGroup * 4;
      operand.row_stride = 1;
    }
  }
  const auto writable = [](const RowOperand& operand) { return const_cast<void*>(operand.data); };

  for (int number = 0; number < num_sweeps_; ++number) {
    bool has_walk = false;
    for (size_t i = 0; i < stages_.size(); ++i) {
      const Stage& stage = stages_[i];
      if (stage.sweep != number) continue;
      if (stage.kind != kNumber) {
        has_walk = true;
        if (stage.reduction != nullptr && !group.whole) {
          stage.reduction->begin(scratch + parts.totals + stage.place * 2 * kMaxGroup * 4, group.across ? kMaxGroup : kLanes);
        }
        continue;
      }
      Plane* const planes = group.planes;
      for (size_t reg = 0; reg < num_inputs_ + i; ++reg) planes[reg] = {operands[reg].data, 0, operands[reg].row_stride};
      const RowOperand& out = operands[num_inputs_ + i];
      stage.program.run(planes, writable(out), 0, out.row_stride, 1, group.rows, scratch + parts.block);
    }
    if (!has_walk) continue;
    sweep(group, number, scratch);
    for (size_t i = 0; i < stages_.size(); ++i) {
      const Stage& stage = stages_[i];
      if (stage.sweep != number || stage.reduction == nullptr || group.whole) continue;
      const std::byte* const totals = scratch + parts.totals + stage.place * 2 * kMaxGroup * 4;
      void* const numbers = writable(operands[num_inputs_ + i]);
      if (group.across) {
        std::memcpy(numbers, totals, static_cast<size_t>(group.rows) * 4);
      } else {
        stage.reduction->fold(totals, numbers);
      }
    }
  }
}

// Walks along the rows once, plane by plane, and computes the stages of the sweep on each plane.
void RowProgram::sweep(const Group& group, int number, std::byte* scratch) const noexcept {
  const RowNest& nest = group.nest;
  const Scratch parts(*this, nest.length(), group.across);
  // What the rows and the columns of planes walk: a loop of the nest, the group's rows, or nothing.
  constexpr int kRows = -1, kNothing = -2;
  const int row_axis = group.across ? 0 : group.whole ? kRows : nest.depth > 1 ? 1 : kNothing;
  const int col_axis = group.across ? kRows : 0;
  const auto extent = [&](int axis) { return axis == kNothing ? 1 : axis == kRows ? group.rows : nest.extents[axis]; };
  const auto stride = [&](const RowOperand& operand, int axis) {
    return axis == kNothing ? 0 : axis == kRows ? operand.row_stride : operand.strides[axis];
  };
  const int64_t plane_cols = std::min(extent(col_axis), kChunk);
  const int64_t plane_rows = std::max<int64_t>(kChunk / plane_cols, 1);
  std::byte* const chunk = scratch + parts.chunk;

  int64_t index[kMaxRank] = {};
  for (;;) {
    for (int64_t row = 0; row < extent(row_axis); row += plane_rows) {
      for (int64_t col = 0; col < extent(col_axis); col += plane_cols) {
        const int64_t rows = std::min(plane_rows, extent(row_axis) - row);
        const int64_t cols = std::min(plane_cols, extent(col_axis) - col);
        Plane* const planes = group.planes;
        for (size_t reg = 0; reg < dtypes_.size(); ++reg) {
          const RowOperand& operand = group.operands[reg];
          int64_t offset = row * stride(operand, row_axis) + col * stride(operand, col_axis);
          for (int loop = 0; loop < nest.depth; ++loop) offset += index[loop] * operand.strides[loop];
          planes[reg] = {static_cast<const std::byte*>(operand.data) + offset * size_of(dtypes_[reg]), stride(operand, row_axis),
                         stride(operand, col_axis)};
        }
        for (size_t i = 0; i < stages_.size(); ++i) {
          const Stage& stage = stages_[i];
          if (stage.sweep != number || stage.kind == kNumber) continue;
          if (stage.kind == kRow) {
            const Plane& to = planes[num_inputs_ + i];
            stage.program.run(planes, const_cast<void*>(to.data), to.row_stride, to.col_stride, rows, cols,
                              scratch + parts.block);
            continue;
          }
          Plane from = {chunk, cols, 1};
          if (stage.program.is_copy() && planes[stage.program.copied_input()].col_stride == 1) {
            from = planes[stage.program.copied_input()];
          } else {
            stage.program.run(planes, chunk, cols, 1, rows, cols, scratch + parts.block);
          }
          const Plane shifts = stage.shift < 0 ? Plane{kNoShift, 0, 0} : planes[stage.shift];
          std::byte* const totals = scratch + parts.totals + stage.place * 2 * kMaxGroup * 4;
          if (group.whole) {
            stage.reduction->each_row(from, rows, cols, shifts,
                                      const_cast<std::byte*>(static_cast<const std::byte*>(planes[num_inputs_ + i].data)));
          } else if (group.across) {
            stage.reduction->add_columns(from, rows, cols, shifts, totals, kMaxGroup);
          } else {
            stage.reduction->add_plane(from, rows, cols, shifts, totals);
          }
        }
      }
    }
    int loop = std::max(row_axis, col_axis) + 1;
    for (; loop < nest.depth; ++loop) {
      if (++index[loop] < nest.extents[loop]) break;
      index[loop] = 0;
    }
    if (loop >= nest.depth) return;
  }
}

}  // namespace aspen::cpu::ASPEN_TARGET
