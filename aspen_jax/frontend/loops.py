"""Loops whose bodies tiles can run: one op, without the products that no turn waits for."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from aspen_jax.frontend.partition import Tileable
from aspen_jax.ir.program import Operand
from aspen_jax.ops.builder import Builder
from aspen_jax.ops.converters import Unsupported
from aspen_jax.ops.family import is_registered
from aspen_jax.ops.loop import LOOP, MOST_SCRATCH, LoopAttrs, loop_of, scratch_bytes


def scan_arguments(equation: core.JaxprEqn) -> tuple[int, int]:
    """How many of a scan's first arguments are the same in each step, and how many of the next ones are carried."""
    params = equation.params
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carry, _ = params["ft_in"].unpack()  # JAX 0.12
    return len(constants), len(carry)


SCAN, WHILE = "scan", "while"

Known = Sequence[np.ndarray | None]
Trace = Callable[[Known], Tileable]
"""`trace(known)`: the body, whose program has an input for each argument that is not known. Raises Unsupported."""


def scan(
    equation: core.JaxprEqn, operands: Sequence[Operand | np.ndarray], build: Builder, trace: Trace
) -> tuple[list[Operand], Tileable]:
    """Write a scan as one op, and give its results and its body.

    Args:
        equation: the scan.
        operands: its operands; arrays are known when tracing.
        build: gets the op.
        trace: converts the body, which takes the scan's operands, or an entry of those that have one for each turn.

    Raises:
        Unsupported: some of the body stays with XLA, or it is no work for one worker.
    """
    length, reverse = equation.params["length"], equation.params["reverse"]
    if not length:
        raise Unsupported("the loop has no turn")
    constants, carries = scan_arguments(equation)
    return _loop(functools.partial(LoopAttrs, length, reverse, False), constants, carries, operands, build, trace)


def while_loop(
    equation: core.JaxprEqn, operands: Sequence[Operand | np.ndarray], build: Builder, trace: Trace
) -> tuple[list[Operand], Tileable]:
    """Write a while loop as one op, and give its results and its body.

    Args:
        equation: the while loop.
        operands: its constants, whether there is a first turn, and its first carries; arrays are known when tracing.
        build: gets the op.
        trace: converts the body with the condition, which says behind it whether there is another turn.

    Raises:
        Unsupported: some of the body or the condition stays with XLA, or it is no work for one worker.
    """
    constants = equation.params["cond_nconsts"] + equation.params["body_nconsts"]
    carries = len(operands) - constants
    results, traced = _loop(functools.partial(LoopAttrs, 0, False, True), constants, carries, operands, build, trace)
    return results[1:], traced


def _loop(
    attrs: Callable[..., LoopAttrs],
    num_constants: int,
    num_carries: int,
    operands: Sequence[Operand | np.ndarray],
    build: Builder,
    trace: Trace,
) -> tuple[list[Operand], Tileable]:
    # Of what is known, scalars that are the same in each turn are written into the body.
    known = [
        item if number < num_constants and isinstance(item, np.ndarray) and item.ndim == 0 else None
        for number, item in enumerate(operands)
    ]
    traced = trace(known)
    program = traced.program
    if any(op.family is LOOP for op in program.ops):
        raise Unsupported("a loop lies in the loop")
    if any(is_registered(op.family) for op in program.ops):
        raise Unsupported("the body has a kernel of the user's, which is no part of another op")
    if scratch_bytes(program) > MOST_SCRATCH:
        raise Unsupported("a turn of the loop computes more than one worker's cache holds")
    if not program.outputs or 0 in program.outputs[0].shape:
        raise Unsupported("the loop's first result is empty")
    constants = sum(item is None for item in known[:num_constants])
    inputs = [_operand(build, item) for item, scalar in zip(operands, known, strict=True) if scalar is None]
    about = {"name": build.name, "source": build.source, "exact": any(op.exact for op in program.ops)}
    op = loop_of(attrs(constants, num_carries, program), inputs, **about)
    build.add(op)
    return [Operand.whole(value) for value in op.outputs], traced


def _operand(build: Builder, item: Operand | np.ndarray) -> Operand:
    return item if isinstance(item, Operand) else build.constant(item)


