// The functions of aspen.h: no exception leaves them, and each error becomes a status and a sentence.
#include "aspen.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aspen_jax/engine/failure.h"
#include "aspen_jax/engine/limits.h"
#include "aspen_jax/engine/outcome.h"
#include "aspen_jax/engine/plan_cache.h"
#include "aspen_jax/engine/runtime.h"
#include "model.h"
#include "safetensors.h"
#include "source.h"

struct aspen_graph {
  aspen::Model model;
};

namespace aspen {
namespace {

static_assert(ASPEN_NO_LIMIT == Limits::kNone);
static_assert(ASPEN_MAX_RANK == kMaxRank && ASPEN_FLOAT64 == static_cast<int>(DType::kF64));

// An array, so that keeping an error needs no memory and nothing is destroyed at the thread's end.
thread_local char last_error[1024] = "";

aspen_status failed(aspen_status status, std::string_view message) noexcept {
  size_t length = std::min(message.size(), sizeof(last_error) - 1);
  // Not in the middle of a character of UTF-8.
  while (length < message.size() && length > 0 && (message[length] & 0xC0) == 0x80) --length;
  std::memcpy(last_error, message.data(), length);
  last_error[length] = '\0';
  return status;
}

template <typename Act>
aspen_status guarded(const Act& act) noexcept {
  try {
    act();
    return ASPEN_OK;
  } catch (const GraphError& error) {
    return failed(ASPEN_BAD_FILE, error.what());
  } catch (const FileError& error) {
    return failed(ASPEN_BAD_FILE, error.what());
  } catch (const IoError& error) {
    return failed(ASPEN_IO_ERROR, error.what());
  } catch (const std::invalid_argument& error) {
    return failed(ASPEN_INVALID_ARGUMENT, error.what());
  } catch (const OutOfMemory& error) {
    return failed(ASPEN_OUT_OF_MEMORY, error.what());
  } catch (const std::bad_alloc&) {
    return failed(ASPEN_OUT_OF_MEMORY, "out of memory; use a smaller batch or a smaller model");
  } catch (const std::exception& error) {
    return failed(ASPEN_FAILED, error.what());
  } catch (...) {
    return failed(ASPEN_FAILED, "an unknown error");
  }
}

void need(const void* pointer, const char* what) {
  if (pointer == nullptr) throw std::invalid_argument(std::string(what) + " is NULL");
}

std::span<const std::byte> as_span(const void* bytes, size_t size) {
  if (size > 0) need(bytes, "bytes");
  return {static_cast<const std::byte*>(bytes), size};
}

void open_graph(const Source& file, aspen_graph** graph) { *graph = new aspen_graph{Model(file)}; }

aspen_tensor described(const Value& value, const std::string* name) {
  aspen_tensor tensor = {};
  tensor.name = name == nullptr ? nullptr : name->c_str();
  tensor.dtype = static_cast<aspen_dtype>(value.dense.dtype);
  tensor.rank = value.dense.rank;
  std::copy_n(value.dense.shape, value.dense.rank, tensor.shape);
  tensor.bytes = static_cast<size_t>(value.bytes);
  return tensor;
}

// "input 2 ('x')".
std::string place(const char* role, size_t index, const std::string* name) {
  return std::string(role) + " " + std::to_string(index) + (name == nullptr ? "" : " ('" + *name + "')");
}

void check_index(const char* role, size_t index, size_t count) {
  if (index < count) return;
  throw std::invalid_argument(std::string("the graph has ") + std::to_string(count) + " " + role + "s, and none of index " +
                              std::to_string(index));
}

void check_aligned(const void* pointer, DType dtype, const std::string& where) {
  if (reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(size_of(dtype)) == 0) return;
  throw std::invalid_argument(where + " is not aligned to the " + std::to_string(size_of(dtype)) + " bytes of its elements");
}

struct Call {
  std::vector<const void*> operands;
  std::vector<void*> results;
};

Call checked_call(const Model& model, const void* const* inputs, void* const* outputs) {
  alignas(8) static std::byte nothing[8];  // of what has no elements
  const Plan& plan = *model.plan();
  const auto& own = model.memory()->operands;
  Call call{{own.begin(), own.end()}, {}};
  for (size_t i = 0; i < model.num_inputs(); ++i) {
    if (inputs != nullptr && inputs[i] != nullptr) {
      call.operands[i] = inputs[i];
      check_aligned(inputs[i], plan.operand(i).dense.dtype, place("input", i, model.input_name(i)));
    } else if (plan.operand(i).bytes == 0) {
      call.operands[i] = nothing;
    } else if (call.operands[i] == nullptr) {
      throw std::invalid_argument(place("input", i, model.input_name(i)) + " is NULL and has no weight; pass its elements");
    }
  }
  if (model.num_outputs() > 0) need(outputs, "outputs");
  for (size_t i = 0; i < model.num_outputs(); ++i) {
    void* const output = plan.result(i).bytes == 0 ? nothing : outputs[i];
    need(output, place("output", i, model.output_name(i)).c_str());
    check_aligned(output, plan.result(i).dense.dtype, place("output", i, model.output_name(i)));
    call.results.push_back(output);
  }
  return call;
}

void submit(const Model& model, const Call& call, Done done) {
  auto watch = watch_by_limits(*model.plan());
  runtime().submit(
      model.plan(), call.operands, call.results,
      [memory = model.memory(), done = std::move(done)](const Failure& failure) { done(failure); }, nullptr, std::nullopt,
      nullptr, std::move(watch));
}

}  // namespace
}  // namespace aspen

