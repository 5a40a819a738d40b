// stack: ops one behind the other, whose values between exist only in scratch memory, some rows at a time (BrainSlug, section
// 4.1). Rows that the next strip needs too are kept, so that none is computed twice in a tile. Where the part that reads them
// can, they stay where they are: the buffer is a ring.
#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parts.h"
#include "pool.h"
#include "shapes.h"
#include "spec_reader.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_stack(const OpSpec& spec);

namespace {

constexpr size_t kMaxParts = 128;
constexpr size_t kMaxInputs = 1024;
// Of values between. More than any cache; it bounds what a graph can ask for.
constexpr int64_t kMaxScratch = int64_t{1} << 30;

// An op of the stack, and its result. All of them see one index of the axes before the strips' axis at a time.
struct Part {
  PreparedOp op;
  size_t first_input, num_inputs;  // of the stack's; that of the part before is not among them
  // Of the result, if a part follows:
  int64_t strides[kMaxRank];  // in bytes
  int64_t rows;               // that the buffer has room for, as it has for `extents` on each axis behind
  int64_t extents[kMaxRank];
  size_t offset;         // in scratch
  bool is_ring = false;  // row i lies at i modulo `rows`
};

struct Stack final : OpState {
  std::vector<Part> parts;
  int rank;
  int axis;                                // along which strips go
  int64_t strip;                           // rows of the output at a time
  int64_t unit[kMaxRank];                  // of the output at a time, behind that axis
  std::vector<int64_t> to_next[kMaxRank];  // bytes to the next index of an axis before that one, for each input
  int64_t output_to_next[kMaxRank];
  size_t between_bytes;
};

// Runs a stack on one unit of the output: each part a strip at a time, as soon as the part behind wants its rows, as in a
// pipeline of lines. A buffer holds the rows that its reader still wants, so none is computed twice.
class UnitRun {
 public:
  // `inputs` and `output` are at the indices of the axes before the strips'.
  UnitRun(const Stack& stack, const std::byte* const* inputs, std::byte* output, std::byte* scratch)
      : stack_(stack), inputs_(inputs), output_(output), scratch_(scratch), last_(stack.parts.size() - 1) {}

  const char* run(const Box& unit) noexcept {
    boxes_[last_] = unit;
    for (size_t i = last_; i > 0; --i) {
      boxes_[i - 1] = reads(i, boxes_[i]);
      const Part& part = stack_.parts[i - 1];
      for (int d = stack_.axis + 1; d < stack_.rank; ++d) {
        if (boxes_[i - 1].hi[d] - boxes_[i - 1].lo[d] > part.extents[d]) return "a stack has no room for what its parts read";
      }
      held_[i - 1] = {boxes_[i - 1].lo[stack_.axis], boxes_[i - 1].lo[stack_.axis]};
    }
    return compute(last_, unit.lo[stack_.axis], unit.hi[stack_.axis]);
  }

 private:
  struct Rows {
    int32_t begin, end;
  };

  Box reads(size_t i, const Box& box) const { return stack_.parts[i].op.reads(*stack_.parts[i].op.state, box); }

  bool is_empty(const Box& box) const {
    for (int d = 0; d < stack_.rank; ++d) {
      if (box.lo[d] >= box.hi[d]) return true;
    }
    return false;
  }

  // Where element 0 of the result of part `i` would be, if that lay in its buffer from row `first` on.
  std::byte* origin(size_t i, int32_t first) const {
    if (i == last_) return output_;
    const Part& part = stack_.parts[i];
    auto origin = reinterpret_cast<uintptr_t>(scratch_ + part.offset);
    origin -= static_cast<uintptr_t>(first * part.strides[stack_.axis]);
    for (int d = stack_.axis + 1; d < stack_.rank; ++d) origin -= static_cast<uintptr_t>(boxes_[i].lo[d] * part.strides[d]);
    return reinterpret_cast<std::byte*>(origin);
  }

  // Makes the buffer of part `i` hold rows [begin, end), which a box that is not empty needs.
  const char* provide(size_t i, int32_t begin, int32_t end) noexcept {
    const Part& part = stack_.parts[i];
    Rows& held = held_[i];
    if (begin < held.begin || end - begin > part.rows) return "a stack has no room for the rows that its parts read";
    if (end <= held.end) return nullptr;
    if (begin >= held.end) {
      held = {begin, begin};  // what lies between is read by none
    } else if (end - held.begin > part.rows && part.is_ring) {
      held.begin = end - static_cast<int32_t>(part.rows);
    } else if (end - held.begin > part.rows) {
      const int64_t row_bytes = part.strides[stack_.axis];
      std::byte* const buffer = scratch_ + part.offset;
      std::memmove(buffer, buffer + (begin - held.begin) * row_bytes, static_cast<size_t>((held.end - begin) * row_bytes));
      held.begin = begin;
    }
    const int32_t first = held.end;
    held.end = end;
    return compute(i, first, end);
  }

