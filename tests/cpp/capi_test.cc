// The C library: what its functions give, what they refuse, and runs side by side.
#include <array>
#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "aspen.h"
#include "capi_graph.h"

namespace aspen::testing {
namespace {

constexpr int64_t kDear = 1'000'000;  // for the pool of workers

aspen_graph* read(const Bytes& bytes) {
  aspen_graph* graph = nullptr;
  if (aspen_read(bytes.data(), bytes.size(), &graph) != ASPEN_OK) fail(__FILE__, __LINE__, aspen_last_error());
  return graph;
}

void check_refused(aspen_status got, aspen_status wanted, const std::string& part) {
  CHECK_EQ(static_cast<int>(got), static_cast<int>(wanted));
  if (std::string(aspen_last_error()).find(part) == std::string::npos) {
    fail(__FILE__, __LINE__, "the error is '" + std::string(aspen_last_error()) + "' and does not contain '" + part + "'");
  }
}

void check_bad(const Bytes& bytes, const std::string& part) {
  auto* graph = reinterpret_cast<aspen_graph*>(1);
  check_refused(aspen_read(bytes.data(), bytes.size(), &graph), ASPEN_BAD_FILE, part);
  CHECK(graph == nullptr);
}

void check_bad_weights(const std::string& header, const std::string& part, aspen_status status = ASPEN_BAD_FILE) {
  aspen_graph* const graph = read(sum_file());
  const Bytes bytes = safetensors(header, floats(0, 1));
  check_refused(aspen_read_weights(graph, bytes.data(), bytes.size()), status, part);
  CHECK(aspen_weight(graph, 1) == nullptr);
  aspen_close(graph);
}

struct Arrays3 {
  alignas(64) std::array<float, kElements> x{}, y{};
  alignas(64) std::array<uint8_t, 3> flag{1, 0, 1}, z{};
  std::array<const void*, 3> inputs{x.data(), nullptr, flag.data()};
  std::array<void*, 2> outputs{y.data(), z.data()};

