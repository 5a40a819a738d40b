/* Runs a saved graph without Python, on inputs of zeros, and prints the first element of each float32 output.
 *
 *     cc run_graph.c $(aspen-run --flags) -o run_graph
 *     ./run_graph model.aspen model.safetensors */
#include <aspen.h>
#include <stdio.h>
#include <stdlib.h>

static void check(aspen_status status) {
  if (status == ASPEN_OK) return;
  fprintf(stderr, "run_graph: %s\n", aspen_last_error());
  exit(2);
}

static void* zeros(const aspen_tensor* tensor) {
  size_t size = (tensor->bytes + 64) / 64 * 64; /* aligned_alloc wants a multiple, and 0 is none */
  char* memory = aligned_alloc(64, size);
  if (memory == NULL) {
    fprintf(stderr, "run_graph: out of memory\n");
    exit(2);
  }
  for (size_t i = 0; i < size; ++i) memory[i] = 0;
  return memory;
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: run_graph GRAPH [WEIGHTS]\n");
    return 2;
  }
  aspen_graph* graph;
  check(aspen_open(argv[1], &graph));
  if (argc > 2) check(aspen_load_weights(graph, argv[2]));

  size_t num_inputs = aspen_num_inputs(graph), num_outputs = aspen_num_outputs(graph);
  void** inputs = calloc(num_inputs + 1, sizeof *inputs);
  void** outputs = calloc(num_outputs + 1, sizeof *outputs);
  if (inputs == NULL || outputs == NULL) return 2;
  for (size_t i = 0; i < num_inputs; ++i) {
    aspen_tensor tensor;
    check(aspen_input(graph, i, &tensor));
    if (aspen_weight(graph, i) == NULL) inputs[i] = zeros(&tensor); /* NULL stands for the weight */
  }
  for (size_t i = 0; i < num_outputs; ++i) {
    aspen_tensor tensor;
    check(aspen_output(graph, i, &tensor));
    outputs[i] = zeros(&tensor);
  }

  check(aspen_run(graph, (const void* const*)inputs, outputs));

  for (size_t i = 0; i < num_outputs; ++i) {
    aspen_tensor tensor;
    check(aspen_output(graph, i, &tensor));
    if (tensor.dtype == ASPEN_FLOAT32 && tensor.bytes > 0) {
      printf("%s %.6g\n", tensor.name != NULL ? tensor.name : "output", *(const float*)outputs[i]);
    }
  }
  for (size_t i = 0; i < num_inputs; ++i) free(inputs[i]);
  for (size_t i = 0; i < num_outputs; ++i) free(outputs[i]);
  free(inputs);
  free(outputs);
  aspen_close(graph);
  return 0;
}
