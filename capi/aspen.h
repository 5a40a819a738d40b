/* Runs saved graphs of aspen_jax without Python. C11 or newer, and C++.
 *
 *     aspen_graph *graph;
 *     if (aspen_open("model.aspen", &graph) != ASPEN_OK) return fail(aspen_last_error());
 *     if (aspen_load_weights(graph, "model.safetensors") != ASPEN_OK) return fail(aspen_last_error());
 *     const void *inputs[] = {NULL, NULL, image};   // the first two are weights
 *     void *outputs[] = {scores};
 *     if (aspen_run(graph, inputs, outputs) != ASPEN_OK) return fail(aspen_last_error());
 *     aspen_close(graph);
 *
 * Threads. Any thread may call any function. Functions that take a `const aspen_graph *` may run side by side on one graph. The
 * others may not run beside any on the same graph. All graphs share the workers of the process. The child of a fork may call any
 * function too; runs in flight stay with its parent.
 *
 * Errors. A function that can fail returns an aspen_status; where that is not ASPEN_OK it has changed nothing. aspen_last_error
 * says in words what was wrong. No C++ exception leaves a function. A callback must not throw one.
 *
 * Files need not be trusted. Damaged ones are refused. A graph with false dependencies may compute nonsense, and touches no
 * memory but its own and the buffers of the run. */
#ifndef ASPEN_H
#define ASPEN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ASPEN_API __attribute__((visibility("default")))
#else
#define ASPEN_API
#endif

/* Of this header. It grows by 1 where something is added, and nothing is taken away without another name of the library. */
#define ASPEN_API_VERSION 3

#define ASPEN_MAX_RANK 8

typedef enum aspen_status {
  ASPEN_OK = 0,
  ASPEN_INVALID_ARGUMENT = 1, /* what the caller passed: a null pointer, an index, a number of workers, weights that do not fit */
  ASPEN_BAD_FILE = 2,         /* damaged, not of this kind, or in need of a newer version */
  ASPEN_IO_ERROR = 3,         /* the system could not open or read a file */
  ASPEN_OUT_OF_MEMORY = 4,
  ASPEN_FAILED = 5 /* a run, one beyond the limits, or anything else */
} aspen_status;

/* The numbers are those of graph files. Elements are in the machine's byte order; a bool is a byte of 0 or 1. */
typedef enum aspen_dtype {
  ASPEN_BOOL = 0,
  ASPEN_INT8 = 1,
  ASPEN_INT16 = 2,
  ASPEN_INT32 = 3,
  ASPEN_INT64 = 4,
  ASPEN_UINT8 = 5,
  ASPEN_UINT16 = 6,
  ASPEN_UINT32 = 7,
  ASPEN_UINT64 = 8,
  ASPEN_FLOAT16 = 9,
  ASPEN_BFLOAT16 = 10,
  ASPEN_FLOAT32 = 11,
  ASPEN_FLOAT64 = 12
} aspen_dtype;

/* An input or an output: a dense array, the last dimension innermost. */
typedef struct aspen_tensor {
  const char* name; /* UTF-8, as in "params.dense.kernel"; NULL where the file has no names. Lives as long as the graph. */
  aspen_dtype dtype;
  int rank;
  int64_t shape[ASPEN_MAX_RANK]; /* the first `rank` are set, the others are 0 */
  size_t bytes;                  /* of all elements; may be 0 */
} aspen_tensor;

/* A graph that is ready to run, its constants, and weights. */
typedef struct aspen_graph aspen_graph;

/* The ASPEN_API_VERSION that the library was built with; functions of newer headers are missing in it. */
ASPEN_API int aspen_api_version(void);

/* The version of aspen_jax that the library comes from, as in "0.1.0". Static. */
ASPEN_API const char* aspen_version(void);

/* What was wrong in the last call on this thread that failed; "" before. It lives until the next call that fails on this thread.
 */
ASPEN_API const char* aspen_last_error(void);

/* numpy's name, as in "float32"; NULL for what is no dtype. Static. */
ASPEN_API const char* aspen_dtype_name(aspen_dtype dtype);

/* How many workers the process has: those of aspen_set_num_workers, or of the environment variable ASPEN_NUM_WORKERS, or as many
 * as there are usable cores. ASPEN_INVALID_ARGUMENT: the variable is set to something that is no number of workers. */
ASPEN_API aspen_status aspen_num_workers(int* count);

/* At any time. Runs in flight go on. ASPEN_INVALID_ARGUMENT: `count` is not in 1 to 1024. */
ASPEN_API aspen_status aspen_set_num_workers(int count);

#define ASPEN_NO_LIMIT INT64_MAX

