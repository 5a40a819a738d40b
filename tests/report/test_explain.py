"""What `explain` prints, whose lines it names, and the warning where most of a function is left to XLA."""

from __future__ import annotations

import functools
import inspect
import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from aspen_jax import aspen
from aspen_jax.frontend import user_code
from aspen_jax.lowering import share

N = 256


def normal(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


def line_of(fun, text):
    """Where a text stands in this file, as sources name it."""
    lines, first = inspect.getsourcelines(fun)
    (found,) = [first + index for index, line in enumerate(lines) if text in line]
    return f"{__file__}:{found}"


def earlier(x):
    return jax.nn.relu(x) @ jnp.where(x > 0, x, 1.0)


def later(x):
    y = jnp.linalg.qr(x)[0]
    y = jax.nn.silu(y @ x)
    return jax.jit(earlier)(y)


def differentiated(x):
    return jax.grad(lambda x: jnp.sum(jax.lax.lgamma(earlier(x))))(x)


def test_sources_are_lines_of_the_caller_not_of_those_who_were_first():
    x = normal(N, N)
    aspen(earlier)(x)  # JAX traces relu and where once, here
    explanation = aspen(later).explain(x)
    (qr,) = explanation.fallbacks
    assert qr.source == line_of(later, "qr(")
    sources = {op.source for part in explanation.parts for op in part.ops}
    assert line_of(later, "silu") in sources
    assert line_of(earlier, "relu") in sources
    assert sources <= {line_of(later, "silu"), line_of(earlier, "relu")}
    explanation = aspen(differentiated).explain(x)
    assert {item.source for item in explanation.fallbacks} == {line_of(differentiated, "lgamma")}


def test_lines_of_libraries_are_named_where_there_is_no_other():
    explanation = aspen(functools.partial(jnp.linalg.cholesky, upper=False)).explain(normal(N, N))
    assert explanation.fallbacks[0].source == "" or user_code.is_users(explanation.fallbacks[0].source)
    assert user_code.is_users(__file__)
    assert user_code.is_users("<stdin>")
    assert not any(map(user_code.is_users, (functools.__file__, np.__file__, jax.__file__, share.__file__, "<frozen importlib>")))


def long_names(x, y):
    with jax.named_scope("an_encoder_with_a_very_long_name"), jax.named_scope("a_layer_of_it_with_another_long_name"):
        z = jax.nn.gelu(x @ x) + jax.nn.silu(x @ y)
    parts = jax.lax.sort((z, z, z, z, z, z, z, z, z, z, z, z), num_keys=5)
    return jnp.concatenate(parts), jax.lax.reduce_precision(jnp.linalg.cholesky(z @ z.T), 5, 7)


@pytest.mark.parametrize("directory", [None, "/"])
def test_what_is_printed_fits_120_columns(monkeypatch, directory):
    if directory is not None:
        monkeypatch.chdir(directory)
    for fun, args in ((long_names, (normal(N, N), normal(N, N))), (later, (normal(N, N),))):
        text = str(aspen(fun).explain(*args))
        assert max(map(len, text.splitlines())) <= 120
        assert "test_explain.py:" in text
        assert re.search(r"(cholesky|qr).*test_explain\.py:", text)


def test_the_first_words_are_the_share_of_flops_in_tiles():
    def product(x):
        return x @ x

    def both(x):
        return x @ x, jnp.linalg.cholesky(x)  # 2 and a third of N ** 3

    def loop(x):
        return jax.lax.scan(lambda x, _: (jnp.linalg.cholesky(x @ x), None), x, None, length=50)[0] @ x

    def turns(x):
        return jax.lax.scan(lambda x, _: (jnp.linalg.qr(x)[0], None), x, None, length=50)[0] @ x

    x = normal(N, N)
    for fun, low, high in ((product, 1, 1), (both, 0.8, 0.9), (loop, 0.8, 0.9), (turns, 0.001, 0.1), (jnp.linalg.qr, 0, 0)):
        explanation = aspen(fun).explain(x)
        assert low <= explanation.in_tiles <= high, fun
        percent, rest = str(explanation).split("%", 1)
        assert rest.startswith(f" of the flops of {fun.__name__} in tiles: ")
        assert float(percent) == pytest.approx(100 * explanation.in_tiles, abs=1)
    assert str(aspen(lambda x: x).explain(x)).startswith("100% of the flops of <lambda> in tiles: 0 custom calls")

    def printing(x):
        jax.debug.print("{}", x)
        return x @ x

    assert str(aspen(printing).explain(x)).startswith("0% of the flops of printing in tiles: ")


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING, "aspen_jax")
    return caplog


