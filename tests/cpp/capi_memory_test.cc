// Memory that runs out at any request of the C library: a status that says so, and nothing else changes.
#include <atomic>
#include <string>

#include "aspen.h"
#include "capi_graph.h"
#include "failing_memory.h"

namespace aspen::testing {
namespace {

constexpr int64_t kDear = 1'000'000;                  // for the pool of workers
constexpr int64_t kCounts[] = {1, 2, Refusal::kAll};  // requests that are refused
const std::string kHeader = R"({"params.w":{"dtype":"F32","shape":[4,6],"data_offsets":[0,96]}})";

struct End {
  std::atomic<int> times{0};
  std::atomic<bool> has_failed{false};
  static void done(void* context, const char* error) {
    auto& end = *static_cast<End*>(context);
    end.has_failed.store(error != nullptr);
    end.times.fetch_add(1);
    end.times.notify_all();
  }
};

// Reads a graph and weights, runs and starts it. False if no request came so far.
bool use(const Bytes& file, const Bytes& weights, int64_t first, int64_t count) {
  alignas(64) float x[kElements] = {1}, y[kElements] = {}, y2[kElements] = {};
  alignas(64) uint8_t flag[3] = {1, 0, 1}, z[3] = {}, z2[3] = {};
  const void* inputs[] = {x, nullptr, flag};
  void *outputs[] = {y, z}, *other_outputs[] = {y2, z2};
  aspen_graph* graph = nullptr;
  End end;
  Refusal refusal(first, count);
  aspen_status status = aspen_read(file.data(), file.size(), &graph);
  CHECK((status == ASPEN_OK) == (graph != nullptr));
  if (status == ASPEN_OK) status = aspen_read_weights(graph, weights.data(), weights.size());
  if (status == ASPEN_OK) status = aspen_run(graph, inputs, outputs);
  if (status == ASPEN_OK) {
    CHECK_EQ(y[0], 3.5F);
    status = aspen_start(graph, inputs, other_outputs, End::done, &end);
    if (status == ASPEN_OK) {
      end.times.wait(0);
      if (end.has_failed.load()) {
        status = ASPEN_OUT_OF_MEMORY;
      } else {
        CHECK_EQ(y2[0], 3.5F);
      }
    } else {
      CHECK_EQ(end.times.load(), 0);
    }
  }
  refusal.end();
  if (status != ASPEN_OK) {
    CHECK(refusal.happened());
    CHECK_EQ(status, ASPEN_OUT_OF_MEMORY);
    if (!end.has_failed.load()) CHECK(std::string(aspen_last_error()).starts_with("out of memory"));
  }
  CHECK(end.times.load() <= 1);
  aspen_close(graph);
  return refusal.happened();
}

TEST(each_function_survives_that_there_is_no_memory) {
  CHECK_EQ(aspen_set_num_workers(2), ASPEN_OK);
  const Bytes weights = safetensors(kHeader, floats(2, 0));
  for (const int64_t cost : {int64_t{0}, kDear}) {
    const Bytes file = sum_file(cost);
    CHECK(!use(file, weights, Refusal::kAll, 1));
    for (const int64_t count : kCounts) {
      int64_t first = 0;
      while (use(file, weights, first, count)) ++first;
      CHECK(first > 50);
      CHECK(!use(file, weights, Refusal::kAll, 1));
    }
  }
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
