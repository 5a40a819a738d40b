"""What is declared of CUDA's driver, beside CUDA's own header where that is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.targets.cuda.cuda_host import COMPILER, ROOT

NVCC = shutil.which("nvcc")

PROGRAM = """
#define __CUDA_API_VERSION_INTERNAL  // declares all versions of a function
#include <cuda.h>
#include <cstddef>
#include <type_traits>
#include "cuda/driver.h"

using namespace aspen::cuda;

// The same, or both numbers of as many bytes, or pointers to such.
template <class A, class B>
constexpr bool fits() {
  if constexpr (std::is_same_v<A, B>) {
    return true;
  } else if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
    return fits<std::remove_cv_t<std::remove_pointer_t<A>>, std::remove_cv_t<std::remove_pointer_t<B>>>();
  } else if constexpr (std::is_same_v<A, KernelNodeParams>) {
    return std::is_same_v<B, CUDA_KERNEL_NODE_PARAMS_v2>;
  } else if constexpr (std::is_same_v<A, EdgeData>) {
    return std::is_same_v<B, CUgraphEdgeData>;
  } else if constexpr (std::is_same_v<A, TensorMap>) {
    return std::is_same_v<B, CUtensorMap>;
  } else {
    return (std::is_integral_v<A> || std::is_enum_v<A>) && (std::is_integral_v<B> || std::is_enum_v<B>) && sizeof(A) == sizeof(B);
  }
}
template <class A, class B>
struct Fits;
template <class... A, class... B>
struct Fits<Result (*)(A...), CUresult(B...)> {
  static constexpr bool value = (fits<A, B>() && ...);
};

CHECKS
static_assert(sizeof(KernelNodeParams) == sizeof(CUDA_KERNEL_NODE_PARAMS_v2));
static_assert(offsetof(KernelNodeParams, shared_bytes) == offsetof(CUDA_KERNEL_NODE_PARAMS_v2, sharedMemBytes));
static_assert(offsetof(KernelNodeParams, arguments) == offsetof(CUDA_KERNEL_NODE_PARAMS_v2, kernelParams));
static_assert(offsetof(KernelNodeParams, context) == offsetof(CUDA_KERNEL_NODE_PARAMS_v2, ctx));
static_assert(sizeof(EdgeData) == sizeof(CUgraphEdgeData));
static_assert(offsetof(EdgeData, from_port) == offsetof(CUgraphEdgeData, from_port));
static_assert(offsetof(EdgeData, type) == offsetof(CUgraphEdgeData, type));
static_assert(kProgrammaticPort == CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
static_assert(kProgrammaticEdge == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) >= alignof(CUtensorMap));
static_assert(kMapUint16 == CU_TENSOR_MAP_DATA_TYPE_UINT16 && kMapNoInterleave == CU_TENSOR_MAP_INTERLEAVE_NONE);
static_assert(kMapSwizzle128 == CU_TENSOR_MAP_SWIZZLE_128B && kMapZeros == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
static_assert(kMapPromotion128 == CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
static_assert(kSuccess == CUDA_SUCCESS && kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(kNoBinaryForGpu == CUDA_ERROR_NO_BINARY_FOR_GPU && kNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(kInvalidImage == CUDA_ERROR_INVALID_IMAGE && kInvalidPtx == CUDA_ERROR_INVALID_PTX);
static_assert(kNotFound == CUDA_ERROR_NOT_FOUND && kSystemDriverMismatch == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
static_assert(kUnsupportedPtxVersion == CUDA_ERROR_UNSUPPORTED_PTX_VERSION && kEventDefault == CU_EVENT_DEFAULT);
static_assert(kMaxDynamicSharedSizeBytes == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING && kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kSetCaptureDependencies == CU_STREAM_SET_CAPTURE_DEPENDENCIES);
static_assert(kCaptureOnlyThisThread == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
static_assert(int(CaptureStatus::kActive) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
static_assert(int(CaptureStatus::kInvalidated) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
"""


def header_folder() -> Path | None:
    if NVCC is None:
        return None
    done = subprocess.run([NVCC, "--dryrun", "-c", "x.cu"], capture_output=True, text=True, check=False)
    found = re.search(r'INCLUDES="?-I(\S+?)"', done.stderr)
    return Path(found.group(1)).resolve() if found else None


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_declarations_are_those_of_cuda(tmp_path):
    folder = header_folder()
    if folder is None or not (folder / "cuda.h").exists():
        pytest.skip("no cuda.h")
    functions = re.findall(r'\((\w+), "(\w+)"', (ROOT / "cuda" / "driver_functions.inc").read_text())
    assert len(functions) > 40
    checks = [
        f'static_assert(Fits<decltype(Driver::{name}), decltype({symbol})>::value, "{symbol}");' for name, symbol in functions
    ]
    (tmp_path / "check.cc").write_text(PROGRAM.replace("CHECKS", "\n".join(checks)))
    command = [str(COMPILER), "-std=c++20", "-fsyntax-only", f"-I{ROOT}", f"-I{folder}", str(tmp_path / "check.cc")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
