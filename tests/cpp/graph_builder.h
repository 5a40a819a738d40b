// Builds tile graphs in memory and writes their bytes as docs/graph_format.md says, independently of the reader.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "aspen_jax/engine/kernel.h"

namespace aspen::testing {

using Words = std::vector<int64_t>;

struct ViewDim {
  int64_t source, step, extent;
};

struct InputSpec {
  int64_t value;
  Words base;  // R
  Words starts;
  std::vector<ViewDim> dims;
};

struct ValueSpec {
  int64_t buffer;  // as in the file; -1 for the workspace until the numbers of operands and results are known
  int64_t offset;
  DType dtype;
  Words shape;
};

struct GraphOpSpec {
  std::string name;
  int64_t kernel;
  int64_t output;
  std::vector<InputSpec> inputs;
  Words params;
  int64_t depth;
};

// The arrays of the file, before encoding: fuzzers and tests of bad files change them freely.
struct Arrays {
  static constexpr size_t kCount = 14;
  Words array[kCount];
  int64_t lag[kCount] = {};
};

inline int64_t elements(const Words& shape) {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

class GraphBuilder {
 public:
  int64_t operand(DType dtype, Words shape) {
    operands.push_back(add({static_cast<int64_t>(operands.size()), 0, dtype, std::move(shape)}));
    return operands.back();
  }
  // Call after all operands.
  int64_t result(DType dtype, Words shape) {
    results.push_back(add({static_cast<int64_t>(operands.size() + results.size()), 0, dtype, std::move(shape)}));
    return results.back();
  }
  int64_t workspace(DType dtype, Words shape) {
    const int64_t bytes = elements(shape) * size_of(dtype);
    const int64_t id = add({-1, workspace_bytes, dtype, std::move(shape)});
    workspace_bytes += (bytes + 63) / 64 * 64;
    return id;
  }

  InputSpec whole(int64_t value) const {
    InputSpec input{value, values[value].shape, Words(values[value].shape.size()), {}};
    for (size_t d = 0; d < input.base.size(); ++d) input.dims.push_back({static_cast<int64_t>(d), 1, input.base[d]});
    return input;
  }

  int64_t op(const std::string& name, const std::string& kernel, std::vector<InputSpec> inputs, int64_t output, Words params = {},
             int64_t depth = 0) {
    auto found = std::find(kernels.begin(), kernels.end(), kernel);
    if (found == kernels.end()) found = kernels.insert(found, kernel);
    ops.push_back({name, found - kernels.begin(), output, std::move(inputs), std::move(params), depth});
    max_depth = std::max(max_depth, depth);
    return static_cast<int64_t>(ops.size()) - 1;
  }

  int64_t tile(int64_t op, const Words& lo, const Words& hi, int64_t cost = 1000) {
    tile_ops.push_back(op);
    boxes.insert(boxes.end(), lo.begin(), lo.end());
    boxes.insert(boxes.end(), hi.begin(), hi.end());
    children.emplace_back();
    costs.push_back(cost);
    return static_cast<int64_t>(tile_ops.size()) - 1;
  }

  void edge(int64_t parent, int64_t child) { children[parent].push_back(child); }

  Arrays arrays() const {
    Arrays result;
    auto& a = result.array;
    for (const auto& name : kernels) append_name(a[0], name);
    for (const auto& op : ops) append_name(a[0], op.name);
    a[1] = {static_cast<int64_t>(kernels.size()),
            static_cast<int64_t>(operands.size()),
            static_cast<int64_t>(results.size()),
            static_cast<int64_t>(values.size()),
            static_cast<int64_t>(ops.size()),
            static_cast<int64_t>(tile_ops.size()),
            workspace_bytes,
            max_depth};
    for (const auto& value : values) {
      const int64_t last_buffer = static_cast<int64_t>(operands.size() + results.size());
      append(a[2], {value.buffer < 0 ? last_buffer : value.buffer, value.offset, static_cast<int64_t>(value.dtype),
                    static_cast<int64_t>(value.shape.size())});
      append(a[3], value.shape);
    }
    a[4] = operands;
    a[5] = results;
    for (const auto& op : ops) {
      append(a[6],
             {op.kernel, op.output, static_cast<int64_t>(op.inputs.size()), static_cast<int64_t>(op.params.size()), op.depth});
      for (const auto& input : op.inputs) {
        append(a[7], {input.value, static_cast<int64_t>(input.base.size()), static_cast<int64_t>(input.dims.size())});
        append(a[7], input.base);
        append(a[7], input.starts);
        for (const auto& dim : input.dims) append(a[7], {dim.source, dim.step, dim.extent});
      }
      append(a[8], op.params);
    }
    a[9] = tile_ops;
    a[10] = boxes;
    for (const auto& list : children) {
      a[11].push_back(static_cast<int64_t>(list.size()));
      append(a[12], list);
    }
    a[13] = costs;
    // Any lag must read back the same: use several.
    for (size_t i = 0; i < Arrays::kCount; ++i) result.lag[i] = static_cast<int64_t>(i % 5);
    return result;
  }

  std::vector<std::byte> encode() const { return encode(arrays()); }

  static std::vector<std::byte> encode(const Arrays& arrays) { return seal(payload_of(arrays)); }

  // The arrays, then the names and the numbers of fields: version 2.
  static std::vector<std::byte> with_fields(const Arrays& arrays, const std::string& names, const std::vector<Words>& fields) {
    return seal(payload_with_fields(arrays, names, fields), 2);
  }

  static std::vector<std::byte> payload_with_fields(const Arrays& arrays, const std::string& names,
                                                    const std::vector<Words>& fields) {
    std::vector<std::byte> payload = payload_of(arrays);
    Words bytes;
    for (const char c : names) bytes.push_back(static_cast<unsigned char>(c));
    append_array(payload, bytes, 0);
    for (const Words& field : fields) append_array(payload, field, 1);
    return payload;
  }

  static std::vector<std::byte> payload_of(const Arrays& arrays) {
    std::vector<std::byte> payload;
    for (size_t i = 0; i < Arrays::kCount; ++i) append_array(payload, arrays.array[i], static_cast<size_t>(arrays.lag[i]));
    return payload;
  }

  static void append_array(std::vector<std::byte>& payload, const Words& array, size_t lag) {
    append_varint(payload, array.size());
    append_varint(payload, lag);
    for (size_t k = 0; k < array.size(); ++k) {
      auto difference = static_cast<uint64_t>(array[k]);
      if (lag > 0 && k >= lag) difference -= static_cast<uint64_t>(array[k - lag]);
      append_varint(payload, (difference << 1) ^ (difference >> 63 ? ~uint64_t{0} : 0));
    }
  }

  // Payload to file: magic, version, checksum, size.
  static std::vector<std::byte> seal(const std::vector<std::byte>& payload, uint32_t version = 1) {
    std::vector<std::byte> bytes;
    for (const char c : {'A', 'S', 'P', 'E', 'N', 'T', 'G', '\0'}) bytes.push_back(static_cast<std::byte>(c));
    append_number(bytes, version, 4);
    append_number(bytes, checksum(payload), 4);
    append_number(bytes, payload.size(), 8);
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    return bytes;
  }

  // CRC-32 bit by bit, as the standard states it.
  static uint32_t checksum(const std::vector<std::byte>& bytes) {
    uint32_t crc = ~0u;
    for (const std::byte byte : bytes) {
      crc ^= static_cast<uint32_t>(byte);
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
  }

  std::vector<std::string> kernels;
  std::vector<ValueSpec> values;
  Words operands, results;
  int64_t workspace_bytes = 0;
  int64_t max_depth = 0;
  std::vector<GraphOpSpec> ops;
  Words tile_ops, boxes, costs;
  std::vector<Words> children;

 private:
  int64_t add(ValueSpec value) {
    values.push_back(std::move(value));
    return static_cast<int64_t>(values.size()) - 1;
  }
  static void append(Words& words, const Words& more) { words.insert(words.end(), more.begin(), more.end()); }
  static void append_name(Words& words, const std::string& name) {
    for (const char c : name) words.push_back(static_cast<uint8_t>(c));
    words.push_back(0);
  }
  static void append_varint(std::vector<std::byte>& bytes, uint64_t number) {
    for (; number >= 128; number >>= 7) bytes.push_back(static_cast<std::byte>(number | 128));
    bytes.push_back(static_cast<std::byte>(number));
  }
  static void append_number(std::vector<std::byte>& bytes, uint64_t number, int size) {
    for (int i = 0; i < size; ++i) bytes.push_back(static_cast<std::byte>(number >> (8 * i)));
  }
};

}  // namespace aspen::testing
