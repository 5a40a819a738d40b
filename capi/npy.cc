#include "npy.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string_view>

#include "source.h"

namespace aspen {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kPrefix = 10;  // of a short header; a long one has two bytes more

// NumPy knows no bfloat16: a file holds such elements as two bytes of nothing in particular.
std::string_view descr(aspen_dtype dtype) {
  static constexpr std::string_view kNames[] = {"|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2",
                                                "<u4", "<u8", "<f2", "<V2", "<f4", "<f8"};
  return kNames[dtype];
}

std::string shape_text(const aspen_tensor& tensor) {
  std::string text = "(";
  for (int d = 0; d < tensor.rank; ++d) text += std::to_string(tensor.shape[d]) + (d + 1 < tensor.rank ? ", " : "");
  return text + (tensor.rank == 1 ? ",)" : ")");
}

std::string header_of(const aspen_tensor& tensor) {
  return "{'descr': '" + std::string(descr(tensor.dtype)) + "', 'fortran_order': False, 'shape': " + shape_text(tensor) + ", }";
}

std::string without_spaces(std::string text) {
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
  if (text.ends_with(",}")) text.erase(text.size() - 2, 1);
  if (const size_t kind = text.find("'|V2'"); kind != std::string::npos) text[kind + 1] = '<';
  return text;
}

}  // namespace

void read_npy(const std::string& path, const aspen_tensor& wanted, std::span<std::byte> bytes) {
  const std::unique_ptr<Source> file = open_file(path);
  const auto read = [&](size_t offset, void* to, size_t size) {
    if (offset > file->size() || size > file->size() - offset) throw std::runtime_error("'" + path + "' is cut short");
    file->read(offset, {static_cast<std::byte*>(to), size});
  };
  unsigned char prefix[12] = {};
  if (file->size() >= kPrefix) read(0, prefix, kPrefix);
  if (std::string_view(reinterpret_cast<char*>(prefix), kMagic.size()) != kMagic) {
    throw std::runtime_error("'" + path + "' is no .npy file; write one with numpy.save");
  }
  const bool is_long = prefix[6] > 1;
  if (is_long) read(kPrefix, prefix + kPrefix, 2);
  uint32_t size = prefix[8] | prefix[9] << 8;
  if (is_long) size |= static_cast<uint32_t>(prefix[10]) << 16 | static_cast<uint32_t>(prefix[11]) << 24;
  const size_t begin = kPrefix + (is_long ? 2 : 0);
  std::string header(std::min<uint32_t>(size, 1 << 16), ' ');
  read(begin, header.data(), header.size());
  // NumPy writes the three keys in this order.
  if (without_spaces(header) != without_spaces(header_of(wanted))) {
    const size_t end = std::min(header.find('}'), size_t{200});
    throw std::runtime_error("'" + path + "' holds " + header.substr(0, end) + "}, and the graph takes " + header_of(wanted) +
                             "; save it so, by numpy.ascontiguousarray");
  }
  read(begin + header.size(), bytes.data(), bytes.size());
}

void write_npy(const std::string& path, const aspen_tensor& tensor, std::span<const std::byte> bytes) {
  std::string header = header_of(tensor);
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10, ' ');  // the elements begin at a multiple of 64
  header.back() = '\n';
  std::ofstream file(path, std::ios::binary);
  file << kMagic << '\x01' << '\0' << static_cast<char>(header.size() & 255) << static_cast<char>(header.size() >> 8) << header;
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw std::runtime_error("cannot write '" + path + "'");
}

}  // namespace aspen
