// Forks at any moment, while other threads parse, run and close graphs: the child can do all of that too, and end.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "aspen.h"
#include "capi_graph.h"
#include "forked_child.h"

namespace aspen::testing {
namespace {

constexpr int64_t kDear = 1'000'000;  // for the pool of workers

// Files that take a while to compare, so that threads are often inside the plan cache. They differ at their ends.
Bytes long_file(int64_t cost, int64_t number) {
  const std::string names("input_names\0result_names\0zz\0", 28);
  Words field(200'000);
  field.back() = number;
  const std::vector<Words> fields = {words_of(kInputNames), words_of(kResultNames), field};
  return with_constants(GraphBuilder::with_fields(sum_graph(cost).arrays(), names, fields), {floats(0.5F, 0)});
}

// What a process does with a graph: parse, run, close.
void use(const Bytes& bytes) {
  aspen_graph* graph = nullptr;
  CHECK_EQ(aspen_read(bytes.data(), bytes.size(), &graph), ASPEN_OK);
  alignas(64) float x[kElements] = {}, w[kElements] = {}, y[kElements];
  alignas(64) uint8_t flag[3] = {1, 0, 1}, z[3];
  x[0] = 2;
  const void* inputs[] = {x, w, flag};
  void* outputs[] = {y, z};
  CHECK_EQ(aspen_run(graph, inputs, outputs), ASPEN_OK);
  CHECK_EQ(y[0], 2.5F);
  CHECK_EQ(z[2], 1);
  aspen_close(graph);
}

TEST(a_child_forked_at_any_moment_can_parse_run_and_end) {
  constexpr int kForks = ASPEN_SMALL_TESTS ? 30 : 300;
  std::vector<Bytes> files;
  for (int64_t i = 0; i < 8; ++i) files.push_back(long_file(i % 2 * kDear, i));
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      while (!stop.load()) {
        use(files[random() % files.size()]);
        if (random() % 16 == 0) CHECK_EQ(aspen_set_num_workers(1 + static_cast<int>(random() % 3)), ASPEN_OK);
      }
    });
  }
  for (int i = 0; i < kForks; ++i) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      is_forked_child = true;
      alarm(30);  // whoever waits for ever is killed
      use(files[static_cast<size_t>(i) % files.size()]);
      CHECK_EQ(aspen_set_num_workers(2), ASPEN_OK);
      use(sum_file(kDear));
      std::exit(0);
    }
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status))
      fail(__FILE__, __LINE__, "fork " + std::to_string(i) + " ended by signal " + std::to_string(WTERMSIG(status)));
    CHECK_EQ(WEXITSTATUS(status), 0);
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
