#include "addresses.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace aspen {
namespace {

// Whether [begin, end) lies in mappings whose permissions have this letter.
bool is_mapped(uintptr_t begin, uintptr_t end, char permission) {
  std::ifstream maps("/proc/self/maps");
  if (!maps) return true;
  for (std::string line; begin < end && std::getline(maps, line);) {
    std::istringstream words(line);
    uintptr_t lo = 0, hi = 0;
    char dash = 0;
    std::string permissions;
    words >> std::hex >> lo >> dash >> hi >> permissions;
    // Mappings come in order, so a range that two share goes on where the first ends.
    if (lo <= begin && begin < hi && permissions.find(permission) != std::string::npos) begin = std::min(hi, end);
  }
  return begin >= end;
}

}  // namespace

bool is_code(uintptr_t address) { return is_mapped(address, address + 1, 'x'); }

bool is_data(uintptr_t address, size_t bytes) { return address + bytes > address && is_mapped(address, address + bytes, 'r'); }

}  // namespace aspen
