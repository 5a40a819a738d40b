// winograd: convolutions of stride 1 by Winograd's minimal filtering (Lavin and Gray, "Fast algorithms for convolutional neural
// networks", 2015).
//
// A patch of 4x4 outputs of a 3x3 convolution takes 144 products a channel. Winograd's way takes 36: one for each element, or
// point, of the transformed patch. 6 outputs of a 7x1 convolution take 42 products, or 12. toom_cook.h has the transforms of one
// axis. winograd.h says for which patches they are compiled.
//
// The input is x [N,H,W,C]. Weights [KH,KW,C,O] come transformed, as [points + taps, ceil(O/32), C, 32]: a matrix for each point,
// then one for each tap of the window as it is, in panels of 32 columns. A tile is computed in three steps:
//
// 1. All channels of its patches are transformed into scratch.
// 2. At each point the patches are multiplied by the weights, a panel at a time.
// 3. The sums are transformed back for the epilogue, a line of patches at a time.
//
// Phases. A strided convolution is one of stride 1 over an image of phases: the pixels of a square side by side, as channels. Few
// channels are gathered first, so that those of several phases fill a vector. With more, each phase is transformed and multiplied
// by itself, and the sums are added up. A phase may have no weights in the window's first or last row (or column). Then it is
// left out of the products at the first or last point of that axis, and the weights there are those of the other phases, side by
// side.
//
// Special values. The transforms mix all that a patch reads. So a value that is not finite, or so large that the others are lost
// beside it, would reach outputs whose window does not hold it. A patch that holds such a pixel, or comes out not finite, is
// computed again directly, by the taps. Its pixels are compared by their largest channels, worked out once for a part of a tile.
// Weights that would do the same have NaN at all points (winograd_weights.cc).
#include "winograd.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>

#include "cache.h"
#include "elements.h"
#include "epilogue.h"
#include "gemm.h"
#include "shapes.h"
#include "spec_reader.h"
#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_winograd(const OpSpec& spec);

namespace {

constexpr int64_t kColumns = kWinogradPanel;
// Transformed patches that are multiplied together: enough to read the weights seldom, and few enough to leave an L2 cache room
// for a matrix of weights and its sums. Beyond the cache weights come slowly, so that a larger one is filled but for kLeft.
constexpr int64_t kMostPatchFloats = 160 * 1024;
constexpr int64_t kMostGatheredFloats = 90 * 1024;
constexpr int64_t kLeft = 384 * 1024;
constexpr int64_t kMaxPhases = 64;  // along an axis
// Panels whose sums are kept while one phase after another is added to them. All phases are transformed again for the next ones.
constexpr int64_t kMostPanels = 2;
// How many binary exponents the pixels of a patch may lie apart. The transforms lose about 2^-20 of the largest pixel, so that
// outputs of the smallest ones keep 1% of themselves.
constexpr int32_t kMostApart = 12 << 23;
// Pixels of zeros are common, as padding, as margins and behind a ReLU; they count as 2^16.
constexpr int32_t kOfZeros = (127 + 16) << 23;

enum { kImage, kHeight, kWidth, kChannel };

struct Winograd final : OpState {
  PatchShape patch;
  int64_t x_height, x_width, x_channels;
  int64_t phases[2];
  int64_t channels;  // of all phases of x
  int64_t pad[2];    // before their first row and column; may be negative
  int64_t panels;
  int64_t begin[2], end[2];  // of the phases that have weights in the window's first, and its last, row and column
  int64_t x_strides[4];
  int64_t u_strides[4];
  Epilogue epilogue;
  int64_t patch_stride;  // floats from one element of a transformed patch to the next
  int64_t patches;       // transformed at once, at most

  // Reads and checks the op, and sets all but the two members above.
  void read(SpecReader& reader);
  void read_phases(SpecReader& reader);
  // Sets these two.
  void choose_patches(const TensorView& out);

  // The phases of an axis that have weights at this point of it.
  struct Range {
    int64_t first, last;
    int64_t size() const { return last - first; }
    Range operator&(const Range& other) const { return {std::max(first, other.first), std::min(last, other.last)}; }
  };
  Range weighted(int axis, int64_t point) const {
    return {point == 0 ? begin[axis] : 0, point + 1 == patch.extent(axis) ? end[axis] : phases[axis]};
  }
  // Those that have weights at this tap of it.
  Range at_tap(int axis, int64_t tap) const {
    return {tap == 0 ? begin[axis] : 0, tap + 1 == patch.taps[axis] ? end[axis] : phases[axis]};
  }
  // Those that have weights at any: an axis may have but one point.
  Range weighted(int axis) const { return patch.extent(axis) == 1 ? weighted(axis, 0) : Range{0, phases[axis]}; }

