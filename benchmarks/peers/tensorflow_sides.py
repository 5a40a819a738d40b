"""TensorFlow's ways to run a function: as a graph, and by XLA."""
# pyright: reportMissingImports=false
# TensorFlow is optional, also where types are checked.

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import tensorflow as tf

from benchmarks.peers.prepared import Prepared
from benchmarks.zoo.network.in_jax import Params
from benchmarks.zoo.network.in_tensorflow import in_tensorflow
from benchmarks.zoo.network.layers import BatchNorm, Conv
from benchmarks.zoo.network.network import Network


def graph(prepared: Prepared, threads: int) -> Any:
    return _start(prepared, threads, jit_compile=False)


def xla(prepared: Prepared, threads: int) -> Any:
    return _start(prepared, threads, jit_compile=True)


def _start(prepared: Prepared, threads: int, jit_compile: bool) -> Callable[[], list[Any]]:
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    params = _frozen(prepared.network, prepared.params)
    function: Any = tf.function(functools.partial(in_tensorflow(prepared.network), params), jit_compile=jit_compile)
    inputs = [tf.constant(x) for x in prepared.inputs]
    return lambda: [output.numpy() for output in function(*inputs)]


def _frozen(network: Network, params: Params) -> Params:
    """Constants where convolutions and their normalisation fold into one; tensors elsewhere.

    A network's matrices as constants gain some 3%. TensorFlow then takes 17 times their memory while it builds the graph.
    """
    folded = {node.name for node in network.nodes if isinstance(node.layer, Conv | BatchNorm)}
    return {name: own if name in folded else jax.tree.map(tf.constant, own) for name, own in params.items()}
