// Mutated graphs against the CPU kernels: what `prepare` accepts must be safe to run on every tile.
//
// Which target's kernels is chosen as always: ASPEN_CPU_TARGET.
#include "cpu/target.h"
#include "graph_fuzz.h"

namespace aspen::testing {
namespace {

// A graph of one op on whole operands, its output cut into two tiles where it is long enough.
struct OneOp {
  std::string kernel;
  std::vector<std::pair<DType, Words>> inputs;
  DType dtype;
  Words shape;
  Words params;
  std::vector<DType> further = {};  // outputs beside the first
  Words unit = {};                  // how many times as long the first is along each axis, where it is
};

Bytes encode_one(const OneOp& op) {
  GraphBuilder builder;
  std::vector<InputSpec> inputs;
  for (const auto& [dtype, shape] : op.inputs) {
    InputSpec input = builder.whole(builder.operand(dtype, shape));
    // An input of lower rank than the output belongs to the epilogue, which reads it by a broadcast view; here: a vector.
    if (shape.size() == 1 && op.shape.size() > 1) {
      input.dims.clear();
      for (const int64_t extent : op.shape) input.dims.push_back({-1, 0, extent});
      input.dims.back() = {0, 1, op.shape.back()};
    }
    inputs.push_back(std::move(input));
  }
  const int64_t result = builder.result(op.dtype, op.shape);
  Words further;
  Words shape_of_further = op.shape;
  for (size_t d = 0; d < op.unit.size(); ++d) shape_of_further[d] /= op.unit[d];
  if (op.kernel == "loop") shape_of_further.insert(shape_of_further.begin(), op.params[0]);  // an entry for each turn
  for (const DType dtype : op.further) further.push_back(builder.result(dtype, shape_of_further));
  if (op.kernel == "scatter") builder.values[result].buffer = 0;  // what rewrites an operand may lie there
  const int64_t id = builder.op("op", op.kernel, std::move(inputs), result, op.params);
  Words lo(op.shape.size()), hi = op.shape;
  Words extents = op.shape;
  if (op.kernel == "rows" && extents.size() > 1) extents[op.params[1]] = 0;  // no tile cuts the rows
  if (op.kernel == "loop") std::ranges::fill(extents, 1);                    // one tile runs all turns
  const auto longest = std::max_element(extents.begin(), extents.end()) - extents.begin();
  if (!op.shape.empty() && extents[longest] > 1) {
    hi[longest] /= 2;
    builder.tile(id, lo, hi, 1);
    lo[longest] = hi[longest];
    hi[longest] = op.shape[longest];
  }
  builder.tile(id, lo, hi, 1);
  if (op.further.empty()) return builder.encode();
  Words outputs;
  for (const int64_t value : further) outputs.insert(outputs.end(), {id, value});
  return GraphBuilder::with_fields(builder.arrays(), std::string("!outputs\0", 9), {outputs});
}

// Sums along the columns, then along the rows: of a result that the first op gives, and of a value in the workspace. The tiles of
// the second op come first, so that its edges are all that it waits by.
Bytes encode_chain() {
  GraphBuilder builder;
  const Words shape = {6, 20};
  const int64_t x = builder.operand(DType::kF32, shape);
  const int64_t down = builder.result(DType::kF32, shape), both = builder.result(DType::kF32, shape);
  const int64_t kept = builder.workspace(DType::kF32, shape), again = builder.result(DType::kF32, shape);
  const Words along_columns = {0, 0, 0, 0}, along_rows = {0, 1, 0, 0};
  builder.op("both", "cumulative", {builder.whole(down)}, both, along_rows, 0);
  builder.op("again", "cumulative", {builder.whole(kept)}, again, along_rows, 0);
  builder.op("down", "cumulative", {builder.whole(x)}, down, along_columns, 1);
  builder.op("kept", "cumulative", {builder.whole(x)}, kept, along_columns, 1);
  for (const int64_t op : {0, 1}) {
    builder.tile(op, {0, 0}, {4, 20}, 1);
    builder.tile(op, {4, 0}, {6, 20}, 1);
  }
  for (const int64_t op : {2, 3}) {
    builder.tile(op, {0, 0}, {6, 20}, 1);
    for (const int64_t child : {0, 1}) builder.edge(op + 2, 2 * (op - 2) + child);
  }
  return builder.encode();
}

struct StackPart {
  std::string kernel;
  Words words, follows;
  Words between;  // dtype, shape and room of its result, if another part reads it
};

struct LoopPart {
  std::string kernel;
  Words words, inputs, outputs;
};

std::vector<Bytes> seeds() {
  constexpr auto f = DType::kF32, i = DType::kI32, b = DType::kBool, u8 = DType::kU8, h = DType::kF16, bf = DType::kBF16;
  // Programs as docs/graph_format.md says; the opcodes are those of cpu/block_ops.inc.
  const Words add_relu = {1, 2, 0, 10, 1, 2, 0, 1, 0, 40, 3, 2, 0, 0, 3};                              // relu(r0 + r1)
  const Words scale = {1, 1, 1, 0x3FC00000, 5, 3, 2, 0, 1, 0, 2};                                      // r0 * 1.5
  const Words select = {1, 3, 0, 5, 112, 3, 0, 1, 2, 3};                                               // r0 ? r1 : r2
  const Words exp_chain = {1, 2, 1, 0x40000000, 15, 21, 3, 0, 0, 0, 4, 4, 3, 1, 0, 7, 5, 4, 2, 0, 5};  // pow(exp(r0) / r1, 2)
  // Row programs: exp(r0 - max) / sum; log(sum(exp(r0 - max))) + max; r0 * r1 > sum(r0).
  const Words softmax = {4, 1, 11, 1,  0, 0, 0, 4, 11, 2,  0, 10, 2, 2, 0, 1, 0, 21, 3, 2, 0,
                         0, 3, 0,  11, 3, 0, 0, 2, 4,  11, 4, 0,  5, 4, 4, 2, 3, 0,  4, 0};
  const Words logsumexp = {3, 1, 11, 1, 0,  0, 0, 0,  11, 2, 0, 10, 2, 2, 0, 1, 0, 21, 3, 2,
                           0, 0, 3,  5, 11, 3, 0, 10, 24, 3, 2, 0,  0, 1, 4, 3, 1, 0,  4, 0};
  // exp(r0 - max), which is stored, and that over its sum.
  const Words stored_softmax = {4, 1, 11, 1, 0,  0, 0, 12, 10, 2, 0,  10, 2, 2, 0, 1, 0, 21, 3, 2,
                                0, 0, 3,  0, 11, 3, 0, 0,  2,  4, 11, 4,  0, 5, 4, 4, 2, 3,  0, 4};
  const Words above = {2, 0, 3, 2, 0, 0, 0, 4, 0, 3, 0, 10, 66, 3, 0, 1, 0, 85, 4, 3, 2, 0, 4, 0};
  const auto with = [](Words words, const Words& program) {
    words.insert(words.end(), program.begin(), program.end());
    return words;
  };
  const Words product = {3, 0, 1, -1, 3, 0, -1, 2};
  constexpr auto f32 = static_cast<int64_t>(DType::kF32);
  const auto stack = [](Words words, const std::vector<StackPart>& parts) {
    for (const StackPart& part : parts) {
      words.push_back(static_cast<int64_t>(part.kernel.size()));
      words.insert(words.end(), part.kernel.begin(), part.kernel.end());
      for (const Words& list : {part.words, part.follows}) {
        words.push_back(static_cast<int64_t>(list.size()));
        words.insert(words.end(), list.begin(), list.end());
      }
      words.insert(words.end(), part.between.begin(), part.between.end());
    }
    words.push_back(0);
    return words;
  };
  const auto loop = [](Words words, const std::vector<LoopPart>& parts, const Words& results) {
    for (const LoopPart& part : parts) {
      words.push_back(static_cast<int64_t>(part.kernel.size()));
      words.insert(words.end(), part.kernel.begin(), part.kernel.end());
      words.push_back(static_cast<int64_t>(part.words.size()));
      for (const Words& list : {part.words, part.inputs, part.outputs}) words.insert(words.end(), list.begin(), list.end());
    }
    words.insert(words.end(), results.begin(), results.end());
    words.push_back(0);
    return words;
  };
  const std::vector<OneOp> ops = {
      {"conv2d",
       {{f, {1, 5, 6, 4}}, {f, {3, 3, 4, 20}}, {f, {20}}},
       f,
       {1, 5, 6, 20},
       with({2, 1, 1, 4, 1, 1, 1, 1, 2, 1, 1, 1}, add_relu)},
      {"conv2d", {{f, {2, 5, 6, 20}}, {f, {3, 3, 1, 20}}}, f, {2, 3, 3, 20}, {2, 2, 2, 4, 1, 1, 1, 1, 2, 1, 1, 20, 0}},
      {"conv2d", {{f, {1, 7, 6, 6}}, {f, {2, 2, 3, 8}}}, f, {1, 4, 3, 8}, with({2, 1, 2, 4, -1, 0, 2, -1, 2, 2, 2, 2}, scale)},
      {"conv2d_panels",
       {{f, {1, 5, 6, 4}}, {f, {2, 3, 3, 4, 32}}, {f, {40}}},
       f,
       {1, 5, 6, 40},
       with({2, 1, 1, 4, 1, 1, 1, 1, 2, 1, 1, 1, 40, 0}, add_relu)},
      // A 1x1 and a depthwise convolution, two rows at a time; two pools with an element-wise op between.
      {"stack",
       {{f, {2, 6, 5, 4}}, {f, {1, 1, 4, 6}}, {f, {6}}, {f, {3, 3, 1, 6}}},
       f,
       {2, 6, 5, 6},
       stack({1, 2, 2, 5, 6, 2},
             {{"conv2d", with({2, 1, 1, 4, 0, 0, 0, 0, 2, 1, 1, 1}, add_relu), {1, 0, 1}, {f32, 3, 6, 5, 6, 3, 4, 5, 6}},
              {"conv2d", {2, 1, 1, 4, 1, 1, 1, 1, 2, 1, 1, 6, 0}, {0}, {}}})},
      {"stack",
       {{f, {3, 9, 5}}, {f, {5}}},
       f,
       {3, 9, 5},
       stack({1, 1, 1, 2, 3},
             {{"pool",
               {1, 3, 1, 3, 1, 3, 1, 1, 1, 3, 0, 1, 0, 3, 0, 1, 0, 3, 1, 1, 1, 3, 1, 1, 1, 0},
               {1},
               {f32, 2, 9, 5, 2, 1, 2}},
              {"block", add_relu, {1}, {f32, 2, 9, 5, 2, 3, 2}},
              {"pool", {1, 3, 1, 3, 1, 3, 1, 1, 1, 3, 0, 1, 0, 3, 0, 1, 0, 3, 1, 1, 1, 3, 1, 1, 1, 0}, {}, {}}})},
      // Three turns of c = relu(c * w + x_t), which is carried and stacked; four of c = c * 1.5.
      {"loop",
       {{f, {4, 4}}, {f, {2, 4}}, {f, {3, 2, 4}}},
       f,
       {2, 4},
       loop({3, 1, 0, 1, 1, 3, f32, 2, 4, 4, f32, 2, 2, 4, f32, 2, 2, 4, 2},
            {{"matmul",
              with({2, 0, -1, 2, -1, 1}, add_relu),
              {3, 1, 0, 2, 2, 4, 2, 4, 1, 0, 0, 2, 4, 4, 2, 4, 1, 2, 0, 2, 2, 4, 2, 4, 1},
              {1, f32, 2, 2, 4, 2, 3}},
             {"block", {1, 1, 0, 0, 0}, {1, 3, 0, 2, 2, 4, 2, 4, 1}, {1, f32, 2, 2, 4, 0, 0}}},
            {2, 3, 2, 2, 4, 4, 2, 2, 4}),
       {f},
       {}},
      {"loop",
       {{f, {5}}},
       f,
       {5},
       loop({4, 0, 0, 0, 1, 1, f32, 1, 5, 1}, {{"block", scale, {1, 0, 0, 1, 5, 1, 1}, {1, f32, 1, 5, 0, 0}}}, {1, 1, 1, 5})},
      // A 1x1 convolution that writes NCHW.
      {"transposed", {{f, {2, 6, 5, 4}}, {f, {1, 1, 4, 7}}}, f, {2, 7, 6, 5}, {6, 'c', 'o', 'n', 'v', '2', 'd', 4, 0, 3, 1, 2, 2,
                                                                               1, 1,   4,   0,   0,   0,   0,   2, 1, 1, 1, 0}},
      {"winograd",
       {{f, {1, 9, 6, 5}}, {f, {45, 2, 5, 32}}, {f, {40}}},
       f,
       {1, 9, 7, 40},
       with({4, 1, 1, 2, 1, 40, 2, 3, 3, 2, 4, 4, 2, 1, 1, 2, 0, 0, 2, 1, 1}, add_relu)},
      {"winograd",
       {{f, {1, 9, 6, 5}}, {f, {34, 2, 5, 32}}, {f, {40}}},
       f,
       {1, 9, 7, 40},
       with({4, 1, 1, 2, 1, 40, 2, 3, 3, 2, 3, 3, 2, 1, 1, 2, 0, 0, 2, 1, 1}, add_relu)},
      {"winograd",
       {{f, {1, 9, 6, 5}}, {f, {19, 2, 5, 32}}, {f, {40}}},
       f,
       {1, 9, 7, 40},
       with({4, 0, 0, 5, 2, 40, 2, 1, 7, 2, 1, 6, 2, 1, 1, 2, 0, 0, 2, 1, 1}, add_relu)},
      {"winograd",
       {{f, {2, 9, 14, 3}}, {f, {65, 2, 18, 32}}, {f, {40}}},
       f,
       {2, 5, 4, 40},
       with({4, 2, 1, 1, 1, 40, 2, 4, 4, 2, 4, 4, 2, 2, 3, 2, 1, 0, 2, 2, 2}, add_relu)},
      {"winograd",
       {{f, {2, 9, 14, 3}}, {f, {29, 2, 12, 32}}, {f, {40}}},
       f,
       {2, 5, 8, 40},
       with({4, 1, 0, 1, 1, 40, 2, 2, 2, 2, 4, 4, 2, 2, 2, 2, 1, 0, 2, 2, 1}, add_relu)},
      {"winograd",
       {{f, {1, 9, 14, 17}}, {f, {29, 3, 68, 32}}, {f, {70}}},
       f,
       {1, 5, 8, 70},
       with({4, 1, 0, 1, 1, 70, 2, 2, 2, 2, 4, 4, 2, 2, 2, 2, 1, 0, 2, 2, 1}, add_relu)},
      {"winograd",
       {{f, {1, 9, 14, 17}}, {f, {7, 3, 102, 32}}, {f, {70}}},
       f,
       {1, 3, 5, 70},
       with({4, 0, 0, 0, 0, 70, 2, 1, 3, 2, 1, 2, 2, 3, 2, 2, 1, 1, 2, 2, 1}, add_relu)},
      {"winograd_weights", {{f, {3, 3, 5, 40}}}, f, {45, 2, 5, 32}, {2, 4, 4, 0}},
      {"winograd_weights", {{f, {7, 1, 5, 40}}}, f, {19, 2, 5, 32}, {2, 6, 1, 0}},
      {"bf16x6",
       {{f, {2, 5, 6, 40}}, {bf, {2, 12, 3, 2, 16, 32}}, {f, {40}}},
       f,
       {2, 3, 6, 40},
       with({2, 3, 2, 40, 2, 2, 1, 4, 1, 1, 0, 2, 2, 1, 2, 1, 0}, add_relu)},
      {"bf16x6",
       {{f, {1, 5, 6, 4}}, {bf, {1, 1, 3, 2, 16, 32}}, {f, {4}}},
       f,
       {1, 5, 6, 4},
       {2, 1, 1, 4, 2, 1, 1, 4, 0, 0, 0, 0, 2, 1, 1, 1, 1, 0}},
      {"bf16x6", {{f, {5, 40}}, {bf, {2, 2, 3, 2, 16, 32}}}, f, {5, 33}, {2, 1, 1, 33, 2, 1, 1, 4, 0, 0, 0, 0, 2, 1, 1, 1, 0, 0}},
      {"bf16x6_weights", {{f, {2, 3, 40, 33}}}, bf, {2, 12, 3, 2, 16, 32}, {0}},
      {"strassen_rows", {{f, {2, 5, 8}}}, f, {8, 2, 3, 6}, {2, 0}},
      {"strassen", {{f, {8, 2, 3, 6}}, {f, {8, 2, 4, 32}}, {f, {70}}}, f, {2, 5, 70}, with({5, 70}, add_relu)},
      {"matmul", {{f, {2, 5, 7}}, {f, {2, 7, 19}}, {f, {19}}}, f, {2, 5, 19}, with(product, add_relu)},
      {"matmul", {{f, {1, 1, 33}}, {f, {1, 33, 40}}}, f, {1, 1, 40}, with(product, {0})},
      {"matmul", {{f, {5, 3, 2, 7}}, {f, {19, 7, 5, 2}}}, f, {2, 19, 3}, {4, -1, 2, 0, -2, 4, 1, -2, -1, 0, 0}},
      {"matmul", {{h, {2, 5, 7}}, {bf, {2, 7, 19}}, {f, {19}}}, h, {2, 5, 19}, with(product, add_relu)},
      {"matmul", {{bf, {1, 1, 33}}, {bf, {1, 33, 40}}}, f, {1, 1, 40}, with(product, {0})},
      {"matmul_panels", {{f, {5, 7}}, {f, {2, 7, 32}}, {f, {40}}}, f, {5, 40}, with({2, 0, -1, 2, -1, 1, 2, 7, 40}, add_relu)},
      {"matmul_panels", {{bf, {3, 2, 7}}, {f, {2, 14, 32}}}, f, {3, 3, 20}, {3, 0, -1, -2, 4, -1, -2, 1, 2, 4, 2, 7, 3, 20, 0}},
      {"ragged_dot", {{f, {2, 5, 7}}, {f, {2, 3, 7, 19}}, {i, {2, 3}}, {f, {19}}}, f, {2, 5, 19}, add_relu},
      {"ragged_dot", {{bf, {2, 9, 4}}, {h, {2, 2, 4, 40}}, {i, {2, 2}}}, bf, {2, 9, 40}, {0}},
      // Scores of 2 x 5 queries by 6 keys, softmax, values of 9 columns.
      {"attention",
       {{f, {2, 5, 7}}, {f, {2, 7, 6}}, {f, {2, 6, 9}}},
       f,
       {2, 5, 9},
       {3, 2, 5, 6, 11, 11, 2, -1, 9, 3, 0, 1, -1, 3,  0, -1, 2,  0, 1, 0,  43, 1, 2, 4,  1, 11, 1,
        0, 0, 0, 4, 11, 2,  0, 10, 2, 2, 0, 1, 0,  21, 3, 2,  0,  0, 3, 0,  11, 3, 0, 0,  2, 4,  11,
        4, 0, 5, 4, 4,  2,  3, 0,  4, 0, 2, 0, 9,  3,  0, 1,  -1, 3, 0, -1, 2,  0, 1, 24, 0}},
      {"pool", {{f, {1, 5, 6, 18}}}, f, {1, 3, 3, 18}, {1, 4, 1, 2, 2, 1, 4, 1, 2, 2, 1, 4, 0, 0, 0, 0,
                                                        4, 0, 1, 0, 0, 4, 1, 1, 1, 1, 4, 1, 1, 1, 1, 0}},
      {"pool", {{f, {4, 5}}}, f, {6, 5}, {0, 2, 2, 1, 2, 1, 1, 2, 1, 0, 2, -1, 0, 2, 2, 1, 2, 1, 1, 0}},
      {"select_and_scatter_add", {{f, {1, 3, 3, 18}}, {f, {1, 5, 6, 18}}}, f, {1, 5, 6, 18}, {1, 4, 1, 2, 2, 1, 4, 1, 2, 2, 1,
                                                                                              4, 0, 1, 0, 0, 4, 0, 0, 0, 0, 0}},
      {"select_and_gather_add", {{f, {5, 6}}, {f, {5, 6}}}, f, {3, 3}, {2, 2, 3, 2, 2, 2, 2, 2, 1, 0, 2, 1, 0, 0}},
      {"reduce", {{f, {3, 4, 21}}}, f, {3, 21}, {0, 1, 1, 0}},
      {"reduce", {{f, {3, 4, 21}}}, f, {4}, with({1, 2, 0, 2}, scale)},
      {"reduce", {{i, {30}}}, i, {}, {3, 1, 0, 0}},
      {"reduce", {{b, {5, 9}}}, b, {5}, {1, 1, 1, 0}},
      {"rows", {{f, {3, 4, 21}}}, f, {3, 4, 21}, with({1, 2}, softmax)},
      {"rows", {{f, {9, 20}}}, f, {9, 20}, with({1, 0}, softmax)},
      {"rows", {{f, {3, 4, 21}}}, f, {4}, with({2, 0, 2}, logsumexp)},
      {"rows", {{i, {5, 19}}, {i, {19}}}, b, {5, 19}, with({1, 1}, above)},
      {"concatenate", {{f, {2, 3}}, {f, {2, 20}}}, f, {2, 23}, {1, 0}},
      {"concatenate", {{f, {2, 3, 5}}, {f, {2, 3, 20}}, {f, {25}}}, f, {2, 3, 25}, with({2}, add_relu)},
      {"concatenate", {{u8, {3, 2}}, {u8, {1, 2}}, {u8, {4, 2}}}, u8, {8, 2}, {0, 0}},
      {"pad", {{f, {3, 4}}, {f, {}}}, f, {6, 5}, {2, 1, -1, 2, 0, 2, 2, 1, 0, 0}},
      {"gather", {{f, {9, 20}}, {i, {5, 3}}}, f, {5, 3, 20}, {2, -1, 2, 2, 0, -1, 2, 1, 20, 2, 0, 1, 1, -1, 0}},
      {"gather", {{u8, {5, 20}}, {i, {5, 3}}}, u8, {5, 3}, {2, 0, -1, 2, -1, 0, 2, 5, 1, 2, 0, 1, 0, 0, 0}},
      {"gather", {{f, {9, 20}}, {i, {}}, {i, {}}}, f, {4, 6}, {2, 0, 1, 2, 0, 1, 2, 4, 6, 0, 0, 0, 0}},
      {"scatter", {{f, {9, 20}}, {f, {5, 3, 20}}, {i, {5, 3}}}, f, {9, 20}, {1, 2, -1, 2, 2, 0, -1, 2, 0, 0, 2, 0, 1, 1, 0}},
      {"scatter", {{u8, {5, 20}}, {u8, {5, 3}}, {i, {5, 3}}}, u8, {5, 20}, {0, 2, 0, -1, 2, -1, 0, 2, 0, 0, 2, 0, 1, 0, 0}},
      {"scatter", {{f, {9, 20}}, {f, {4, 6}}, {i, {}}}, f, {9, 20}, {0, 2, 0, 1, 2, -1, 0, 2, 5, 0, 0, 0, 0}},
      {"cumulative", {{f, {3, 4, 21}}}, f, {3, 4, 21}, {0, 1, 1, 0}},
      {"cumulative", {{i, {5, 9}}}, i, {5, 9}, {1, 1, 0, 0}},
      {"sort", {{f, {3, 300}}}, f, {3, 300}, {1, 300, 0, 0, 0, 0}},
      {"sort", {{f, {3, 400}}, {u8, {3, 400}}}, i, {3, 20}, {1, 20, 1, 1, 1, 0}},
      {"arg_reduce", {{f, {3, 300}}}, i, {3}, {1, 1, 0}},
      {"arg_reduce", {{u8, {7, 30}}}, i, {30}, {2, 0, 0}},
      {"block", {{f, {4, 37}}, {f, {37}}}, f, {4, 37}, exp_chain},
      {"block", {{b, {3, 20}}, {i, {20}}, {i, {3, 20}}}, i, {3, 20}, select},
      {"block", {{f, {}}, {f, {}}}, f, {}, add_relu},
      {"block", {{f, {4, 37}}, {f, {37}}}, f, {4, 37}, with(exp_chain, {4, 0, 2}), {bf, f, f}},
      {"block", {{b, {3, 20}}, {i, {20}}, {i, {3, 20}}}, i, {3, 20}, with(select, {3, 0}), {u8, b}},
      {"rows", {{f, {5, 40}}}, f, {5, 40}, with({1, 1}, with(stored_softmax, {0})), {bf}},
      // Column sums of a product of 12 rows, by 3; maxima of its rows, by 20.
      {"partial_reduce",
       {{f, {12, 7}}, {f, {7, 9}}, {f, {9}}},
       f,
       {12, 9},
       with({6, 'm', 'a', 't', 'm', 'u', 'l', 0, 1, 0, 2, 3, 1, 2, 0, -1, 2, -1, 1}, add_relu),
       {f},
       {3, 1}},
      {"partial_reduce",
       {{f, {5, 7}}, {f, {7, 40}}},
       bf,
       {5, 40},
       {6, 'm', 'a', 't', 'm', 'u', 'l', 1, 1, 1, 2, 1, 20, 2, 0, -1, 2, -1, 1, 0},
       {f},
       {1, 20}},
  };
  std::vector<Bytes> result;
  for (const OneOp& op : ops) result.push_back(encode_one(op));
  for (int i = 0; i < 5; ++i) result.push_back(encode_chain());  // which is chosen as often as five ops
  return result;
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) {
  aspen::KernelRegistry registry;
  registry.add(aspen::cpu::kernels(aspen::cpu::chosen_target()));
  return aspen::testing::fuzz_main(argc, argv, aspen::testing::seeds(), registry, /*fills_outputs=*/true);
}