  int64_t points() const { return patch.points(); }
  bool gathers() const { return phases[0] * phases[1] > 1 && x_channels < kLanes; }
  bool by_phases() const { return phases[0] * phases[1] > 1 && !gathers(); }
  int64_t channels_at_once() const { return by_phases() ? x_channels : channels; }
  int64_t panels_at_once() const { return by_phases() ? std::min(panels, kMostPanels) : 1; }
  int64_t gathered_pixel() const { return round_up(channels, kLanes); }  // floats
  // The largest channel of each pixel, and whether a patch is computed directly.
  int64_t pixels_bytes() const { return round_up(patches * points() * 4, 64); }
  int64_t marks_bytes() const { return round_up(patches, 64); }
  int64_t zeros_bytes() const { return round_up(x_channels * 4, 64); }
  int64_t gathered_bytes() const { return gathers() ? patches * points() * gathered_pixel() * 4 : 0; }
  int64_t patch_floats() const { return patch_stride * points(); }
  int64_t transformed_bytes() const { return patches * patch_floats() * 4; }
  int64_t panel_sums() const { return patches * points() * kColumns; }  // floats
  int64_t sums_bytes() const { return panels_at_once() * panel_sums() * 4; }
  // A line of patches, finished: as many rows of pixels as a patch has.
  int64_t line_bytes() const { return patches * patch.tile[0] * patch.tile[1] * kColumns * 4; }
  size_t scratch_bytes() const {
    const int64_t own =
        transformed_bytes() + sums_bytes() + line_bytes() + gathered_bytes() + pixels_bytes() + 2 * marks_bytes() + zeros_bytes();
    return static_cast<size_t>(own) + epilogue.scratch_bytes();
  }
};

void Winograd::read(SpecReader& reader) {
  const TensorView& x = reader.input(0, "x", {.rank = 4, .dtypes = DType::kF32, .adjacent = true});
  const TensorView& u = reader.input(1, "the transformed weights", {.rank = 4, .dtypes = DType::kF32, .adjacent = true});
  const TensorView& out = reader.output({.rank = 4, .dense = true});
  const auto padding = reader.list(4, -kMaxExtent, kMaxExtent, "padding");
  check_extent(out, "the output", kChannel, reader.integer(0, kMaxExtent, "the number of output channels"));
  read_phases(reader);
  check_extent(out, "the output", kImage, x.shape[kImage]);
  for (int i = 0; i < 2; ++i) {
    const int64_t padded = ceil_div(x.shape[kHeight + i], phases[i]) + padding[2 * i] + padding[2 * i + 1];
    check_extent(out, "the output", kHeight + i, num_windows(padded, patch.taps[i], 1));
    pad[i] = padding[2 * i];
  }
  x_height = x.shape[kHeight];
  x_width = x.shape[kWidth];
  x_channels = x.shape[kChannel];
  channels = phases[0] * phases[1] * x_channels;
  panels = panels_of(out.shape[kChannel]);
  check_shape(u, "the transformed weights", patch.weights_shape(channels, out.shape[kChannel]));
  for (int i = 0; i < 4; ++i) {
    x_strides[i] = used_stride(x, i);
    u_strides[i] = used_stride(u, i);
  }
  epilogue = Epilogue::parse(reader, 2, DType::kF32);
}

// The shape of patches, which is one that there are transforms for, and the phases that have weights.
void Winograd::read_phases(SpecReader& reader) {
  const auto window = reader.list(2, "the window"), tile = reader.list(2, "the outputs of a patch");
  patch = {{tile[0], tile[1]}, {window[0], window[1]}};
  visit_patch<bool>(patch, [](auto) { return true; });
  const auto all = reader.list(2, 1, kMaxPhases, "the phases");
  const auto first = reader.list(2, 0, kMaxPhases - 1, "the first phases with weights");
  const auto last = reader.list(2, 1, kMaxPhases, "the last phases with weights");
  for (int i = 0; i < 2; ++i) {
    phases[i] = all[i];
    begin[i] = first[i];
    end[i] = last[i];
    if (begin[i] >= phases[i] || end[i] > phases[i] || (patch.extent(i) == 1 && begin[i] >= end[i])) {
      throw GraphError("the phases from " + std::to_string(begin[i]) + " on and up to " + std::to_string(end[i]) + " of " +
                       std::to_string(phases[i]) + " leave a point without weights");
    }
  }
}

// Enough patches for the weights to be read seldom, as far as a part of the L2 cache holds what belongs to them.
void Winograd::choose_patches(const TensorView& out) {
  // Rows of a patch that lie whole pages apart would share their places in the L1 cache.
  patch_stride = round_up(channels_at_once(), kLanes) + kLanes;
  const int64_t most_floats = gathers() ? kMostGatheredFloats : kMostPatchFloats;
  const int64_t of_output = ceil_div(out.shape[kHeight], patch.tile[0]) * ceil_div(out.shape[kWidth], patch.tile[1]);
  const int64_t beside = panels_at_once() * kColumns + (gathers() ? gathered_pixel() : 0);
  const int64_t held = patch_floats() + points() * beside;
  const int64_t fitting = (l2_cache_bytes() - kLeft) / static_cast<int64_t>(sizeof(float)) / held;
  patches =
      std::clamp(std::max(most_floats / patch_floats(), fitting), int64_t{kBlockRows}, std::max<int64_t>(of_output, kBlockRows));
}

// An image whose channels are adjacent, and where its patches begin.
struct Image {
  const float* at;
  int64_t height, width, channels;
  int64_t row_stride, column_stride;
  int64_t row, column;  // of the first input of the first patch
  // Whether any product reads its transform at the first and last point of an axis.
  struct Ends {
    bool first = true, last = true;
  };
  Ends read[2];
};

// The channels [channel, channel + kLanes) of the patch whose first input is (row, column) of the image; zeros outside. Points
// that no product reads are not stored.
template <class P, bool kPartial>
ASPEN_INLINE void transform_patch(const Winograd& op, const Image& image, int64_t row, int64_t column, int64_t channel, int lanes,
                                  float* to) {
  using Down = typename P::Down;
  using Across = typename P::Across;
  Floats across[Across::kPatch][Down::kPatch];  // [point][row]
#pragma GCC unroll 16
  for (int i = 0; i < Down::kPatch; ++i) {
    Floats d[Across::kPatch];
    const bool row_inside = row + i >= 0 && row + i < image.height;
    const float* from = image.at + (row + i) * image.row_stride + column * image.column_stride + channel;
#pragma GCC unroll 16
    for (int j = 0; j < Across::kPatch; ++j) {
      const bool inside = row_inside && column + j >= 0 && column + j < image.width;
      d[j] = !inside    ? Floats{}
             : kPartial ? load_partial(from + j * image.column_stride, lanes)
                        : load(from + j * image.column_stride);
    }
    Floats points[Across::kPatch];
    Across::input(d, points);
#pragma GCC unroll 16
    for (int j = 0; j < Across::kPatch; ++j) across[j][i] = points[j];
  }
#pragma GCC unroll 16
  for (int j = 0; j < Across::kPatch; ++j) {
    if ((j == 0 && !image.read[1].first) || (j == Across::kPatch - 1 && !image.read[1].last)) continue;
    Floats points[Down::kPatch];
    Down::input(across[j], points);
#pragma GCC unroll 16
    for (int i = 0; i < Down::kPatch; ++i) {
      if ((i == 0 && !image.read[0].first) || (i == Down::kPatch - 1 && !image.read[0].last)) continue;
      store(to + (i * Across::kPatch + j) * op.patch_stride, points[i]);
    }
  }
}

// A part of a tile in one image: some whole lines of patches, or a part of one.
template <class P>
struct Part {
  int64_t image;
  int64_t row, rows;        // of output pixels
  int64_t column, columns;  // likewise
  int64_t lines() const { return ceil_div(rows, P::Down::kTile); }
  int64_t across() const { return ceil_div(columns, P::Across::kTile); }
  int64_t patches() const { return lines() * across(); }
  // What the patches read.
  int64_t input_rows() const { return lines() * P::Down::kTile + P::Down::kWeights - 1; }
  int64_t input_columns() const { return across() * P::Across::kTile + P::Across::kWeights - 1; }
};

// What lies in a tile's scratch, one after the other.
struct Scratch {
  float* transformed;
  float* sums;
  float* line;
  float* gathered;
  int32_t* pixels;
  bool* marks;
  bool* wrong;  // of a line of patches
  float* zeros;
  std::byte* epilogue;

