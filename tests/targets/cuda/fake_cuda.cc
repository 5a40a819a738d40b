// CUDA's driver played by the host: a libcuda.so.1 whose kernels are functions of a library of the host.
//
// It is as lazy as CUDA may be. What is given to a stream waits until somebody synchronises; then streams are served in a random
// order, and so are the nodes of the graphs on them, as far as events and edges allow it. A node behind a programmatic edge may
// begin before its parent; where its kernel waits, the parents run, and nobody else. Memory comes filled with NaN. All that is
// taken is counted, and any call can be made to fail.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/driver.h"
#include "cuda/kernels/tensor_copy.h"

using namespace aspen::cuda;

struct CUctx_st {
  int users = 0;
};
struct CUmod_st {
  void* library;
};

namespace {

using Run = void (*)(const void* addresses, const int32_t* boxes, int ops, int tiles);

struct Kernel {
  Run run;
  const KernelShape* shape;
};

}  // namespace

struct CUfunc_st {
  Kernel kernel;
};

namespace {

struct Launched {
  std::shared_ptr<const std::function<void()>> own;  // what is no kernel of ours
  Kernel kernel;
  std::vector<TensorMap> first;  // a copy of the first argument, as aligned as CUDA wants it
  const int32_t* boxes = nullptr;
  int ops = 0, tiles = 0;  // of each op
};

struct Edge {
  size_t parent;
  bool is_programmatic;
};

struct Node {
  Launched launched;
  std::vector<Edge> parents;  // earlier ones
};

}  // namespace

struct CUevent_st {
  uint64_t records = 0;    // given to streams; a wait is for the latest, if there is one
  std::vector<bool> done;  // each of them, and as number 0 that there is none
};
struct CUgraphNode_st {
  CUgraph_st* graph;
  size_t index;
};
struct CUgraph_st {
  std::vector<Node> nodes;
  std::vector<std::unique_ptr<CUgraphNode_st>> handles;
};
struct CUgraphExec_st {
  const CUgraph_st* graph;
  std::vector<Node> nodes;
};

namespace {

// A graph that was launched: which of its nodes are over. What is changed later is for later launches.
struct GraphRun {
  std::vector<Node> nodes;
  std::vector<bool> is_over = std::vector<bool>(nodes.size());

  // Runs a node, if one is left, and says whether all are over.
  bool step();
  // Of those that are not over, which may begin.
  std::vector<size_t> able() const;
  void run(size_t node);
};

// The node whose kernel runs, innermost; none outside of graphs.
struct Running {
  GraphRun* graph = nullptr;
  size_t node = 0;
};
Running running;

struct Item {
  enum class Kind { kKernel, kRecord, kWait, kGraph } kind;
  Launched launched;
  Event event = nullptr;
  uint64_t record = 0;
  GraphRun graph;
};

}  // namespace

struct CUstream_st {
  std::deque<Item> items;
  CUgraph_st* capturing = nullptr;
  std::vector<GraphNode> last;  // of the capture
};

