"""Convolutions of each channel by itself: a thread slides a window over a few neighbouring pixels of a few adjacent channels."""

from __future__ import annotations

from aspen_jax.cuda.vectors import ELEMENTS, STORED, vector
from aspen_jax.ir.program import Op

# Pixels that share the inputs which their windows have in common, and bytes of adjacent channels.
_PIXELS = 4
_MOST_BYTES = {4: 16, 2: 8}


def depthwise(op: Op) -> str:
    """The body of a struct for conv2d with as many groups as channels in and out."""
    x, w = op.inputs[:2]
    attrs, name = op.attrs, x.dtype.name
    _, height, width, channels = x.shape
    strides, w_strides = x.view.strides(), w.view.strides()
    top, _, left, _ = attrs.padding
    count = 1
    if strides[3] == w_strides[3] == 1:
        most = _MOST_BYTES[x.dtype.itemsize]
        numbers = (channels, *strides[:3], *w_strides[:2], x.view.offset(), w.view.offset())
        count = vector(x.dtype, *numbers, most=most)
    step, dilation = attrs.strides[1], attrs.dilation[1]
    pixels = min(_PIXELS, max(op.output.shape[2], 1))
    reads = (pixels - 1) * step + (w.shape[1] - 1) * dilation + 1
    return f"""\
  static constexpr int kThreads = 128;
  struct Memory {{}};
  static ASPEN_DEVICE void tile(const Addresses& buffers, const int32_t* box, Memory&) {{
    using Lanes = Vector<{ELEMENTS[name]}, {count}>;
    const int first_channel = box[3] / {count} * {count};
    const int32_t runs[] = {{box[0], box[1], 0, 0, box[4], box[5], (box[6] - box[2] + {pixels - 1}) / {pixels},
                            (box[7] - first_channel + {count - 1}) / {count}}};
    Block<kThreads> block;
    each_element<4>(block, runs, [&](const int* run) {{
      const int channel = first_channel + run[3] * {count}, first = box[2] + run[2] * {pixels};
      const auto* const data = static_cast<const {ELEMENTS[name]}*>(buffers.inputs[0]) + int64_t{{run[0]}} * {strides[0]} +
                               int64_t{{channel}} * {strides[3]};
      const auto* const weights = static_cast<const {ELEMENTS[name]}*>(buffers.inputs[1]) + int64_t{{channel}} * {w_strides[3]};
      float sums[{pixels}][{count}] = {{}};
      for (int kh = 0; kh < {w.shape[0]}; ++kh) {{
        const int y = run[1] * {attrs.strides[0]} - {top} + kh * {attrs.dilation[0]};
        if (y < 0 || y >= {height}) continue;
        Lanes taps[{w.shape[1]}];
        ASPEN_UNROLL for (int kw = 0; kw < {w.shape[1]}; ++kw) {{
          taps[kw] = load_vector<{count}>(weights + kh * int64_t{{{w_strides[0]}}} + kw * int64_t{{{w_strides[1]}}});
        }}
        ASPEN_UNROLL for (int read = 0; read < {reads}; ++read) {{
          const int column = first * {step} - {left} + read;
          if (column < 0 || column >= {width}) continue;
          const Lanes pixel = load_vector<{count}>(data + y * int64_t{{{strides[1]}}} + column * int64_t{{{strides[2]}}});
          ASPEN_UNROLL for (int kw = 0; kw < {w.shape[1]}; ++kw) {{
            ASPEN_UNROLL for (int out = 0; out < {pixels}; ++out) {{
              if (out * {step} + kw * {dilation} != read) continue;
              ASPEN_UNROLL for (int i = 0; i < {count}; ++i) {{
                sums[out][i] += as_float({STORED[name]}::load(pixel.elements, i)) *
                                as_float({STORED[name]}::load(taps[kw].elements, i));
              }}
            }}
          }}
        }}
      }}
      ASPEN_UNROLL for (int out = 0; out < {pixels}; ++out) {{
        ASPEN_UNROLL for (int i = 0; i < {count}; ++i) {{
          const int at[] = {{run[0], run[1], first + out, channel + i}};
          if (at[2] < box[6] && at[3] >= box[3] && at[3] < box[7]) finish(buffers, at, as_bits(sums[out][i]));
        }}
      }}
    }});
  }}"""
