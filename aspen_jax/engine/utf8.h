// Names in graphs come from outside and end up in messages, which Python and XLA take for UTF-8.
#pragma once

#include <cstdint>
#include <span>

namespace aspen {

// Whether the bytes are well-formed (Unicode, table 3-7): no overlong forms, no surrogates, nothing beyond U+10FFFF.
bool is_utf8(std::span<const uint8_t> text);

}  // namespace aspen
