// The program aspen-run: loads a saved graph and its weights, runs and times it. All that it knows of graphs is aspen.h.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "aspen.h"
#include "npy.h"
#include "printable.h"

namespace aspen {
namespace {

constexpr const char* kUsage =
    "usage: aspen-run GRAPH [options]\n"
    "\n"
    "Runs a graph that TileGraph.save wrote, without Python, and prints how long it takes.\n"
    "\n"
    "  --weights FILE       inputs by name, from a safetensors file; may be given several times\n"
    "  --input NAME=FILE    one input, from a .npy file; NAME may be its number\n"
    "  --input NAME=random  one input of random numbers, which inputs that are not given have too\n"
    "  --output DIR         write each output to DIR/NAME.npy; without names, to DIR/NUMBER.npy\n"
    "  --kernels FILE       a shared library of kernels that the graph names; may be given several times\n"
    "  --runs N             how often it is timed, after a run that is not; 10 by default\n"
    "  --workers N          threads; as many as there are usable cores by default\n"
    "  --flags              print what a C compiler needs to build against the library, and end\n"
    "  --version            print the version, and end\n"
    "  --help               print this, and end\n"
    "\n"
    "The exit status is 0, or 2 where it cannot do what is asked.\n";

void check(aspen_status status) {
  if (status != ASPEN_OK) throw std::runtime_error(aspen_last_error());
}

struct Options {
  std::string graph;
  std::vector<std::string> kernels;
  std::vector<std::string> weights;
  std::map<std::string, std::string> inputs;
  std::optional<std::string> output;
  int runs = 10;
  std::optional<int> workers;
};

int positive(const std::string& option, const std::string& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1) {
    throw std::runtime_error(option + " is '" + text + "'; pass a whole number from 1 on");
  }
  return number;
}

Options parse(std::span<char* const> arguments) {
  Options options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string option = arguments[i];
    if (!option.starts_with("-")) {
      if (!options.graph.empty()) throw std::runtime_error("there are two graphs, '" + options.graph + "' and '" + option + "'");
      options.graph = option;
      continue;
    }
    if (option != "--kernels" && option != "--weights" && option != "--input" && option != "--output" && option != "--runs" &&
        option != "--workers") {
      throw std::runtime_error("there is no option '" + option + "'; aspen-run --help says which there are");
    }
    if (++i == arguments.size()) throw std::runtime_error(option + " needs a value");
    const std::string value = arguments[i];
    if (option == "--kernels") {
      options.kernels.push_back(value);
    } else if (option == "--weights") {
      options.weights.push_back(value);
    } else if (option == "--output") {
      options.output = value;
    } else if (option == "--runs") {
      options.runs = positive(option, value);
    } else if (option == "--workers") {
      options.workers = positive(option, value);
    } else {
      const size_t equals = value.find('=');
      if (equals == std::string::npos) throw std::runtime_error("--input is '" + value + "'; pass NAME=FILE or NAME=random");
      options.inputs[value.substr(0, equals)] = value.substr(equals + 1);
    }
  }
  if (options.graph.empty()) throw std::runtime_error("no graph is given; aspen-run --help says how");
  return options;
}

class Buffer {
 public:
  explicit Buffer(size_t bytes) : size_(bytes) {
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, std::max<size_t>(64, (bytes + 63) / 64 * 64))));
    if (data_ == nullptr) throw std::bad_alloc();
  }
  std::span<std::byte> bytes() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_;
};

template <typename T, typename Make>
void fill(std::span<std::byte> bytes, const Make& make) {
  for (size_t i = 0; i < bytes.size() / sizeof(T); ++i) reinterpret_cast<T*>(bytes.data())[i] = static_cast<T>(make());
}

// Floats are between -1 and 1, and far from what kernels are slow at; integers are 0 or 1, indices into most things.
void fill_random(const aspen_tensor& tensor, std::mt19937& random, std::span<std::byte> bytes) {
  const auto bit = [&] { return random() & 1; };
  // Sign, an exponent from 2^-4 to 2^-1, and a mantissa: the 16 bits of a float whose smallest such number is `least`.
  const auto narrow = [&](uint32_t least, uint32_t count) { return (random() & 1) << 15 | (least + random() % count); };
  std::uniform_real_distribution<float> uniform(-1, 1);
  switch (tensor.dtype) {
    case ASPEN_FLOAT16:
      return fill<uint16_t>(bytes, [&] { return narrow(0x2C00, 0x1000); });
    case ASPEN_BFLOAT16:
      return fill<uint16_t>(bytes, [&] { return narrow(0x3D80, 0x200); });
    case ASPEN_FLOAT32:
      return fill<float>(bytes, [&] { return uniform(random); });
    case ASPEN_FLOAT64:
      return fill<double>(bytes, [&] { return uniform(random); });
    case ASPEN_INT16:
    case ASPEN_UINT16:
      return fill<uint16_t>(bytes, bit);
    case ASPEN_INT32:
    case ASPEN_UINT32:
      return fill<uint32_t>(bytes, bit);
    case ASPEN_INT64:
    case ASPEN_UINT64:
      return fill<uint64_t>(bytes, bit);
    default:
      return fill<uint8_t>(bytes, bit);
  }
}

std::string name_of(const aspen_tensor& tensor, size_t index) {
  return tensor.name == nullptr ? std::to_string(index) : tensor.name;
}

std::string kind_of(const aspen_tensor& tensor) {
  std::string text = aspen_dtype_name(tensor.dtype);
  char separator = '[';
  for (int d = 0; d < tensor.rank; ++d) {
    text += separator + std::to_string(tensor.shape[d]);
    separator = ',';
  }
  return text + (tensor.rank == 0 ? "[]" : "]");
}

