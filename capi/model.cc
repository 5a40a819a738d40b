#include "model.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "aspen_jax/engine/plan_cache.h"
#include "aspen_jax/engine/signature.h"
#include "aspen_jax/engine/wire.h"
#include "safetensors.h"

namespace aspen {
namespace {

constexpr size_t kHeader = 24;
constexpr size_t kAlignment = 64;
constexpr char kConstants[8] = {'A', 'S', 'P', 'E', 'N', 'T', 'C', '\0'};

std::shared_ptr<Arena> allocate(size_t bytes) {
  auto arena = std::make_shared<Arena>();
  if (!arena->grow(std::max<size_t>(bytes, 1))) throw std::bad_alloc();
  return arena;
}

size_t aligned(size_t position) { return (position + kAlignment - 1) / kAlignment * kAlignment; }

// Kernels may rely on it.
void check_bools(const TensorView& tensor, std::span<const std::byte> bytes, const std::string& what) {
  if (tensor.dtype != DType::kBool) return;
  if (std::ranges::any_of(bytes, [](std::byte byte) { return byte > std::byte{1}; })) {
    throw FileError(what + " holds bools that are neither 0 nor 1; write the file again");
  }
}

// How many bytes of the file are the graph. What the graph's own header says is checked with the graph.
size_t graph_size(std::span<const std::byte> file) {
  if (file.size() < kHeader) return file.size();
  return kHeader + std::min<uint64_t>(little_endian<uint64_t>(file.subspan(16, 8)), file.size() - kHeader);
}

// The arrays of the last operands, which end the file (docs/graph_format.md, "Files").
void read_constants(std::span<const std::byte> file, size_t offset, const Plan& plan, std::vector<const std::byte*>& operands) {
  const auto rest = file.subspan(offset);
  if (rest.size() < kHeader || std::memcmp(rest.data(), kConstants, sizeof(kConstants)) != 0) {
    throw FileError("the graph file is truncated behind its graph; save the graph again");
  }
  const auto count = little_endian<uint32_t>(rest.subspan(8, 4)), checksum = little_endian<uint32_t>(rest.subspan(12, 4));
  const auto arrays = rest.subspan(kHeader);
  if (const auto size = little_endian<uint64_t>(rest.subspan(16, 8)); size != arrays.size()) {
    throw FileError("the graph file holds " + std::to_string(arrays.size()) + " of " + std::to_string(size) +
                    " bytes of constants; save the graph again");
  }
  if (crc32(arrays) != checksum) {
    throw FileError("the graph file's constants are damaged: their checksum does not match; save the graph again");
  }
  if (count > operands.size()) {
    throw FileError("the graph file has " + std::to_string(count) + " constants for " + std::to_string(operands.size()) +
                    " operands; save the graph again");
  }
  size_t position = offset + kHeader;
  for (size_t i = operands.size() - count; i < operands.size(); ++i) {
    const Value& value = plan.operand(i);
    const std::string what = "constant " + std::to_string(i + count - operands.size()) + " of the graph file";
    const size_t begin = aligned(position), bytes = static_cast<size_t>(value.bytes);
    if (begin > file.size() || bytes > file.size() - begin) throw FileError(what + " is cut short; save the graph again");
    check_bools(value.dense, file.subspan(begin, bytes), what);
    operands[i] = file.data() + begin;
    position = begin + bytes;
  }
  if (position != file.size()) {
    throw FileError(std::to_string(file.size() - position) + " bytes follow the graph file's end; save the graph again");
  }
}

// The format's name of a dtype.
std::string_view stored_name(DType dtype) {
  static constexpr std::string_view kNames[kNumDTypes] = {"BOOL", "I8",  "I16", "I32",  "I64", "U8", "U16",
                                                          "U32",  "U64", "F16", "BF16", "F32", "F64"};
  return kNames[static_cast<int>(dtype)];
}

}  // namespace

Model::Model(const Source& source) {
  const std::shared_ptr<Arena> arena = allocate(source.size());
  const std::span<std::byte> file(arena->data(), source.size());
  source.read(0, file);
  const size_t size = graph_size(file);
  plan_ = plan_of(file.first(size));
  auto memory = std::make_shared<Memory>();
  memory->operands.resize(plan_->num_operands());
  memory->owners.resize(plan_->num_operands());
  read_constants(file, size, *plan_, memory->operands);
  for (size_t i = 0; i < plan_->num_operands(); ++i) {
    if (memory->operands[i] != nullptr) memory->owners[i] = arena;
  }
  num_inputs_ = static_cast<size_t>(std::ranges::count(memory->operands, nullptr));
  memory_ = std::move(memory);
  const Graph& graph = plan_->graph();
  for (const auto& [names, count] : {std::pair(&graph.input_names, num_inputs_), {&graph.result_names, num_outputs()}}) {
    if (names->empty() || names->size() == count) continue;
    throw FileError("the graph file has " + std::to_string(names->size()) + " names for " + std::to_string(count) +
                    " inputs or outputs; save the graph again");
  }
}

const std::string* Model::input_name(size_t index) const {
  const auto& names = plan_->graph().input_names;
  return names.empty() ? nullptr : &names[index];
}

const std::string* Model::output_name(size_t index) const {
  const auto& names = plan_->graph().result_names;
  return names.empty() ? nullptr : &names[index];
}

void Model::load_weights(const Source& file) {
  std::byte prefix[kSafetensorsPrefix] = {};
  file.read(0, std::span(prefix).first(std::min(sizeof(prefix), file.size())));
  std::vector<std::byte> header(safetensors_header_size(prefix, file.size()));
  file.read(kSafetensorsPrefix, header);
  const std::vector<StoredTensor> tensors = parse_safetensors_header(header, file.size());

  std::map<std::string_view, size_t> inputs;
  for (size_t i = 0; i < num_inputs_; ++i) {
    if (const std::string* const name = input_name(i)) inputs.emplace(*name, i);
  }
  if (inputs.empty() && !tensors.empty()) {
    throw std::invalid_argument("the graph has no names for its inputs, so weights cannot be matched; save it again");
  }
  auto memory = std::make_shared<Memory>(*memory_);
  std::vector<size_t> places, indices;
  size_t total = 0;
  for (const StoredTensor& tensor : tensors) {
    const auto found = inputs.find(tensor.name);
    if (found == inputs.end()) {
      throw std::invalid_argument("the weights hold '" + tensor.name + "', which is no input of the graph; its first input is '" +
                                  *input_name(0) + "'");
    }
    const TensorView& wanted = plan_->operand(found->second).dense;
    if (tensor.dtype != stored_name(wanted.dtype) || !matches(wanted, wanted.dtype, tensor.shape)) {
      throw std::invalid_argument("the weights hold '" + tensor.name + "' as " + describe(tensor.dtype, tensor.shape) +
                                  ", but the graph was made for " + describe(wanted));
    }
    indices.push_back(found->second);
    places.push_back(total);
    total += aligned(tensor.end - tensor.begin);
  }
  const std::shared_ptr<Arena> arena = allocate(total);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::span<std::byte> bytes(arena->data() + places[i], tensors[i].end - tensors[i].begin);
    file.read(tensors[i].begin, bytes);
    check_bools(plan_->operand(indices[i]).dense, bytes, "tensor '" + tensors[i].name + "' of the weights");
    memory->operands[indices[i]] = bytes.data();
    memory->owners[indices[i]] = arena;
  }
  memory_ = std::move(memory);
}

}  // namespace aspen
