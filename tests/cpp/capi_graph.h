// Files for tests of the C library: a graph with names and a constant, and safetensors files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "engine_check.h"
#include "graph_builder.h"

namespace aspen::testing {

using Bytes = std::vector<std::byte>;

constexpr int64_t kRows = 4, kColumns = 6;
constexpr size_t kElements = kRows * kColumns;

// y = relu(x + w + c), where c is a constant, and z, which is not w, a bool. Tiles of `cost` nanoseconds.
inline GraphBuilder sum_graph(int64_t cost) {
  const Words add = {1, 2, 0, 5, 1, 2, 0, 1, 0, 2}, add_relu = {1, 2, 0, 10, 1, 2, 0, 1, 0, 40, 3, 2, 0, 0, 3};
  GraphBuilder g;
  const Words shape = {kRows, kColumns};
  const int64_t x = g.operand(DType::kF32, shape), w = g.operand(DType::kF32, shape), flag = g.operand(DType::kBool, {3});
  const int64_t c = g.operand(DType::kF32, shape);
  const int64_t y = g.result(DType::kF32, shape), z = g.result(DType::kBool, {3});
  const int64_t t = g.workspace(DType::kF32, shape);
  g.op("x + w", "block", {g.whole(x), g.whole(w)}, t, add, 0);
  g.op("+ c", "block", {g.whole(t), g.whole(c)}, y, add_relu, 1);
  g.op("copy", "block", {g.whole(flag)}, z, {1, 1, 0, 0, 0}, 0);
  for (const int64_t op : {0, 1}) {
    for (int64_t row = 0; row < kRows; row += 2) g.tile(op, {row, 0}, {row + 2, kColumns}, cost);
  }
  g.tile(2, {0}, {3}, cost);
  g.edge(0, 2);
  g.edge(1, 3);
  return g;
}

inline Words words_of(const std::string& text) {
  Words words;
  for (const char c : text) words.push_back(static_cast<unsigned char>(c));
  return words;
}

inline void append(Bytes& bytes, const void* data, size_t size) {
  const auto* const begin = static_cast<const std::byte*>(data);
  bytes.insert(bytes.end(), begin, begin + size);
}

inline void append_number(Bytes& bytes, uint64_t number, int size) {
  for (int i = 0; i < size; ++i) bytes.push_back(static_cast<std::byte>(number >> (8 * i)));
}

// A graph's bytes, then the arrays of its last operands (docs/graph_format.md, "Files").
inline Bytes with_constants(Bytes file, const std::vector<Bytes>& constants) {
  Bytes arrays;
  for (const Bytes& constant : constants) {
    while ((file.size() + 24 + arrays.size()) % 64 != 0) arrays.push_back(std::byte{0});
    arrays.insert(arrays.end(), constant.begin(), constant.end());
  }
  append(file, "ASPENTC", 8);
  append_number(file, constants.size(), 4);
  append_number(file, GraphBuilder::checksum(arrays), 4);
  append_number(file, arrays.size(), 8);
  file.insert(file.end(), arrays.begin(), arrays.end());
  return file;
}

inline Bytes floats(float first, float step) {
  Bytes bytes;
  for (size_t i = 0; i < kElements; ++i) {
    const float value = first + step * static_cast<float>(i);
    append(bytes, &value, sizeof(value));
  }
  return bytes;
}

inline const std::string kInputNames("x\0params.w\0flag\0", 16), kResultNames("result.y\0result.z\0", 18);

inline Bytes sum_file(int64_t cost = 0, const std::string& inputs = kInputNames, const std::string& results = kResultNames) {
  const std::string names("input_names\0result_names\0", 25);
  const Bytes graph = GraphBuilder::with_fields(sum_graph(cost).arrays(), names, {words_of(inputs), words_of(results)});
  return with_constants(graph, {floats(0.5F, 0)});
}

inline Bytes safetensors(const std::string& header, const Bytes& data) {
  Bytes bytes;
  append_number(bytes, header.size(), 8);
  append(bytes, header.data(), header.size());
  bytes.insert(bytes.end(), data.begin(), data.end());
  return bytes;
}

inline const std::string kWeightsHeader =
    R"({"__metadata__": {"format": "pt \u00e9"}, "params.w": {"dtype":"F32", "shape":[4,6], "data_offsets":[0,96]} })";

}  // namespace aspen::testing
