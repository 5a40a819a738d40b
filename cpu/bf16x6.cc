// bf16x6: a convolution, or a product as one of a 1x1 window, whose float32 operands are sums of three bfloat16 each, high +
// middle + low, which are the operand itself. Of the nine products of parts the six largest are added up in float32; the others
// are below 2^-26 of their product. (XLA calls this algorithm BF16_BF16_F32_X6.) On a machine with matrix units for bfloat16
// (AMX) one core does these six faster than its vectors do one float32 product. Elsewhere vectors multiply the sums of the
// parts, so that a graph made for such a machine runs anywhere.
//
// The weights come in parts: [ceil(O/32), KH * KW * ceil(C/32), 3, 2, 16, 32] bfloat16, by panels of 32 columns, steps of 32
// channels of a tap, part (high, middle, low), half of the columns, pair of channels, and then the two of each of 16 columns,
// which is how the units want a right operand (kStepBytes for a step).
//
// A tile splits what it reads of x itself, band by band, into grids in scratch memory: [grid][block of 32 channels][part]
// [position][32], where positions are the pixels of the band's window, line by line, with zeros for padding. With strides there
// is a grid for each phase of the pixels that some tap reads. So a tap is a constant offset, and 16 neighbouring positions are
// one left operand of 1 KiB wherever they lie: rows of products are positions, also those at the ends of lines that are no
// output's and are thrown away.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bf16x6_ways.h"
#include "conv2d.h"
#include "epilogue.h"
#include "panels.h"
#include "shapes.h"
#include "spec_reader.h"
#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_bf16x6(const OpSpec& spec);
#if defined(__AVX512F__)
PreparedOp prepare_bf16x6_amx(const OpSpec& spec);
#endif

namespace {

// What of x is kept split, for a panel of weights after the other to be multiplied with it: with more of the L2 cache of 2 MiB
// that machines with matrix units have, the units wait (docs/results/algorithms.md). A little more where that is all of a tile.
constexpr int64_t kBandBytes = 750 * 1024;
constexpr int64_t kWholeBytes = 832 * 1024;
constexpr int64_t kNarrowest = 32;

struct Tap {
  int64_t grid;
  int64_t down, right;  // in the grid
};

// How many positions are split at a time.
struct Band {
  int64_t lines, across;
};

struct Bf16x6 final : OpState {
  ConvShape shape;
  int rank;  // of the output; x and the output are taken to have four dimensions, with ones in front
  std::vector<Tap> taps;
  struct Phase {
    int64_t down, right;
  };
  std::vector<Phase> phases;    // of each grid
  int64_t down = 0, right = 0;  // the largest of the taps'
  int64_t blocks;               // of channels
  int64_t scale_stride = 0;     // from image to image
  Epilogue epilogue;

  int64_t steps() const { return static_cast<int64_t>(taps.size()) * blocks; }
  // Positions of a grid in memory: those that operands of whole rows of products may touch, and an odd number, so that the next
  // block of channels lies elsewhere in the caches.
  int64_t positions(Band band) const { return ((band.lines + down) * (band.across + right) + kRows) | 1; }
  int64_t bytes_of_position() const { return static_cast<int64_t>(phases.size()) * blocks * kParts * kPartBytes; }
  int64_t most_bytes(Band band) const { return bytes_of_position() * ((band.lines + down) * (band.across + right) + kRows + 1); }
  // The largest band of so many lines and of this width at most that is kept.
  Band band(int64_t lines, int64_t across) const {
    if (bytes_of_position() * (lines + down) * (across + right) <= kWholeBytes) return {lines, across};
    const int64_t room = kBandBytes / bytes_of_position() - kRows - 1;
    const int64_t most_across = room / (1 + down) - right;
    if (most_across < across) return {1, std::clamp(most_across / kRows * kRows, std::min(kNarrowest, across), across)};
    return {std::clamp(room / (across + right) - down, int64_t{1}, lines), across};
  }
  // What any band takes.
  int64_t most_bytes() const {
    const Band narrow{1, std::min(kNarrowest, shape.out_width)}, whole{shape.out_height, shape.out_width};
    const int64_t most = kWholeBytes + bytes_of_position() * (kRows + 1);
    return std::min(std::max(most, most_bytes(narrow)), most_bytes(whole));
  }
};

// Lots of positions that are multiplied with a step of a panel, one after the other.
constexpr int64_t kTogether = 2;
constexpr int64_t kSumsBytes = kTogether * kRows * kColumns * 4;

// A band of a tile, in one image: lines of the output from `top` on, columns from `left` on.
struct Place {
  int64_t image, top, left;
  Band band;