def with_products_outside(equation: core.JaxprEqn) -> core.ClosedJaxpr | None:
    """A scan without the products that no turn waits for; each is one product of all turns, before or after the scan.

    None where it has no such product.

    Args:
        equation: the scan. The result takes its operands and gives its results.
    """
    if any(map(_has_more_types, (*equation.invars, *equation.outvars))):
        return None
    body = _Body.of(equation)
    before, sums, after = body.before(), body.sums(), body.after()
    if not (before or sums or after):
        return None
    avals: list[Any] = [var.aval for var in equation.invars]
    avals = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    made = jax.make_jaxpr(functools.partial(_run, body, before, sums, after))(*avals)
    scans = [own for own in made.jaxpr.eqns if own.primitive.name == SCAN]
    bytes_before, bytes_now = (sum(map(_bytes_of_turns, found)) for found in ([equation], scans))
    return made if len(scans) == 1 and bytes_now <= max(_MORE_TIMES * bytes_before, _MORE_BYTES) else None


def _bytes_of_turns(scan: core.JaxprEqn) -> int:
    """Bytes of what has an entry for each turn."""
    body = _Body.of(scan)
    avals: list[Any] = [atom.aval for atom in (*scan.invars[body.once :], *scan.outvars[body.num_carries :])]
    return sum(aval.size * aval.dtype.itemsize for aval in avals)


def _has_more_types(atom: Any) -> bool:
    """Whether an array's type says how it lies on several devices. What is traced anew here has no such types."""
    mesh = getattr(getattr(atom.aval, "sharding", None), "mesh", None)
    manual = getattr(atom.aval, "manual_axis_type", None)
    return (mesh is not None and not mesh.empty) or (manual is not None and bool(manual.varying))


@dataclasses.dataclass(frozen=True, eq=False)
class _Term:
    """What each turn adds to a carry: a product, moved.

    Attributes:
        product: a dot_general.
        moves: what is linear in its result and moves elements alone, in order.
    """

    product: core.JaxprEqn
    moves: tuple[core.JaxprEqn, ...]

    def of_all_turns(self, left: jax.Array, right: jax.Array) -> jax.Array:
        """The sum of all turns, of the product's operands with an axis of turns before their own."""
        params = self.product.params
        contracted, batch = ([tuple(axis + 1 for axis in side) for side in kind] for kind in params["dimension_numbers"])
        numbers: Any = (tuple((0, *side) for side in contracted), tuple(batch))
        total = jax.lax.dot_general(
            left,
            right,
            numbers,
            precision=params["precision"],
            preferred_element_type=params["preferred_element_type"],
        )
        for move in self.moves:
            literals = [atom.val for atom in move.invars if isinstance(atom, core.Literal)]
            total = move.primitive.bind(total, *literals, **move.params)
        return total


@dataclasses.dataclass(frozen=True, eq=False)
class _Sum:
    """A carry to which each turn adds products, and that no turn reads.

    Attributes:
        carry: its number.
        terms: the products.
        adds: what adds them.
    """

    carry: int
    terms: tuple[_Term, ...]
    adds: tuple[core.JaxprEqn, ...]

    @property
    def products(self) -> list[core.JaxprEqn]:
        return [term.product for term in self.terms]

    @property
    def equations(self) -> list[core.JaxprEqn]:
        return [*self.products, *(move for term in self.terms for move in term.moves), *self.adds]


