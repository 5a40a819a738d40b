#include "safetensors.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>
#include <utility>

#include "aspen_jax/engine/utf8.h"

namespace aspen {
namespace {

constexpr size_t kMaxHeader = 100'000'000;  // as in the format's own reader

[[noreturn]] void refuse(const std::string& what) { throw FileError("the safetensors file " + what); }

// Of the JSON that such a header may hold: an object of objects of strings, lists of numbers and strings.
class Json {
 public:
  explicit Json(std::string_view text) : rest_(text) {}

  bool take(char wanted) {
    skip_space();
    if (rest_.empty() || rest_.front() != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }

  void expect(char wanted) {
    if (!take(wanted)) refuse("has no '" + std::string(1, wanted) + "' where its header needs one");
  }

  // What `each` does, for all that a list or an object holds.
  template <typename Each>
  void sequence(char open, char close, const Each& each) {
    expect(open);
    if (take(close)) return;
    do {
      each();
    } while (take(','));
    expect(close);
  }

  template <typename Each>
  void object(const Each& each) {
    sequence('{', '}', [&] {
      const std::string key = string();
      expect(':');
      each(key);
    });
  }

  std::string string() {
    expect('"');
    std::string text;
    for (;;) {
      const char c = next();
      if (c == '"') break;
      if (static_cast<unsigned char>(c) < 0x20) refuse("has a control character in a string of its header");
      if (c == '\\') {
        escape(text);
      } else {
        text += c;
      }
    }
    return text;
  }

  uint64_t number() {
    skip_space();
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    const auto length = static_cast<size_t>(end - rest_.data());
    if (error != std::errc() || (length > 1 && rest_.front() == '0')) refuse("has no whole number where its header needs one");
    rest_.remove_prefix(length);
    return value;
  }

  void finish() {
    skip_space();
    if (!rest_.empty()) refuse("has something behind the object that is its header");
  }

 private:
  void skip_space() {
    const size_t length = rest_.find_first_not_of(" \t\r\n");
    rest_.remove_prefix(length == std::string_view::npos ? rest_.size() : length);
  }

  char next() {
    if (rest_.empty()) refuse("has a header that ends inside a string");
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }

  void escape(std::string& text) {
    static constexpr std::string_view kNames = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    const char c = next();
    if (const size_t index = kNames.find(c); index != std::string_view::npos) {
      text += kMeanings[index];
      return;
    }
    if (c != 'u') refuse("has an unknown escape in a string of its header");
    uint32_t code = hex();
    if (code >= 0xD800 && code < 0xDC00) {  // the first half of a surrogate pair
      const uint32_t low = next() == '\\' && next() == 'u' ? hex() : 0;
      if (low < 0xDC00 || low >= 0xE000) refuse("has half of a surrogate pair in a string of its header");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    append_utf8(text, code);
  }

  uint32_t hex() {
    char digits[4];
    for (char& digit : digits) digit = next();
    uint32_t value = 0;
    const auto [end, error] = std::from_chars(digits, digits + 4, value, 16);
    if (error != std::errc() || end != digits + 4) refuse("has a \\u without four digits in its header");
    return value;
  }

  // A lone surrogate becomes what is no UTF-8, which is refused with the whole name.
  static void append_utf8(std::string& text, uint32_t code) {
    if (code < 0x80) {
      text += static_cast<char>(code);
      return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    text += static_cast<char>((0xFF00 >> (more + 1) & 0xFF) | code >> (6 * more));
    for (int i = more - 1; i >= 0; --i) text += static_cast<char>(0x80 | (code >> (6 * i) & 0x3F));
  }

  std::string_view rest_;
};

// In bits, since newer versions of the format have dtypes of 4 and 6; 0 for unknown ones.
size_t bits_of(std::string_view dtype) {
  static constexpr std::pair<std::string_view, size_t> kBits[] = {
      {"BOOL", 8}, {"U8", 8},   {"I8", 8},    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
      {"U16", 16}, {"F16", 16}, {"BF16", 16}, {"I32", 32},    {"U32", 32},    {"F32", 32},    {"F64", 64},
      {"I64", 64}, {"U64", 64}, {"C64", 64},  {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
  };
  const auto* const found = std::ranges::find(kBits, dtype, &std::pair<std::string_view, size_t>::first);
  return found == std::end(kBits) ? 0 : found->second;
}

void check_size(const StoredTensor& tensor) {
  const size_t bits = bits_of(tensor.dtype);
  if (bits == 0) refuse("has tensor '" + tensor.name + "' of dtype '" + tensor.dtype + "', which this build does not know");
  size_t total = bits;
  for (const int64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(total, static_cast<size_t>(extent), &total)) {
      refuse("has tensor '" + tensor.name + "' of more elements than fit 64 bits");
    }
  }
  if (total % 8 != 0 || total / 8 != tensor.end - tensor.begin) {
    refuse("has tensor '" + tensor.name + "', whose " + std::to_string(tensor.end - tensor.begin) +
           " bytes are not those of its dtype and shape");
  }
}

std::string checked_text(std::string text) {
  const std::span bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  if (!is_utf8(bytes) || text.find('\0') != std::string::npos) refuse("has a name that is no UTF-8 text without zero bytes");
  return text;
}

StoredTensor parse_tensor(Json& json, std::string name, size_t data, size_t file_size) {
  StoredTensor tensor;
  tensor.name = std::move(name);
  std::vector<uint64_t> offsets;
  std::set<std::string> seen;
  json.object([&](const std::string& key) {
    if (!seen.insert(key).second) refuse("says '" + key + "' of tensor '" + tensor.name + "' twice");
    if (key == "dtype") {
      tensor.dtype = checked_text(json.string());
    } else if (key == "shape") {
      json.sequence('[', ']', [&] {
        const uint64_t extent = json.number();
        if (extent > INT64_MAX) refuse("has tensor '" + tensor.name + "' with an extent beyond 64 bits");
        tensor.shape.push_back(static_cast<int64_t>(extent));
      });
    } else if (key == "data_offsets") {
      json.sequence('[', ']', [&] { offsets.push_back(json.number()); });
    } else {
      refuse("says something unknown of tensor '" + tensor.name + "'");
    }
  });
  if (seen.size() != 3 || offsets.size() != 2)
    refuse("does not say dtype, shape and data_offsets of tensor '" + tensor.name + "'");
  if (offsets[0] > offsets[1] || offsets[1] > file_size - data) {
    refuse("has tensor '" + tensor.name + "' at bytes " + std::to_string(offsets[0]) + " to " + std::to_string(offsets[1]) +
           " of " + std::to_string(file_size - data) + "; it was cut short or is damaged");
  }
  tensor.begin = data + offsets[0];
  tensor.end = data + offsets[1];
  check_size(tensor);
  return tensor;
}

}  // namespace

size_t safetensors_header_size(std::span<const std::byte, kSafetensorsPrefix> prefix, size_t file_size) {
  uint64_t size = 0;
  for (size_t i = prefix.size(); i-- > 0;) size = size << 8 | static_cast<uint64_t>(prefix[i]);
  if (size > kMaxHeader || file_size < kSafetensorsPrefix || size > file_size - kSafetensorsPrefix) {
    refuse("announces a header of " + std::to_string(size) + " bytes and has " + std::to_string(file_size) +
           " bytes; it was cut short or is no such file");
  }
  return static_cast<size_t>(size);
}

std::vector<StoredTensor> parse_safetensors_header(std::span<const std::byte> header, size_t file_size) {
  Json json({reinterpret_cast<const char*>(header.data()), header.size()});
  const size_t data = kSafetensorsPrefix + header.size();
  std::vector<StoredTensor> tensors;
  std::set<std::string> names;
  json.object([&](const std::string& key) {
    if (!names.insert(checked_text(key)).second) refuse("has '" + key + "' twice");
    if (key == "__metadata__") {
      json.object([&](const std::string&) { json.string(); });
    } else {
      tensors.push_back(parse_tensor(json, key, data, file_size));
    }
  });
  json.finish();
  // Empty ones come before what begins at the same byte.
  std::ranges::sort(tensors, {}, [](const StoredTensor& tensor) { return std::pair(tensor.begin, tensor.end); });
  size_t position = data;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.begin != position) refuse("has tensor '" + tensor.name + "', which does not begin where the one before it ends");
    position = tensor.end;
  }
  if (position != file_size) refuse("has " + std::to_string(file_size - position) + " bytes that belong to no tensor");
  return tensors;
}

}  // namespace aspen
