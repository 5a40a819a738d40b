#include "wire.h"

#include <array>
#include <cstring>

namespace aspen {
namespace {

constexpr char kMagic[8] = {'A', 'S', 'P', 'E', 'N', 'T', 'G', '\0'};
constexpr uint32_t kNewestVersion = 2;
constexpr size_t kEnvelopeBytes = 24;

// Table k advances a byte over k further zero bytes, so eight bytes are folded in one step ("slicing by 8").
constexpr auto kCrcTables = [] {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0xEDB88320u : 0);
    tables[0][i] = value;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t i = 0; i < 256; ++i) tables[k][i] = (tables[k - 1][i] >> 8) ^ tables[0][tables[k - 1][i] & 255];
  }
  return tables;
}();

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes) {
  uint32_t crc = ~0u;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    const uint64_t block = little_endian<uint64_t>(bytes.first(8)) ^ crc;
    crc = 0;
    for (size_t i = 0; i < 8; ++i) crc ^= kCrcTables[7 - i][(block >> (8 * i)) & 255];
  }
  for (const std::byte byte : bytes) crc = (crc >> 8) ^ kCrcTables[0][(crc ^ static_cast<uint32_t>(byte)) & 255];
  return ~crc;
}

Wire::Wire(std::span<const std::byte> bytes) {
  if (bytes.size() < kEnvelopeBytes) {
    throw GraphError("a tile graph has at least " + std::to_string(kEnvelopeBytes) + " bytes, this one has " +
                     std::to_string(bytes.size()) + "; it was cut short or is no tile graph");
  }
  if (std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    throw GraphError("these bytes are no tile graph: they do not begin with ASPENTG");
  }
  version_ = little_endian<uint32_t>(bytes.subspan(8, 4));
  if (version_ < 1 || version_ > kNewestVersion) {
    throw GraphError("the tile graph is of format version " + std::to_string(version_) + ", this engine reads versions 1 to " +
                     std::to_string(kNewestVersion) + "; save it again with this version of aspen_jax");
  }
  rest_ = bytes.subspan(kEnvelopeBytes);
  const auto size = little_endian<uint64_t>(bytes.subspan(16, 8));
  if (size != rest_.size()) {
    throw GraphError("the tile graph announces " + std::to_string(size) + " bytes and has " + std::to_string(rest_.size()) +
                     "; it was cut short or extended");
  }
  if (little_endian<uint32_t>(bytes.subspan(12, 4)) != crc32(rest_)) {
    throw GraphError("the checksum of the tile graph does not fit its bytes; it was damaged, save it again");
  }
}

uint64_t Wire::varint(const char* name) {
  uint64_t result = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (rest_.empty()) throw GraphError(std::string("the tile graph ends inside its ") + name);
    const auto byte = static_cast<uint64_t>(rest_.front());
    rest_ = rest_.subspan(1);
    if (shift == 63 && byte > 1) break;
    result |= (byte & 127) << shift;
    if (byte < 128) return result;
  }
  throw GraphError(std::string("the ") + name + " of the tile graph hold a number of more than 64 bits");
}

template <typename T>
std::vector<T> Wire::array(const char* name, int64_t lo, int64_t hi) {
  const uint64_t count = varint(name);
  const uint64_t lag = varint(name);
  if (count > rest_.size()) {
    throw GraphError("the tile graph announces " + std::to_string(count) + " " + name + " and has " +
                     std::to_string(rest_.size()) + " bytes left");
  }
  std::vector<T> result(count);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t zigzag = varint(name);
    uint64_t value = (zigzag >> 1) ^ (~(zigzag & 1) + 1);
    if (lag != 0 && i >= lag) value += static_cast<uint64_t>(static_cast<int64_t>(result[i - lag]));
    const auto element = static_cast<int64_t>(value);
    if (element < lo || element > hi) {
      throw GraphError(std::string(name) + " of the tile graph: number " + std::to_string(i) + " is " + std::to_string(element) +
                       ", outside [" + std::to_string(lo) + ", " + std::to_string(hi) + "]");
    }
    result[i] = static_cast<T>(element);
  }
  return result;
}

template std::vector<int64_t> Wire::array(const char*, int64_t, int64_t);
template std::vector<int32_t> Wire::array(const char*, int64_t, int64_t);
template std::vector<uint32_t> Wire::array(const char*, int64_t, int64_t);
template std::vector<uint8_t> Wire::array(const char*, int64_t, int64_t);

void Wire::finish() const {
  if (!rest_.empty()) throw GraphError("the tile graph has " + std::to_string(rest_.size()) + " bytes too many");
}

void Wire::throw_size(const char* name, size_t size, size_t expected) {
  throw GraphError("the tile graph has " + std::to_string(size) + " " + name + " where " + std::to_string(expected) +
                   " are needed");
}

}  // namespace aspen
