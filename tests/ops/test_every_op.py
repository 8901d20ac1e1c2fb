"""What holds for every op, derived from its samples: nothing here is written for one op."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.codegen.native import run_native
from tests.ops.one_node import OneNode

import renorm.ops
from renorm.core import dtypes
from renorm.core.dims import Sym, static, substitute_shape
from renorm.core.dtypes import is_float
from renorm.core.errors import OperandError, RenormError
from renorm.core.target import Target
from renorm.graph import interpret, registry
from renorm.graph.channels import Carry, ChannelMap, pulled, pushed
from renorm.graph.op import OpDef, Reject, Sample
from renorm.targets import find

Array = np.ndarray[Any, Any]


def load(path: Path) -> ModuleType:
    """A file outside the package as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


completeness: Any = load(Path(__file__).parents[2] / "scripts" / "completeness.py")
OPS = [op for op in registry.all_ops() if op.__module__.startswith("renorm.ops")]
SAMPLES = [(op, s, f"{op.name}-{i}") for op in OPS for i, s in enumerate(op.samples)]
CASES = [pytest.param(op, s, id=name) for op, s, name in SAMPLES]
REJECTS = [pytest.param(op, r, id=f"{op.name}-{i}") for op in OPS for i, r in enumerate(op.rejects)]
TARGETS = [find("llvm -mcpu=haswell"), find("cuda -arch=sm_80")]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_op_is_complete(op: type[OpDef]) -> None:
    assert completeness.missing(op) == []


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_loops_compute_the_reference(op: type[OpDef], sample: Sample) -> None:
    """The reference has the inferred type, and so has what the loops compute."""
    case = OneNode(op, sample)
    assert all(v.type.is_static for v in case.graph.outputs)
    case.agrees(case.run(case.kernel()), case.reference())


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.kind)
@pytest.mark.parametrize(("op", "sample"), CASES)
def test_schedule_computes_the_reference(op: type[OpDef], sample: Sample, target: Target) -> None:
    case = OneNode(op, sample)
    case.agrees(case.run(case.kernel(target)), case.reference())


@pytest.mark.slow
@pytest.mark.parametrize(("op", "sample"), CASES)
def test_native_code_computes_the_reference(op: type[OpDef], sample: Sample) -> None:
    case = OneNode(op, sample)
    case.agrees(case.run(case.kernel(Target()), run_native), case.reference())


@pytest.mark.parametrize(("op", "reject"), REJECTS)
def test_reject_is_refused_with_its_reason(op: type[OpDef], reject: Reject) -> None:
    with pytest.raises(RenormError, match=re.escape(reject.because)):
        OneNode(op, reject)


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_symbolic_extents_agree_with_fixed_ones(op: type[OpDef], sample: Sample) -> None:
    """Extents above 1 become symbols; what is then inferred holds for the sample's own extents, or is left open."""
    case = OneNode(op, sample)
    extents = {d for v in case.graph.inputs for d in v.shape if isinstance(d, int) and d > 1}
    sizes = {f"d{d}": d for d in extents}
    try:
        open_case = OneNode(op, sample, {d: Sym(f"d{d}") for d in extents})
    except OperandError as error:
        assert "known" in str(error)  # noqa: PT017
        return
    for symbolic, fixed in zip(open_case.graph.outputs, case.graph.outputs, strict=True):
        assert symbolic.dtype == fixed.dtype
        assert len(symbolic.shape) == len(fixed.shape)
        for guess, extent in zip(substitute_shape(symbolic.shape, sizes), fixed.shape):
            assert guess == extent or (isinstance(guess, Sym) and any("?" in s for s in guess.symbols()))


def is_followed(op: type[OpDef], sample: Sample) -> bool:
    """Whether a sample's result may be part of a shape chain: only elements of integers are known."""
    specs = [s for o in sample.operands for s in (o if isinstance(o, list) else [o]) if s is not None]
    return op.known_result is not OpDef.known_result and not any(is_float(s.type.dtype) for s in specs)


@pytest.mark.parametrize(
    ("op", "sample"), [pytest.param(op, s, id=name) for op, s, name in SAMPLES if is_followed(op, s)]
)
def test_known_elements_are_those_of_the_reference(op: type[OpDef], sample: Sample) -> None:
    case = OneNode(op, sample)
    for value, array in zip(case.graph.inputs, case.arrays):
        value.known = array.astype(object)
    case.graph.infer_again()
    known = case.graph.outputs[0].known
    if known is None:
        return
    (expected,) = case.reference()
    assert known.shape == expected.shape
    narrow = expected.dtype.itemsize < 4  # integers that wrap are no extents
    if not narrow:
        assert known.tolist() == expected.tolist()