/* Limits what runs of all graphs of the process may take, from their next run on; set it before you run a stranger's graph.
 *
 * workspace: the most bytes that a run may need beside its inputs and outputs. Where it needs more, aspen_run and aspen_start
 *     fail at once.
 * nanoseconds: how long a run may take. One that takes longer ends with an error at its next tile; a tile that has begun is not
 *     stopped.
 *
 * ASPEN_NO_LIMIT lifts a limit, as at first. ASPEN_INVALID_ARGUMENT: one is below 0. */
ASPEN_API aspen_status aspen_set_limits(int64_t workspace, int64_t nanoseconds);

/* The limits that hold; each pointer may be NULL. */
ASPEN_API aspen_status aspen_limits(int64_t* workspace, int64_t* nanoseconds);

/* Loads a shared library of kernels (aspen_jax/engine/kernel_library.h), which graphs that are loaded afterwards may name. It
 * stays until the process ends, and is trusted as code is.
 * ASPEN_INVALID_ARGUMENT: it cannot be loaded, was compiled for another version, or has a kernel of a name that is taken. */
ASPEN_API aspen_status aspen_register_kernels(const char* path);

/* Loads what TileGraph.save wrote. `*graph` is the caller's, who ends it by aspen_close; NULL where this fails.
 * ASPEN_BAD_FILE, ASPEN_IO_ERROR, ASPEN_OUT_OF_MEMORY. */
ASPEN_API aspen_status aspen_open(const char* path, aspen_graph** graph);

/* As aspen_open, from the bytes of such a file, which are copied. */
ASPEN_API aspen_status aspen_read(const void* bytes, size_t size, aspen_graph** graph);

/* Ends a graph. Its runs in flight go on to their ends, and keep what they need. NULL is allowed. */
ASPEN_API void aspen_close(aspen_graph* graph);

ASPEN_API size_t aspen_num_inputs(const aspen_graph* graph);
ASPEN_API size_t aspen_num_outputs(const aspen_graph* graph);

/* Describes an input or an output; the first is 0. ASPEN_INVALID_ARGUMENT: there is none of this index. */
ASPEN_API aspen_status aspen_input(const aspen_graph* graph, size_t index, aspen_tensor* tensor);
ASPEN_API aspen_status aspen_output(const aspen_graph* graph, size_t index, aspen_tensor* tensor);

/* Reads a safetensors file. Each of its tensors becomes the weight of the input of the same name, in place of an earlier one. The
 * graph keeps the weights until aspen_close.
 *
 * ASPEN_INVALID_ARGUMENT: a tensor is no input of the graph, or has another dtype or shape. ASPEN_BAD_FILE, ASPEN_IO_ERROR,
 * ASPEN_OUT_OF_MEMORY. */
ASPEN_API aspen_status aspen_load_weights(aspen_graph* graph, const char* path);

/* As aspen_load_weights, from the bytes of such a file, which are copied. */
ASPEN_API aspen_status aspen_read_weights(aspen_graph* graph, const void* bytes, size_t size);

/* The weight of an input; NULL where it has none, or where there is no such input. Lives until it is replaced or the graph ends.
 */
ASPEN_API const void* aspen_weight(const aspen_graph* graph, size_t index);

/* Runs the graph and waits for the end. Do not call it from an aspen_done: a worker that waits for others may wait for ever.
 *
 * inputs: aspen_num_inputs pointers to `bytes` bytes each. NULL stands for the weight of the input. An input without elements may
 *     be NULL too. `inputs` itself may be NULL where all have weights.
 * outputs: aspen_num_outputs pointers to `bytes` bytes each, which the run writes. They overlap neither each other nor an input.
 *
 * Pointers are aligned to the size of an element; multiples of 64 bytes are fastest. The contents of the outputs are undefined
 * where this fails. ASPEN_INVALID_ARGUMENT, ASPEN_OUT_OF_MEMORY, ASPEN_FAILED. */
ASPEN_API aspen_status aspen_run(const aspen_graph* graph, const void* const* inputs, void* const* outputs);

/* Called once at the end of a run. `error` is NULL where it succeeded, and lives during the call. Be brief: the thread is a
 * worker, or, for small graphs, the one that called aspen_start. */
typedef void (*aspen_done)(void* context, const char* error);

/* Starts a run and returns. The memory of inputs and outputs must stay until `done` is called; the two lists of pointers are
 * copied. Where this returns ASPEN_OK, `done` is called exactly once, perhaps before aspen_start returns; otherwise it is not
 * called. */
ASPEN_API aspen_status aspen_start(const aspen_graph* graph, const void* const* inputs, void* const* outputs, aspen_done done,
                                   void* context);

#ifdef __cplusplus
}
#endif

#endif