  Scratch(const Winograd& op, std::byte* at)
      : transformed(reinterpret_cast<float*>(at)),
        sums(reinterpret_cast<float*>(at += op.transformed_bytes())),
        line(reinterpret_cast<float*>(at += op.sums_bytes())),
        gathered(reinterpret_cast<float*>(at += op.line_bytes())),
        pixels(reinterpret_cast<int32_t*>(at += op.gathered_bytes())),
        marks(reinterpret_cast<bool*>(at += op.pixels_bytes())),
        wrong(reinterpret_cast<bool*>(at += op.marks_bytes())),
        zeros(reinterpret_cast<float*>(at += op.marks_bytes())),
        epilogue(at + op.zeros_bytes()) {}
};

// Pixels [column, column + columns) of one line of x, each to a pixel of the phases; pixels outside stay as they are.
void gather_line(const Winograd& op, const float* line, int64_t column, int64_t columns, float* to) {
  const int64_t across = op.phases[1], channels = op.x_channels;
  // Pixels of x that lie side by side are one run.
  const int64_t together = op.x_strides[kWidth] == channels ? across : 1;
  for (int64_t first = 0; first < across; first += together) {
    float* out = to + first * channels;
    int64_t at = column * across + first;
    for (int64_t c = 0; c < columns; ++c, at += across, out += op.gathered_pixel()) {
      if (at < 0 || at >= op.x_width) continue;
      widen_row(line + at * op.x_strides[kWidth], 1, std::min(together, op.x_width - at) * channels, out);
    }
  }
}

// Pixels [row, row + rows) x [column, column + columns) of the phases of an image of x, zeros outside and behind the channels.
void gather_phases(const Winograd& op, const float* x, int64_t row, int64_t rows, int64_t column, int64_t columns, float* to) {
  const int64_t line = columns * op.gathered_pixel();
  std::fill_n(to, rows * line, 0.0f);
  for (int64_t r = 0; r < rows; ++r, to += line) {
    for (int64_t down = 0; down < op.phases[0]; ++down) {
      const int64_t y = (row + r) * op.phases[0] + down;
      if (y < 0 || y >= op.x_height) continue;
      gather_line(op, x + y * op.x_strides[kHeight], column, columns, to + down * op.phases[1] * op.x_channels);
    }
  }
}

// The absolute values of floats as integers that compare like them; those of infinities and NaNs are the largest.
ASPEN_INLINE Ints magnitude(Floats x) { return as_ints(x) & std::numeric_limits<int32_t>::max(); }

// Raises what `pixels` has for each pixel of the image that the part reads to the largest magnitude of its channels.
template <class P>
void measure_pixels(const Image& image, const Part<P>& part, int32_t* pixels) {
  const int64_t columns = part.input_columns();
  const int64_t first = std::clamp<int64_t>(-image.column, 0, columns);
  const int64_t last = std::clamp<int64_t>(image.width - image.column, first, columns);
  for (int64_t i = 0; i < part.input_rows(); ++i, pixels += columns) {
    const int64_t row = image.row + i;
    if (row < 0 || row >= image.height) continue;
    for (int64_t column = first; column < last; column += kLanes) {
      const int count = static_cast<int>(std::min<int64_t>(kLanes, last - column));
      const float* from = image.at + row * image.row_stride + (image.column + column) * image.column_stride;
      Ints largest[kLanes] = {};
      for (int j = 0; j < count; ++j, from += image.column_stride) {
        Ints all = {};
        int64_t k = 0;
        for (; k + kLanes <= image.channels; k += kLanes) all = max(all, magnitude(load(from + k)));
        if (k < image.channels) all = max(all, magnitude(load_partial(from + k, static_cast<int>(image.channels - k))));
        largest[j] = all;
      }
      transpose(largest);
      Ints of_pixels = load_partial(pixels + column, count);
#pragma GCC unroll 16
      for (int j = 0; j < kLanes; ++j) of_pixels = max(of_pixels, largest[j]);
      store_partial(pixels + column, of_pixels, count);
    }
  }
}

// The largest of some pixels, and the smallest.
struct Spread {
  Ints largest = {}, smallest = broadcast(std::numeric_limits<int32_t>::max());