void print_row(const std::string& name, const std::string& kind, const std::string& source) {
  std::printf("  %-32s %-24s %s\n", printable(name).c_str(), kind.c_str(), printable(source).c_str());
}

struct CloseGraph {
  void operator()(aspen_graph* graph) const { aspen_close(graph); }
};

constexpr size_t kLongestName = 200;  // in bytes; file systems take 255

// A file for each output, all different, in a folder that can be written. So a program that has run for an hour can keep what it
// found.
std::vector<std::string> output_files(const std::string& folder, const std::vector<aspen_tensor>& tensors) {
  std::vector<std::string> names;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string name = file_name(name_of(tensors[i], i));
    names.push_back(name.size() > kLongestName ? std::to_string(i) : name);
  }
  if (std::set<std::string>(names.begin(), names.end()).size() < names.size()) {
    for (size_t i = 0; i < names.size(); ++i) names[i] = std::to_string(i) + "." + names[i];
  }
  std::filesystem::create_directories(folder);
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    throw std::runtime_error("'" + folder + "' cannot be written; name another folder");
  std::vector<std::string> files;
  for (const std::string& name : names) {
    files.push_back(folder + "/" + name + ".npy");
    const auto status = std::filesystem::status(files.back());
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
      throw std::runtime_error("'" + files.back() + "' exists and is no regular file; name another folder");
    }
    if (std::filesystem::exists(status) && ::access(files.back().c_str(), W_OK) != 0) {
      throw std::runtime_error("'" + files.back() + "' exists and cannot be written; name another folder");
    }
  }
  return files;
}

int run(const Options& options) {
  if (options.workers) check(aspen_set_num_workers(*options.workers));
  int workers = 0;
  check(aspen_num_workers(&workers));
  for (const std::string& path : options.kernels) check(aspen_register_kernels(path.c_str()));
  aspen_graph* opened = nullptr;
  check(aspen_open(options.graph.c_str(), &opened));
  const std::unique_ptr<aspen_graph, CloseGraph> graph(opened);
  for (const std::string& path : options.weights) check(aspen_load_weights(opened, path.c_str()));

  std::vector<Buffer> buffers;
  std::vector<const void*> inputs;
  std::map<std::string, std::string> given = options.inputs;
  std::mt19937 random(0);
  std::printf("inputs\n");
  for (size_t i = 0; i < aspen_num_inputs(opened); ++i) {
    aspen_tensor tensor;
    check(aspen_input(opened, i, &tensor));
    const std::string name = name_of(tensor, i);
    auto found = given.find(name);
    if (found == given.end()) found = given.find(std::to_string(i));
    const bool has_weight = aspen_weight(opened, i) != nullptr;
    const std::string source = found != given.end() ? found->second : has_weight ? "weight" : "random";
    if (found != given.end()) given.erase(found);
    if (source == "weight" && has_weight) {
      inputs.push_back(nullptr);
    } else {
      const Buffer& buffer = buffers.emplace_back(tensor.bytes);
      if (source == "random") {
        fill_random(tensor, random, buffer.bytes());
      } else {
        read_npy(source, tensor, buffer.bytes());
      }
      inputs.push_back(buffer.bytes().data());
    }
    print_row(name, kind_of(tensor), source);
  }
  if (!given.empty()) throw std::runtime_error("--input names '" + given.begin()->first + "', which is no input of the graph");

  std::vector<aspen_tensor> tensors(aspen_num_outputs(opened));
  std::vector<Buffer> results;
  std::vector<void*> outputs;
  std::printf("outputs\n");
  for (size_t i = 0; i < tensors.size(); ++i) {
    check(aspen_output(opened, i, &tensors[i]));
    outputs.push_back(results.emplace_back(tensors[i].bytes).bytes().data());
    print_row(name_of(tensors[i], i), kind_of(tensors[i]), "");
  }

  std::vector<std::string> files;
  if (options.output) files = output_files(*options.output, tensors);

  std::vector<double> times;
  for (int i = 0; i <= options.runs; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    check(aspen_run(opened, inputs.data(), outputs.data()));
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
    if (i > 0) times.push_back(time.count());
  }
  std::ranges::sort(times);
  const double median = (times[times.size() / 2] + times[(times.size() - 1) / 2]) / 2;
  std::printf("workers %d, runs %d: minimum %.4f ms, median %.4f ms\n", workers, options.runs, times.front(), median);

  for (size_t i = 0; i < files.size(); ++i) write_npy(files[i], tensors[i], results[i].bytes());
  return 0;
}

// The header and the library lie beside this program's folder.
int print_flags() {
  const std::string folder = std::filesystem::canonical("/proc/self/exe").parent_path().parent_path().string();
  std::printf("-I%s/include -L%s/lib -Wl,-rpath,%s/lib -laspen\n", folder.c_str(), folder.c_str(), folder.c_str());
  return 0;
}

int main(int argc, char** argv) {
  const std::span<char* const> arguments(argv + 1, argc > 0 ? static_cast<size_t>(argc - 1) : 0);
  const auto asks = [&](std::string_view option) {
    return std::ranges::any_of(arguments, [&](std::string_view argument) { return argument == option; });
  };
  try {
    if (asks("--help")) return std::fputs(kUsage, stdout) < 0 ? 2 : 0;
    if (asks("--version")) return std::printf("%s\n", aspen_version()) < 0 ? 2 : 0;
    if (asks("--flags")) return print_flags();
    return run(parse(arguments));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "aspen-run: %s\n", printable(error.what()).c_str());
    return 2;
  }
}

}  // namespace
}  // namespace aspen

int main(int argc, char** argv) { return aspen::main(argc, argv); }
