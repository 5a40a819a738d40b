// The workers: how many there are, that they sleep when idle and wake when needed, and that forks and exits are clean.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "aspen_jax/engine/usable_cores.h"
#include "dag.h"
#include "forked_child.h"

namespace aspen::testing {
namespace {

using namespace std::chrono_literals;

double cpu_seconds() {
  rusage usage{};
  CHECK_EQ(getrusage(RUSAGE_SELF, &usage), 0);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int threads_named_aspen() { return threads_named("aspen-"); }

std::chrono::microseconds tile_time;

const char* sleep_a_tile(const TileArgs&) noexcept {
  std::this_thread::sleep_for(tile_time);
  return nullptr;
}

// Of children of a root: each waits until so many have begun, which takes a worker each. Ten seconds at most.
constexpr int kMeeting = 4;
std::atomic<int> num_begun{0};

const char* meet(const TileArgs& args) noexcept {
  if (static_cast<const FirstTask*>(args.state)->task == 0) return nullptr;
  num_begun.fetch_add(1);
  for (int i = 0; i < 10000 && num_begun.load() < kMeeting; ++i) std::this_thread::sleep_for(1ms);
  return nullptr;
}

// Waits up to ten seconds for the number of threads.
void expect_workers(int count) {
  for (int i = 0; i < 10000 && threads_named_aspen() != count; ++i) std::this_thread::sleep_for(1ms);
  CHECK_EQ(threads_named_aspen(), count);
}

TEST(workers_start_with_the_first_run_that_needs_them) {
  const Dag dag = stencil_dag(4, 4);
  CHECK(runtime().num_workers() >= 1);
  runtime().set_num_workers(3);
  run_and_check(recorded_plan(dag, kInline), dag);
  CHECK_EQ(threads_named_aspen(), 0);
  run_and_check(recorded_plan(dag, kInPool), dag);
  expect_workers(3);
}

TEST(workers_come_and_go_as_asked) {
  const Dag dag = stencil_dag(4, 4);
  const auto plan = recorded_plan(dag, kInPool);
  for (const int count : {5, 1, 16, 2}) {
    runtime().set_num_workers(count);
    run_and_check(plan, dag);
    expect_workers(count);
    CHECK_EQ(runtime().num_workers(), count);
  }
  for (const int count : {0, -1, kMaxWorkers + 1}) {
    CHECK_THROWS(runtime().set_num_workers(count),
                 "the number of workers is " + std::to_string(count) + "; use a number from 1 to 1024");
  }
  CHECK_EQ(runtime().num_workers(), 2);
}

TEST(idle_workers_use_no_cpu) {
  runtime().set_num_workers(16);
  const Dag dag = stencil_dag(20, 20);
  run_and_check(recorded_plan(dag, kInPool), dag);
  std::this_thread::sleep_for(100ms);
  const double before = cpu_seconds();
  std::this_thread::sleep_for(500ms);
  CHECK(cpu_seconds() - before < 0.005);
}

TEST(workers_that_sleep_wake_up_for_every_run) {
  const Dag dag = stencil_dag(3, 5);
  const auto plan = recorded_plan(dag, kInPool);
  std::mt19937_64 random(1);
  for (const int workers : {1, 2, 4, 16}) {
    runtime().set_num_workers(workers);
    for (int i = 0; i < (workers == 1 ? 10000 : 500); ++i) {
      run_and_check(plan, dag);
      // About as long as idle workers search before they fall asleep, so that every interleaving has its chance; a sleep would be
      // too coarse for that.
      const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(20'000 + random() % 20'000);
      while (std::chrono::steady_clock::now() < end) continue;
    }
  }
}

TEST(all_workers_take_part_in_a_run) {
  class Seen : public Observer {
   public:
    void on_tile(const TileEvent& event) noexcept override { workers.fetch_or(1u << event.worker); }
    std::atomic<unsigned> workers{0};
  };
  static constexpr Kernel kMeets[] = {{"meets", prepare_task<meet>}};
  runtime().set_num_workers(kMeeting);
  run_and_check(recorded_plan(stencil_dag(2, 2), kInPool), stencil_dag(2, 2));
  expect_workers(kMeeting);
  // One root, so that three of the four must be woken by pushes, and steal.
  Dag dag;
  dag.add(0, {});
  for (int i = 0; i < 40; ++i) dag.add(1, {0});
  const auto plan = make_plan(encode_dag(dag, "meets", kInPool), kMeets);
  const auto seen = std::make_shared<Seen>();
  Waiter waiter;
  DagRun run(*plan);
  run.submit(plan, nullptr, waiter.done(), seen);
  waiter.wait();
  CHECK_EQ(seen->workers.load(), 15u);
}

// Runs this program again in a process of its own with one of the modes of `main`; its exit status and what it printed.
std::pair<int, std::string> run_self(const std::string& environment, const std::string& mode) {
  const std::string command =
      environment + " timeout 20 " + std::filesystem::read_symlink("/proc/self/exe").string() + " " + mode;
  FILE* const pipe = popen(command.c_str(), "r");
  CHECK(pipe != nullptr);
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

TEST(the_environment_sets_the_number_of_workers) {
  CHECK_EQ(run_self("ASPEN_NUM_WORKERS=7", "--num-workers").second, "7 7 ");
  const std::string cores = std::to_string(usable_cores());
  CHECK_EQ(run_self("ASPEN_NUM_WORKERS=", "--num-workers").second, cores + " " + cores + " ");
  CHECK_EQ(run_self("env -u ASPEN_NUM_WORKERS", "--num-workers").second, cores + " " + cores + " ");
  for (const std::string bad : {"0", "-3", "two", "2x", "1025", "99999999999999999999", "' 2'"}) {
    const auto [status, text] = run_self("ASPEN_NUM_WORKERS=" + bad, "--num-workers");
    // Twice: num_workers() throws it, and a run ends with it.
    const size_t first = text.find("the environment variable ASPEN_NUM_WORKERS is");
    CHECK(first != std::string::npos);
    CHECK(text.find("the environment variable ASPEN_NUM_WORKERS is", first + 1) != std::string::npos);
    CHECK(text.find("a number from 1 to 1024") != std::string::npos);
  }
}

TEST(a_process_may_exit_while_runs_are_in_flight) {
  for (const char* mode : {"--exit-in-flight", "--exit-from-thread", "--exit-in-long-tile"}) {
    for (int i = 0; i < 2; ++i) {
      const auto [status, text] = run_self("", mode);
      CHECK_EQ(status, 7);
      CHECK_EQ(text, "");
    }
  }
}

TEST(a_forked_child_starts_workers_of_its_own) {
  runtime().set_num_workers(3);
  const Dag dag = stencil_dag(30, 30);
  const auto plan = recorded_plan(dag, kInPool);
  for (int i = 0; i < 10; ++i) {
    // Runs are in flight when the process forks; they go on in the parent.
    Recording recording(dag);
    DagRun run(*plan);
    Waiter waiter;
    run.submit(plan, &recording, waiter.done());
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      is_forked_child = true;
      CHECK_EQ(threads_named_aspen(), 0);
      CHECK_EQ(runtime().num_workers(), 3);
      for (int k = 0; k < 5; ++k) run_and_check(plan, dag);
      std::exit(0);
    }
    waiter.wait();
    recording.check();
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

TEST(workers_leave_signals_to_the_application) {
  static std::atomic<bool> on_worker{false}, handled{false};
  runtime().set_num_workers(8);
  const Dag dag = stencil_dag(3, 3);
  run_and_check(recorded_plan(dag, kInPool), dag);
  struct sigaction action{};
  action.sa_handler = [](int) {
    char name[16] = {};
    pthread_getname_np(pthread_self(), name, sizeof(name));
    if (std::strncmp(name, "aspen-", 6) == 0) on_worker.store(true);
    handled.store(true);
  };
  CHECK_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
  for (int i = 0; i < 50; ++i) {
    handled.store(false);
    CHECK_EQ(kill(getpid(), SIGUSR1), 0);
    for (int k = 0; k < 1000 && !handled.load(); ++k) std::this_thread::sleep_for(100us);
    CHECK(handled.load());
  }
  CHECK(!on_worker.load());
}

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "aspen_cgroup_XXXXXX").string();
    CHECK(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  void write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path + "/" + file).parent_path());
    std::ofstream(path + "/" + file) << text;
  }
  std::string path;
};

TEST(the_quota_of_the_control_group_is_the_smallest_on_the_way_up) {
  const double none = std::numeric_limits<double>::infinity();
  Folder v2;
  v2.write("a/b/c/cpu.max", "max 100000\n");
  CHECK_EQ(cgroup_quota("0::/a/b/c\n", v2.path), none);
  v2.write("a/b/cpu.max", "250000 100000\n");
  CHECK_EQ(cgroup_quota("0::/a/b/c\n", v2.path), 2.5);
  v2.write("a/cpu.max", "400000 100000\n");
  CHECK_EQ(cgroup_quota("0::/a/b/c\n", v2.path), 2.5);
  CHECK_EQ(cgroup_quota("0::/a/other\n", v2.path), 4.0);
  CHECK_EQ(cgroup_quota("0::/\n", v2.path), none);
  v2.write("cpu.max", "50000 100000\n");
  CHECK_EQ(cgroup_quota("0::/../../elsewhere\n", v2.path), 0.5);

  Folder v1;
  const std::string groups = "11:memory:/m\n4:cpu,cpuacct:/docker/x\n1:name=systemd:/y\n";
  CHECK_EQ(cgroup_quota(groups, v1.path), none);
  v1.write("cpu,cpuacct/docker/x/cpu.cfs_quota_us", "-1\n");
  v1.write("cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n");
  CHECK_EQ(cgroup_quota(groups, v1.path), none);
  v1.write("cpu,cpuacct/docker/x/cpu.cfs_quota_us", "150000\n");
  CHECK_EQ(cgroup_quota(groups, v1.path), 1.5);

  for (const char* text : {"", "nonsense", "0:", "0::", "::::", "0::relative", "5:cpu:"})
    CHECK_EQ(cgroup_quota(text, "/nowhere"), none);
  CHECK(usable_cores() >= 1);
}

// What run_self runs.

int print_num_workers() {
  try {
    std::printf("%d ", runtime().num_workers());
  } catch (const std::exception& error) {
    std::printf("%s ", error.what());
  }
  const Dag dag = stencil_dag(2, 2);
  const auto plan = recorded_plan(dag, kInPool);
  Recording recording(dag);
  DagRun run(*plan);
  Waiter waiter;
  run.submit(plan, &recording, waiter.done());
  const auto errors = waiter.errors();
  if (errors.empty()) {
    std::printf("%d ", runtime().num_workers());
  } else {
    std::printf("%s ", errors[0].c_str());
  }
  return 0;
}

// Leaves in the middle of a long run. Everything the tiles touch lives for ever, as a well-behaved kernel's state does.
int exit_in_flight(std::chrono::microseconds time, bool from_thread) {
  static constexpr Kernel kSlow[] = {{"slow", prepare_task<sleep_a_tile>}};
  tile_time = time;
  runtime().set_num_workers(3);
  static std::vector<std::shared_ptr<const Plan>>& plans = *new std::vector<std::shared_ptr<const Plan>>();
  static std::vector<int64_t>& result = *new std::vector<int64_t>(100000);
  plans = {make_plan(encode_dag(stencil_dag(1000, 50), "slow", kInPool), kSlow),
           make_plan(encode_dag(stencil_dag(5000, 1), "slow", kInPool), kSlow)};
  for (const auto& plan : plans) {
    for (int i = 0; i < 3; ++i) {
      const void* operands[] = {nullptr};
      void* results[] = {result.data()};
      runtime().submit(plan, operands, results,
                       [](const std::string&) { std::printf("a run that cannot be finished is done\n"); });
    }
  }
  std::this_thread::sleep_for(5ms);
  if (from_thread) {
    std::thread([] { std::exit(7); }).join();
  }
  return 7;
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) {
  using namespace aspen::testing;
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "--num-workers") return print_num_workers();
  if (mode == "--exit-in-flight") return exit_in_flight(std::chrono::microseconds(100), false);
  if (mode == "--exit-from-thread") return exit_in_flight(std::chrono::microseconds(100), true);
  if (mode == "--exit-in-long-tile") return exit_in_flight(std::chrono::seconds(3), false);
  return run_tests(argc, argv);
}