  ASPEN_INLINE void add(const int32_t* pixels, int64_t count) {
    for (int64_t k = 0; k < count; k += kLanes) {
      const int lanes = static_cast<int>(std::min<int64_t>(kLanes, count - k));
      const Ints x = load_partial(pixels + k, lanes);
      largest = max(largest, x);
      smallest = min(smallest, x == 0 ? broadcast(kOfZeros) : x);
    }
  }
  bool is_wide() const {
    int32_t most = 0, least = std::numeric_limits<int32_t>::max();
    for (int lane = 0; lane < kLanes; ++lane) {
      most = std::max<int32_t>(most, largest[lane]);
      least = std::min<int32_t>(least, smallest[lane]);
    }
    return most >= 0x7f800000 || most - least > kMostApart;
  }
};

// Marks the patches that the transforms would spoil, by the part's pixels, and gives their number.
template <class P>
int64_t mark_patches(const Part<P>& part, const int32_t* pixels, bool* marks) {
  std::fill_n(marks, part.patches(), false);
  const int64_t columns = part.input_columns();
  Spread all;
  all.add(pixels, part.input_rows() * columns);
  if (!all.is_wide()) return 0;
  int64_t count = 0;
  for (int64_t line = 0; line < part.lines(); ++line) {
    for (int64_t patch = 0; patch < part.across(); ++patch, ++marks) {
      const int32_t* const corner = pixels + line * P::Down::kTile * columns + patch * P::Across::kTile;
      Spread spread;
      for (int i = 0; i < P::Down::kPatch; ++i) spread.add(corner + i * columns, P::Across::kPatch);
      *marks = spread.is_wide();
      count += *marks;
    }
  }
  return count;
}

// Transforms the patches of a part of the image.
template <class P>
void transform_part(const Winograd& op, const Image& image, const Part<P>& part, float* transformed) {
  int64_t row = image.row;
  for (int64_t line = 0; line < part.lines(); ++line, row += P::Down::kTile) {
    for (int64_t patch = 0; patch < part.across(); ++patch, transformed += op.patch_floats()) {
      const int64_t column = image.column + patch * P::Across::kTile;
      int64_t channel = 0;
      for (; channel + kLanes <= image.channels; channel += kLanes) {
        transform_patch<P, false>(op, image, row, column, channel, kLanes, transformed + channel);
      }
      if (channel < image.channels) {
        const int rest = static_cast<int>(image.channels - channel);
        transform_patch<P, true>(op, image, row, column, channel, rest, transformed + channel);
      }
    }
  }
}

// Some phases, down and across: what is transformed and multiplied at once.
struct Phases {
  Winograd::Range down, across;
};

// Transforms the patches of a part of x, an image, or of phases of it, and measures its pixels where that is wanted.
template <class P>
void transform_input(const Winograd& op, const float* x, const Part<P>& part, const Phases& phases, const Scratch& scratch,
                     bool measures) {
  const int64_t row = part.row - op.pad[0], column = part.column - op.pad[1];
  if (!op.gathers()) {
    const int64_t down = phases.down.first, across = phases.across.first;
    const Image image{.at = x + down * op.x_strides[kHeight] + across * op.x_strides[kWidth],
                      .height = ceil_div(op.x_height - down, op.phases[0]),
                      .width = ceil_div(op.x_width - across, op.phases[1]),
                      .channels = op.x_channels,
                      .row_stride = op.phases[0] * op.x_strides[kHeight],
                      .column_stride = op.phases[1] * op.x_strides[kWidth],
                      .row = row,
                      .column = column,
                      .read = {{down >= op.begin[0], down < op.end[0]}, {across >= op.begin[1], across < op.end[1]}}};
    if (measures) measure_pixels(image, part, scratch.pixels);
    return transform_part(op, image, part, scratch.transformed);
  }
  const int64_t rows = part.input_rows(), columns = part.input_columns();
  gather_phases(op, x, row, rows, column, columns, scratch.gathered);
  const int64_t pixel = op.gathered_pixel();
  const Image image{.at = scratch.gathered,
                    .height = rows,
                    .width = columns,
                    .channels = pixel,
                    .row_stride = columns * pixel,
                    .column_stride = pixel,
                    .row = 0,
                    .column = 0,
                    .read = {}};
  if (measures) measure_pixels(image, part, scratch.pixels);
  transform_part(op, image, part, scratch.transformed);
}

// Of some phases those that have weights at a point, and how many others' weights lie before theirs there.
struct Share {
  Winograd::Range down, across;
  int64_t before;
  bool empty() const { return down.size() <= 0 || across.size() <= 0; }
};

Share share_of(const Winograd& op, const Phases& phases, int64_t point) {
  const Winograd::Range all_down = op.weighted(0, point / op.patch.extent(1)), down = all_down & phases.down;
  const Winograd::Range all_across = op.weighted(1, point % op.patch.extent(1)), across = all_across & phases.across;
  return {down, across, (down.first - all_down.first) * all_across.size() + across.first - all_across.first};
}

// Transformed patches of some phases, and their sums, [patch][point][kColumns].
struct Patches {
  int64_t count;
  const float* transformed;
  float* sums;
};

// A panel of weights, and the one that is multiplied after it, if any.
struct Panel {
  const float* at;
  const float* next;
};

// The patches' sums (+)= their points, of these phases, times the panel. Meanwhile each point brings the weights of the next one
// into the cache, the last one the first of the next panel.
void multiply_panel(const Winograd& op, const Phases& phases, const Panel& panel, const Patches& patches) {
  const int64_t points = op.points(), channels = op.x_channels;
  const float* pointers[kMaxPhases * kBlockRows];
  Block block;
  block.pointers = pointers;
  block.out_stride = points * kColumns;
  const int64_t blocks = ceil_div(patches.count, kBlockRows);
  const auto weighted_from = [&](int64_t point) {
    while (point < points && share_of(op, phases, point).empty()) ++point;
    return point;
  };
  const auto weights_at = [&](const float* of_panel, int64_t point) {
    return of_panel + point * op.u_strides[0] + share_of(op, phases, point).before * channels * op.u_strides[2];
  };
  const int64_t first_point = weighted_from(0);
  for (int64_t point = first_point, after; point < points; point = after) {
    after = weighted_from(point + 1);
    const auto [down, across, before] = share_of(op, phases, point);
    const RightOperand<float> weights{weights_at(panel.at, point), op.u_strides[2]};
    const float* const following = after < points          ? weights_at(panel.at, after)
                                   : panel.next != nullptr ? weights_at(panel.next, first_point)
                                                           : nullptr;
    Ahead ahead{following, weights.stride, following == nullptr ? 0 : kColumns * int64_t{sizeof(float)} / kCacheLine};
    const bool adjacent = across.size() == phases.across.size();
    block.accumulate = before > 0;
    block.runs = adjacent ? 1 : down.size();
    block.depth = across.size() * channels * (adjacent ? down.size() : 1);
    const int64_t run_stride = phases.across.size() * channels;
    const float* const first = patches.transformed + point * op.patch_stride + (down.first - phases.down.first) * run_stride +
                               (across.first - phases.across.first) * channels;
    int64_t patch = 0;
    for (int64_t i = 0; i < blocks; ++i, patch += block.rows) {
      block.rows = static_cast<int>(patches.count / blocks + (i < patches.count % blocks));
      for (int64_t run = 0; run < block.runs; ++run) {
        const float* const of_run = first + run * run_stride;
        for (int r = 0; r < block.rows; ++r) pointers[run * kBlockRows + r] = of_run + (patch + r) * op.patch_floats();
      }
      block.out = patches.sums + (patch * points + point) * kColumns;
      if (kPanel == kColumns && weights.stride == kColumns) {
        multiply_packed(block, weights.at, kColumns, ahead);
      } else {
        multiply(block, weights, kColumns);
      }
    }
  }
}

// A line of patches back into as many rows of pixels of kColumns channels as a patch has. Sets `wrong` where one of a patch is
// not finite, and leaves it otherwise.
template <class P>
void transform_line(const float* sums, int64_t across, float* line, bool* wrong) {
  using Down = typename P::Down;
  using Across = typename P::Across;
  const int64_t row_stride = across * Across::kTile * kColumns;
  for (int64_t patch = 0; patch < across; ++patch, sums += P::kPoints * kColumns, line += Across::kTile * kColumns) {
    Floats zero = {};  // NaN after a value that is not finite
    for (int64_t k = 0; k < kColumns; k += kLanes) {
      Floats down[Down::kTile][Across::kPatch];
#pragma GCC unroll 16
      for (int j = 0; j < Across::kPatch; ++j) {
        Floats m[Down::kPatch], y[Down::kTile];
#pragma GCC unroll 16
        for (int i = 0; i < Down::kPatch; ++i) m[i] = load(sums + (i * Across::kPatch + j) * kColumns + k);
        Down::output(m, y);
#pragma GCC unroll 16
        for (int i = 0; i < Down::kTile; ++i) down[i][j] = y[i];
      }
#pragma GCC unroll 16
      for (int i = 0; i < Down::kTile; ++i) {
        Floats y[Across::kTile];
        Across::output(down[i], y);
#pragma GCC unroll 16
        for (int j = 0; j < Across::kTile; ++j) {
          store(line + i * row_stride + j * kColumns + k, y[j]);
          zero = fma(y[j], Floats{}, zero);
        }
      }
    }
    wrong[patch] |= any(zero != zero);
  }
}

// Works out a part of a tile.
template <class P>
struct PartRun {
  const Winograd& op;
  const TileArgs& args;
  Part<P> part;
  Scratch scratch;
  const float* x;  // the part's image