def along(m: ChannelMap, x: Array) -> Array:
    """x * k + shift, by NumPy."""
    k, shift = (np.asarray(n if v is None else v, np.float64) for n, v in ((1, m.k), (0, m.shift)))
    spread = [-1 if a == m.axis else 1 for a in range(x.ndim)]
    return x * (k.reshape(spread) if k.ndim else k) + (shift.reshape(spread) if shift.ndim else shift)


def maps_through(carry: Carry, axis: int, extent: int, count: int) -> tuple[ChannelMap, ChannelMap]:
    """Some map of an operand, of as many channels as can differ, and the one of a result that it becomes. extent,
    count: channels of the operand, and of the result."""
    rng = np.random.default_rng(7)

    def drawn(along: int, k: Array) -> ChannelMap:
        fixed = rng.uniform(-1, 1, k.size) if carry.fixed is None else carry.fixed * (1 - k) if carry.fixed else None
        return ChannelMap(along, k, fixed if fixed is not None and np.isfinite(fixed).all() else None)

    for front in (drawn(axis, rng.uniform(0.5, 2, extent)), ChannelMap(axis, np.full(extent, 2.0), None)):
        behind = pushed(carry, front, count)
        if not isinstance(behind, str):
            return front, behind
        k = np.ones(count)
        k[carry.pairs[:, 0]] = rng.uniform(0.5, 2, len(carry.pairs))
        behind = drawn(carry.axis, k) if carry.fixed is not None else ChannelMap(carry.axis, k, None)
        pulling = pulled(carry, behind, axis, extent)
        if not isinstance(pulling, str):
            return pulling, behind
    raise AssertionError(f"{carry} lets nothing through")


def carried(case: OneNode, index: int) -> list[tuple[int, Carry]]:
    """Where channels of an operand go, by the axis that they are along."""
    v, found = case.node.inputs[index], list[tuple[int, Carry]]()
    for axis in range(0 if v is None else v.rank):
        carries = case.op.propagate_channels(case.node, index, axis) or []
        found += [(axis, c) for c in (carries if isinstance(carries, Sequence) else [carries])]
    return found


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_channels_are_where_they_are_said_to_be_carried(op: type[OpDef], sample: Sample) -> None:
    """f(x * k + shift) = f(x) * k' + shift', by the reference. Operands beside x take what the result asks of them."""
    case = OneNode(op, sample)
    results, inputs = case.reference(), case.graph.inputs
    fed = {i: inputs.index(v) for i, v in enumerate(case.node.inputs) if v in inputs and is_float(v.dtype) and v.rank}
    for index, (axis, carry) in ((i, c) for i in fed for c in carried(case, i)):
        shape, y = inputs[fed[index]].shape, results[carry.result]
        if carry.joined or 0 in shape:
            continue  # what goes to one of two sums: tests/passes/test_paths.py
        front, behind = maps_through(carry, axis, static(shape)[axis], y.shape[carry.axis])
        arrays = list(case.arrays)
        for i, at in fed.items():
            ways = [(a, c) for a, c in carried(case, i) if c.axis == carry.axis]
            for a, c in [(axis, carry)] if i == index else ways:
                own = front if i == index else pulled(c, behind, a, arrays[at].shape[a])
                assert isinstance(own, ChannelMap)
                arrays[at] = along(own, case.arrays[at]).astype(arrays[at].dtype)
        changed = interpret.evaluate(case.graph, arrays)[case.graph.outputs[carry.result]]
        tolerance = 1e-2 if dtypes.itemsize(case.graph.outputs[0].dtype) == 2 else 1e-5
        np.testing.assert_allclose(changed, along(behind, y), tolerance, tolerance)


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_values_lie_in_others_as_aliases_say(op: type[OpDef], sample: Sample) -> None:
    case = OneNode(op, sample)
    held = interpret.evaluate(case.graph, case.arrays)
    for alias in case.op.aliases(case.node) or ():
        part, whole = held[alias.part], held[alias.whole]
        cut = None if alias.starts is None else tuple(slice(s, s + n) for s, n in zip(alias.starts, part.shape))
        np.testing.assert_array_equal(part, whole.reshape(part.shape) if cut is None else whole[cut])


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_builder_applies_the_op(op: type[OpDef]) -> None:
    case = OneNode(op, op.samples[0])
    operands = list(case.node.operands)
    while operands and operands[-1] is None:
        operands.pop()
    getattr(renorm.ops, op.name)(*operands, **op.samples[0].attributes)
    made = case.graph.nodes[-1]
    assert made is not case.node
    assert made.op == case.op
    assert [v.type.dtype for v in made.outputs] == [v.type.dtype for v in case.node.outputs]
    assert made.op.name in renorm.ops.__dir__()
