"""Every op sample with each of its extents open: one module, compiled once, gives the numbers of the reference at its
own sizes and at others, 0 and 1 included.

An extent alone is made a symbol, then all are at once, each one of its own; the conditions of inference say which must
be equal, and which are numbers after all. Other sizes that the op refuses for numbers must be refused before anything
runs.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import islice, zip_longest
from typing import Any

import numpy as np
import pytest
from tests.ops.one_node import OneNode
from tests.ops.test_every_op import OPS

import renorm
from renorm.core.conditions import Condition
from renorm.core.dims import Sym, static, substitute_shape, symbols_of
from renorm.core.errors import RenormError
from renorm.driver.module import SpecializingModule
from renorm.graph import interpret
from renorm.graph.conditions import conditions_of
from renorm.graph.ir import Value
from renorm.graph.op import OpDef, Sample
from renorm.graph.types import Spec, TensorType
from renorm.runtime.module import Module

Array = np.ndarray[Any, Any]
Axes = dict[tuple[int, int], str]
"""Names of symbols, by the numbers of an operand that is given at run time and of its axis."""

SIZES = (0, 1, 2, 7)
MOST_S = 60  # of processor time, for one case
WRONG = "wrong: "

CLOSED: dict[str, dict[str, int]] = {}
"""Of how many cases each op is compiled for numbers alone, by words of the reason. It may only shrink."""

NUMBERS: dict[str, dict[str, int]] = {
    "attention": {"16 rows and columns of each are known": 21},  # tiles of a matrix unit are numbers of rows
    "gather_nd": {"the last axis of indices": 4},  # how many axes the result has
    "merged_top_k": {"must be known": 11},  # how often runs are merged
    "squeeze": {"without axes, all extents must be known": 8},  # the same
    "winograd_conv": {"the window must be known": 18},  # how many products a tile has, and their matrices
    "winograd_conv_transpose": {
        "the window must be known": 16,
        "the truth of the expression": 3,  # an output_shape says at which place of a stride the first window begins
    },
}
"""Of how many cases an extent decides about what is no extent: a rank, or a number of operations. They stay closed."""


class OpenNode(OneNode):
    """A sample some of whose axes are symbols."""

    def __init__(self, op: type[OpDef], sample: Sample, axes: Axes):
        self._axes, self.specs = axes, list[Spec]()
        super().__init__(op, sample)

    def _value(self, name: str, spec: Spec, is_static: bool, rng: np.random.Generator) -> Value:
        if is_static:
            return super()._value(name, spec, is_static, rng)
        number = len(self.specs)
        self.specs.append(spec)
        self.arrays.append(spec.draw(rng))
        shape = [Sym(self._axes[number, a]) if (number, a) in self._axes else d for a, d in enumerate(spec.type.shape)]
        return self.graph.input(name, spec.type.dtype, shape)

    @cached_property
    def own(self) -> dict[str, int]:
        """Values of the symbols in the sample."""
        shapes = [static(s.type.shape) for s in self.specs]
        return {symbol: shapes[number][axis] for (number, axis), symbol in self._axes.items()}

    def sizes(self) -> list[dict[str, int]]:
        """Values of the symbols: the sample's own, all the same, multiples, and some of each."""
        rng = np.random.default_rng(len(self.own))
        found = [self.own, *(dict.fromkeys(self.own, n) for n in SIZES), {s: 3 * n for s, n in self.own.items()}]
        for _ in range(4 if len(self.own) > 1 else 0):
            found.append(
                {s: int(rng.choice((0, 1, 3, 5, 9))) if rng.random() < 0.5 else n for s, n in self.own.items()}
            )
        return [s for i, s in enumerate(found) if s not in found[:i]]

    def at(self, sizes: dict[str, int]) -> list[Array]:
        """Inputs of these sizes: elements that a sample gives are repeated or left out."""
        if sizes == self.own:
            return self.arrays
        found, rng = list[Array](), np.random.default_rng(7)
        for v, spec in zip(self.graph.inputs, self.specs):
            shape = static(substitute_shape(v.shape, sizes))
            values = None if spec.values is None else np.resize(spec.values, shape)
            changed = replace(spec, type=TensorType(v.dtype, shape), values=values)
            found.append(np.asarray(changed.draw(rng), order="C"))
        return found


def has_result(op: type[OpDef], sample: Sample, axes: Axes) -> bool:
    """Return whether extents of the results follow from these."""
    try:
        outputs = OpenNode(op, sample, axes).graph.outputs
    except RenormError:
        return False
    return all(str(s) in axes.values() for v in outputs for d in v.shape for s in symbols_of(d))