using namespace aspen;

int aspen_api_version(void) { return ASPEN_API_VERSION; }

const char* aspen_version(void) { return ASPEN_VERSION; }

const char* aspen_last_error(void) { return last_error; }

const char* aspen_dtype_name(aspen_dtype dtype) {
  const auto number = static_cast<unsigned>(dtype);
  return number < kNumDTypes ? name_of(static_cast<DType>(number)).data() : nullptr;  // a literal, so it ends with a zero
}

aspen_status aspen_num_workers(int* count) {
  return guarded([&] {
    need(count, "count");
    *count = runtime().num_workers();
  });
}

aspen_status aspen_set_num_workers(int count) {
  return guarded([&] { runtime().set_num_workers(count); });
}

aspen_status aspen_set_limits(int64_t workspace, int64_t nanoseconds) {
  return guarded([&] { set_limits({workspace, nanoseconds}); });
}

aspen_status aspen_limits(int64_t* workspace, int64_t* nanoseconds) {
  const Limits now = limits();
  if (workspace != nullptr) *workspace = now.workspace;
  if (nanoseconds != nullptr) *nanoseconds = now.nanoseconds;
  return ASPEN_OK;
}

aspen_status aspen_register_kernels(const char* path) {
  return guarded([&] {
    need(path, "path");
    register_kernels(path);
  });
}

aspen_status aspen_open(const char* path, aspen_graph** graph) {
  return guarded([&] {
    need(graph, "graph");
    *graph = nullptr;
    need(path, "path");
    open_graph(*open_file(path), graph);
  });
}

aspen_status aspen_read(const void* bytes, size_t size, aspen_graph** graph) {
  return guarded([&] {
    need(graph, "graph");
    *graph = nullptr;
    open_graph(*in_memory(as_span(bytes, size)), graph);
  });
}

void aspen_close(aspen_graph* graph) { delete graph; }

size_t aspen_num_inputs(const aspen_graph* graph) { return graph == nullptr ? 0 : graph->model.num_inputs(); }

size_t aspen_num_outputs(const aspen_graph* graph) { return graph == nullptr ? 0 : graph->model.num_outputs(); }

aspen_status aspen_input(const aspen_graph* graph, size_t index, aspen_tensor* tensor) {
  return guarded([&] {
    need(graph, "graph");
    need(tensor, "tensor");
    check_index("input", index, graph->model.num_inputs());
    *tensor = described(graph->model.plan()->operand(index), graph->model.input_name(index));
  });
}

aspen_status aspen_output(const aspen_graph* graph, size_t index, aspen_tensor* tensor) {
  return guarded([&] {
    need(graph, "graph");
    need(tensor, "tensor");
    check_index("output", index, graph->model.num_outputs());
    *tensor = described(graph->model.plan()->result(index), graph->model.output_name(index));
  });
}

aspen_status aspen_load_weights(aspen_graph* graph, const char* path) {
  return guarded([&] {
    need(graph, "graph");
    need(path, "path");
    graph->model.load_weights(*open_file(path));
  });
}

aspen_status aspen_read_weights(aspen_graph* graph, const void* bytes, size_t size) {
  return guarded([&] {
    need(graph, "graph");
    graph->model.load_weights(*in_memory(as_span(bytes, size)));
  });
}

const void* aspen_weight(const aspen_graph* graph, size_t index) {
  return index < aspen_num_inputs(graph) ? graph->model.memory()->operands[index] : nullptr;
}

aspen_status aspen_run(const aspen_graph* graph, const void* const* inputs, void* const* outputs) {
  Failure failure;
  const aspen_status status = guarded([&] {
    need(graph, "graph");
    const auto outcome = std::make_shared<Outcome>();
    submit(graph->model, checked_call(graph->model, inputs, outputs), [outcome](const Failure& end) { outcome->set(end); });
    failure = outcome->wait();
  });
  if (status != ASPEN_OK || failure.empty()) return status;
  return failed(failure.kind() == Failure::Kind::kOutOfMemory ? ASPEN_OUT_OF_MEMORY : ASPEN_FAILED, failure.text());
}

aspen_status aspen_start(const aspen_graph* graph, const void* const* inputs, void* const* outputs, aspen_done done,
                         void* context) {
  return guarded([&] {
    need(graph, "graph");
    if (done == nullptr) throw std::invalid_argument("done is NULL");
    submit(graph->model, checked_call(graph->model, inputs, outputs),
           [done, context](const Failure& failure) { done(context, failure.empty() ? nullptr : failure.text().c_str()); });
  });
}
