// Mutated graphs against the engine alone: kernels accept every op and touch what they were promised.
#include <memory>

#include "dag.h"
#include "graph_fuzz.h"

namespace aspen::testing {
namespace {

struct Views : OpState {
  std::vector<TensorView> inputs;
  TensorView output;
};

// The offsets, in bytes, of the corners of a box in a view: if these lie in the buffer, so does all between.
template <typename Touch>
void for_corners(const TensorView& view, const int64_t* lo, const int64_t* hi, const Touch& touch) {
  for (int corner = 0; corner < 1 << view.rank; ++corner) {
    int64_t offset = 0;
    for (int d = 0; d < view.rank; ++d) {
      if (lo[d] >= hi[d]) return;
      offset += view.strides[d] * (corner >> d & 1 ? hi[d] - 1 : lo[d]);
    }
    touch(offset * size_of(view.dtype), size_of(view.dtype));
  }
}

const char* run_touching(const TileArgs& args) noexcept {
  const auto& views = *static_cast<const Views*>(args.state);
  std::byte sum{0};
  for (size_t i = 0; i < views.inputs.size(); ++i) {
    const int64_t zeros[kMaxRank] = {};
    for_corners(views.inputs[i], zeros, views.inputs[i].shape, [&](int64_t offset, int64_t size) {
      for (int64_t byte = 0; byte < size; ++byte) sum ^= static_cast<const std::byte*>(args.inputs[i])[offset + byte];
    });
  }
  int64_t lo[kMaxRank] = {}, hi[kMaxRank] = {};
  std::copy_n(args.lo, views.output.rank, lo);
  std::copy_n(args.hi, views.output.rank, hi);
  for_corners(views.output, lo, hi,
              [&](int64_t offset, int64_t size) { std::fill_n(static_cast<std::byte*>(args.output) + offset, size, sum); });
  return nullptr;
}

PreparedOp prepare_touching(const OpSpec& spec) {
  auto views = std::make_unique<Views>();
  views->inputs.assign(spec.inputs.begin(), spec.inputs.end());
  views->output = spec.output;
  return {std::move(views), run_touching, 64};
}

constexpr Kernel kKernels[] = {{"copy", prepare_touching}, {"add", prepare_touching}, {"recorded", prepare_touching}};

std::vector<Bytes> seeds() {
  std::vector<Bytes> result;
  GraphBuilder g;
  const int64_t x = g.operand(DType::kF32, {4, 6}), b = g.operand(DType::kBF16, {4}), s = g.operand(DType::kBool, {});
  const int64_t y = g.result(DType::kF32, {24, 1}), z = g.result(DType::kF64, {});
  const int64_t t = g.workspace(DType::kF32, {6, 4}), e = g.workspace(DType::kI16, {0, 3});
  g.op("flip", "copy", {{x, {4, 6}, {3, 0}, {{1, 1, 6}, {0, -1, 4}}}}, t, {1, -2, 3}, 0);
  g.op("sum", "add", {{t, {24}, {0}, {{0, 1, 24}, {-1, 0, 1}}}, {b, {2, 2}, {1, 0}, {{-1, 0, 24}, {1, 1, 1}}}}, y, {}, 1);
  g.op("scalar", "add", {{s, {}, {}, {}}, {t, {2, 12}, {1, 11}, {{1, -3, 4}, {0, -1, 2}}}}, z, {INT64_MIN, INT64_MAX}, 2);
  g.op("empty", "copy", {g.whole(x)}, e, {}, 1);
  g.tile(0, {0, 0}, {2, 4}, 100);
  g.tile(0, {2, 0}, {6, 1}, 200);
  g.tile(1, {0, 0}, {8, 1}, 300);
  g.tile(0, {2, 1}, {6, 4}, 400);
  g.tile(1, {8, 0}, {24, 1}, 500);
  g.tile(2, {}, {}, 600);
  g.edge(0, 2);
  for (const int64_t parent : {1, 3}) g.edge(parent, 4);
  for (const int64_t parent : {0, 1, 3}) g.edge(parent, 5);
  result.push_back(g.encode());
  // Dear enough for the pool.
  for (auto& cost : g.costs) cost = kInPool;
  result.push_back(g.encode());
  std::mt19937_64 random(3);
  result.push_back(encode_dag(random_dag(random, 6, 6, 3), "recorded", kInline));
  result.push_back(encode_dag(stencil_dag(3, 4), "recorded", kInPool));
  return result;
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) {
  aspen::KernelRegistry registry;
  registry.add(aspen::testing::kKernels);
  return aspen::testing::fuzz_main(argc, argv, aspen::testing::seeds(), registry, /*fills_outputs=*/false);
}