  int64_t positions_across(const Bf16x6& op) const { return band.across + op.right; }
};

template <class Way, bool kScaled>
void split_band(const Bf16x6& op, const float* x, const float* scale, const Place& place, std::byte* to) noexcept {
  const ConvShape& s = op.shape;
  const int64_t part = op.positions(place.band) * kPartBytes, across = place.positions_across(op);
  x += place.image * s.x_strides[kImage];
  if constexpr (kScaled) scale += place.image * op.scale_stride;
  // Phases have as many positions as the window of the longest; what none of its taps reads another tile may be writing.
  const int64_t bottom = (place.top + place.band.lines - 1) * s.stride[0] + (s.kernel[0] - 1) * s.dilation[0] - s.pad[0];
  const int64_t end = (place.left + place.band.across - 1) * s.stride[1] + (s.kernel[1] - 1) * s.dilation[1] - s.pad[1];
  const int64_t last_row = std::min(bottom, s.height - 1), last_column = std::min(end, s.width - 1);
  for (const Bf16x6::Phase& phase : op.phases) {
    std::byte* line_to = to;
    for (int64_t i = 0; i < place.band.lines + op.down; ++i, line_to += across * kPartBytes) {
      const int64_t row = (place.top + i) * s.stride[0] + phase.down - s.pad[0];
      const bool inside = row >= 0 && row <= last_row;
      const float* const line = x + row * s.x_strides[kHeight];
      int64_t column = place.left * s.stride[1] + phase.right - s.pad[1];
      std::byte* at = line_to;
      for (int64_t j = 0; j < across; ++j, column += s.stride[1], at += kPartBytes) {
        if (inside && column >= 0 && column <= last_column) {
          Way::template split<kScaled>(line + column * s.x_strides[kWidth], scale, s.channels, at, part);
        } else {
          for (int64_t block = 0; block < kParts * op.blocks; ++block) std::memset(at + block * part, 0, kPartBytes);
        }
      }
    }
    to += op.blocks * kParts * part;
  }
}

// Rows of sums, taken through the epilogue's first steps in registers, where they are its rows from `first_row` on, and stored to
// `out`; up to kColumns of them.
template <bool kWhole>
void finish_rows(const float* sums, int64_t rows, int64_t columns, const Finish& finish, int64_t first_row, float* out,
                 int64_t out_stride) noexcept {
  constexpr int kVectors = 2;
  const auto each = [&]<int kCount>(int64_t row) __attribute__((always_inline)) {
    for (int64_t c = 0; c < (kWhole ? kColumns : columns); c += kVectors * kLanes) {
      const auto lanes = [&](int v) { return static_cast<int>(std::clamp<int64_t>(columns - c - v * kLanes, 0, kLanes)); };
      const auto get = [&](const float* from, int v)
                           __attribute__((always_inline)) { return kWhole ? load(from) : load_partial(from, lanes(v)); };
      Floats sum[kCount][kVectors];
#pragma GCC unroll 4
      for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) sum[r][v] = get(sums + (row + r) * kColumns + c + v * kLanes, v);
      }
      finish_in_registers(finish, 0, first_row + row, c, sum, get);
#pragma GCC unroll 4
      for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          float* const to = out + (row + r) * out_stride + c + v * kLanes;
          if constexpr (kWhole) {
            store(to, sum[r][v]);
          } else {
            store_partial(to, sum[r][v], lanes(v));
          }
        }
      }
    }
  };
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) each.template operator()<4>(row);
  for (; row < rows; ++row) each.template operator()<1>(row);
}

// Gives `count` positions of the output, from `place` on, in `columns` columns, what `sums` holds of them. `ready` is what the
// epilogue does in registers, if that is known, and then these are its rows from `row` on.
void finish_outputs(const Bf16x6& op, const TileArgs& args, const int64_t* place, int64_t count, int64_t columns,
                    const Finish* ready, int64_t row, float* sums, std::byte* scratch) noexcept {
  const int64_t* const at = place + 4 - op.rank;
  const int row_axis = op.rank - 2;
  if (!op.epilogue.begins_in_registers()) {
    return op.epilogue.apply(args, at, row_axis, count, columns, sums, kColumns, scratch);
  }
  Finish own;
  if (ready == nullptr) {
    op.epilogue.finish(args, at, row_axis, own);
    ready = &own;
    row = 0;
  }
  // What is not completed in registers is in the L1 cache, not in the output, whose rows may be so far apart that they share
  // places in it.
  float* const out = ready->completes ? reinterpret_cast<float*>(op.epilogue.output_at(args, at)) : sums;
  const int64_t out_stride = ready->completes ? op.shape.out_channels : kColumns;
  (columns == kColumns ? finish_rows<true> : finish_rows<false>)(sums, count, columns, *ready, row, out, out_stride);
  if (!ready->completes) op.epilogue.complete(args, at, row_axis, count, columns, sums, kColumns, scratch);
}

