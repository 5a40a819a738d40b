#include "printable.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <span>

#include "aspen_jax/engine/utf8.h"

namespace aspen {
namespace {

// How many bytes of the text the first character has; 0 where it does not begin with one.
size_t first_character(std::string_view text) {
  for (size_t size = 1; size <= std::min<size_t>(text.size(), 4); ++size) {
    if (is_utf8(std::span(reinterpret_cast<const uint8_t*>(text.data()), size))) return size;
  }
  return 0;
}

uint32_t code_of(std::string_view character) {
  const auto lead = static_cast<uint8_t>(character.front());
  if (character.size() == 1) return lead;
  uint32_t code = lead & (0x7Fu >> character.size());
  for (const char byte : character.substr(1)) code = code << 6 | (static_cast<uint8_t>(byte) & 0x3F);
  return code;
}

bool is_obeyed(uint32_t code) {
  const auto within = [&](uint32_t first, uint32_t last) { return code >= first && code <= last; };
  return code < 0x20 || within(0x7F, 0x9F) || code == 0x61C || within(0x200E, 0x200F) || within(0x2028, 0x202E) ||
         within(0x2066, 0x2069);
}

// Calls `shown` with each character of the text, or `hidden` with the number of one that a terminal obeys, or of a stray byte.
template <typename Shown, typename Hidden>
void each_character(std::string_view text, const Shown& shown, const Hidden& hidden) {
  while (!text.empty()) {
    const size_t size = first_character(text);
    if (size == 0) {
      hidden(static_cast<uint8_t>(text.front()));
    } else if (const uint32_t code = code_of(text.substr(0, size)); is_obeyed(code)) {
      hidden(code);
    } else {
      shown(text.substr(0, size));
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  each_character(
      text, [&](std::string_view character) { result += character; },
      [&](uint32_t code) {
        char escape[8];
        std::snprintf(escape, sizeof(escape), code < 0x100 ? "\\x%02x" : "\\u%04x", code);
        result += escape;
      });
  return result;
}

std::string file_name(std::string_view text) {
  std::string result;
  each_character(
      text, [&](std::string_view character) { result += character == "/" ? "_" : character; }, [&](uint32_t) { result += '_'; });
  return result;
}

}  // namespace aspen