namespace {

constexpr Result kInvalidValue = 1, kInvalidHandle = 400, kIllegalState = 401, kStreamCaptureInvalid = 901;

struct Machine {
  std::recursive_mutex mutex;
  std::mt19937 random{1};
  CUctx_st context;
  std::map<DevicePointer, size_t> memory;
  bool moves = false;         // what is taken lies where nothing lay before,
  std::vector<void*> former;  // since this is not given back
  std::set<Stream> streams;
  int live = 0;                       // modules, functions' modules, streams, events, graphs, executables, allocations
  int current = 0;                    // contexts pushed and not popped
  int executing = 0;                  // kernels, one inside of another that waits for it
  int fetches = 0;                    // that they have made ahead
  std::map<std::string, int> counts;  // of calls
  std::string failing;
  int countdown = 0;
  Result failure = kSuccess;
  bool is_for_good = false;  // what fails, and all after it
  bool is_lost = false;
};
// Never destroyed: others may still call at the end of the process.
Machine& machine() {
  static Machine* const machine = new Machine;
  return *machine;
}

#define CALL(name)                                               \
  const std::lock_guard lock(machine().mutex);                   \
  ++machine().counts[name];                                      \
  if (machine().is_lost) return machine().failure;               \
  if (machine().failing == name && machine().countdown-- == 0) { \
    machine().failing.clear();                                   \
    machine().is_lost = machine().is_for_good;                   \
    return machine().failure;                                    \
  }

void execute(const Launched& launched) {
  if (launched.own != nullptr) return (*launched.own)();
  ++machine().executing;
  launched.kernel.run(launched.first.data(), launched.boxes, launched.ops, launched.tiles);
  --machine().executing;
}

std::vector<size_t> GraphRun::able() const {
  std::vector<bool> may_begin(nodes.size());  // or has begun
  std::vector<size_t> able;
  for (size_t i = 0; i < nodes.size(); ++i) {
    may_begin[i] = std::ranges::all_of(nodes[i].parents, [&](const Edge& edge) {
      return is_over[edge.parent] || (edge.is_programmatic && may_begin[edge.parent]);
    });
    if (may_begin[i] && !is_over[i]) able.push_back(i);
  }
  return able;
}

void GraphRun::run(size_t node) {
  const Running outer = running;
  running = {this, node};
  execute(nodes[node].launched);
  running = outer;
  is_over[node] = true;
}

bool GraphRun::step() {
  const std::vector<size_t> some = able();
  if (!some.empty()) run(some[machine().random() % some.size()]);
  return some.empty();
}

// What a kernel does that waits.
void run_parents() {
  if (running.graph == nullptr) return;
  const auto [graph, node] = running;
  for (const Edge& edge : graph->nodes[node].parents) {
    if (!graph->is_over[edge.parent]) graph->run(edge.parent);
  }
}

bool has(DevicePointer data, size_t bytes) {
  const auto after = machine().memory.upper_bound(data);
  if (after == machine().memory.begin()) return false;
  const auto& [first, size] = *std::prev(after);
  return data + bytes <= first + size;
}

// What a kernel fetches ahead is memory that was taken, and aligned. Others who play kernels in this process call this too: all
// libraries share one such pointer.
void check_fetch(const void* data, int bytes) {
  if (machine().executing == 0) return;
  ++machine().fetches;
  const auto address = reinterpret_cast<DevicePointer>(data);
  if (bytes > 0 && bytes % 16 == 0 && address % 16 == 0 && has(address, static_cast<size_t>(bytes))) return;
  std::fputs("a kernel fetches what is nobody's memory, or not aligned\n", stderr);
  std::abort();
}

bool is_able(const Item& item) { return item.kind != Item::Kind::kWait || item.event->done[item.record]; }

void serve() {
  for (;;) {
    std::vector<Stream> able;
    for (const Stream stream : machine().streams) {
      if (!stream->items.empty() && is_able(stream->items.front())) able.push_back(stream);
    }
    if (able.empty()) break;
    const Stream stream = able[machine().random() % able.size()];
    Item& item = stream->items.front();
    if (item.kind == Item::Kind::kGraph && !item.graph.step()) continue;
    if (item.kind == Item::Kind::kKernel) execute(item.launched);
    if (item.kind == Item::Kind::kRecord) item.event->done[item.record] = true;
    stream->items.pop_front();
  }
  for (const Stream stream : machine().streams) {
    if (!stream->items.empty()) {
      std::fputs("the streams wait for each other\n", stderr);
      std::abort();
    }
  }
}

std::optional<Launched> launched(Function function, unsigned grid, unsigned ops, unsigned block, unsigned shared,
                                 void** arguments) {
  const Kernel& kernel = function->kernel;
  const KernelShape& shape = *kernel.shape;
  if (grid == 0 || grid % static_cast<unsigned>(shape.slices) != 0 || static_cast<int>(block) != shape.threads ||
      static_cast<int>(shared) != shape.shared_bytes || ops == 0 || static_cast<int>(ops) > shape.most_ops)
    return std::nullopt;
  Launched launched{nullptr, kernel, {}, nullptr, static_cast<int>(ops), static_cast<int>(grid) / shape.slices};
  size_t bytes = static_cast<size_t>(shape.num_addresses) * sizeof(uint64_t);
  if (shape.num_tensors > 0) {
    bytes = (bytes + alignof(TensorMap) - 1) / alignof(TensorMap) * alignof(TensorMap);
    bytes += static_cast<size_t>(shape.num_tensors) * sizeof(TensorMap);
  }
  bytes *= static_cast<size_t>(shape.most_ops);
  launched.first.resize((bytes + sizeof(TensorMap) - 1) / sizeof(TensorMap));
  std::memcpy(static_cast<void*>(launched.first.data()), arguments[0], bytes);
  std::memcpy(&launched.boxes, arguments[1], sizeof launched.boxes);
  return launched;
}

void free_former() {
  for (void* const memory : machine().former) std::free(memory);
  machine().former.clear();
}

GraphNode add(CUgraph_st* graph, Node node) {
  graph->nodes.push_back(std::move(node));
  graph->handles.push_back(std::make_unique<CUgraphNode_st>(graph, graph->nodes.size() - 1));
  return graph->handles.back().get();
}

}  // namespace

