"""A program under change: what a rewrite touches is looked up and renewed, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aspen_jax.ir.program import Op, Operand, Program, Value


class Edited:
    """The ops of a program by place, and who reads what. A place is a number; ops stay in the order of theirs.

    Attributes:
        ops: the op at each place.
        places: where each first output is written.
        outputs: of the program.
    """

    def __init__(self, program: Program):
        self.ops = dict(enumerate(program.ops))
        self.places = {op.output: place for place, op in self.ops.items()}
        self.outputs = program.outputs
        self._program = program
        self._results = {operand.value for operand in program.outputs}
        self._readers: dict[Value, dict[Op, None]] = {}
        for op in program.ops:
            self._enter(op)

    def producer(self, value: Value) -> Op | None:
        """The op whose first output it is; None for inputs and constants."""
        place = self.places.get(value)
        return None if place is None else self.ops[place]

    def uses(self, value: Value) -> list[tuple[Op | None, int]]:
        """Where it is read: (op, input index), or (None, index) for a program output."""
        uses: list[tuple[Op | None, int]] = []
        for op in self._readers.get(value, ()):
            uses += [(op, index) for index, operand in enumerate(op.inputs) if operand.value is value]
        if value in self._results:
            uses += [(None, index) for index, operand in enumerate(self.outputs) if operand.value is value]
        return uses

    def replace(self, old: Iterable[Op], new: Mapping[int, Op]) -> None:
        """Takes ops out, and puts others at places that are free then."""
        for op in old:
            del self.ops[self.places.pop(op.output)]
            for operand in op.inputs:
                self._readers[operand.value].pop(op, None)
        for place, op in new.items():
            self.ops[place] = op
            self.places[op.output] = place
            self._enter(op)

    def rename(self, old: Value, new: Value) -> None:
        """Lets all that read one value read another, through the views that they have."""

        def renamed(operands: Iterable[Operand]) -> tuple[Operand, ...]:
            return tuple(Operand(new, item.view) if item.value is old else item for item in operands)

        readers = list(self._readers.get(old, ()))
        self.replace(readers, {self.places[op.output]: op.replace(inputs=renamed(op.inputs)) for op in readers})
        if old in self._results:
            self.outputs = renamed(self.outputs)
            self._results.add(new)

    def program(self) -> Program:
        """What it is now."""
        return self._program.replace(ops=tuple(self.ops[place] for place in sorted(self.ops)), outputs=self.outputs)

    def _enter(self, op: Op) -> None:
        for operand in op.inputs:
            self._readers.setdefault(operand.value, {})[op] = None
