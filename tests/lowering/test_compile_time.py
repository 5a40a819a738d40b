"""What passes do grows with the program, not with its square: counted, not timed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from aspen_jax.ir.program import Program
from aspen_jax.ops.block_program import BlockBuilder
from aspen_jax.passes import fuse, rows, simplify
from tests.passes.test_passes import traced


def test_fusing_a_chain_writes_each_instruction_a_few_times(monkeypatch):
    def chain(x):
        for step in range(400):
            x = jnp.sin(x) + (step + 0.5)
        return x

    program = simplify.run(traced(chain, np.ones(64, np.float32))[0])
    written, emit = [], BlockBuilder.emit
    monkeypatch.setattr(BlockBuilder, "emit", lambda *args: (written.append(args), emit(*args))[1])
    fused = fuse.run(program)
    assert len(fused.ops) < 0.1 * len(program.ops)
    assert len(written) < 6 * len(program.ops)


def test_matches_of_rows_do_not_count_readers_anew(monkeypatch):
    def layers(x, w):
        for _ in range(20):
            x = jax.nn.softmax(x @ w)
        return x

    program = fuse.run(simplify.run(traced(layers, np.ones((16, 24), np.float32), np.ones((24, 24), np.float32))[0]))
    asked, uses = [], Program.uses
    monkeypatch.setattr(Program, "uses", lambda self: (asked.append(self), uses(self))[1])
    found = rows.run(program)
    assert [op.family.name for op in found.ops].count("rows") == 20
    assert len(asked) <= 2