  // Rows [begin, end) of part `i`.
  const char* compute(size_t i, int32_t begin, int32_t end) noexcept {
    const Part& part = stack_.parts[i];
    const int axis = stack_.axis;
    Box box = boxes_[i];
    for (box.lo[axis] = begin; box.lo[axis] < end; box.lo[axis] = box.hi[axis]) {
      box.hi[axis] = static_cast<int32_t>(std::min<int64_t>(box.lo[axis] + stack_.strip, end));
      int32_t first = i == last_ ? 0 : held_[i].begin;
      if (part.is_ring) {  // as far as its end
        first = box.lo[axis] - static_cast<int32_t>(box.lo[axis] % part.rows);
        box.hi[axis] = static_cast<int32_t>(std::min<int64_t>(box.hi[axis], first + part.rows));
      }
      if (i > 0) {
        const Box read = reads(i, box);
        if (!is_empty(read)) {
          if (const char* const error = provide(i - 1, read.lo[axis], read.hi[axis])) return error;
        }
      }
      size_t count = 0;
      if (i > 0) own_[count++] = origin(i - 1, stack_.parts[i - 1].is_ring ? 0 : held_[i - 1].begin);
      for (size_t k = 0; k < part.num_inputs; ++k) own_[count++] = inputs_[part.first_input + k];
      const TileArgs args = {part.op.state.get(), own_, origin(i, first), box.lo, box.hi, scratch_ + stack_.between_bytes};
      if (const char* const error = part.op.run(args)) return error;
    }
    return nullptr;
  }

  const Stack& stack_;
  const std::byte* const* inputs_;
  std::byte* output_;
  std::byte* scratch_;
  const size_t last_;
  Box boxes_[kMaxParts];  // that the unit needs of each part
  Rows held_[kMaxParts];  // by the buffer of each part
  const void* own_[kMaxInputs];
};

const char* run_stack(const TileArgs& args) noexcept {
  const auto& stack = *static_cast<const Stack*>(args.state);
  const size_t num_inputs = stack.parts.back().first_input + stack.parts.back().num_inputs;
  for (int d = 0; d < stack.rank; ++d) {
    if (args.lo[d] >= args.hi[d]) return nullptr;
  }
  // Units, in order; axes before the strips' are walked index by index.
  Box unit;
  for (int d = 0; d < stack.rank; ++d) unit.lo[d] = args.lo[d];
  for (;;) {
    const std::byte* inputs[kMaxInputs];
    auto* output = static_cast<std::byte*>(args.output);
    Box local = unit;
    for (size_t k = 0; k < num_inputs; ++k) inputs[k] = static_cast<const std::byte*>(args.inputs[k]);
    for (int d = 0; d < stack.rank; ++d) {
      if (d < stack.axis) {
        for (size_t k = 0; k < num_inputs; ++k) inputs[k] += unit.lo[d] * stack.to_next[d][k];
        output += unit.lo[d] * stack.output_to_next[d];
        local.lo[d] = 0;
        local.hi[d] = 1;
      } else {
        const int64_t step = d == stack.axis ? args.hi[d] - args.lo[d] : stack.unit[d];
        local.hi[d] = static_cast<int32_t>(std::min<int64_t>(unit.lo[d] + step, args.hi[d]));
      }
    }
    if (const char* const error = UnitRun(stack, inputs, output, args.scratch).run(local)) return error;
    int d = stack.rank - 1;
    for (; d >= 0; --d) {
      unit.lo[d] = d < stack.axis ? unit.lo[d] + 1 : local.hi[d];
      if (unit.lo[d] < args.hi[d]) break;
      unit.lo[d] = args.lo[d];
    }
    if (d < 0) return nullptr;
  }
}

// Views as a part sees them: one index of the axes before the strips'.
TensorView one_index(TensorView view, int axis) {
  std::fill_n(view.shape, axis, 1);
  return view;
}

// The result of a part that another one reads: its view, and where it lies in scratch, from `offset` on. Its words are its dtype,
// and, from the strips' axis on, its shape and the extents that its buffer has room for. Axes before are one index here.
TensorView read_between(SpecReader& reader, Part& part, int rank, int axis, int64_t& offset) {
  TensorView view;
  view.dtype = reader.dtype("the dtype of a value between");
  view.rank = rank;
  const auto shape = reader.list(static_cast<size_t>(rank - axis), 0, kMaxExtent, "the shape of a value between");
  const auto room = reader.list(static_cast<size_t>(rank - axis), 1, kMaxExtent, "the room for a value between");
  std::fill_n(view.shape, axis, 1);
  std::ranges::copy(shape, view.shape + axis);
  int64_t elements = 1;
  for (int d = rank - 1; d >= 0; --d) {
    view.strides[d] = d < axis ? 0 : elements;
    part.strides[d] = view.strides[d] * size_of(view.dtype);
    if (d < axis) continue;
    part.extents[d] = room[static_cast<size_t>(d - axis)];
    if (__builtin_mul_overflow(elements, part.extents[d], &elements) || elements > kMaxScratch) break;
  }
  part.rows = room[0];
  part.offset = static_cast<size_t>(offset);
  // A part of no rows still has an address, and vectors begin at lines of the cache.
  if (elements <= kMaxScratch) offset += (elements * size_of(view.dtype) + 63) / 64 * 64;
  if (elements > kMaxScratch || offset > kMaxScratch) {
    throw GraphError("the values between the parts of a stack take more than " + std::to_string(kMaxScratch) + " bytes");
  }
  return view;
}

// The part's own inputs as it sees them. Those that its words mark follow the axes before the strips' as the output does.
std::vector<TensorView> read_inputs(SpecReader& reader, const OpSpec& spec, Part& part, Stack& stack) {
  const auto follows = reader.list();
  check_range(static_cast<int64_t>(follows.size()), 0, static_cast<int64_t>(spec.inputs.size() - part.first_input),
              "the number of inputs of a part");
  part.num_inputs = follows.size();
  std::vector<TensorView> views;
  for (size_t k = 0; k < part.num_inputs; ++k) {
    const size_t index = part.first_input + k;
    TensorView view = spec.inputs[index];
    const bool is_moved = follows[k] != 0;
    if (is_moved) check_view(view, "input " + std::to_string(index), {.rank = stack.rank});
    for (int d = 0; d < stack.axis; ++d) {
      if (is_moved) check_extent(view, "input " + std::to_string(index), d, spec.output.shape[d]);
      stack.to_next[d].push_back(is_moved ? used_stride(view, d) * size_of(view.dtype) : 0);
    }
    views.push_back(is_moved ? one_index(view, stack.axis) : view);
  }
  return views;
}

}  // namespace