  int64_t first_panel() const { return args.lo[kChannel] / kColumns; }
  int64_t last_panel() const { return ceil_div(args.hi[kChannel], kColumns); }

  void all_phases() const {
    const Phases all{{0, op.phases[0]}, {0, op.phases[1]}};
    transform_input(op, x, part, all, scratch, true);
    const bool all_marked = mark_patches(part, scratch.pixels, scratch.marks) == part.patches();
    for (int64_t panel = first_panel(); panel < last_panel(); ++panel) {
      if (!all_marked) multiply(all, panel, op.panels, scratch.sums);
      finish(panel, scratch.sums);
    }
  }

  void phase_by_phase() const {
    const Winograd::Range all_down = op.weighted(0), all_across = op.weighted(1);
    for (int64_t begin = first_panel(); begin < last_panel(); begin += kMostPanels) {
      const int64_t end = std::min(begin + kMostPanels, last_panel());
      const auto sums = [&](int64_t panel) { return scratch.sums + (panel - begin) * op.panel_sums(); };
      for (int64_t down = all_down.first; down < all_down.last; ++down) {
        for (int64_t across = all_across.first; across < all_across.last; ++across) {
          const Phases one{{down, down + 1}, {across, across + 1}};
          transform_input(op, x, part, one, scratch, begin == first_panel());
          for (int64_t panel = begin; panel < end; ++panel) multiply(one, panel, end, sums(panel));
        }
      }
      if (begin == first_panel()) mark_patches(part, scratch.pixels, scratch.marks);
      for (int64_t panel = begin; panel < end; ++panel) finish(panel, sums(panel));
    }
  }

