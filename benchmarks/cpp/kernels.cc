// Speed of the matrix kernels on layers of well-known networks, as a share of the multiply-add peak measured around each of them.
//
//   kernels [--target=avx2|avx512|portable] [--filter=TEXT] [--epilogue] [--ms=MILLISECONDS]
//
// One thread. A layer is computed tile by tile; the minimum and the median time of the whole layer are shown for several ways to
// cut it into tiles. Before it is timed, elements of the result are compared with a sum in double.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "aspen_jax/engine/kernel.h"
#include "cpu/peak.h"
#include "cpu/target.h"

using namespace aspen;
using namespace aspen::cpu;

namespace {

using Shape = std::vector<int64_t>;

struct Layer {
  const char* name;
  const char* kernel;
  Shape x, w;
  int64_t stride = 1, pad = 0, groups = 1;
};

const Layer kLayers[] = {
    {"conv 7x7s2 3->64 @224", "conv2d", {1, 224, 224, 3}, {7, 7, 3, 64}, 2, 3},
    {"conv 3x3 64 @56", "conv2d", {1, 56, 56, 64}, {3, 3, 64, 64}, 1, 1},
    {"conv 3x3 128 @28", "conv2d", {1, 28, 28, 128}, {3, 3, 128, 128}, 1, 1},
    {"conv 3x3 256 @14", "conv2d", {1, 14, 14, 256}, {3, 3, 256, 256}, 1, 1},
    {"conv 3x3 512 @7", "conv2d", {1, 7, 7, 512}, {3, 3, 512, 512}, 1, 1},
    {"conv 3x3s2 128 @56", "conv2d", {1, 56, 56, 128}, {3, 3, 128, 128}, 2, 1},
    {"conv 1x1 64->256 @56", "conv2d", {1, 56, 56, 64}, {1, 1, 64, 256}},
    {"conv 1x1 256->64 @56", "conv2d", {1, 56, 56, 256}, {1, 1, 256, 64}},
    {"conv 1x1 1024->256 @14", "conv2d", {1, 14, 14, 1024}, {1, 1, 1024, 256}},
    {"conv 1x1 512->2048 @7", "conv2d", {1, 7, 7, 512}, {1, 1, 512, 2048}},
    {"conv 1x1 2048->512 @7", "conv2d", {1, 7, 7, 2048}, {1, 1, 2048, 512}},
    {"conv 3x3 3->64 @224 VGG", "conv2d", {1, 224, 224, 3}, {3, 3, 3, 64}, 1, 1},
    {"conv 3x3 64 @224 VGG", "conv2d", {1, 224, 224, 64}, {3, 3, 64, 64}, 1, 1},
    {"conv 3x3 512 @28 VGG", "conv2d", {1, 28, 28, 512}, {3, 3, 512, 512}, 1, 1},
    {"conv 1x1 24->144 @56", "conv2d", {1, 56, 56, 24}, {1, 1, 24, 144}},
    {"conv 1x1 144->24 @56", "conv2d", {1, 56, 56, 144}, {1, 1, 144, 24}},
    {"conv 3x3 g32 128 @56", "conv2d", {1, 56, 56, 128}, {3, 3, 4, 128}, 1, 1, 32},
    {"conv 3x3 g32 1024 @7", "conv2d", {1, 7, 7, 1024}, {3, 3, 32, 1024}, 1, 1, 32},
    {"depthwise 32 @112", "conv2d", {1, 112, 112, 32}, {3, 3, 1, 32}, 1, 1, 32},
    {"depthwise 96 s2 @112", "conv2d", {1, 112, 112, 96}, {3, 3, 1, 96}, 2, 1, 96},
    {"depthwise 144 @56", "conv2d", {1, 56, 56, 144}, {3, 3, 1, 144}, 1, 1, 144},
    {"depthwise 384 @14", "conv2d", {1, 14, 14, 384}, {3, 3, 1, 384}, 1, 1, 384},
    {"depthwise 960 @7", "conv2d", {1, 7, 7, 960}, {3, 3, 1, 960}, 1, 1, 960},
    {"depthwise 5x5 240 @28", "conv2d", {1, 28, 28, 240}, {5, 5, 1, 240}, 1, 2, 240},
    {"matmul 512x512x512", "matmul", {1, 512, 512}, {1, 512, 512}},
    {"matmul 128x768x768", "matmul", {1, 128, 768}, {1, 768, 768}},
    {"matmul 128x768x3072", "matmul", {1, 128, 768}, {1, 768, 3072}},
    {"matmul 128x3072x768", "matmul", {1, 128, 3072}, {1, 3072, 768}},
    {"matmul 1x2048x1000", "matmul", {1, 1, 2048}, {1, 2048, 1000}},
    {"matmul 1x25088x4096", "matmul", {1, 1, 25088}, {1, 25088, 4096}},
    {"matmul 4x2048x1000", "matmul", {1, 4, 2048}, {1, 2048, 1000}},
};

TensorView dense(const Shape& shape) {
  TensorView view;
  view.rank = static_cast<int>(shape.size());
  int64_t stride = 1;
  for (size_t axis = shape.size(); axis-- > 0; stride *= shape[axis]) {
    view.shape[axis] = shape[axis];
    view.strides[axis] = stride;
  }
  return view;
}

int64_t count(const Shape& shape) {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

// Buffers are aligned as XLA's are.
template <class T>
struct Aligned {
  using value_type = T;
  Aligned() = default;
  template <class U>
  explicit Aligned(const Aligned<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t{64})); }
  void deallocate(T* memory, size_t) { ::operator delete(memory, std::align_val_t{64}); }
  friend bool operator==(const Aligned&, const Aligned&) { return true; }
};
using Floats = std::vector<float, Aligned<float>>;