PreparedOp prepare_stack(const OpSpec& spec) {
  SpecReader reader(spec);
  const TensorView& output = reader.output({.rank = {1, kMaxRank}});
  auto stack = std::make_unique<Stack>();
  stack->rank = output.rank;
  stack->axis = static_cast<int>(reader.integer(0, output.rank - 1, "the axis of the strips"));
  stack->strip = reader.integer(1, kMaxExtent, "the rows of a strip");
  const auto unit = reader.list(static_cast<size_t>(output.rank - stack->axis - 1), 1, kMaxExtent, "the unit of the output");
  std::ranges::copy(unit, stack->unit + stack->axis + 1);
  for (int d = 0; d < stack->axis; ++d) stack->output_to_next[d] = used_stride(output, d) * size_of(output.dtype);
  const auto num_parts = static_cast<size_t>(reader.integer(2, kMaxParts, "the number of parts"));
  check_range(static_cast<int64_t>(spec.inputs.size()), 1, kMaxInputs, "the number of inputs");

  int64_t offset = 0;
  size_t scratch_bytes = 0;
  TensorView before;
  for (size_t i = 0; i < num_parts; ++i) {
    Part& part = stack->parts.emplace_back();
    part.first_input = i == 0 ? 0 : stack->parts[i - 1].first_input + stack->parts[i - 1].num_inputs;
    const Kernel& kernel = part_kernel(reader.list());
    const auto words = reader.list();
    std::vector<TensorView> inputs = read_inputs(reader, spec, part, *stack);
    if (i > 0) inputs.insert(inputs.begin(), before);
    const TensorView result =
        i + 1 == num_parts ? one_index(output, stack->axis) : read_between(reader, part, stack->rank, stack->axis, offset);
    const std::string what = "part " + std::to_string(i) + " (" + kernel.name + ")";
    part.op = prepare_part(what.c_str(), kernel.prepare, {inputs, result, words});
    if (i > 0 && (part.op.reads == nullptr || inputs[0].rank != result.rank)) {
      throw GraphError(what + " cannot follow another one in a stack");
    }
    if (i > 0 && kernel.name == std::string_view("pool")) {
      PreparedOp of_ring = prepare_pool_of_ring({inputs, result, words}, stack->axis, stack->parts[i - 1].rows);
      stack->parts[i - 1].is_ring = of_ring.run != nullptr;
      if (of_ring.run != nullptr) part.op = std::move(of_ring);
    }
    scratch_bytes = std::max(scratch_bytes, part.op.scratch_bytes);
    before = result;
  }
  reader.end_without_program();
  const Part& last = stack->parts.back();
  check_range(static_cast<int64_t>(last.first_input + last.num_inputs), static_cast<int64_t>(spec.inputs.size()),
              static_cast<int64_t>(spec.inputs.size()), "the number of inputs of all parts");
  stack->between_bytes = static_cast<size_t>(offset);
  return {std::move(stack), run_stack, static_cast<size_t>(offset) + scratch_bytes};
}

}  // namespace aspen::cpu::ASPEN_TARGET