  void check(float x0) const {
    for (size_t i = 0; i < kElements; ++i) CHECK_EQ(y[i], std::max(0.0F, x[i] + (x0 + static_cast<float>(i)) + 0.5F));
    CHECK(z == flag);
  }
};

Bytes weights(float first) { return safetensors(kWeightsHeader, floats(first, 1)); }

TEST(a_graph_says_what_it_takes_and_gives) {
  aspen_graph* const graph = read(sum_file());
  CHECK_EQ(aspen_num_inputs(graph), 3U);
  CHECK_EQ(aspen_num_outputs(graph), 2U);
  aspen_tensor tensor;
  CHECK_EQ(aspen_input(graph, 1, &tensor), ASPEN_OK);
  CHECK_EQ(std::string(tensor.name), "params.w");
  CHECK_EQ(tensor.dtype, ASPEN_FLOAT32);
  CHECK_EQ(tensor.rank, 2);
  CHECK(tensor.shape[0] == kRows && tensor.shape[1] == kColumns && tensor.shape[2] == 0);
  CHECK_EQ(tensor.bytes, 4 * kElements);
  CHECK_EQ(aspen_output(graph, 1, &tensor), ASPEN_OK);
  CHECK_EQ(std::string(tensor.name), "result.z");
  CHECK_EQ(tensor.dtype, ASPEN_BOOL);
  check_refused(aspen_input(graph, 3, &tensor), ASPEN_INVALID_ARGUMENT, "3 inputs, and none of index 3");
  check_refused(aspen_output(graph, 2, &tensor), ASPEN_INVALID_ARGUMENT, "2 outputs");
  aspen_close(graph);
  aspen_close(nullptr);
}

TEST(versions_and_dtypes_have_names) {
  CHECK_EQ(aspen_api_version(), ASPEN_API_VERSION);
  CHECK(std::string(aspen_version()).find('.') != std::string::npos);
  CHECK_EQ(std::string(aspen_dtype_name(ASPEN_BFLOAT16)), "bfloat16");
  CHECK(aspen_dtype_name(static_cast<aspen_dtype>(13)) == nullptr);
}

TEST(a_run_reads_inputs_weights_and_constants) {
  for (const int64_t cost : {int64_t{0}, kDear}) {
    aspen_graph* const graph = read(sum_file(cost));
    Arrays3 arrays;
    check_refused(aspen_run(graph, arrays.inputs.data(), arrays.outputs.data()), ASPEN_INVALID_ARGUMENT,
                  "input 1 ('params.w') is NULL and has no weight");
    for (const float first : {-8.0F, 2.0F}) {  // the second in place of the first
      const Bytes file = weights(first);
      CHECK_EQ(aspen_read_weights(graph, file.data(), file.size()), ASPEN_OK);
      CHECK(aspen_weight(graph, 1) != nullptr && aspen_weight(graph, 0) == nullptr && aspen_weight(graph, 7) == nullptr);
      CHECK_EQ(aspen_run(graph, arrays.inputs.data(), arrays.outputs.data()), ASPEN_OK);
      arrays.check(first);
    }
    alignas(64) std::array<float, kElements> own{};
    arrays.inputs[1] = own.data();
    CHECK_EQ(aspen_run(graph, arrays.inputs.data(), arrays.outputs.data()), ASPEN_OK);
    CHECK_EQ(arrays.y[5], 0.5F);
    aspen_close(graph);
  }
}

TEST(limits_end_a_run_and_hold_until_they_are_lifted) {
  int64_t workspace = 0, nanoseconds = 0;
  CHECK_EQ(aspen_limits(&workspace, &nanoseconds), ASPEN_OK);
  CHECK(workspace == ASPEN_NO_LIMIT && nanoseconds == ASPEN_NO_LIMIT);
  check_refused(aspen_set_limits(-1, 0), ASPEN_INVALID_ARGUMENT, "the limit workspace is -1");
  check_refused(aspen_set_limits(0, -5), ASPEN_INVALID_ARGUMENT, "the limit nanoseconds is -5");
  const Bytes file = weights(2);
  for (const int64_t cost : {int64_t{0}, kDear}) {
    aspen_graph* const graph = read(sum_file(cost));
    CHECK_EQ(aspen_read_weights(graph, file.data(), file.size()), ASPEN_OK);
    Arrays3 arrays;
    const auto run = [&] { return aspen_run(graph, arrays.inputs.data(), arrays.outputs.data()); };
    CHECK_EQ(aspen_set_limits(127, ASPEN_NO_LIMIT), ASPEN_OK);
    check_refused(run(), ASPEN_FAILED, "the limit is 127");
    CHECK_EQ(aspen_set_limits(1 << 20, 0), ASPEN_OK);
    check_refused(run(), ASPEN_FAILED, "longer than the limit of 0 nanoseconds");
    CHECK_EQ(arrays.y[5], 0.0F);  // no tile has run
    std::atomic<int> errors{0};
    CHECK_EQ(aspen_start(
                 graph, arrays.inputs.data(), arrays.outputs.data(),
                 [](void* context, const char* error) {
                   *static_cast<std::atomic<int>*>(context) = error != nullptr ? 1 : 2;
                   static_cast<std::atomic<int>*>(context)->notify_one();
                 },
                 &errors),
             ASPEN_OK);
    errors.wait(0);
    CHECK_EQ(errors.load(), 1);
    CHECK_EQ(aspen_set_limits(1 << 20, int64_t{1} << 40), ASPEN_OK);
    CHECK_EQ(run(), ASPEN_OK);
    arrays.check(2);
    CHECK_EQ(aspen_set_limits(ASPEN_NO_LIMIT, ASPEN_NO_LIMIT), ASPEN_OK);
    CHECK_EQ(run(), ASPEN_OK);
    aspen_close(graph);
  }
}

void write(const char* path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

// The files stay: CMakeLists.txt runs aspen-run and the example on them afterwards.
TEST(files_are_as_good_as_their_bytes) {
  write("sum.aspen", sum_file());
  write("sum.safetensors", weights(-8));
  aspen_graph* graph = nullptr;
  CHECK_EQ(aspen_open("sum.aspen", &graph), ASPEN_OK);
  CHECK_EQ(aspen_load_weights(graph, "sum.safetensors"), ASPEN_OK);
  Arrays3 arrays;
  CHECK_EQ(aspen_run(graph, arrays.inputs.data(), arrays.outputs.data()), ASPEN_OK);
  arrays.check(-8);
  aspen_close(graph);
}

TEST(a_graph_without_names_runs_and_takes_no_weights) {
  aspen_graph* const graph = read(with_constants(sum_graph(0).encode(), {floats(0.5F, 0)}));
  aspen_tensor tensor;
  CHECK_EQ(aspen_input(graph, 0, &tensor), ASPEN_OK);
  CHECK(tensor.name == nullptr);
  const Bytes file = weights(0);
  check_refused(aspen_read_weights(graph, file.data(), file.size()), ASPEN_INVALID_ARGUMENT, "no names");
  aspen_close(graph);
}

TEST(what_a_caller_does_wrong_is_refused) {
  aspen_graph* const graph = read(sum_file());
  const Bytes file = weights(0);
  CHECK_EQ(aspen_read_weights(graph, file.data(), file.size()), ASPEN_OK);
  Arrays3 arrays;
  check_refused(aspen_run(graph, nullptr, arrays.outputs.data()), ASPEN_INVALID_ARGUMENT, "input 0 ('x') is NULL");
  check_refused(aspen_run(graph, arrays.inputs.data(), nullptr), ASPEN_INVALID_ARGUMENT, "outputs is NULL");
  check_refused(aspen_run(nullptr, nullptr, nullptr), ASPEN_INVALID_ARGUMENT, "graph is NULL");
  check_refused(aspen_start(graph, arrays.inputs.data(), arrays.outputs.data(), nullptr, nullptr), ASPEN_INVALID_ARGUMENT,
                "done is NULL");
  arrays.inputs[0] = reinterpret_cast<const char*>(arrays.x.data()) + 1;
  check_refused(aspen_run(graph, arrays.inputs.data(), arrays.outputs.data()), ASPEN_INVALID_ARGUMENT, "not aligned to the 4");
  arrays.inputs[0] = arrays.x.data();
  arrays.outputs[1] = nullptr;
  check_refused(aspen_run(graph, arrays.inputs.data(), arrays.outputs.data()), ASPEN_INVALID_ARGUMENT,
                "output 1 ('result.z') is NULL");
  check_refused(aspen_open("no such file", nullptr), ASPEN_INVALID_ARGUMENT, "graph is NULL");
  aspen_graph* none;
  check_refused(aspen_open("no such file", &none), ASPEN_IO_ERROR, "cannot open 'no such file'");
  check_refused(aspen_open("/", &none), ASPEN_IO_ERROR, "no regular file");
  check_refused(aspen_load_weights(graph, "no such file"), ASPEN_IO_ERROR, "cannot open");
  check_refused(aspen_open(std::string(5000, 'x').c_str(), &none), ASPEN_IO_ERROR, "xxx");  // a message that is cut
  check_refused(aspen_set_num_workers(0), ASPEN_INVALID_ARGUMENT, "number of workers is 0");
  check_refused(aspen_num_workers(nullptr), ASPEN_INVALID_ARGUMENT, "NULL");
  CHECK(aspen_num_inputs(nullptr) == 0 && aspen_weight(nullptr, 0) == nullptr);
  aspen_close(graph);
}

TEST(damaged_graph_files_are_refused) {
  const Bytes good = sum_file();
  for (size_t size = 0; size < good.size(); ++size) check_bad({good.begin(), good.begin() + static_cast<ptrdiff_t>(size)}, "");
  Bytes longer = good;
  longer.push_back(std::byte{0});
  check_bad(longer, "bytes of constants");
  Bytes flipped = good;
  flipped.back() ^= std::byte{1};
  check_bad(flipped, "checksum");
  const Bytes graph = sum_graph(0).encode();
  check_bad(graph, "truncated behind its graph");
  check_bad(with_constants(graph, {floats(0, 0), floats(0, 0)}), "bytes follow");
  check_bad(with_constants(graph, {Bytes(90)}), "constant 0 of the graph file is cut short");
  check_bad(with_constants(graph, std::vector<Bytes>(5)), "5 constants for 4 operands");
  check_bad(with_constants(graph, {Bytes(100)}), "4 bytes follow");
  check_bad(sum_file(0, std::string("x\0params.w\0", 11)), "2 names for 3");
  check_bad(sum_file(0, std::string("x\0x\0y\0", 6)), "not all different");
  check_bad(sum_file(0, kInputNames, std::string("a\0b\0c\0", 6)), "are 3 for 2");
  check_bad(sum_file(0, "x"), "has no end");
  check_bad(sum_file(0, std::string("\xff\0", 2)), "no UTF-8");
  GraphBuilder flags;
  const int64_t flag = flags.operand(DType::kBool, {3}), copy = flags.result(DType::kBool, {3});
  flags.op("copy", "block", {flags.whole(flag)}, copy, {1, 1, 0, 0, 0});
  flags.tile(0, {0}, {3});
  check_bad(with_constants(flags.encode(), {Bytes(3, std::byte{2})}), "neither 0 nor 1");
}

TEST(damaged_weights_are_refused_and_change_nothing) {
  const std::string w = R"("params.w":{"dtype":"F32","shape":[4,6],"data_offsets":[0,96]})";
  aspen_graph* const graph = read(sum_file());
  for (const std::string& header :
       {"{" + w + "}  \n", R"({"params\u002e\u0077":{"shape":[4,6],"dtype":"F32","data_offsets":[0,96]}})" + std::string()}) {
    const Bytes bytes = safetensors(header, floats(0, 1));
    if (aspen_read_weights(graph, bytes.data(), bytes.size()) != ASPEN_OK) fail(__FILE__, __LINE__, aspen_last_error());
    for (size_t size = 0; size < bytes.size(); ++size) {
      CHECK_EQ(aspen_read_weights(graph, bytes.data(), size), ASPEN_BAD_FILE);
    }
  }
  aspen_close(graph);
  check_bad_weights("{" + w + "," + w + "}", "has 'params.w' twice");
  check_bad_weights("{" + w + "}{", "behind the object");
  check_bad_weights("[]", "no '{'");
  check_bad_weights("{", "no '\"'");
  check_bad_weights(R"({"params.w":{"dtype":"F32","shape":[4,6]}})", "does not say");
  check_bad_weights(R"({"params.w":{"dtype":"F32","dtype":"F32"}})", "twice");
  check_bad_weights(R"({"params.w":{"dtype":"F99","shape":[4,6],"data_offsets":[0,96]}})", "does not know");
  check_bad_weights(R"({"params.w":{"dtype":"F32","shape":[4,5],"data_offsets":[0,96]}})", "not those of its dtype and shape");
  check_bad_weights(R"({"params.w":{"dtype":"F32","shape":[4,-6],"data_offsets":[0,96]}})", "no whole number");
  check_bad_weights(R"({"params.w":{"dtype":"F32","shape":[4,06],"data_offsets":[0,96]}})", "no whole number");
  check_bad_weights(R"({"params.w":{"dtype":"F32","shape":[9223372036854775807,16],"data_offsets":[0,96]}})", "64 bits");
  check_bad_weights(R"({"params.w":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,96]}})", "no whole number");
  check_bad_weights(R"({"params.w":{"dtype":"F32","shape":[4,6],"data_offsets":[0,97]}})", "of 96");
  check_bad_weights(R"({"params.w":{"dtype":"F32","shape":[4,6],"data_offsets":[96,0]}})", "of 96");
  check_bad_weights(R"({"params.w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", "belong to no tensor");
  check_bad_weights(
      R"({"a":{"dtype":"U8","shape":[96],"data_offsets":[0,96]},"b":{"dtype":"U8","shape":[96],"data_offsets":[0,96]}})",
      "does not begin where");
  check_bad_weights(R"({"params.w":{"dtype":"F32","shape":[4,6],"data_offsets":[0,96],"more":[]}})", "something unknown");
  check_bad_weights(R"({"\ud800":{}})", "surrogate");
  check_bad_weights(R"({"\ud800\u0041":{}})", "surrogate");
  check_bad_weights(R"({"\udc00":{}})", "no UTF-8");
  check_bad_weights(R"({"\u0000":{}})", "no UTF-8");
  check_bad_weights(R"({"\uD83D\uDE00":{"dtype":"U8","shape":[96],"data_offsets":[0,96]}})", "\xF0\x9F\x98\x80",
                    ASPEN_INVALID_ARGUMENT);
  check_bad_weights(R"({"\x":{}})", "unknown escape");
  check_bad_weights("{\"\n\":{}}", "control character");
  check_bad_weights(R"({"w":{"dtype":"F32","shape":[4,6],"data_offsets":[0,96]}})", "hold 'w', which is no input",
                    ASPEN_INVALID_ARGUMENT);
  check_bad_weights(R"({"params.w":{"dtype":"F32","shape":[6,4],"data_offsets":[0,96]}})", "as F32[6,4], but",
                    ASPEN_INVALID_ARGUMENT);
  check_bad_weights(R"({"params.w":{"dtype":"I32","shape":[4,6],"data_offsets":[0,96]}})", "as I32[4,6], but",
                    ASPEN_INVALID_ARGUMENT);
  check_bad_weights(R"({"flag":{"dtype":"BOOL","shape":[3],"data_offsets":[93,96]},)"
                    R"("pad":{"dtype":"U8","shape":[93],"data_offsets":[0,93]}})",
                    "'pad', which is no input", ASPEN_INVALID_ARGUMENT);
}

TEST(bools_of_weights_are_0_or_1) {
  aspen_graph* const graph = read(sum_file());
  for (const int value : {1, 2}) {
    const Bytes bytes = safetensors(R"({"flag":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})", Bytes(3, std::byte(value)));
    CHECK_EQ(aspen_read_weights(graph, bytes.data(), bytes.size()), value == 1 ? ASPEN_OK : ASPEN_BAD_FILE);
  }
  aspen_close(graph);
}

TEST(errors_belong_to_threads) {
  check_refused(aspen_set_num_workers(-7), ASPEN_INVALID_ARGUMENT, "-7");
  std::thread([] {
    CHECK_EQ(std::string(aspen_last_error()), "");
    check_refused(aspen_set_num_workers(5000), ASPEN_INVALID_ARGUMENT, "5000");
  }).join();
  CHECK(std::string(aspen_last_error()).find("-7") != std::string::npos);
}

TEST(threads_run_one_graph_side_by_side) {
  CHECK_EQ(aspen_set_num_workers(2), ASPEN_OK);
  int workers = 0;
  CHECK_EQ(aspen_num_workers(&workers), ASPEN_OK);
  CHECK_EQ(workers, 2);
  aspen_graph* const graph = read(sum_file(kDear));
  const Bytes file = weights(-3);
  CHECK_EQ(aspen_read_weights(graph, file.data(), file.size()), ASPEN_OK);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([graph, t] {
      Arrays3 arrays;
      for (int i = 0; i < 100; ++i) {
        arrays.x.fill(static_cast<float>(t * 100 + i));
        CHECK_EQ(aspen_run(graph, arrays.inputs.data(), arrays.outputs.data()), ASPEN_OK);
        arrays.check(-3);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  aspen_close(graph);
}

TEST(a_started_run_outlives_its_graph) {
  aspen_graph* const graph = read(sum_file(kDear));
  const Bytes file = weights(1);
  CHECK_EQ(aspen_read_weights(graph, file.data(), file.size()), ASPEN_OK);
  std::vector<Arrays3> arrays(32);
  std::atomic<int> ended = 0;
  for (Arrays3& each : arrays) {
    each.inputs = {each.x.data(), nullptr, each.flag.data()};  // where the vector has them
    each.outputs = {each.y.data(), each.z.data()};
    const auto done = [](void* context, const char* error) {
      CHECK(error == nullptr);
      static_cast<std::atomic<int>*>(context)->fetch_add(1);
    };
    CHECK_EQ(aspen_start(graph, each.inputs.data(), each.outputs.data(), done, &ended), ASPEN_OK);
  }
  aspen_close(graph);
  while (ended.load() < 32) std::this_thread::yield();
  for (const Arrays3& each : arrays) each.check(1);
}

}  // namespace
}  // namespace aspen::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
