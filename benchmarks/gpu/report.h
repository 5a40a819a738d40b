// What the programs here have in common: figures as lines of JSON, and errors that end the program.
#ifndef BENCHMARKS_CUDA_REPORT_H_
#define BENCHMARKS_CUDA_REPORT_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

inline void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(result));
  std::exit(1);
}

// The upper one of an even number.
inline double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

inline void report(const std::string& what, double value, const char* unit) {
  std::printf("{\"what\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}\n", what.c_str(), value, unit);
  std::fflush(stdout);
}

#endif  // BENCHMARKS_CUDA_REPORT_H_
