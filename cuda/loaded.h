// An executable's code in one context of the device, and the streams, events and CUDA graphs that launch it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cublas.h"
#include "cudnn.h"
#include "driver.h"
#include "kernels/kernel_shape.h"
#include "launcher.h"
#include "library_call.h"

namespace aspen::cuda {

class Executable;
enum class Executor : int32_t;

class Loaded {
 public:
  // Of one CUDA graph, by the addresses that their nodes hold. An allocator gives few different ones in turn: two for an argument
  // and two for a result, where a caller keeps one of each.
  static constexpr size_t kMostInstances = 4;

  // The context is current. Throws DeviceError.
  Loaded(const Driver& driver, const Executable& executable, Context context);
  ~Loaded();
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;

  // Streams, events and CUDA graphs are used by one run at a time; while it is issued, not until it has run: on the device a run
  // waits for the one before.
  std::mutex& mutex() { return mutex_; }
  Context context() const { return context_; }
  // The workspace that all runs share but captured ones; 0 where each is given its own (Executable::keeps_workspace).
  DevicePointer workspace() const { return workspace_; }

  // Each gives a whole run to a stream of the context, which is current. `addresses` are those of all ops. Throw DeviceError.
  void run(Stream stream, Executor executor, std::span<const DevicePointer> addresses);
  // The stream's work is being captured into `graph`, and comes after `before` there.
  void add_to_capture(Stream stream, DeviceGraph graph, std::span<const GraphNode> before,
                      std::span<const DevicePointer> addresses);

 private:
  friend class StreamLauncher;
  struct Kernel {
    Function function;
    unsigned threads, shared_bytes, blocks_per_tile, most_ops;
  };
  // The arguments of a launch's kernel, as CUDA wants them.
  struct Arguments {
    void* values[2];
  };
  // Memory as aligned as the maps in it want.
  using Storage = std::vector<TensorMap>;

  // An op whose kernel copies by tensor maps. Its first argument is made again where addresses have changed.
  struct Mapped {
    KernelShape shape;
    Storage arguments;  // in the place of the first ones addresses, and from first_map on the maps
    size_t first_map = 0;
    std::vector<DevicePointer> addresses;  // that are in the maps; none where some map could not be made
  };

  // The CUDA graph, ready for the device, and the addresses that its nodes hold.
  struct Instance {
    GraphExec exec = nullptr;
    std::vector<DevicePointer> addresses;
  };

  void take_workspace();
  void find_kernels();
  // Whether each of the code's kernels first waits for the launches before it.
  bool kernels_wait();
  void prepare_maps(size_t op, const KernelShape& shape);
  void prepare_product(size_t op, const LibraryProduct& product);
  void prepare_convolution(size_t op, const LibraryConvolution& convolution);
  // What a library computes is one launch, and reads inputs of the op. Throws DeviceError.
  void check_inputs(size_t op, std::span<const int32_t> inputs) const;
  // For ops by a library.
  void open_recording();
  bool is_by_library(uint32_t launch) const;
  // Gives an op to a stream by its library. Throws DeviceError.
  void give_to_library(Stream stream, uint32_t launch, std::span<const DevicePointer> addresses);
  // What that gives to a stream, as a CUDA graph, which the caller destroys.
  DeviceGraph record_library(uint32_t launch, std::span<const DevicePointer> addresses);
  // Throws DeviceError, with nothing given to the device.
  void encode_maps(std::span<const DevicePointer> addresses);
  void copy_boxes();
  void check_launches() const;
  // Where arguments of launches of several ops are put together.
  void take_room();
  void release() noexcept;
  // What a kernel takes for an op. It stays until the next call, or longer.
  std::span<const std::byte> argument_of(uint32_t op, std::span<const DevicePointer> addresses) const;
  Arguments arguments(uint32_t launch, std::span<const DevicePointer> addresses);
  KernelNodeParams node_params(uint32_t launch, Arguments& arguments) const;
  // The run has given all to the stream.
  Result record_run(Stream stream) noexcept;
  void issue_to_streams(Stream stream, std::span<const DevicePointer> addresses);
  void replay(Stream stream, std::span<const DevicePointer> addresses);
  void make_graph(std::span<const DevicePointer> addresses);
  void add_programmatic_edges();
  // Of a call that may refuse a graph because of such edges.
  void check_graph(Result result, const char* call) const;
  // Makes one for these addresses the first: a new one, or the one that was used longest ago.
  void make_instance(Stream stream, std::span<const DevicePointer> addresses);
  void set_nodes(Instance& instance, std::span<const DevicePointer> addresses);
  void set_node(GraphExec exec, uint32_t launch, std::span<const DevicePointer> addresses);
  GraphNode add_node(DeviceGraph graph, std::span<const GraphNode> after, uint32_t launch,
                     std::span<const DevicePointer> addresses);
  // Adds a node for each launch, without its edges or behind `before` and its parents.
  enum class Edges { kNone, kFull };
  std::vector<GraphNode> add_nodes(DeviceGraph graph, std::span<const GraphNode> before, std::span<const DevicePointer> addresses,
                                   Edges edges);

  const Driver& driver_;
  const Executable& executable_;
  const Context context_;
  std::mutex mutex_;
  Module module_ = nullptr;
  std::vector<Kernel> kernels_;                                // by the number in their name
  std::map<size_t, Mapped> mapped_;                            // by op; its arguments are those of the run that is being issued
  std::map<uint32_t, Storage> together_;                       // by launch, the arguments of its ops
  CublasHandle cublas_ = nullptr;                              // if there are products of its
  CudnnHandle cudnn_ = nullptr;                                // if there are convolutions of its
  std::map<size_t, std::unique_ptr<LibraryCall>> by_library_;  // by op, which a library computes as one launch
  Stream recording_ = nullptr;                                 // if there are such ops, what captures them
  DevicePointer boxes_ = 0;                                    // of all launches' tiles
  std::vector<DevicePointer> boxes_of_;                        // of each launch's
  DevicePointer workspace_ = 0;
  Event last_run_ = nullptr;     // the end of the one that uses the workspace last
  std::vector<Stream> streams_;  // all but the caller's
  std::vector<Event> events_;
  bool is_programmatic_ = false;  // nodes of graph_ start before their parents are over
  DeviceGraph graph_ = nullptr;
  std::vector<GraphNode> nodes_;                // of each launch in graph_
  std::vector<DevicePointer> graph_addresses_;  // that they hold
  std::vector<Instance> instances_;             // of graph_; the latest first
};

}  // namespace aspen::cuda