extern "C" {

// For tests.
int fake_cuda_live() { return machine().live; }
int fake_cuda_current() { return machine().current; }
// Calls of a function so far, named as in CUDA's manual.
int fake_cuda_count(const char* name) {
  const std::lock_guard lock(machine().mutex);
  return machine().counts[name];
}
void fake_cuda_seed(unsigned seed) { machine().random.seed(seed); }
// The call number `countdown` of `name` from now on fails with an error.
void fake_cuda_fail(const char* name, int countdown, int failure) {
  machine().failing = name;
  machine().countdown = countdown;
  machine().failure = failure;
  machine().is_for_good = machine().is_lost = false;
}
// Likewise, and so does every call after it, until a test says otherwise: the device is lost.
void fake_cuda_lose(const char* name, int countdown, int failure) {
  fake_cuda_fail(name, countdown, failure);
  machine().is_for_good = true;
}

// Whether memory that is taken from now on lies where none lay before.
void fake_cuda_move(bool moves) {
  const std::lock_guard lock(machine().mutex);
  machine().moves = moves;
  if (!moves) free_former();
}
// Whether so much memory from an address on was taken and not given back.
bool fake_cuda_has(DevicePointer data, size_t bytes) {
  const std::lock_guard lock(machine().mutex);
  return has(data, bytes);
}
// How often kernels have fetched ahead.
int fake_cuda_fetches() {
  const std::lock_guard lock(machine().mutex);
  return machine().fetches;
}
// Gives a stream what a library does, or adds it to the graph that is being captured.
void fake_cuda_give(Stream stream, const std::function<void()>& work) {
  const std::lock_guard lock(machine().mutex);
  Launched launched{std::make_shared<const std::function<void()>>(work), {}, {}, nullptr, 0, 0};
  if (stream->capturing == nullptr) {
    stream->items.push_back({Item::Kind::kKernel, launched, nullptr, 0, {}});
    return;
  }
  Node node{launched, {}};
  for (const GraphNode parent : stream->last) node.parents.push_back({parent->index, false});
  stream->last = {add(stream->capturing, std::move(node))};
}

Result cuInit(unsigned) {
  CALL("cuInit");
  return kSuccess;
}
Result cuDriverGetVersion(int* version) {
  CALL("cuDriverGetVersion");
  const char* const wanted = std::getenv("FAKE_CUDA_VERSION");
  *version = wanted == nullptr ? 13'000 : std::atoi(wanted);
  return kSuccess;
}
// NVRTC calls this of any driver that it finds loaded, and crashes where there is none.
Result cuGetExportTable(const void** table, const void*) {
  *table = nullptr;
  return kInvalidValue;
}
Result cuGetErrorName(Result error, const char** name) {
  *name = error == 719            ? "CUDA_ERROR_LAUNCH_FAILED"
          : error == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY"
                                  : "CUDA_ERROR_OF_THE_FAKE";
  return kSuccess;
}
Result cuGetErrorString(Result, const char** text) {
  *text = "as the test wants it";
  return kSuccess;
}
Result cuDeviceGet(Device* device, int) {
  CALL("cuDeviceGet");
  *device = 0;
  return kSuccess;
}
Result cuDeviceGetCount(int* count) {
  CALL("cuDeviceGetCount");
  *count = 1;
  return kSuccess;
}
Result cuDevicePrimaryCtxRetain(Context* context, Device) {
  CALL("cuDevicePrimaryCtxRetain");
  *context = &machine().context;
  ++machine().context.users;
  return kSuccess;
}
Result cuDevicePrimaryCtxRelease_v2(Device) {
  CALL("cuDevicePrimaryCtxRelease");
  return --machine().context.users < 0 ? kIllegalState : kSuccess;
}
Result cuCtxPushCurrent_v2(Context) {
  CALL("cuCtxPushCurrent");
  ++machine().current;
  return kSuccess;
}
Result cuCtxPopCurrent_v2(Context* context) {
  // The stack is the thread's: it is popped whatever has become of the device.
  const std::lock_guard lock(machine().mutex);
  --machine().current;
  *context = &machine().context;
  return machine().is_lost ? machine().failure : kSuccess;
}
Result cuCtxSynchronize() {
  CALL("cuCtxSynchronize");
  serve();
  return kSuccess;
}
// An image is a library of the host.
Result cuModuleLoadData(Module* module, const void* image) {
  CALL("cuModuleLoadData");
  const auto* const bytes = static_cast<const unsigned char*>(image);
  if (std::memcmp(bytes, "\177ELF", 4) != 0) return kNoBinaryForGpu;
  // The table of section headers comes last in what linkers write.
  uint64_t table;
  uint16_t entry, count;
  std::memcpy(&table, bytes + 0x28, sizeof table);
  std::memcpy(&entry, bytes + 0x3a, sizeof entry);
  std::memcpy(&count, bytes + 0x3c, sizeof count);
  char path[] = "/tmp/fake-cuda-XXXXXX";
  const int file = mkstemp(path);
  const size_t size = table + size_t{entry} * count;
  const bool written = write(file, bytes, size) == static_cast<ssize_t>(size);
  close(file);
  void* const library = written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  unlink(path);
  if (library == nullptr) return kNoBinaryForGpu;
  const auto play_wait = reinterpret_cast<void (*)(void (*)())>(dlsym(library, "aspen_play_wait"));
  if (play_wait != nullptr) play_wait(&run_parents);
  const auto play_fetch = reinterpret_cast<void (*)(void (*)(const void*, int))>(dlsym(library, "aspen_play_fetch"));
  if (play_fetch != nullptr) play_fetch(&check_fetch);
  *module = new CUmod_st{library};
  ++machine().live;
  return kSuccess;
}
Result cuModuleUnload(Module module) {
  CALL("cuModuleUnload");
  serve();
  dlclose(module->library);
  delete module;
  --machine().live;
  return kSuccess;
}
Result cuModuleGetFunction(Function* function, Module module, const char* name) {
  CALL("cuModuleGetFunction");
  const auto run = reinterpret_cast<Run>(dlsym(module->library, name));
  const auto* const shape = static_cast<const KernelShape*>(dlsym(module->library, (std::string(name) + "_shape").c_str()));
  if (run == nullptr || shape == nullptr) return kNotFound;
  // Functions live as long as the process: there are few.
  static auto* const all = new std::map<Run, std::unique_ptr<CUfunc_st>>;
  (*all)[run] = std::make_unique<CUfunc_st>(Kernel{run, shape});
  *function = (*all)[run].get();
  return kSuccess;
}
Result cuModuleGetGlobal_v2(DevicePointer* data, size_t* bytes, Module module, const char* name) {
  CALL("cuModuleGetGlobal");
  void* const found = dlsym(module->library, name);
  if (found == nullptr) return kNotFound;
  *data = reinterpret_cast<DevicePointer>(found);
  *bytes = std::string_view(name).ends_with("_shape") ? sizeof(KernelShape) : sizeof(int32_t);
  return kSuccess;
}
Result cuFuncSetAttribute(Function, int attribute, int value) {
  CALL("cuFuncSetAttribute");
  return attribute == kMaxDynamicSharedSizeBytes && value <= 227 << 10 ? kSuccess : kInvalidValue;
}
Result cuMemAlloc_v2(DevicePointer* data, size_t bytes) {
  CALL("cuMemAlloc");
  if (bytes == 0) return kInvalidValue;
  void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (memory == nullptr) return kOutOfMemory;
  std::memset(memory, 0xff, bytes);
  *data = reinterpret_cast<DevicePointer>(memory);
  machine().memory[*data] = bytes;
  ++machine().live;
  return kSuccess;
}
Result cuMemFree_v2(DevicePointer data) {
  CALL("cuMemFree");
  serve();  // as CUDA's does
  if (machine().memory.erase(data) == 0) return kInvalidValue;
  machine().former.push_back(reinterpret_cast<void*>(data));
  if (!machine().moves) free_former();
  --machine().live;
  return kSuccess;
}
Result cuMemcpyHtoD_v2(DevicePointer to, const void* from, size_t bytes) {
  CALL("cuMemcpyHtoD");
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return kSuccess;
}
Result cuMemcpyDtoH_v2(void* to, DevicePointer from, size_t bytes) {
  CALL("cuMemcpyDtoH");
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return kSuccess;
}
Result cuMemsetD8_v2(DevicePointer data, unsigned char value, size_t bytes) {
  CALL("cuMemsetD8");
  std::memset(reinterpret_cast<void*>(data), value, bytes);
  return kSuccess;
}
Result cuStreamCreate(Stream* stream, unsigned flags) {
  CALL("cuStreamCreate");
  if (flags != kStreamNonBlocking) return kInvalidValue;
  *stream = new CUstream_st;
  machine().streams.insert(*stream);
  ++machine().live;
  return kSuccess;
}
Result cuStreamDestroy_v2(Stream stream) {
  CALL("cuStreamDestroy");
  serve();
  machine().streams.erase(stream);
  delete stream;
  --machine().live;
  return kSuccess;
}
Result cuStreamGetCtx(Stream, Context* context) {
  CALL("cuStreamGetCtx");
  *context = &machine().context;
  return kSuccess;
}
Result cuStreamSynchronize(Stream) {
  CALL("cuStreamSynchronize");
  serve();
  return kSuccess;
}
Result cuStreamWaitEvent(Stream stream, Event event, unsigned) {
  CALL("cuStreamWaitEvent");
  if (stream->capturing != nullptr) return kStreamCaptureInvalid;
  stream->items.push_back({Item::Kind::kWait, {}, event, event->records, {}});
  return kSuccess;
}
Result cuStreamBeginCapture_v2(Stream stream, int) {
  CALL("cuStreamBeginCapture");
  if (stream->capturing != nullptr) return kIllegalState;
  stream->capturing = new CUgraph_st;
  stream->last.clear();
  ++machine().live;
  return kSuccess;
}
Result cuStreamEndCapture(Stream stream, DeviceGraph* graph) {
  CALL("cuStreamEndCapture");
  *graph = stream->capturing;
  stream->capturing = nullptr;
  return *graph == nullptr ? kIllegalState : kSuccess;
}
Result cuStreamGetCaptureInfo_v2(Stream stream, CaptureStatus* status, uint64_t* id, DeviceGraph* graph, const GraphNode** nodes,
                                 size_t* count) {
  CALL("cuStreamGetCaptureInfo");
  *status = stream->capturing != nullptr ? CaptureStatus::kActive : CaptureStatus::kNone;
  *id = 1;
  *graph = stream->capturing;
  *nodes = stream->last.data();
  *count = stream->last.size();
  return kSuccess;
}
Result cuStreamUpdateCaptureDependencies(Stream stream, GraphNode* nodes, size_t count, unsigned flags) {
  CALL("cuStreamUpdateCaptureDependencies");
  if (stream->capturing == nullptr || flags != kSetCaptureDependencies) return kInvalidValue;
  stream->last.assign(nodes, nodes + count);
  return kSuccess;
}
Result cuEventCreate(Event* event, unsigned flags) {
  CALL("cuEventCreate");
  if (flags != kEventDisableTiming && flags != kEventDefault) return kInvalidValue;
  *event = new CUevent_st{0, {true}};
  ++machine().live;
  return kSuccess;
}
Result cuEventDestroy_v2(Event event) {
  CALL("cuEventDestroy");
  serve();
  delete event;
  --machine().live;
  return kSuccess;
}
Result cuEventElapsedTime(float* milliseconds, Event from, Event to) {
  CALL("cuEventElapsedTime");
  if (!from->done.back() || !to->done.back()) return 600;  // CUDA_ERROR_NOT_READY
  *milliseconds = 1;
  return kSuccess;
}
Result cuEventRecord(Event event, Stream stream) {
  CALL("cuEventRecord");
  if (stream->capturing != nullptr) return kStreamCaptureInvalid;
  event->done.push_back(false);
  stream->items.push_back({Item::Kind::kRecord, {}, event, ++event->records, {}});
  return kSuccess;
}
Result cuLaunchKernel(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                      unsigned block_z, unsigned shared_bytes, Stream stream, void** arguments, void** extra) {
  CALL("cuLaunchKernel");
  const auto what = launched(function, grid_x, grid_y, block_x, shared_bytes, arguments);
  if (!what || grid_z != 1 || block_y != 1 || block_z != 1 || extra != nullptr) return kInvalidValue;
  if (stream->capturing != nullptr) return kStreamCaptureInvalid;
  stream->items.push_back({Item::Kind::kKernel, *what, nullptr, 0, {}});
  return kSuccess;
}
Result cuTensorMapEncodeTiled(TensorMap* map, int data_type, uint32_t rank, void* address, const uint64_t* extents,
                              const uint64_t* strides, const uint32_t* box, const uint32_t* steps, int interleave, int swizzle,
                              int promotion, int fill) {
  CALL("cuTensorMapEncodeTiled");
  const bool is_played =
      data_type == kMapUint16 && interleave == kMapNoInterleave && swizzle == kMapSwizzle128 && fill == kMapZeros;
  const bool is_aligned = reinterpret_cast<uintptr_t>(map) % alignof(TensorMap) == 0;
  if (!is_played || !is_aligned || promotion < 0 || promotion > 3 || rank < 1 || rank > kTensorRank) return kInvalidValue;
  TensorShape shape{0, static_cast<int32_t>(rank), {}, {}, {}, {}};
  for (uint32_t axis = 0; axis < rank; ++axis) {
    shape.extents[axis] = extents[axis];
    if (axis > 0) shape.strides[axis - 1] = strides[axis - 1];
    shape.box[axis] = box[axis];
    shape.steps[axis] = steps[axis];
  }
  if (!is_allowed(shape, address)) return kInvalidValue;
  *map = played_map(shape, address);
  return kSuccess;
}
Result cuGraphCreate(DeviceGraph* graph, unsigned) {
  CALL("cuGraphCreate");
  *graph = new CUgraph_st;
  ++machine().live;
  return kSuccess;
}
Result cuGraphDestroy(DeviceGraph graph) {
  CALL("cuGraphDestroy");
  delete graph;
  --machine().live;
  return kSuccess;
}
Result cuGraphAddKernelNode_v2(GraphNode* node, DeviceGraph graph, const GraphNode* parents, size_t count,
                               const KernelNodeParams* params) {
  CALL("cuGraphAddKernelNode");
  const auto what =
      launched(params->function, params->grid_x, params->grid_y, params->block_x, params->shared_bytes, params->arguments);
  if (!what) return kInvalidValue;
  Node added{*what, {}};
  for (size_t i = 0; i < count; ++i) {
    if (parents[i]->graph != graph) return kInvalidHandle;
    added.parents.push_back({parents[i]->index, false});
  }
  *node = add(graph, std::move(added));
  return kSuccess;
}
// A copy of a graph, whose nodes run one after the other when the node does.
static Launched launched_graph(DeviceGraph child) {
  const auto work = [nodes = child->nodes] {
    GraphRun run{nodes};
    while (!run.step()) {
    }
  };
  return {std::make_shared<const std::function<void()>>(work), {}, {}, nullptr, 0, 0};
}
Result cuGraphAddChildGraphNode(GraphNode* node, DeviceGraph graph, const GraphNode* parents, size_t count, DeviceGraph child) {
  CALL("cuGraphAddChildGraphNode");
  Node added{launched_graph(child), {}};
  for (size_t i = 0; i < count; ++i) {
    if (parents[i]->graph != graph) return kInvalidHandle;
    added.parents.push_back({parents[i]->index, false});
  }
  *node = add(graph, std::move(added));
  return kSuccess;
}
Result cuGraphExecChildGraphNodeSetParams(GraphExec exec, GraphNode node, DeviceGraph child) {
  CALL("cuGraphExecChildGraphNodeSetParams");
  if (node->graph != exec->graph || exec->nodes[node->index].launched.own == nullptr) return kInvalidValue;
  exec->nodes[node->index].launched = launched_graph(child);
  return kSuccess;
}
Result cuGraphAddDependencies_v2(DeviceGraph graph, const GraphNode* from, const GraphNode* to, const EdgeData* data,
                                 size_t count) {
  CALL("cuGraphAddDependencies");
  for (size_t i = 0; i < count; ++i) {
    const bool is_programmatic = data != nullptr && data[i].type == kProgrammaticEdge;
    const EdgeData wanted{
        is_programmatic ? kProgrammaticPort : uint8_t{0}, 0, is_programmatic ? kProgrammaticEdge : uint8_t{0}, {}};
    if (data != nullptr && std::memcmp(&data[i], &wanted, sizeof wanted) != 0) return kInvalidValue;
    if (from[i]->graph != graph || to[i]->graph != graph || from[i]->index >= to[i]->index) return kInvalidValue;
    const auto is_kernel = [&](GraphNode node) { return graph->nodes[node->index].launched.own == nullptr; };
    if (is_programmatic && !(is_kernel(from[i]) && is_kernel(to[i]))) return kInvalidValue;
    graph->nodes[to[i]->index].parents.push_back({from[i]->index, is_programmatic});
  }
  return kSuccess;
}
Result cuGraphInstantiateWithFlags(GraphExec* exec, DeviceGraph graph, unsigned long long) {
  CALL("cuGraphInstantiate");
  *exec = new CUgraphExec_st{graph, graph->nodes};
  ++machine().live;
  return kSuccess;
}
Result cuGraphExecDestroy(GraphExec exec) {
  CALL("cuGraphExecDestroy");
  delete exec;
  --machine().live;
  return kSuccess;
}
Result cuGraphExecKernelNodeSetParams_v2(GraphExec exec, GraphNode node, const KernelNodeParams* params) {
  CALL("cuGraphExecKernelNodeSetParams");
  const auto what =
      launched(params->function, params->grid_x, params->grid_y, params->block_x, params->shared_bytes, params->arguments);
  if (!what || node->graph != exec->graph) return kInvalidValue;
  exec->nodes[node->index].launched = *what;
  return kSuccess;
}
Result cuGraphLaunch(GraphExec exec, Stream stream) {
  CALL("cuGraphLaunch");
  stream->items.push_back({Item::Kind::kGraph, {}, nullptr, 0, {exec->nodes}});
  return kSuccess;
}
Result cuGraphUpload(GraphExec, Stream) {
  CALL("cuGraphUpload");
  return kSuccess;
}

}  // extern "C"