template <class Way, bool kScaled>
const char* run(const TileArgs& args) noexcept {
  const auto& op = *static_cast<const Bf16x6*>(args.state);
  const ConvShape& s = op.shape;
  int64_t lo[4] = {}, hi[4] = {1, 1, 1, 1};
  std::copy_n(args.lo, op.rank, lo + 4 - op.rank);
  std::copy_n(args.hi, op.rank, hi + 4 - op.rank);
  for (int d = 0; d < 4; ++d) {
    if (lo[d] >= hi[d]) return nullptr;
  }
  auto* const sums = reinterpret_cast<float*>(args.scratch);
  auto* const offsets = reinterpret_cast<int64_t*>(args.scratch + kSumsBytes);
  std::byte* const epilogue_scratch = args.scratch + kSumsBytes + round_up(op.steps() * 8, 64);
  std::byte* const grids = epilogue_scratch + op.epilogue.scratch_bytes();
  const auto* const x = static_cast<const float*>(args.inputs[0]);
  const auto* const weights = static_cast<const std::byte*>(args.inputs[1]);
  const auto* const scale = kScaled ? static_cast<const float*>(args.inputs[2]) : nullptr;
  const int64_t panel_bytes = op.steps() * kStepBytes;
  const Band most = op.band(hi[kHeight] - lo[kHeight], hi[kWidth] - lo[kWidth]);
  const int64_t bands_down = ceil_div(hi[kHeight] - lo[kHeight], most.lines);
  const int64_t bands_across = ceil_div(hi[kWidth] - lo[kWidth], most.across);
  [[maybe_unused]] const typename Way::Unit unit;

  for (int64_t index = 0; index < (hi[kImage] - lo[kImage]) * bands_down * bands_across; ++index) {
    Place place;
    place.image = lo[kImage] + index / (bands_down * bands_across);
    place.top = lo[kHeight] + index / bands_across % bands_down * most.lines;
    place.left = lo[kWidth] + index % bands_across * most.across;
    place.band = {std::min(most.lines, hi[kHeight] - place.top), std::min(most.across, hi[kWidth] - place.left)};
    const int64_t across = place.positions_across(op), part = op.positions(place.band) * kPartBytes;
    for (size_t tap = 0; tap < op.taps.size(); ++tap) {
      const auto& [grid, down, right] = op.taps[tap];
      for (int64_t block = 0; block < op.blocks; ++block) {
        offsets[tap * op.blocks + block] = (grid * op.blocks + block) * kParts * part + (down * across + right) * kPartBytes;
      }
    }
    split_band<Way, kScaled>(op, x, scale, place, grids);

    // Lines without positions in between that are no output's may be one.
    const bool joined = op.right == 0 && place.band.across == s.out_width && op.epilogue.runs_on(op.rank - 2);
    const int64_t positions = (place.band.lines - 1) * across + place.band.across;
    const int64_t lots = ceil_div(positions, kRows);
    for (int64_t panel = lo[kChannel] / kColumns; panel * kColumns < hi[kChannel]; ++panel) {
      const std::byte* const b = weights + panel * panel_bytes;
      const int64_t column = std::max(panel * kColumns, lo[kChannel]);
      const int64_t columns = std::min((panel + 1) * kColumns, hi[kChannel]) - column;
      Finish finish;
      if (joined && op.epilogue.begins_in_registers()) {
        const int64_t at[4] = {place.image, place.top, place.left, column};
        op.epilogue.finish(args, at + 4 - op.rank, op.rank - 2, finish);
      }
      for (int64_t lot = 0; lot < lots; lot += kTogether) {
        // Several share each step while it is in the L1 cache; the panel comes from memory for the first of them.
        const int64_t together = std::min(kTogether, lots - lot), some = together > 1 ? 1 : op.steps();
        for (int64_t step = 0; step < op.steps(); step += some) {
          for (int64_t i = 0; i < together; ++i) {
            const int64_t first = (lot + i) * kRows;
            const Fetched fetched = lot == 0 ? Fetched{i * kSixths / together, (i + 1) * kSixths / together} : Fetched{};
            Way::multiply(grids + first * kPartBytes, offsets + step, part, some, b + step * kStepBytes,
                          std::min(kRows, positions - first), sums + i * kRows * kColumns, step > 0, fetched);
          }
        }
        const int64_t first = lot * kRows, last = std::min(first + together * kRows, positions);
        for (int64_t position = first; position < last;) {
          const int64_t down = position / across, right = position % across;
          const int64_t line_end = down * across + place.band.across;
          const int64_t end = joined ? last : std::min(last, line_end);
          if (position < end) {
            const int64_t at[4] = {place.image, place.top + down, place.left + right, column};
            float* const from = sums + (position - first) * kColumns + column - panel * kColumns;
            finish_outputs(op, args, at, end - position, columns, joined ? &finish : nullptr, position, from, epilogue_scratch);
          }
          position = joined ? last : (down + 1) * across;
        }
      }
    }
  }
  return nullptr;
}

