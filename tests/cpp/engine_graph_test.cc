// The reader of graph files: what it reads is what was written, and whatever is wrong is named.
#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <string>

#include "aspen_jax/engine/graph.h"
#include "aspen_jax/engine/plan.h"
#include "aspen_jax/engine/utf8.h"
#include "aspen_jax/engine/wire.h"
#include "dag.h"
#include "engine_check.h"
#include "graph_builder.h"

namespace aspen::testing {
namespace {

// x [4, 6] f32 -> "flip" reads it transposed and reversed into t [6, 4] in the workspace, in tiles of different sizes
//              -> "sum" reads t and a broadcast row of b [4] into the result [24, 1].
GraphBuilder small_graph() {
  GraphBuilder builder;
  const int64_t x = builder.operand(DType::kF32, {4, 6}), b = builder.operand(DType::kF32, {4});
  const int64_t y = builder.result(DType::kF32, {24, 1});
  builder.workspace(DType::kI8, {7});
  const int64_t t = builder.workspace(DType::kF32, {6, 4});
  builder.op("flip", "copy", {{x, {4, 6}, {3, 0}, {{1, 1, 6}, {0, -1, 4}}}}, t, {1, -2, 3}, 0);
  builder.op("sum", "add", {{t, {24}, {0}, {{0, 1, 24}, {-1, 0, 1}}}, {b, {2, 2}, {1, 0}, {{-1, 0, 24}, {1, 1, 1}}}}, y, {}, 1);
  builder.tile(0, {0, 0}, {2, 4}, 100);
  builder.tile(0, {2, 0}, {6, 1}, 200);
  builder.tile(1, {0, 0}, {8, 1}, 300);
  builder.tile(0, {2, 1}, {6, 4}, 400);
  builder.tile(1, {8, 0}, {24, 1}, 500);
  builder.edge(0, 2);
  for (const int64_t parent : {1, 3}) builder.edge(parent, 4);
  return builder;
}

TEST(a_graph_is_read_as_it_was_written) {
  const Graph graph = parse_graph(small_graph().encode());
  CHECK_EQ(graph.kernel_names.size(), 2u);
  CHECK_EQ(graph.kernel_names[1], "add");
  CHECK_EQ(graph.op_names[0], "flip");
  CHECK_EQ(graph.max_depth, 1);
  CHECK_EQ(graph.workspace_bytes, 64 + 128);
  CHECK_EQ(graph.workspace(), 3);
  CHECK_EQ(graph.values[graph.operands[1]].bytes, 16);
  CHECK_EQ(graph.values[graph.results[0]].dense.shape[0], 24);
  const Value& t = graph.values[graph.ops[0].output];
  CHECK_EQ(t.buffer, 3);
  CHECK_EQ(t.offset, 64);
  CHECK_EQ(t.bytes, 96);
  CHECK_EQ(t.dense.strides[0], 4);
  const Input& flipped = graph.inputs_of(graph.ops[0])[0];
  CHECK_EQ(flipped.offset, 18 * 4);
  CHECK_EQ(flipped.view.rank, 2);
  CHECK_EQ(flipped.view.shape[0], 6);
  CHECK_EQ(flipped.view.strides[0], 1);
  CHECK_EQ(flipped.view.strides[1], -6);
  const auto of_sum = graph.inputs_of(graph.ops[1]);
  CHECK_EQ(of_sum.size(), 2u);
  CHECK_EQ(of_sum[0].offset, 64);
  CHECK_EQ(of_sum[1].offset, 2 * 4);
  CHECK_EQ(of_sum[1].view.strides[0], 0);
  CHECK_EQ(of_sum[1].view.shape[0], 24);
  CHECK_EQ(graph.params_of(graph.ops[0]).size(), 3u);
  CHECK_EQ(graph.params_of(graph.ops[0])[1], -2);
  CHECK_EQ(graph.num_tiles(), 5u);
  CHECK_EQ(graph.box_of(3)[1], 1);
  CHECK_EQ(graph.box_of(3)[2], 6);
  CHECK_EQ(graph.children_of(1)[0], 4);
  CHECK_EQ(graph.parents[4], 2u);
  CHECK_EQ(graph.costs[4], 500);
}

TEST(the_checksum_is_that_of_zlib) {
  const char text[] = "123456789";
  CHECK_EQ(crc32(std::as_bytes(std::span(text, 9))), 0xCBF43926u);
  std::mt19937 random(1);
  for (size_t size = 0; size < 50; ++size) {
    std::vector<std::byte> bytes(size);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    CHECK_EQ(crc32(bytes), GraphBuilder::checksum(bytes));
  }
}

TEST(every_lag_and_the_widest_numbers_are_read) {
  auto builder = small_graph();
  builder.ops[0].params = {INT64_MAX, INT64_MIN, 0, -1, INT64_MIN, INT64_MAX};
  for (int64_t lag = 0; lag < 9; ++lag) {
    auto arrays = builder.arrays();
    for (auto& each : arrays.lag) each = lag;
    const Graph graph = parse_graph(GraphBuilder::encode(arrays));
    CHECK(graph.params == builder.ops[0].params);
  }
}

TEST(fields_of_version_2_are_left_out_or_refused) {
  const auto arrays = small_graph().arrays();
  const std::string names("note\0place\0", 11);
  const auto payload = GraphBuilder::payload_with_fields(arrays, names, {{1, 2, 3}, {}});
  CHECK(parse_graph(GraphBuilder::seal(payload, 2)).num_tiles() == parse_graph(small_graph().encode()).num_tiles());
  CHECK(parse_graph(GraphBuilder::with_fields(arrays, "", {})).num_tiles() > 0);
  CHECK_THROWS(parse_graph(GraphBuilder::seal(payload, 1)), "bytes too many");
  for (size_t size = GraphBuilder::payload_of(arrays).size(); size < payload.size(); ++size) {
    const std::vector<std::byte> shorter(payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK_THROWS(parse_graph(GraphBuilder::seal(shorter, 2)), "field");
  }
  CHECK_EQ(parse_graph(GraphBuilder::with_fields(arrays, std::string("run_key\0", 8), {{-7}})).run_key, -7);
  CHECK_EQ(parse_graph(GraphBuilder::with_fields(arrays, "", {})).run_key, 0);
  CHECK_THROWS(parse_graph(GraphBuilder::with_fields(arrays, std::string("run_key\0", 8), {{1, 2}})), "run_key");
  CHECK_THROWS(parse_graph(GraphBuilder::with_fields(arrays, std::string("run_key\0", 8), {{kMostRunKey + 1}})), "run_key");
  CHECK_THROWS(parse_graph(GraphBuilder::with_fields(arrays, std::string("a", 1), {{}})), "has no end");
  CHECK_THROWS(parse_graph(GraphBuilder::with_fields(arrays, std::string("\0", 1), {{}})), "is empty");
  CHECK_THROWS(parse_graph(GraphBuilder::with_fields(arrays, std::string("a\0b\0a\0", 6), {{}, {}, {}})), "two fields");
  CHECK_THROWS(parse_graph(GraphBuilder::with_fields(arrays, "\xff", {{}})), "no UTF-8");
  CHECK_THROWS(parse_graph(GraphBuilder::with_fields(arrays, std::string("!nested\0", 8), {{}})), "needs its field '!nested'");
  CHECK_THROWS(parse_graph(GraphBuilder::with_fields(arrays, std::string("a\0", 2), {{}, {}})), "bytes too many");
}

TEST(names_of_inputs_and_results_are_kept) {
  const auto arrays = small_graph().arrays();
  const auto words = [](const std::string& text) { return Words(text.begin(), text.end()); };
  const std::string both("input_names\0result_names\0", 25);
  const Graph graph =
      parse_graph(GraphBuilder::with_fields(arrays, both, {words(std::string("x\0", 2)), words(std::string("y\0", 2))}));
  CHECK(graph.input_names == std::vector<std::string>{"x"} && graph.result_names == std::vector<std::string>{"y"});
  const auto with_inputs = [&](const std::string& text) {
    return GraphBuilder::with_fields(arrays, std::string("input_names\0", 12), {words(text)});
  };
  CHECK_THROWS(parse_graph(with_inputs("x")), "has no end");
  CHECK_THROWS(parse_graph(with_inputs(std::string("\0", 1))), "is empty");
  CHECK_THROWS(parse_graph(with_inputs(std::string("a\0b\0c\0d\0e\0f\0g\0h\0i\0", 18))), "are 9 for");
  CHECK_THROWS(parse_graph(GraphBuilder::with_fields(arrays, std::string("input_names\0", 12), {{300}})), "names");
}

TEST(an_envelope_that_is_wrong_is_refused) {
  const auto good = small_graph().encode();
  for (size_t size = 0; size < good.size(); ++size) {
    CHECK_THROWS(parse_graph(std::span(good).first(size)), "cut short");
  }
  auto bytes = good;
  bytes.push_back(std::byte{0});
  CHECK_THROWS(parse_graph(bytes), "extended");
  bytes = good;
  bytes[3] = std::byte{'X'};
  CHECK_THROWS(parse_graph(bytes), "ASPENTG");
  bytes = good;
  bytes[8] = std::byte{3};
  CHECK_THROWS(parse_graph(bytes), "format version 3, this engine reads versions 1 to 2");
  for (size_t i = 24; i < good.size(); ++i) {
    bytes = good;
    bytes[i] ^= std::byte{16};
    CHECK_THROWS(parse_graph(bytes), "checksum");
  }
}

TEST(a_payload_that_is_cut_or_extended_is_refused) {
  const auto good = small_graph().encode();
  const std::vector<std::byte> payload(good.begin() + 24, good.end());
  for (size_t size = 0; size < payload.size(); ++size) {
    CHECK_THROWS(parse_graph(GraphBuilder::seal({payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(size)})),
                 "tile graph");
  }
  auto longer = payload;
  longer.push_back(std::byte{0});
  CHECK_THROWS(parse_graph(GraphBuilder::seal(longer)), "1 bytes too many");
}

TEST(huge_counts_are_refused_before_memory_is_asked_for) {
  // A count of 2^62 strings, then nothing.
  std::vector<std::byte> payload(8, std::byte{0x80});
  payload.push_back(std::byte{0x40});
  payload.push_back(std::byte{0});
  CHECK_THROWS(parse_graph(GraphBuilder::seal(payload)), "announces 4611686018427387904 strings and has 0 bytes left");
  payload.assign(9, std::byte{0xFF});
  payload.push_back(std::byte{2});
  CHECK_THROWS(parse_graph(GraphBuilder::seal(payload)), "more than 64 bits");
  for (size_t i = 0; i < 8; ++i) {
    for (const int64_t count : {int64_t{-1}, int64_t{1} << 20, int64_t{INT32_MAX}, int64_t{1} << 40, INT64_MAX}) {
      if (i >= 6 && count >= 0) continue;  // workspace bytes and depth may be large
      auto arrays = small_graph().arrays();
      arrays.array[1][i] = count;
      CHECK_THROWS(parse_graph(GraphBuilder::encode(arrays)), "");
    }
  }
}

// Changes the graph, or its arrays, so that one rule is broken, and expects to hear which.
void refuse(const std::function<void(GraphBuilder&)>& change, const std::string& message) {
  auto builder = small_graph();
  change(builder);
  CHECK_THROWS(parse_graph(builder.encode()), message);
}

void refuse_arrays(const std::function<void(Words*)>& change, const std::string& message) {
  auto arrays = small_graph().arrays();
  change(arrays.array);
  CHECK_THROWS(parse_graph(GraphBuilder::encode(arrays)), message);
}

TEST(names_that_are_wrong_are_refused) {
  refuse_arrays([](Words* a) { a[0].pop_back(); }, "last name of the tile graph has no end");
  refuse_arrays([](Words* a) { a[0].push_back(0); }, "5 names where 4 are needed");
  refuse_arrays([](Words* a) { a[0][0] = 256; }, "strings of the tile graph: number 0 is 256, outside [0, 255]");
  refuse_arrays([](Words* a) { a[0][0] = 0xFF; }, "no UTF-8 text");
  refuse_arrays([](Words* a) { a[0].back() = 0xC3; }, "no UTF-8 text");
  refuse_arrays([](Words* a) { a[1].pop_back(); }, "7 counts where 8 are needed");
}

// A number written as UTF-8 of `length` bytes, whether or not it should be.
std::vector<uint8_t> character(uint32_t number, int length) {
  if (length == 1) return {static_cast<uint8_t>(number)};
  std::vector<uint8_t> bytes{static_cast<uint8_t>(0xF00u >> length | number >> 6 * (length - 1))};
  for (int k = length - 2; k >= 0; --k) bytes.push_back(static_cast<uint8_t>(0x80 | (number >> 6 * k & 0x3F)));
  return bytes;
}

TEST(text_is_utf8_where_each_character_is_written_as_short_as_can_be) {
  constexpr uint32_t kFirst[] = {0, 0, 0x80, 0x800, 0x10000, 0x110000};  // that needs so many bytes
  for (int length = 1; length <= 4; ++length) {
    const uint32_t end = length == 1 ? 0x80 : uint32_t{1} << (5 * length + 1);
    for (uint32_t number = 0; number < end; ++number) {
      const bool surrogate = number >= 0xD800 && number < 0xE000;
      const bool expected = number >= kFirst[length] && number < kFirst[length + 1] && !surrogate;
      auto bytes = character(number, length);
      CHECK(is_utf8(bytes) == expected);
      if (number % 61 != 0 || length == 1) continue;
      CHECK(!is_utf8(std::span(bytes).first(bytes.size() - 1)));
      CHECK(!is_utf8(std::span(bytes).last(bytes.size() - 1)));
      for (const uint8_t beside : {0x41, 0x80, 0xC3, 0xFF}) {
        auto longer = bytes;
        longer.push_back(beside);
        CHECK(is_utf8(longer) == (expected && beside == 0x41));
        longer = bytes;
        longer.back() = beside;
        CHECK(!is_utf8(longer) || (expected && beside == 0x80));
      }
    }
  }
  for (const uint8_t byte : {0x80, 0xBF, 0xC0, 0xC1, 0xF5, 0xF8, 0xFE, 0xFF}) CHECK(!is_utf8(std::span(&byte, 1)));
  CHECK(is_utf8({}));
}

TEST(values_that_are_wrong_are_refused) {
  refuse([](auto& g) { g.values[4].buffer = 4; }, "value 4: its buffer is 4, outside [0, 3]");
  refuse([](auto& g) { g.values[4].offset = 32; }, "value 4: its offset 32 is no multiple of 64");
  refuse([](auto& g) { g.values[4].offset = 128; }, "value 4: its 96 bytes at 128 do not fit the workspace of 192 bytes");
  refuse([](auto& g) { g.values[4].offset = INT64_MAX - 63; }, "do not fit the workspace");
  refuse([](auto& g) { g.workspace_bytes += 64; }, "a workspace of 256 bytes, of which its ops write the first 160");
  refuse([](auto& g) { g.workspace_bytes = int64_t{3} << 30; }, "a workspace of 3221225472 bytes");
  refuse([](auto& g) { g.values[4].offset = -64; }, "value 4: its offset is -64");
  refuse([](auto& g) { g.values[4].dtype = static_cast<DType>(13); }, "value 4: its dtype is 13");
  refuse([](auto& g) { g.values[0].shape = Words(9, 1); }, "value 0: its rank is 9, outside [0, 8]");
  refuse([](auto& g) { g.values[0].shape = {1, -1}; }, "value shapes of the tile graph: number 1 is -1");
  refuse([](auto& g) { g.values[0].shape = {int64_t{1} << 40, int64_t{1} << 40}; }, "value 0 has more elements than fit 64 bits");
  refuse([](auto& g) { g.values[0].shape = {0, int64_t{1} << 40, int64_t{1} << 40}; },
         "value 0 has more elements than fit 64 bits");
  refuse([](auto& g) { g.values[0].shape = {int64_t{1} << 62}; }, "value 0 has more elements than fit 64 bits");
  refuse_arrays([](Words* a) { a[3].push_back(1); }, "value shapes of the tile graph hold 1 numbers too many");
  refuse_arrays([](Words* a) { a[3].pop_back(); }, "value 4: the tile graph ends before its dimension");
}

TEST(buffers_of_the_call_that_do_not_fit_are_refused) {
  refuse([](auto& g) { g.operands[0] = 5; }, "operands of the call of the tile graph: number 0 is 5, outside [0, 4]");
  refuse([](auto& g) { std::swap(g.operands[0], g.operands[1]); }, "stands for buffer 0 of the call but lies in buffer 1");
  refuse([](auto& g) { g.results[0] = 4; }, "value 4 stands for buffer 2 of the call but lies in buffer 3");
  refuse([](auto& g) { g.values[0].offset = 4; }, "does not fill buffer 0 of the call: 96 bytes at 4 of 96");
  refuse([](auto& g) { g.values[3] = {2, 0, DType::kF32, {23}}; },
         "value 3 does not fill buffer 2 of the call: 92 bytes at 0 of 96");
}

TEST(values_lie_inside_an_operand_or_are_refused) {
  const auto part = [](int64_t offset, DType dtype, Words shape) {
    return [=](auto& g) { g.values.push_back({0, offset, dtype, shape}); };
  };
  refuse(part(4, DType::kF32, {8}), "value 5: its offset 4 is no multiple of 64");
  refuse(part(64, DType::kF32, {9}), "value 5: its 36 bytes at 64 do not fit operand 0 of 96 bytes");
  refuse(part(int64_t{1} << 62, DType::kF32, {1}), "do not fit operand 0");
  refuse(part(64, DType::kI32, {8}), "value 5 has another dtype than buffer 0 of the call, in which it lies");
  GraphBuilder g = small_graph();
  part(64, DType::kF32, {8})(g);
  CHECK_EQ(parse_graph(g.encode()).values[5].offset, 64);
}

// x [4] -> "first" writes u, "second" reads that and writes v; both lie where x does, and v is the result.
GraphBuilder rewriting_graph() {
  GraphBuilder g;
  const int64_t x = g.operand(DType::kF32, {4}), y = g.operand(DType::kF32, {4});
  const int64_t u = g.result(DType::kF32, {4});
  g.values[u].buffer = 0;
  g.results.clear();
  const int64_t v = g.result(DType::kF32, {2, 2});
  g.values[v].buffer = 0;
  g.op("first", "add", {g.whole(x), g.whole(y)}, u);
  g.op("second", "copy", {{u, {2, 2}, {0, 0}, {{0, 1, 2}, {1, 1, 2}}}}, v, {}, 1);
  g.edge(g.tile(0, {0}, {4}), g.tile(1, {0, 0}, {2, 2}));
  return g;
}

TEST(a_result_that_lies_in_an_operand_has_the_memory_of_the_result) {
  const Graph graph = parse_graph(rewriting_graph().encode());
  CHECK_EQ(graph.values[graph.operands[0]].buffer, 0);
  CHECK_EQ(graph.values[graph.results[0]].buffer, 2);
  for (const Op& op : graph.ops) CHECK_EQ(graph.values[op.output].buffer, 2);
}

TEST(results_that_lie_wrongly_in_operands_are_refused) {
  const auto refuse_rewriting = [](const std::function<void(GraphBuilder&)>& change, const std::string& message) {
    GraphBuilder builder = rewriting_graph();
    change(builder);
    CHECK_THROWS(parse_graph(builder.encode()), message);
  };
  refuse_rewriting([](auto& g) { g.results[0] = 0; }, "value 0, a result of the call, is operand 0 itself");
  refuse_rewriting([](auto& g) { g.results.push_back(2); }, "or lies there beside another result");
  refuse_rewriting([](auto& g) { g.values[2].buffer = 1; }, "op 'first' writes operand 1 of the call");
  refuse_rewriting([](auto& g) { g.ops[1].output = 0; }, "op 'second' writes operand 0 of the call");
  refuse_rewriting(
      [](auto& g) {
        g.values[3].shape = {1, 2};
        g.ops[1].inputs[0].dims[0].extent = 1;
      },
      "does not fill buffer 0");
  refuse_rewriting([](auto& g) { g.values[2].dtype = DType::kI32; }, "value 2 has another dtype than buffer 0");
  refuse_rewriting([](auto& g) { g.ops[1].inputs[0].value = 1; }, "op 'second' and op 'first' write the same value");
}

TEST(ops_that_are_wrong_are_refused) {
  refuse([](auto& g) { g.ops[1].kernel = 2; }, "op 'sum': its kernel is 2, outside [0, 1]");
  refuse([](auto& g) { g.ops[1].output = -1; }, "op 'sum': its output is -1");
  refuse([](auto& g) { g.ops[1].depth = 2; }, "op 'sum': its depth is 2, outside [0, 1]");
  refuse([](auto& g) { g.ops[0].output = 1; }, "op 'flip' writes operand 1 of the call");
  refuse([](auto& g) { g.ops[0].output = 2; }, "op 'sum' and op 'flip' write the same value");
  refuse(
      [](auto& g) {
        g.values.push_back({2, 0, g.values[2].dtype, {24}});
        g.ops[0].output = 5;
      },
      "op 'sum' and op 'flip' write the same value");
  refuse([](auto& g) { g.ops[1].output = 3; }, "no op writes result 0 of the call");
  refuse([](auto& g) { g.ops[1].inputs[0] = g.whole(3); }, "op 'sum' reads value 3, which no op writes");
  refuse([](auto& g) { g.ops[0].inputs[0] = g.whole(4); }, "op 'flip' reads its own output");
  refuse_arrays([](Words* a) { a[6][2] = INT32_MAX; }, "op 'sum': the ops have too many inputs");
  refuse_arrays([](Words* a) { a[6][2] = 3; }, "op 'flip' reads its own output");
  refuse_arrays([](Words* a) { a[6][2] = 0; }, "inputs of the tile graph hold");
  refuse_arrays([](Words* a) { a[6][7] = 1; }, "inputs of the tile graph hold");
  refuse_arrays([](Words* a) { a[6][3] = 2; }, "3 parameter words where 2 are needed");
  refuse_arrays([](Words* a) { a[6][3] = -1; }, "op 'flip': its number of parameter words is -1");
}

TEST(views_that_leave_their_value_are_refused) {
  const auto view = [](const std::function<void(InputSpec&)>& change, const std::string& message) {
    refuse([&](auto& g) { change(g.ops[0].inputs[0]); }, "input 0 of op 'flip'" + message);
  };
  view([](auto& v) { v.value = 5; }, ": its value is 5, outside [0, 4]");
  view([](auto& v) { v.base = {4, 5}; }, ": R has 20 elements, its value has 24");
  view([](auto& v) { v.base = {int64_t{1} << 32, int64_t{1} << 32}; }, " has more elements than fit 64 bits");
  view([](auto& v) { v.base = {-4, -6}; }, ": its dimension of R is -4");
  view([](auto& v) { v.starts = {4, 0}; }, ": start 4 lies outside R");
  view([](auto& v) { v.starts = {-1, 0}; }, ": its start is -1");
  view([](auto& v) { v.starts = {2, 0}; }, ": dimension 1 walks out of R");
  view([](auto& v) { v.dims[0].step = 2; }, ": dimension 0 walks out of R");
  view([](auto& v) { v.dims[0].step = INT64_MAX; }, ": dimension 0 walks out of R");
  view([](auto& v) { v.dims[0].step = -INT64_MAX; }, ": dimension 0 walks out of R");
  view([](auto& v) { v.dims[0].step = INT64_MIN; }, ": its step is");
  view([](auto& v) { v.dims[0].extent = 7; }, ": dimension 0 walks out of R");
  view([](auto& v) { v.dims[0].extent = INT64_MAX; }, ": dimension 0 walks out of R");
  view([](auto& v) { v.dims[0].extent = -1; }, ": its extent is -1");
  view([](auto& v) { v.dims[0].source = 0; }, ": two of its dimensions walk dimension 0 of R");
  view([](auto& v) { v.dims[0].source = 2; }, ": its source is 2, outside [-1, 1]");
  view([](auto& v) { v.dims[0].source = -2; }, ": its source is -2, outside [-1, 1]");
  view([](auto& v) { v.dims[0].source = -1; }, ": a broadcast dimension has step 1");
  view([](auto& v) { v.dims.resize(9, {-1, 0, 1}); }, ": its rank is 9");
}

TEST(views_that_read_nothing_are_accepted) {
  GraphBuilder g;
  const int64_t empty = g.operand(DType::kF32, {0, 5}), full = g.operand(DType::kF32, {3, 5});
  const int64_t y = g.result(DType::kF32, {2, 0}), z = g.result(DType::kF32, {});
  g.op("a", "copy", {g.whole(empty), {empty, {0}, {0}, {{-1, 0, 0}, {-1, 0, 4}}}, {full, {15}, {15}, {{0, 1, 0}}}}, y);
  g.op("b", "copy", {{full, {3, 5}, {1, 2}, {{0, 99, 1}}}}, z);
  g.tile(1, {}, {});
  const Graph graph = parse_graph(g.encode());
  CHECK_EQ(graph.inputs[0].view.shape[1], 5);
  CHECK_EQ(graph.inputs[3].offset, 7 * 4);
  CHECK_EQ(graph.inputs[3].view.strides[0], 0);
}

TEST(tiles_that_do_not_cover_their_output_once_are_refused) {
  const auto box = [](size_t tile, const Words& box, const std::string& message) {
    refuse([&](auto& g) { std::copy(box.begin(), box.end(), g.boxes.begin() + static_cast<std::ptrdiff_t>(4 * tile)); }, message);
  };
  box(0, {0, 0, 2, 5}, "tile 0 of op 'flip' covers [0, 5) of dimension 1, which has 4 elements");
  box(0, {0, 0, 0, 4}, "tile 0 of op 'flip' covers [0, 0) of dimension 0");
  box(0, {1, 0, 0, 4}, "tile 0 of op 'flip' covers [1, 0) of dimension 0");
  box(0, {-1, 0, 2, 4}, "tile boxes of the tile graph: number 0 is -1");
  box(0, {0, 0, 3, 4}, "of op 'flip' writes elements that another tile writes too");
  box(0, {0, 0, 1, 4}, "the tiles of op 'flip' leave elements of its output unwritten");
  box(3, {2, 1, 6, 3}, "the tiles of op 'flip' leave elements of its output unwritten");
  box(3, {3, 1, 6, 4}, "the tiles of op 'flip' leave elements of its output unwritten");
  // As many elements as needed, but one twice and one never; and a tile inside another that ends where it ends.
  box(2, {0, 0, 9, 1}, "tile 4 of op 'sum' writes elements that another tile writes too");
  box(4, {7, 0, 23, 1}, "tile 4 of op 'sum' writes elements that another tile writes too");
  box(4, {0, 0, 24, 1}, "tile 4 of op 'sum' writes elements that another tile writes too");
  box(2, {12, 0, 24, 1}, "tile 4 of op 'sum' writes elements that another tile writes too");
  refuse_arrays([](Words* a) { a[9][2] = 2; }, "tile ops of the tile graph: number 2 is 2, outside [0, 1]");
  refuse_arrays([](Words* a) { a[10].pop_back(); }, "ends before the box of tile 4");
  refuse_arrays([](Words* a) { a[10].push_back(1); }, "tile boxes hold more numbers than the tiles need");
  // An op without any tile.
  refuse([](auto& g) { g.op("idle", "copy", {g.whole(0)}, 3); }, "op 'idle' has no tiles");
  // An empty output needs none and may have none.
  refuse(
      [](auto& g) {
        g.values[3].shape = {0, 4};
        g.tile(g.op("empty", "copy", {g.whole(0)}, 3), {0, 0}, {0, 4});
      },
      "tile 5 of op 'empty' covers [0, 0) of dimension 0");
  // A scalar: two tiles of rank 0 are one too many.
  refuse(
      [](auto& g) {
        g.values[3].shape = {};
        const int64_t op = g.op("scalar", "copy", {g.whole(0)}, 3);
        g.tile(op, {}, {});
        g.tile(op, {}, {});
      },
      "tile 6 of op 'scalar' writes elements that another tile writes too");
}

TEST(random_tilings_are_accepted_and_random_damage_to_them_is_not) {
  std::mt19937_64 random(7);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int round = 0; round < 300; ++round) {
    GraphBuilder g;
    Words shape;
    for (int64_t rank = 1 + below(4); rank > 0; --rank) shape.push_back(1 + below(9));
    const int64_t in = g.operand(DType::kF32, {1});
    const int64_t op = g.op("op", "copy", {g.whole(in)}, g.result(DType::kF32, shape));
    // Boxes split at random places, without any grid.
    std::vector<std::pair<Words, Words>> boxes = {{Words(shape.size()), shape}};
    for (int64_t splits = below(8); splits > 0; --splits) {
      auto& [lo, hi] = boxes[random() % boxes.size()];
      const size_t d = random() % shape.size();
      if (hi[d] - lo[d] < 2) continue;
      const int64_t cut = lo[d] + 1 + below(hi[d] - lo[d] - 1);
      auto upper = std::pair(lo, hi);
      upper.first[d] = cut;
      hi[d] = cut;
      boxes.push_back(upper);
    }
    std::shuffle(boxes.begin(), boxes.end(), random);
    for (const auto& [lo, hi] : boxes) g.tile(op, lo, hi);
    parse_graph(g.encode());
    // Move one border of one box: elements are now written twice or not at all, or the box is empty or outside.
    auto& border = g.boxes[random() % g.boxes.size()];
    border += random() % 2 == 0 ? 1 : -1;
    CHECK_THROWS(parse_graph(g.encode()), "");
  }
}

TEST(tilings_that_would_take_too_long_to_check_are_refused) {
  // A staircase of n tiles along a diagonal cuts the plane into n^2 cells.
  GraphBuilder g;
  const int64_t n = 2000;
  const int64_t in = g.operand(DType::kF32, {1});
  const int64_t op = g.op("op", "copy", {g.whole(in)}, g.result(DType::kI8, {n, n}));
  for (int64_t i = 0; i < n; ++i) g.tile(op, {i, i}, {i + 1, i + 1});
  CHECK_THROWS(parse_graph(g.encode()), "too irregular");
}

TEST(edges_that_are_wrong_are_refused) {
  refuse([](auto& g) { g.children[0][0] = 5; }, "children of the tile graph: number 0 is 5, outside [0, 4]");
  refuse([](auto& g) { g.children[0][0] = -1; }, "children of the tile graph: number 0 is -1");
  refuse([](auto& g) { g.edge(4, 4); }, "tile 4 of op 'sum' waits for itself");
  refuse(
      [](auto& g) {
        g.edge(2, 1);
        g.edge(4, 0);
        g.edge(2, 3);
      },
      "the tile graph has a cycle");
  refuse_arrays([](Words* a) { ++a[11][0]; }, "child counts do not add up to the 3 children");
  refuse_arrays([](Words* a) { --a[11][0]; }, "child counts do not add up to the 3 children");
  refuse_arrays([](Words* a) { a[11] = {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, 7}; }, "child counts do not add up");
  refuse_arrays([](Words* a) { a[11].pop_back(); }, "4 child counts where 5 are needed");
  refuse_arrays([](Words* a) { a[13][0] = -1; }, "costs of the tile graph: number 0 is -1");
  refuse_arrays([](Words* a) { a[13].pop_back(); }, "4 costs where 5 are needed");
}

PreparedOp accept(const OpSpec&) {
  return {nullptr, [](const TileArgs&) noexcept -> const char* { return nullptr; }, 0};
}

TEST(a_plan_resolves_kernels_and_names_the_op_that_is_refused) {
  const auto bytes = small_graph().encode();
  static constexpr Kernel kCopy[] = {{"copy", accept}}, kAdd[] = {{"add", accept}};
  static constexpr Kernel kPicky[] = {{"add", [](const OpSpec& spec) -> PreparedOp {
                                         throw GraphError("rank " + std::to_string(spec.inputs[0].rank) + " is not nice");
                                       }}};
  static constexpr Kernel kNothing[] = {{"add", [](const OpSpec&) { return PreparedOp{}; }}};
  KernelRegistry registry;
  CHECK_THROWS(Plan(parse_graph(bytes), registry), "no kernel named 'copy'");
  registry.add(kCopy);
  CHECK_THROWS(Plan(parse_graph(bytes), registry), "no kernel named 'add'");
  CHECK_THROWS(registry.add(kCopy), "there is a kernel named 'copy' already");
  auto picky = registry, nothing = registry;
  picky.add(kPicky);
  CHECK_THROWS(Plan(parse_graph(bytes), picky), "op 'sum' (add): rank 2 is not nice");
  nothing.add(kNothing);
  CHECK_THROWS(Plan(parse_graph(bytes), nothing), "op 'sum' (add): its kernel prepared nothing to run");
  registry.add(kAdd);
  const Plan plan(parse_graph(bytes), registry);
  CHECK_EQ(plan.num_operands(), 2u);
  CHECK_EQ(plan.num_results(), 1u);
  CHECK_EQ(plan.operand(0).bytes, 96);
  CHECK_EQ(plan.total_cost(), 1500);
  CHECK_EQ(plan.describe_tile(3), "tile 3 [2:6, 1:4] of op 'flip'");
  auto expensive = small_graph();
  for (auto& cost : expensive.costs) cost = INT64_MAX / 2;
  CHECK_EQ(Plan(parse_graph(expensive.encode()), registry).total_cost(), INT64_MAX);
}

TEST(a_large_graph_is_read_quickly) {
  const auto bytes = encode_dag(stencil_dag(400, 250), "recorded", 1000);
  const auto begin = std::chrono::steady_clock::now();
  const Graph graph = parse_graph(bytes);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  CHECK_EQ(graph.num_tiles(), 100000u);
  std::printf("  %zu tiles, %zu edges, %zu bytes in %.1f ms\n", graph.num_tiles(), graph.children.size(), bytes.size(),
              1e3 * seconds.count());
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