def test_a_function_that_falls_back_warns_once_with_the_biggest_reasons(warnings):
    def fun(x):
        y = jnp.linalg.qr(x)[0] + jnp.linalg.eigh(x @ x.T)[1]
        return jax.lax.lgamma(y) + jnp.linalg.cholesky(y)

    decorated = aspen(fun)
    decorated(normal(N, N))
    (message,) = warnings.messages
    assert message.startswith(f"fun ({__file__}:{fun.__code__.co_firstlineno}): ")
    assert "% of its flops are left to XLA" in message
    reasons = re.findall(r"\d+% (\w+) at (\S+) \(no op for (\w+): ", message)
    assert [(name, name) for name in ("eigh", "qr", "cholesky")] == [(name, known) for name, _, known in reasons]
    assert [where for _, where, _ in reasons[:2]] == [line_of(fun, "eigh"), line_of(fun, "qr")]
    assert 'logging.getLogger("aspen_jax").setLevel("ERROR")' in message
    decorated(normal(N, N))
    decorated(normal(N // 2, N // 2))
    jax.jit(decorated)(normal(N, N))
    jax.vmap(decorated)(normal(2, N, N))
    aspen(fun)(normal(N, N))
    assert len(warnings.messages) == 1


def test_the_warning_is_silent_at_level_error(caplog):
    caplog.set_level(logging.ERROR, "aspen_jax")
    aspen(lambda x: jnp.linalg.qr(x)[0])(normal(N, N))
    assert not caplog.messages


def test_effects_leave_all_to_xla_and_warn(warnings):
    def fun(x):
        jax.debug.callback(lambda x: None, x)
        return x @ x

    aspen(fun)(normal(N, N))
    (message,) = warnings.messages
    assert "all of it is left to XLA" in message
    assert "has effects" in message


def test_gradients_and_loops_warn_by_the_name_of_the_function(warnings):
    def loop(x):
        return jax.lax.scan(lambda x, _: (jnp.linalg.qr(x @ x)[0] * 2, None), x, None, length=8)[0]

    aspen(loop)(normal(N, N))
    assert len(warnings.messages) == 1
    assert f"qr at {line_of(loop, 'qr')}" in warnings.messages[0]

    def factor(x):
        return jnp.linalg.eigh(x @ x.T)[0].sum()

    jax.grad(aspen(factor))(normal(N, N))
    assert len(warnings.messages) == 2
    assert warnings.messages[1].startswith(f"factor ({__file__}:")


def test_no_warning_where_tiles_do_the_most_or_there_is_little_to_do(warnings):
    x = normal(N, N)
    aspen(lambda x: x @ x + jax.lax.lgamma(x))(x)
    aspen(lambda x: jnp.linalg.qr(x)[0])(x[:8, :8])
    aspen(lambda x: jax.lax.fori_loop(0, 10**6, lambda i, s: s + i, 0) + x)(x)
    aspen(lambda x: x)(x)
    (n,) = export.symbolic_shape("n")
    for fun in (jnp.linalg.cholesky, lambda x: jax.lax.linalg.triangular_solve(x, x)):
        export.export(jax.jit(aspen(fun)))(jax.ShapeDtypeStruct((n, n), jnp.float32))
    assert not warnings.messages


def test_products_that_are_apart_have_a_reason():
    """On a GPU and on the CPU; each pair another one."""

    def pair(x, w, v):
        return jax.nn.relu(x @ w) @ v

    def pixels(x, w, v):
        numbers = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)
        return jax.lax.conv_general_dilated(y, v, (1, 1), "SAME", dimension_numbers=numbers)

    def reasons(function, device, *shapes):
        explanation = aspen(function, device=device).explain(*(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes))
        notes = [op.apart for part in explanation.parts for op in part.ops if op.apart]
        assert all(" ".join(note.split())[:40] in " ".join(str(explanation).split()) for note in notes)
        return notes

    wide, around = ((1 << 16, 64), (64, 512), (512, 64)), ((32, 56, 56, 64), (1, 1, 64, 64), (3, 3, 64, 64))
    (of_wide,), (of_around,) = reasons(pair, "cuda", *wide), reasons(pixels, "cuda", *around)
    assert "no block owns all columns of the part before, which are more than 256" in of_wide
    assert "it reads other rows than it writes; only the first part may" in of_around
    (dear,) = reasons(pair, "cuda", (1 << 16, 1024), (1024, 256), (256, 1024))
    assert re.search(r"by the cost model both as one take \d+\.\d\d times as long", dear)
    assert reasons(pair, "cuda", (100_000, 96), (96, 32), (32, 96)) == []  # a chain
    assert "it reads other rows than it writes" in reasons(pixels, "cpu", *around)[0]