def cases(op: type[OpDef]) -> Iterator[tuple[int, Sample, Axes]]:
    """Yield samples, by their numbers, with all axes open of which one alone gives a result, and with each axis alone:
    of samples that differ in dtypes or extents only, of one."""
    seen = set[Any]()
    for i, sample in enumerate(op.samples):
        ranks = tuple(spec.type.rank for spec in OpenNode(op, sample, {}).specs)
        places = [(number, axis) for number, rank in enumerate(ranks) for axis in range(rank)]
        form = (ranks, repr(sorted(sample.attributes.items())))
        together = {(n, a): f"n{n}_{a}" for n, a in places if has_result(op, sample, {(n, a): "n"})}
        if len(together) > 1:
            yield i, sample, together
        if len(together) < 2 or form not in seen:
            yield from ((i, sample, {place: "n"}) for place in places)
        seen.add(form)


def check_at(sizes: dict[str, int], case: OpenNode, m: Module, conditions: Iterable[Condition]) -> None:
    """Raise AssertionError where a module does at some sizes what the op does not."""
    arrays = case.at(sizes)
    try:
        fixed = case.graph.copy(sizes)
    except RenormError:
        fixed = None
    try:
        results = m.run(*arrays)
    except RenormError as error:
        is_broken = any(c.holds(sizes) is False for c in conditions)
        # an equation is divided by extents until it says what one is: it says nothing where these are 0
        is_broken = is_broken or ("do not fit" in str(error) and not all(a.size for a in arrays))
        if fixed is not None and not is_broken:
            raise AssertionError(f"{sizes}: refused, but not of numbers: {error}") from None
        return
    if fixed is None:
        raise AssertionError(f"{sizes}: runs, but is refused of numbers")
    with np.errstate(all="ignore"):
        try:
            env = interpret.evaluate(fixed, arrays)
        except (RenormError, IndexError):  # elements that are repeated may be indices outside of an axis
            if sizes == case.own:
                raise
            return
        try:
            case.agrees(results, [env[v] for v in fixed.outputs])
        except AssertionError as error:
            # what an integer is that is made of no elements at all, only kernels of numbers say
            if all(a.size for a in arrays) or not are_equal(results, renorm.compile(fixed, threads=1).run(*arrays)):
                raise AssertionError(f"{sizes}: {error}") from None


def are_equal(arrays: Iterable[Array], others: Iterable[Array]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(arrays, others, strict=True))


def served(op: type[OpDef], sample: Sample, axes: Axes) -> str:
    """Run a sample with open axes at all sizes, and return why it is not compiled for all, or an empty string. Raise
    AssertionError for a result that is not that of the reference."""
    try:
        case = OpenNode(op, sample, axes)
        conditions = conditions_of(case.graph)
    except RenormError as error:
        return str(error)
    if any(c.holds(case.own) is False for c in conditions):
        return ""  # an extent of 1 beside another one: what is open never broadcasts
    m = renorm.compile(case.graph, threads=1, precision="exact")
    if isinstance(m, SpecializingModule):
        return m.obstacle
    for sizes in case.sizes():
        check_at(sizes, case, m, conditions)
    return ""


def reported(op: type[OpDef], most: int | None = None) -> dict[str, str]:
    """Return what becomes of each case of an op, in a process of its own: of the one that ends it, or takes MOST_S,
    which signal did. most: cases."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        gc.freeze()  # what the parent left has threads that are not here, for which its end would wait
        os.close(read)
        with os.fdopen(write, "w") as to:
            for i, sample, axes in islice(cases(op), most):
                signal.setitimer(signal.ITIMER_PROF, MOST_S)
                name = f"sample {i}, open {', '.join(f'{number}:{axis}' for number, axis in axes)}"
                print(json.dumps(name), file=to, flush=True)
                try:
                    reason = served(op, sample, axes)
                except Exception:
                    reason = f"{WRONG}{traceback.format_exc()}"
                print(json.dumps(reason), file=to, flush=True)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as lines:
        told = [json.loads(line) for line in lines]
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return dict(zip_longest(told[::2], told[1::2], fillvalue=f"{WRONG}ended by {status}"))


def reasons(op: type[OpDef]) -> dict[str, int]:
    return CLOSED.get(op.name, {}) | NUMBERS.get(op.name, {})


def check(op: type[OpDef], found: dict[str, str]) -> None:
    wrong = [f"{name}: {reason}" for name, reason in found.items() if reason.startswith(WRONG)]
    assert not wrong, "\n".join(wrong)
    known = reasons(op)
    unknown = [f"{name}: {reason}" for name, reason in found.items() if reason and not any(w in reason for w in known)]
    assert not unknown, "\n".join(unknown)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_one_module_for_all_extents_of_one_sample(op: type[OpDef]) -> None:
    check(op, reported(op, most=1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_one_module_for_all_extents_of_each_sample(op: type[OpDef]) -> None:
    found = reported(op)
    check(op, found)
    known = reasons(op)
    counted = Counter(next(w for w in known if w in reason) for reason in found.values() if reason)
    assert counted == known, "what is closed has changed: CLOSED may shrink"
