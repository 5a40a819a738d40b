// Whether a number that was given as an address is one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aspen {

// Whether memory of this process that may be executed begins there, or so many bytes that may be read. True where the operating
// system does not say (Linux does).
bool is_code(uintptr_t address);
bool is_data(uintptr_t address, size_t bytes);

}  // namespace aspen