  // By the panel, after which come those before `end`.
  void multiply(const Phases& phases, int64_t panel, int64_t end, float* sums) const {
    const float* const weights = static_cast<const float*>(args.inputs[1]) + panel * op.u_strides[1];
    multiply_panel(op, phases, {weights, panel + 1 < end ? weights + op.u_strides[1] : nullptr},
                   {part.patches(), scratch.transformed, sums});
  }

  // Pixels [column, column + count) of the part's row `row` by a panel of the taps, to `out`.
  void multiply_taps(int64_t panel, int64_t row, int64_t column, int64_t count, float* out) const {
    Block block;
    block.runs = 1;
    block.depth = op.x_channels;
    block.out_stride = kColumns;
    for (int64_t end = column + count; column < end; column += block.rows, out += block.rows * kColumns) {
      block.rows = static_cast<int>(std::min<int64_t>(kBlockRows, end - column));
      block.out = out;
      block.accumulate = false;
      for (int64_t tap = 0; tap < op.patch.taps[0] * op.patch.taps[1]; ++tap) multiply_tap(block, panel, row, column, tap);
    }
  }

  // The block, of pixels from (row, column) of the part on, (+)= what the tap reads for them, in all phases, by its weights.
  void multiply_tap(Block& block, int64_t panel, int64_t row, int64_t column, int64_t tap) const {
    const int64_t tap_down = tap / op.patch.taps[1], tap_across = tap % op.patch.taps[1];
    const Winograd::Range all_down = op.at_tap(0, tap_down), all_across = op.at_tap(1, tap_across);
    const float* const weights =
        static_cast<const float*>(args.inputs[1]) + (op.points() + tap) * op.u_strides[0] + panel * op.u_strides[1];
    for (int64_t down = all_down.first; down < all_down.last; ++down) {
      const int64_t y = (part.row + row + tap_down - op.pad[0]) * op.phases[0] + down;
      for (int64_t across = all_across.first; across < all_across.last; ++across) {
        const float* pointers[kBlockRows];
        for (int r = 0; r < block.rows; ++r) {
          const int64_t at = (part.column + column + r + tap_across - op.pad[1]) * op.phases[1] + across;
          const bool inside = y >= 0 && y < op.x_height && at >= 0 && at < op.x_width;
          pointers[r] = inside ? x + y * op.x_strides[kHeight] + at * op.x_strides[kWidth] : scratch.zeros;
        }
        block.pointers = pointers;
        const int64_t phase = down * op.phases[1] + across;
        const RightOperand<float> of_phase{weights + phase * op.x_channels * op.u_strides[2], op.u_strides[2]};
        aspen::cpu::ASPEN_TARGET::multiply(block, of_phase, kColumns);
        block.accumulate = true;
      }
    }
  }