@dataclasses.dataclass(frozen=True, eq=False)
class _Body:
    """The body of a scan.

    Attributes:
        closed: its jaxpr.
        num_constants: how many of its first arguments are the same in each turn.
        num_carries: how many of the next ones are carried.
        length: how many turns there are.
        reverse: whether the first turn gets the last entries.
        unroll: how many turns XLA writes out, where it runs the scan.
    """

    closed: core.ClosedJaxpr
    num_constants: int
    num_carries: int
    length: int
    reverse: bool
    unroll: int | bool

    @classmethod
    def of(cls, equation: core.JaxprEqn) -> _Body:
        params = equation.params
        return cls(params["jaxpr"], *scan_arguments(equation), params["length"], params["reverse"], params["unroll"])

    @property
    def jaxpr(self) -> core.Jaxpr:
        return self.closed.jaxpr

    @property
    def once(self) -> int:
        """How many of its arguments have no entries."""
        return self.num_constants + self.num_carries

    @property
    def constants(self) -> list[core.Var]:
        return self.jaxpr.invars[: self.num_constants]

    @property
    def carries(self) -> list[core.Var]:
        return self.jaxpr.invars[self.num_constants : self.once]

    @property
    def entries(self) -> list[core.Var]:
        return self.jaxpr.invars[self.once :]

    def of_constants(self) -> list[core.JaxprEqn]:
        """What it computes of its constants alone."""
        known = {*self.jaxpr.constvars, *self.constants}
        found = []
        for own in self.jaxpr.eqns:
            if not own.effects and known.issuperset(_read([own])):
                known.update(own.outvars)
                found.append(own)
        return found

    def before(self) -> list[core.JaxprEqn]:
        """The products that no carry changes, with what they need of entries, in order."""
        changing, entries = set(self.carries), set(self.entries)
        known = []
        for own in self.jaxpr.eqns:
            read = _read([own])
            if own.effects or not read.isdisjoint(changing):
                changing.update(own.outvars)
            elif not read.isdisjoint(entries):
                entries.update(own.outvars)
                known.append(own)
        return _needed(known, [var for own in known if own.primitive.name in _PRODUCTS for var in own.outvars])

    def sums(self) -> list[_Sum]:
        """The carries to which turns only add products."""
        readers = self._readers()
        writers = {var: own for own in self.jaxpr.eqns for var in own.outvars}
        found = []
        for number, (carry, result) in enumerate(zip(self.carries, self.jaxpr.outvars, strict=False)):
            adds: list[core.JaxprEqn] = []
            terms: list[_Term] = []
            atom, reader = result, None
            while atom is not carry:
                add = writers.get(atom) if isinstance(atom, core.Var) and readers[atom] == [reader] else None
                if add is None or add.primitive.name not in ("add", "add_any"):
                    break
                # Only one side can lead to the carry; the other is a product, or the sum stays in the loop.
                sides = [(self._term(one, add, readers, writers), other) for one, other in (add.invars, add.invars[::-1])]
                term, rest = next(((term, rest) for term, rest in sides if term is not None), (None, None))
                if term is None:
                    break
                adds.append(add)
                terms.append(term)
                atom, reader = rest, add
            if terms and atom is carry and readers[carry] == [reader]:
                found.append(_Sum(number, tuple(terms), tuple(adds)))
        return found

    def _term(self, atom: Any, add: core.JaxprEqn, readers: Any, writers: Mapping[Any, core.JaxprEqn]) -> _Term | None:
        """What an addition adds, if it is a moved product that changes from turn to turn and that nobody else reads."""
        moves: list[core.JaxprEqn] = []
        last = add
        while isinstance(atom, core.Var) and readers[atom] == [last] and atom in writers:
            last = writers[atom]
            if not _only_moves(last):
                break
            moves.insert(0, last)
            atom = last.invars[0]
        operands = _read([last])
        of_constants = {var for own in self.of_constants() for var in own.outvars}
        is_known = not operands.isdisjoint([*self.constants, *of_constants, *self.jaxpr.constvars])
        if last.primitive.name != "dot_general" or is_known or not all(isinstance(side, core.Var) for side in last.invars):
            return None
        return _Term(last, tuple(moves)) if operands.issubset({*self.jaxpr.invars, *writers}) else None

    def after(self) -> list[core.JaxprEqn]:
        """The products that no turn reads, with what only they lead to, in order."""
        readers = self._readers()
        results = self.jaxpr.outvars
        carried, stacked = map(_variables, (results[: self.num_carries], results[self.num_carries :]))
        late: set[int] = set()
        for own in reversed(self.jaxpr.eqns):
            read_late = all(
                var not in carried and all(item is None or id(item) in late for item in readers[var]) for var in own.outvars
            )
            if read_late and not own.effects:
                late.add(id(own))
        late.difference_update(map(id, self.of_constants()))  # of which one turn is all turns
        moved: list[core.JaxprEqn] = []
        behind: set[Any] = set()
        for own in self.jaxpr.eqns:
            if id(own) in late and (own.primitive.name in _PRODUCTS or not _read([own]).isdisjoint(behind)):
                moved.append(own)
                behind.update(own.outvars)
        return moved if behind & stacked else []

    def _readers(self) -> collections.defaultdict[Any, list[core.JaxprEqn | None]]:
        """The equations that read a variable, and None for each time that it is a result."""
        readers: collections.defaultdict[Any, list[core.JaxprEqn | None]] = collections.defaultdict(list)
        for own in self.jaxpr.eqns:
            for var in _read([own]):
                readers[var].append(own)
        for atom in self.jaxpr.outvars:
            if isinstance(atom, core.Var):
                readers[atom].append(None)
        return readers

    def part(self, equations: Sequence[core.JaxprEqn], inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[..., list[Any]]:
        """Some of its equations as a function."""
        jaxpr = self.jaxpr.replace(invars=list(inputs), outvars=list(outputs), eqns=_needed(equations, outputs), debug_info=_INFO)
        return core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, self.closed.consts))


