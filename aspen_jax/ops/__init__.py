"""Op families, one module each. `FAMILIES` finds a family by its kernel's name; `CONVERTERS` finds what a primitive becomes."""

from aspen_jax.ops import layout as _layout  # noqa: F401  (registers its converters)
from aspen_jax.ops.arg_reduce import ARG_REDUCE
from aspen_jax.ops.attention import ATTENTION
from aspen_jax.ops.attention_slices import ATTENTION_SLICES
from aspen_jax.ops.bf16x6 import BF16X6, BF16X6_WEIGHTS
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.concatenate import CONCATENATE
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.conv_panels import CONV2D_PANELS
from aspen_jax.ops.conv_slices import CONV2D_SLICES
from aspen_jax.ops.converters import CONVERTERS
from aspen_jax.ops.cumulative import CUMULATIVE
from aspen_jax.ops.family import FAMILIES, OpFamily
from aspen_jax.ops.gather import GATHER
from aspen_jax.ops.loop import LOOP
from aspen_jax.ops.matmul import MATMUL, MATMUL_PANELS
from aspen_jax.ops.pad import PAD
from aspen_jax.ops.partial_reduce import PARTIAL_REDUCE
from aspen_jax.ops.pool import POOL
from aspen_jax.ops.ragged_dot import RAGGED_DOT
from aspen_jax.ops.reduce import REDUCE
from aspen_jax.ops.rows import ROWS
from aspen_jax.ops.scatter import SCATTER
from aspen_jax.ops.select_windows import SELECT_AND_GATHER_ADD, SELECT_AND_SCATTER_ADD
from aspen_jax.ops.sort import SORT
from aspen_jax.ops.stack import STACK
from aspen_jax.ops.strassen import STRASSEN, STRASSEN_ROWS
from aspen_jax.ops.transposed import TRANSPOSED
from aspen_jax.ops.winograd import WINOGRAD, WINOGRAD_WEIGHTS

_ALL = (
    BLOCK,
    CONV2D,
    CONV2D_PANELS,
    CONV2D_SLICES,
    MATMUL,
    MATMUL_PANELS,
    RAGGED_DOT,
    POOL,
    SELECT_AND_SCATTER_ADD,
    SELECT_AND_GATHER_ADD,
    REDUCE,
    ROWS,
    ATTENTION,
    ATTENTION_SLICES,
    CONCATENATE,
    PAD,
    GATHER,
    SCATTER,
    CUMULATIVE,
    ARG_REDUCE,
    SORT,
    STACK,
    LOOP,
    PARTIAL_REDUCE,
    TRANSPOSED,
    WINOGRAD,
    WINOGRAD_WEIGHTS,
    STRASSEN,
    STRASSEN_ROWS,
    BF16X6,
    BF16X6_WEIGHTS,
)
FAMILIES.update((family.kernel, family) for family in _ALL)

__all__ = ["CONVERTERS", "FAMILIES", "OpFamily"]