  // Computes the patches of a line again that are marked, or wrong.
  void correct_line(int64_t panel, int64_t l, const bool* wrong) const {
    constexpr int kTileDown = P::Down::kTile, kTileAcross = P::Across::kTile;
    const int64_t across = part.across();
    for (int64_t patch = 0; patch < across; ++patch) {
      if (!wrong[patch]) continue;
      const int64_t first = patch;
      while (patch + 1 < across && wrong[patch + 1]) ++patch;
      const int64_t column = first * kTileAcross, end = std::min<int64_t>((patch + 1) * kTileAcross, part.columns);
      for (int64_t i = 0; i < std::min<int64_t>(kTileDown, part.rows - l * kTileDown); ++i) {
        multiply_taps(panel, l * kTileDown + i, column, end - column,
                      scratch.line + (i * across * kTileAcross + column) * kColumns);
      }
    }
  }

  void finish(int64_t panel, const float* sums) const {
    constexpr int kTileDown = P::Down::kTile, kTileAcross = P::Across::kTile;
    const int64_t first = std::max<int64_t>(panel * kColumns, args.lo[kChannel]);
    const int64_t count = std::min<int64_t>((panel + 1) * kColumns, args.hi[kChannel]) - first;
    for (int64_t l = 0; l < part.lines(); ++l) {
      std::copy_n(scratch.marks + l * part.across(), part.across(), scratch.wrong);
      transform_line<P>(sums + l * part.across() * op.points() * kColumns, part.across(), scratch.line, scratch.wrong);
      correct_line(panel, l, scratch.wrong);
      for (int64_t i = 0; i < std::min<int64_t>(kTileDown, part.rows - l * kTileDown); ++i) {
        const int64_t at[4] = {part.image, part.row + l * kTileDown + i, part.column, first};
        op.epilogue.apply(args, at, kWidth, part.columns, count,
                          scratch.line + i * part.across() * kTileAcross * kColumns + first - panel * kColumns, kColumns,
                          scratch.epilogue);
      }
    }
  }
};

template <class P>
const char* run(const TileArgs& args) noexcept {
  constexpr int kTileDown = P::Down::kTile, kTileAcross = P::Across::kTile;
  const auto& op = *static_cast<const Winograd*>(args.state);
  // Parts of equally many lines, so that none multiplies few patches by all weights.
  const int64_t most_columns = std::min<int64_t>(op.patches * kTileAcross, args.hi[kWidth] - args.lo[kWidth]);
  const int64_t lines = ceil_div(args.hi[kHeight] - args.lo[kHeight], kTileDown);
  const int64_t most_lines = op.patches / ceil_div(most_columns, kTileAcross);
  const int64_t most_rows = ceil_div(lines, ceil_div(lines, most_lines)) * kTileDown;
  for (int64_t image = args.lo[kImage]; image < args.hi[kImage]; ++image) {
    for (int64_t row = args.lo[kHeight]; row < args.hi[kHeight]; row += most_rows) {
      for (int64_t column = args.lo[kWidth]; column < args.hi[kWidth]; column += most_columns) {
        const Part<P> part{.image = image,
                           .row = row,
                           .rows = std::min<int64_t>(most_rows, args.hi[kHeight] - row),
                           .column = column,
                           .columns = std::min<int64_t>(most_columns, args.hi[kWidth] - column)};
        const float* const x = static_cast<const float*>(args.inputs[0]) + image * op.x_strides[kImage];
        const PartRun<P> part_run{op, args, part, Scratch(op, args.scratch), x};
        std::fill_n(part_run.scratch.pixels, part.input_rows() * part.input_columns(), 0);
        std::fill_n(part_run.scratch.zeros, op.x_channels, 0.0f);
        if (op.by_phases()) {
          part_run.phase_by_phase();
        } else {
          part_run.all_phases();
        }
      }
    }
  }
  return nullptr;
}

}  // namespace

PreparedOp prepare_winograd(const OpSpec& spec) {
  SpecReader reader(spec);
  auto op = std::make_unique<Winograd>();
  op->read(reader);
  op->choose_patches(spec.output);
  const RunTile run_tile = visit_patch<RunTile>(op->patch, []<class P>(P) -> RunTile { return run<P>; });
  const size_t scratch_bytes = op->scratch_bytes();
  return {std::move(op), run_tile, scratch_bytes};
}

}  // namespace aspen::cpu::ASPEN_TARGET