def _run(
    body: _Body, before: Sequence[core.JaxprEqn], sums: Sequence[_Sum], after: Sequence[core.JaxprEqn], *operands: Any
) -> list[Any]:
    """A scan with some products outside of its body."""
    jaxpr, constants = body.jaxpr, operands[: body.num_constants]
    known: dict[Any, Any] = dict(zip(jaxpr.invars, operands, strict=True))
    summed = {item.carry for item in sums}
    gone = {id(own) for own in (*before, *after, *(own for item in sums for own in item.equations))}
    kept = [own for own in jaxpr.eqns if id(own) not in gone]
    stacked = jaxpr.outvars[body.num_carries :]
    behind = {var for own in after for var in own.outvars}
    in_turn = [atom for atom in stacked if not (isinstance(atom, core.Var) and atom in behind)]
    # What is computed afterwards reads these of each turn.
    products = [product for item in sums for product in item.products]
    wanted = _read([*after, *products]) - behind - {*body.constants, *body.entries, *jaxpr.constvars}
    of_constants = body.of_constants()
    wanted -= {var for own in of_constants for var in own.outvars}
    by_before = {var for own in before for var in own.outvars}
    results = [atom for number, atom in enumerate(jaxpr.outvars[: body.num_carries]) if number not in summed]
    read = _read(kept) | _variables((*results, *in_turn)) | wanted
    crossing = [var for own in before for var in own.outvars if var in read]
    over = functools.partial(jax.vmap, axis_size=body.length)
    axes = [None] * body.num_constants
    entries = list(body.entries)
    if crossing:
        first = body.part([*of_constants, *before], [*body.constants, *entries], crossing)
        made = over(first, in_axes=(*axes, *[0] * len(entries)))(*constants, *(known[var] for var in entries))
        known.update(zip(crossing, made, strict=True))
        entries += crossing
    # In the order of the body, so that all processes write the same program.
    variables = [*jaxpr.invars, *(var for own in jaxpr.eqns for var in own.outvars)]
    extra = [var for var in variables if var in wanted and var not in by_before]
    carries = [var for number, var in enumerate(body.carries) if number not in summed]
    turn = body.part(kept, [*body.constants, *carries, *entries], [*results, *in_turn, *extra])

    def one_turn(values: Sequence[Any], entry: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        given = turn(*constants, *values, *entry)
        return given[: len(carries)], given[len(carries) :]

    last, stacks = jax.lax.scan(
        one_turn,
        [known[var] for var in carries],
        [known[var] for var in entries],
        length=body.length,
        reverse=body.reverse,
        unroll=body.unroll,
    )
    known.update(zip(extra, stacks[len(in_turn) :], strict=True))
    finals = dict(zip((number for number in range(body.num_carries) if number not in summed), last, strict=True))
    for item in sums:
        finals[item.carry] = known[body.carries[item.carry]]
        for term in item.terms:
            finals[item.carry] += term.of_all_turns(*(known[var] for var in term.product.invars))
    found = iter(stacks)
    made_after = {}
    if behind:
        ends = [var for own in after for var in own.outvars if var in _variables(stacked)]
        varying = [*entries, *extra]
        rest = body.part([*of_constants, *after], [*body.constants, *varying], ends)
        made = over(rest, in_axes=(*axes, *[0] * len(varying)))(*constants, *(known[var] for var in varying))
        made_after = dict(zip(ends, made, strict=True))
    given = [made_after[atom] if isinstance(atom, core.Var) and atom in made_after else next(found) for atom in stacked]
    return [*(finals[number] for number in range(body.num_carries)), *given]


def _only_moves(equation: core.JaxprEqn) -> bool:
    """Whether an equation moves elements of one array alone, and puts zeros between them at most."""
    if equation.primitive.name == "pad":
        value = equation.invars[1]
        return isinstance(value, core.Literal) and not value.val
    return equation.primitive.name in ("transpose", "reshape")


def _read(equations: Iterable[core.JaxprEqn]) -> set[core.Var]:
    return _variables(atom for own in equations for atom in own.invars)


def _variables(atoms: Iterable[Any]) -> set[core.Var]:
    return {atom for atom in atoms if isinstance(atom, core.Var)}


def _needed(equations: Sequence[core.JaxprEqn], results: Iterable[Any]) -> list[core.JaxprEqn]:
    """The equations that results need, in order."""
    wanted = _variables(results)
    needed = []
    for own in reversed(equations):
        if own.effects or not wanted.isdisjoint(own.outvars):
            wanted |= _read([own])
            needed.append(own)
    return needed[::-1]


_INFO = core.DebugInfo("aspen_call", "body", None, None)
_PRODUCTS = ("dot_general", "conv_general_dilated")

# What has an entry for each turn may become so many times as large, or so large.
_MORE_TIMES, _MORE_BYTES = 2, 1 << 25
