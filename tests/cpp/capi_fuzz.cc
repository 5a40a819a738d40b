// Mutated graph files and weights against the C library: whatever the bytes, it refuses them in words or runs them.
//
// Run under AddressSanitizer and UndefinedBehaviorSanitizer. Checksums are right, so that mutations get past them. What graphs
// may hold is for engine_fuzz and kernels_fuzz; here it is what surrounds them: names, constants, safetensors files.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>
#include <set>
#include <string>

#include "aspen.h"
#include "capi_graph.h"

namespace aspen::testing {
namespace {

const std::string kHeaders[] = {
    kWeightsHeader,
    R"({"flag":{"dtype":"BOOL","shape":[3],"data_offsets":[96,99]},"params.w":{"dtype":"F32","shape":[4,6],"data_offsets":[0,96]}})",
    R"({"x":{"shape":[4,6],"data_offsets":[0,96],"dtype":"F32"},"\ud83d\ude00\n":{"dtype":"F4","shape":[2,0],"data_offsets":[96,96]}})",
    R"({"params\u002ew":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}})",
    "{}",
};
const std::string kPieces[] = {"{",
                               "}",
                               "[",
                               "]",
                               ":",
                               ",",
                               "\"",
                               "\\u",
                               "\\ud800",
                               "\\",
                               "\0",
                               "0",
                               "-1",
                               "1e9",
                               "F32",
                               "F6_E2M3",
                               "96",
                               "null",
                               "\xc3",
                               "\xa9",
                               "__metadata__",
                               "18446744073709551615",
                               "9223372036854775807",
                               "4294967296",
                               "\"shape\":[1]",
                               "data_offsets"};

class Fuzzer {
 public:
  explicit Fuzzer(uint64_t seed) : random_(seed), graph_(open(sum_file())) {}
  ~Fuzzer() { aspen_close(graph_); }
  Fuzzer(const Fuzzer&) = delete;
  Fuzzer& operator=(const Fuzzer&) = delete;

  void weights() {
    std::string header = kHeaders[below(std::size(kHeaders))];
    for (uint64_t i = below(4); i > 0; --i) mutate(header);
    Bytes data = floats(static_cast<float>(below(9)), 1);
    data.resize(below(3) == 0 ? below(120) : 96 + 3 * below(2), std::byte{1});
    Bytes bytes = safetensors(header, data);
    if (below(20) == 0) bytes[below(8)] = static_cast<std::byte>(random_());
    if (below(20) == 0) bytes.resize(below(bytes.size() + 1));
    bytes.shrink_to_fit();  // so that reading past its end is seen
    if (judge(aspen_read_weights(graph_, bytes.data(), bytes.size()))) run(graph_);
  }

  void graph() {
    std::string inputs = kInputNames, results = kResultNames;
    if (below(3) == 0) mutate(inputs);
    if (below(3) == 0) mutate(results);
    Bytes file = sum_file(0, inputs, results);
    const size_t graph_size = 24 + static_cast<size_t>(file[16]) + (static_cast<size_t>(file[17]) << 8);
    if (below(2) == 0) {  // its header
      file[graph_size + below(24)] = static_cast<std::byte>(below(2) == 0 ? below(8) : random_());
    }
    if (below(3) == 0) {  // its length
      file.resize(graph_size + below(file.size() - graph_size + 70));
      if (below(2) == 0 && file.size() >= graph_size + 24) seal(file, graph_size);
    }
    file.shrink_to_fit();
    aspen_graph* graph = nullptr;
    if (!judge(aspen_read(file.data(), file.size(), &graph))) return;
    run(graph);
    aspen_close(graph);
  }

  void check() const {
    std::printf("accepted %ld, refused in %zu ways\n", accepted_, refusals_.size());
    std::fflush(stdout);
    CHECK(accepted_ > 100 && refusals_.size() > 20);
  }

 private:
  static aspen_graph* open(const Bytes& bytes) {
    aspen_graph* graph = nullptr;
    CHECK_EQ(aspen_read(bytes.data(), bytes.size(), &graph), ASPEN_OK);
    return graph;
  }

  uint64_t below(uint64_t limit) { return random_() % limit; }

  void mutate(std::string& text) {
    const size_t at = below(text.size() + 1);
    switch (below(5)) {
      case 0:
        text.insert(at, kPieces[below(std::size(kPieces))]);
        break;
      case 1:
        text.erase(at, 1 + below(6));
        break;
      case 2:
        text.insert(at, text.substr(below(text.size() + 1), below(40)));
        break;
      case 3:
        if (at < text.size()) text[at] = static_cast<char>(random_());
        break;
      default:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
    }
  }

  static void seal(Bytes& file, size_t graph_size) {
    const Bytes arrays(file.begin() + static_cast<ptrdiff_t>(graph_size + 24), file.end());
    Bytes numbers;
    append_number(numbers, GraphBuilder::checksum(arrays), 4);
    append_number(numbers, arrays.size(), 8);
    std::ranges::copy(numbers, file.begin() + static_cast<ptrdiff_t>(graph_size + 12));
  }

  bool judge(aspen_status status) {
    if (status == ASPEN_OK) {
      ++accepted_;
      return true;
    }
    CHECK(status == ASPEN_BAD_FILE || status == ASPEN_INVALID_ARGUMENT);
    // Kinds of messages, without numbers and what they quote.
    std::string kind = aspen_last_error();
    CHECK(!kind.empty());
    if (const size_t quoted = kind.find('\''); quoted != std::string::npos) kind.resize(quoted);
    std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });
    refusals_.insert(kind);
    return false;
  }

  // Inputs that have no weights get memory of exactly their sizes.
  static void run(const aspen_graph* graph) {
    std::vector<Bytes> memory;
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
    memory.reserve(aspen_num_inputs(graph) + aspen_num_outputs(graph));
    aspen_tensor tensor;
    for (size_t i = 0; i < aspen_num_inputs(graph); ++i) {
      CHECK_EQ(aspen_input(graph, i, &tensor), ASPEN_OK);
      inputs.push_back(aspen_weight(graph, i) != nullptr ? nullptr : memory.emplace_back(tensor.bytes).data());
    }
    for (size_t i = 0; i < aspen_num_outputs(graph); ++i) {
      CHECK_EQ(aspen_output(graph, i, &tensor), ASPEN_OK);
      outputs.push_back(memory.emplace_back(tensor.bytes).data());
    }
    CHECK_EQ(aspen_run(graph, inputs.data(), outputs.data()), ASPEN_OK);
  }

  std::mt19937_64 random_;
  aspen_graph* graph_;
  long accepted_ = 0;
  std::set<std::string> refusals_;
};

}  // namespace
}  // namespace aspen::testing

// capi_fuzz [rounds] [seed]
int main(int argc, char** argv) {
  const long rounds = argc > 1 ? std::atol(argv[1]) : 100000;
  aspen::testing::Fuzzer fuzzer(static_cast<uint64_t>(argc > 2 ? std::atol(argv[2]) : 1));
  for (long i = 0; i < rounds; ++i) {
    if (i % 2 == 0) {
      fuzzer.weights();
    } else {
      fuzzer.graph();
    }
  }
  if (rounds >= 10000) fuzzer.check();
  return 0;
}
