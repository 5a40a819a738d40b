#include "usable_cores.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#ifdef __linux__
#include <sched.h>

#include <memory>
#endif

namespace aspen {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

double ratio(double quota, double period) { return quota > 0 && period > 0 ? quota / period : kNoLimit; }

// v2: one file, "max 100000" or "150000 100000".
double quota_v2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  double quota = 0, period = 0;
  return file >> quota >> period ? ratio(quota, period) : kNoLimit;
}

// v1: two files; a quota of -1 is none.
double quota_v1(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us"), period_file(folder + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  return quota_file >> quota && period_file >> period ? ratio(quota, period) : kNoLimit;
}

// From the group itself up to the mount. Inside a container the path may be that of the host and not exist here; its parents, at
// last the mount itself, then tell.
double smallest_quota(const std::string& mount, std::string path, double (*quota)(const std::string&)) {
  double result = quota(mount);
  while (path.size() > 1) {
    result = std::min(result, quota(mount + path));
    path.resize(path.rfind('/'));
  }
  return result;
}

int affinity_cores() {
#ifdef __linux__
  // cpu_set_t holds 1024 cores; larger machines need a larger set, and the kernel says EINVAL until it is large enough.
  for (int cores = CPU_SETSIZE; cores <= 1 << 20; cores *= 2) {
    const auto free_set = [](cpu_set_t* set) { CPU_FREE(set); };
    const std::unique_ptr<cpu_set_t, decltype(free_set)> set(CPU_ALLOC(cores), free_set);
    if (set != nullptr && sched_getaffinity(0, CPU_ALLOC_SIZE(cores), set.get()) == 0) {
      return CPU_COUNT_S(CPU_ALLOC_SIZE(cores), set.get());
    }
  }
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

double cgroup_quota(const std::string& cgroups, const std::string& mount) {
  double result = kNoLimit;
  std::istringstream lines(cgroups);
  // "0::/path" for v2, "4:cpu,cpuacct:/path" for v1.
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (path.empty() || path.front() != '/') continue;
    if (controllers.empty()) {
      result = std::min(result, smallest_quota(mount, path, quota_v2));
      result = std::min(result, smallest_quota(mount + "/unified", path, quota_v2));
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      result = std::min(result, smallest_quota(mount + "/" + controllers, path, quota_v1));
      result = std::min(result, smallest_quota(mount + "/cpu", path, quota_v1));
    }
  }
  return result;
}

int usable_cores() {
  std::ifstream file("/proc/self/cgroup");
  const std::string cgroups(std::istreambuf_iterator<char>(file), {});
  const double quota = cgroup_quota(cgroups, "/sys/fs/cgroup");
  return static_cast<int>(std::max(1.0, std::min<double>(affinity_cores(), std::ceil(quota))));
}

}  // namespace aspen
