// How many cores this process may keep busy.
#pragma once

#include <string>

namespace aspen {

// Cores that the scheduler affinity allows, and no more than the CPU quota of the control group (rounded up); at least 1.
int usable_cores();

// The CPU quota in cores of a process whose /proc/self/cgroup reads `cgroups`, with the control groups mounted at `mount`: the
// smallest of its group and all groups around it, v1 or v2. Infinity where there is none.
double cgroup_quota(const std::string& cgroups, const std::string& mount);

}  // namespace aspen
