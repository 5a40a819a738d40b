// Convolutions of each channel by itself. A tile is any box of the output. A thread computes `pixels` neighbours of a line for
// `vector` adjacent channels: windows of neighbours overlap, so that each element of the input that it reads serves several, and
// a tap of the weights serves all. Neighbouring threads have neighbouring channels, so that their reads are adjacent.
#pragma once

#include "elements.h"
#include "window.h"

namespace aspen::cuda {

struct DepthwiseShape {
  Window window;
  Strides input;    // image, line, pixel, channel
  Strides weights;  // line, pixel, one, channel
  int pixels;       // of a thread
  int vector;       // adjacent channels of a thread, read at once
};

template <class Op, class Stored, DepthwiseShape kShape>
struct Depthwise : Op {
  using Addresses = typename Op::Addresses;
  using Word = typename Stored::Word;
  static constexpr int kThreads = 128, kPixels = kShape.pixels, kVector = kShape.vector;
  static constexpr int kKernelWidth = kShape.window.kernel_width;
  static constexpr int kStep = kShape.window.x_step, kDilation = kShape.window.x_dilation;
  // Pixels of a line of the input that a thread's windows meet.
  static constexpr int kReads = (kPixels - 1) * kStep + (kKernelWidth - 1) * kDilation + 1;
  using Lanes = Vector<Word, kVector>;
  struct Memory {};

  static ASPEN_DEVICE void tile(const Addresses& buffers, const int32_t* box, Memory&) {
    // The box by runs of pixels and of channels. Channels are read in whole vectors, so that the first may lie before the box.
    const int first_channel = box[3] / kVector * kVector;
    const int32_t runs[] = {box[0],
                            box[1],
                            0,
                            0,
                            box[4],
                            box[5],
                            (box[6] - box[2] + kPixels - 1) / kPixels,
                            (box[7] - first_channel + kVector - 1) / kVector};
    Block<kThreads> block;
    each_element<4>(block, runs, [&](const int* run) {
      const int first[] = {run[0], run[1], box[2] + run[2] * kPixels, first_channel + run[3] * kVector};
      float sums[kPixels][kVector] = {};
      slide(buffers, first, sums);
      ASPEN_UNROLL for (int out = 0; out < kPixels; ++out) {
        ASPEN_UNROLL for (int i = 0; i < kVector; ++i) {
          const int at[] = {first[0], first[1], first[2] + out, first[3] + i};
          if (at[2] < box[6] && at[3] >= box[3] && at[3] < box[7]) Op::finish(buffers, at, as_bits(sums[out][i]));
        }
      }
    });
  }

 private:
  // Adds up the windows of kPixels pixels from `first` on.
  static ASPEN_DEVICE void slide(const Addresses& buffers, const int* first, float (&sums)[kPixels][kVector]) {
    constexpr Window window = kShape.window;
    constexpr Strides input = kShape.input, taps_of = kShape.weights;
    const auto* const data =
        static_cast<const Word*>(buffers.inputs[0]) + int64_t{first[0]} * input.of[0] + int64_t{first[3]} * input.of[3];
    const auto* const weights = static_cast<const Word*>(buffers.inputs[1]) + int64_t{first[3]} * taps_of.of[3];
    for (int kh = 0; kh < window.kernel_height; ++kh) {
      const int y = first[1] * window.y_step - window.top + kh * window.y_dilation;
      if (y < 0 || y >= window.height) continue;
      Lanes taps[kKernelWidth];
      ASPEN_UNROLL for (int kw = 0; kw < kKernelWidth; ++kw) {
        taps[kw] = load_vector<kVector>(weights + kh * taps_of.of[0] + kw * taps_of.of[1]);
      }
      ASPEN_UNROLL for (int read = 0; read < kReads; ++read) {
        const int x = first[2] * kStep - window.left + read;
        if (x < 0 || x >= window.width) continue;
        const Lanes pixel = load_vector<kVector>(data + y * input.of[1] + x * input.of[2]);
        ASPEN_UNROLL for (int kw = 0; kw < kKernelWidth; ++kw) {
          ASPEN_UNROLL for (int out = 0; out < kPixels; ++out) {
            if (out * kStep + kw * kDilation == read) add(pixel, taps[kw], sums[out]);
          }
        }
      }
    }
  }

  static ASPEN_DEVICE void add(const Lanes& pixel, const Lanes& tap, float (&sums)[kVector]) {
    ASPEN_UNROLL for (int i = 0; i < kVector; ++i) {
      sums[i] += as_float(Stored::load(pixel.elements, i)) * as_float(Stored::load(tap.elements, i));
    }
  }
};

}  // namespace aspen::cuda
