#include "utf8.h"

#include <algorithm>
#include <cstddef>

namespace aspen {
namespace {

// How many bytes a character has by its first; 0 where none begins so.
constexpr size_t length_of(uint8_t first) {
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first < 0xE0) return 2;  // 0xC0 and 0xC1 would be overlong
  if (first >= 0xE0 && first < 0xF0) return 3;
  return first >= 0xF0 && first < 0xF5 ? 4 : 0;
}

constexpr bool continues(uint8_t byte) { return (byte & 0xC0) == 0x80; }

// What the second byte may not be, though it continues: the character would be overlong, a surrogate, or beyond U+10FFFF.
constexpr bool leaves_unicode(uint8_t first, uint8_t second) {
  return (first == 0xE0 && second < 0xA0) || (first == 0xED && second >= 0xA0) || (first == 0xF0 && second < 0x90) ||
         (first == 0xF4 && second >= 0x90);
}

}  // namespace

bool is_utf8(std::span<const uint8_t> text) {
  while (!text.empty()) {
    const size_t length = length_of(text.front());
    if (length == 0 || length > text.size()) return false;
    if (length > 1 && leaves_unicode(text[0], text[1])) return false;
    if (!std::ranges::all_of(text.subspan(1, length - 1), continues)) return false;
    text = text.subspan(length);
  }
  return true;
}

}  // namespace aspen