Floats random_floats(int64_t size, unsigned seed) {
  std::minstd_rand engine(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Floats values(static_cast<size_t>(size));
  for (float& value : values) value = uniform(engine);
  return values;
}

// Time that this thread has run: neighbours who want the core do not count, as far as the caches forget them.
double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Prepared {
  const Layer& layer;
  Shape out;
  Floats x, w, scale, shift, residual, result;
  PreparedOp op;
  std::vector<std::byte, Aligned<std::byte>> scratch;
  std::vector<const void*> inputs;
  bool epilogue;

  Prepared(const Layer& l, Target target, bool with_epilogue) : layer(l), epilogue(with_epilogue) {
    std::vector<int64_t> params;
    if (is_conv()) {
      const auto extent = [&](int axis) { return (l.x[axis] + 2 * l.pad - l.w[axis - 1]) / l.stride + 1; };
      out = {l.x[0], extent(1), extent(2), l.w[3]};
      params = {2, l.stride, l.stride, 4, l.pad, l.pad, l.pad, l.pad, 2, 1, 1, l.groups};
    } else {
      out = {l.x[0], l.x[1], l.w[2]};
      params = {3, 0, 1, -1, 3, 0, -1, 2};  // the dimensions of x and of w: the output's, and -1 for the summed one
    }
    x = random_floats(count(l.x), 1);
    w = random_floats(count(l.w), 2);
    result.assign(static_cast<size_t>(count(out)), 0);
    std::vector<TensorView> views = {dense(l.x), dense(l.w)};
    inputs = {x.data(), w.data()};
    if (epilogue) {
      scale = random_floats(out.back(), 3);
      shift = random_floats(out.back(), 4);
      residual = random_floats(count(out), 5);
      TensorView by_channel = dense(out);
      for (int axis = 0; axis + 1 < by_channel.rank; ++axis) by_channel.strides[axis] = 0;
      views.insert(views.end(), {by_channel, by_channel, dense(out)});
      inputs.insert(inputs.end(), {scale.data(), shift.data(), residual.data()});
      // max(result * scale + shift + residual, 0)
      params.insert(params.end(), {1, 4, 0, 20, 3, 4, 0, 1, 0, 1, 5, 4, 2, 0, 1, 6, 5, 3, 0, 40, 7, 6, 0, 0, 7});
    } else {
      params.push_back(0);
    }
    for (const Kernel& kernel : kernels(target)) {
      if (std::strcmp(kernel.name, l.kernel) == 0) op = kernel.prepare(OpSpec{views, dense(out), params});
    }
    scratch.resize(op.scratch_bytes);
  }

  bool is_conv() const { return layer.x.size() == 4; }

  int64_t inner() const { return is_conv() ? layer.w[0] * layer.w[1] * layer.w[2] : layer.x[2]; }

  double flops() const { return 2.0 * static_cast<double>(count(out) * inner()); }

  double bytes() const { return 4.0 * static_cast<double>(count(layer.x) + count(layer.w) + count(out)); }

  // The whole layer, cut into `down` bands of rows and `across` bands of channels.
  void run(int64_t down, int64_t across) {
    const size_t rows = 1;
    const size_t channels = out.size() - 1;
    std::vector<int32_t> lo(out.size(), 0), hi(out.begin(), out.end());
    for (int64_t i = 0; i < down; ++i) {
      lo[rows] = static_cast<int32_t>(out[rows] * i / down);
      hi[rows] = static_cast<int32_t>(out[rows] * (i + 1) / down);
      for (int64_t j = 0; j < across; ++j) {
        lo[channels] = static_cast<int32_t>(out[channels] * j / across);
        hi[channels] = static_cast<int32_t>(out[channels] * (j + 1) / across);
        op.run(TileArgs{op.state.get(), inputs.data(), result.data(), lo.data(), hi.data(), scratch.data()});
      }
    }
  }

  double expected(int64_t element) const {
    const int64_t channel = element % out.back();
    double sum = 0;
    if (!is_conv()) {
      for (int64_t k = 0; k < layer.x[2]; ++k) {
        sum += static_cast<double>(x[element / out.back() * layer.x[2] + k]) * w[k * layer.w[2] + channel];
      }
    } else {
      const int64_t across = element / out[3] % out[2], down = element / out[3] / out[2] % out[1];
      const int64_t depth = layer.w[2], group = channel / (out[3] / layer.groups);
      for (int64_t i = 0; i < layer.w[0]; ++i) {
        for (int64_t j = 0; j < layer.w[1]; ++j) {
          const int64_t h = down * layer.stride - layer.pad + i, v = across * layer.stride - layer.pad + j;
          if (h < 0 || h >= layer.x[1] || v < 0 || v >= layer.x[2]) continue;
          for (int64_t c = 0; c < depth; ++c) {
            sum += static_cast<double>(x[(h * layer.x[2] + v) * layer.x[3] + group * depth + c]) *
                   w[((i * layer.w[1] + j) * depth + c) * layer.w[3] + channel];
          }
        }
      }
    }
    if (epilogue) sum = std::max(sum * scale[channel] + shift[channel] + residual[element], 0.0);
    return sum;
  }

  bool is_right() {
    std::fill(result.begin(), result.end(), std::numeric_limits<float>::quiet_NaN());
    run(2, 2);
    double largest = 0, error = 0;
    std::minstd_rand engine(9);
    for (int i = 0; i < 500; ++i) {
      const auto element = static_cast<int64_t>(engine() % static_cast<uint64_t>(count(out)));
      const double want = expected(element);
      largest = std::max(largest, std::abs(want));
      const double difference = std::abs(result[static_cast<size_t>(element)] - want);
      error = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(error, difference);
    }
    return error <= 1e-5 * largest;
  }
};

bool bench(const Layer& layer, Target target, bool epilogue, double budget) {
  Prepared prepared(layer, target, epilogue);
  if (!prepared.is_right()) {
    std::fprintf(stderr, "%s on %s: wrong result\n", layer.name, std::string(name(target)).c_str());
    return false;
  }
  std::printf("%-24s %-8s", layer.name, std::string(name(target)).c_str());
  const int64_t rows = prepared.out[1];
  const int64_t cuts[][2] = {{1, 1}, {std::min<int64_t>(4, rows), 1}, {std::min<int64_t>(14, rows), 1}, {1, 4}, {1, 8}, {2, 4}};
  double peak = peak_flops(target);
  std::vector<std::vector<double>> times(std::size(cuts));
  // Interleaved, so that a slow moment of the machine does not fall on one way of cutting alone.
  const double start = thread_seconds();
  do {
    for (size_t i = 0; i < std::size(cuts); ++i) {
      const double begin = thread_seconds();
      prepared.run(cuts[i][0], cuts[i][1]);
      times[i].push_back(thread_seconds() - begin);
    }
  } while (thread_seconds() - start < budget || times[0].size() < 5);
  peak = std::max(peak, peak_flops(target));
  std::printf(" peak %4.0f |", peak / 1e9);
  for (size_t i = 0; i < std::size(cuts); ++i) {
    std::sort(times[i].begin(), times[i].end());
    const double least = times[i].front(), middle = times[i][times[i].size() / 2];
    std::printf(" %ldx%ld %3.0f%% (%3.0f%%)", static_cast<long>(cuts[i][0]), static_cast<long>(cuts[i][1]),
                100 * prepared.flops() / least / peak, 100 * prepared.flops() / middle / peak);
  }
  std::printf(" | %.3f ms, %.1f GB/s\n", times[0].front() * 1e3, prepared.bytes() / times[0].front() / 1e9);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  std::string wanted, filter;
  bool epilogue = false;
  double budget = 0.1;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with("--target=")) {
      wanted = argument.substr(9);
    } else if (argument.starts_with("--filter=")) {
      filter = argument.substr(9);
    } else if (argument.starts_with("--ms=")) {
      budget = std::atof(argument.c_str() + 5) / 1e3;
    } else if (argument == "--epilogue") {
      epilogue = true;
    } else {
      std::fprintf(stderr, "unknown argument %s; see the head of this program's source\n", argument.c_str());
      return 2;
    }
  }
  std::printf("share of peak, minimum (median) time, by tiles: rows x channels\n");
  bool right = true;
  for (const Target target : available_targets()) {
    if (!wanted.empty() && wanted != name(target)) continue;
    for (const Layer& layer : kLayers) {
      if (std::string(layer.name).find(filter) != std::string::npos) right = bench(layer, target, epilogue, budget) && right;
    }
  }
  return right ? 0 : 1;
}