// A view of four dimensions, with ones in front.
TensorView in_four(const TensorView& view) {
  TensorView wide;
  wide.dtype = view.dtype;
  wide.rank = 4;
  std::fill_n(wide.shape, 4, 1);
  std::copy_n(view.shape, view.rank, wide.shape + 4 - view.rank);
  std::copy_n(view.strides, view.rank, wide.strides + 4 - view.rank);
  return wide;
}

template <class Way>
PreparedOp prepare(const OpSpec& spec) {
  SpecReader reader(spec);
  const TensorView& out = reader.output({.rank = {2, 4}});
  const int rank = out.rank;
  const TensorView& x = reader.input(0, "x", {.rank = rank, .dtypes = DType::kF32, .adjacent = true});
  const TensorView& w = reader.input(1, "the parts of the weights", {.rank = 6, .dtypes = DType::kBF16, .dense = true});
  const auto window = reader.list(2, 1, kMaxExtent, "the window");
  const int64_t columns = reader.integer(1, kMaxExtent, "the number of columns");
  TensorView kernel;
  kernel.rank = 4;
  const int64_t shape[4] = {window[0], window[1], x.shape[rank - 1], columns};
  std::copy_n(shape, 4, kernel.shape);
  auto op = std::make_unique<Bf16x6>();
  op->shape = ConvShape::parse(reader, in_four(x), kernel, in_four(out));
  op->rank = rank;
  const ConvShape& s = op->shape;
  check_range(s.groups, 1, 1, "the number of groups");
  check_range(s.channels, 1, kMaxExtent, "the number of channels");
  op->blocks = ceil_div(s.channels, kDepth);
  const int64_t taps = s.kernel[0] * s.kernel[1];
  check_shape(w, "the parts of the weights", {ceil_div(columns, kColumns), taps * op->blocks, kParts, 2, kDepth / 2, kColumns});
  if (rank < 4 && (s.out_height != s.height || s.out_width != s.width || taps != 1)) {
    throw GraphError("a product of rank " + std::to_string(rank) + " has a window of several elements");
  }
  for (int64_t i = 0; i < taps; ++i) {
    const int64_t down = i / s.kernel[1] * s.dilation[0], right = i % s.kernel[1] * s.dilation[1];
    const Bf16x6::Phase phase{down % s.stride[0], right % s.stride[1]};
    const auto known = std::find_if(op->phases.begin(), op->phases.end(), [&](const Bf16x6::Phase& other) {
      return other.down == phase.down && other.right == phase.right;
    });
    const int64_t grid = known - op->phases.begin();
    if (known == op->phases.end()) op->phases.push_back(phase);
    op->taps.push_back({grid, down / s.stride[0], right / s.stride[1]});
    op->down = std::max(op->down, op->taps.back().down);
    op->right = std::max(op->right, op->taps.back().right);
  }
  // In float64, where nothing overflows.
  const auto bytes = [&](int64_t height, int64_t width) {
    return static_cast<double>(op->bytes_of_position()) * (static_cast<double>(height) + static_cast<double>(op->down)) *
           (static_cast<double>(width) + static_cast<double>(op->right));
  };
  if (bytes(s.out_height, s.out_width) > 0x1p60 || bytes(1, std::min(kNarrowest, s.out_width)) > 0x1p30) {
    throw GraphError("the window reaches too far for the kernel's scratch memory");
  }
  const bool scaled = reader.flag("the mark for a scale of channels");
  if (scaled) op->scale_stride = used_stride(read_channel_scale(reader, x), kImage);
  op->epilogue = Epilogue::parse(reader, scaled ? 3 : 2, DType::kF32);
  PreparedOp prepared;
  prepared.run = scaled ? run<Way, true> : run<Way, false>;
  const int64_t grids = is_empty(out) ? 0 : op->most_bytes();
  prepared.scratch_bytes = static_cast<size_t>(kSumsBytes + round_up(op->steps() * 8, 64) + grids) + op->epilogue.scratch_bytes();
  prepared.state = std::move(op);
  return prepared;
}

}  // namespace

PreparedOp prepare_bf16x6(const OpSpec& spec) { return prepare<ByVectors>(spec); }

#if defined(__AVX512F__)
PreparedOp prepare_bf16x6_amx(const OpSpec& spec) { return prepare<ByMatrixUnits>(spec); }
#endif

}  // namespace aspen::cpu::ASPEN_TARGET
