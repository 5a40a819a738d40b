// Text from files and arguments, for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace aspen {

// The text with an escape, such as \x1b or \u202e, for all that a terminal obeys instead of showing: control characters, marks of
// the direction of writing, and bytes that are no UTF-8.
std::string printable(std::string_view text);

// A name of a file that lies in the folder it is put in: the text, with '_' for '/' and for all that `printable` escapes.
std::string file_name(std::string_view text);

}  // namespace aspen
