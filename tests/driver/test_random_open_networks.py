"""Random networks with open extents, compiled once, against ONNX Runtime for random sequences of shapes.

A network of fixed extents is opened along its batch, or along rows and columns too; what it takes to be so of them then
leaves some of that (a weight of a matrix product ends a row). To look at one, or many:

    python -m tests.driver.test_random_open_networks 0 60
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import pytest
from tests.driver.random_networks import network
from tests.frontends import onnx_runtime

import renorm
from renorm.core.dims import static, substitute_shape
from renorm.driver.module import SpecializingModule
from renorm.errors import InvalidInput, RenormError
from renorm.graph.conditions import settled

Array = np.ndarray[Any, Any]
AXES = {"batch": (0,), "all": (0, 2, 3, 4)}
CLOSED = {36, 46, 169}
"""Networks of the first 200 that stay closed along all axes: an equation is left between sums of products, or of digits
of open extents. It may only shrink."""


def opened(model: onnx.ModelProto, axes: Sequence[int]) -> onnx.ModelProto:
    """Return the model where these axes of its inputs are open, each one extent for all inputs."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    held = {t.name for t in made.graph.initializer}
    for given in made.graph.input:
        dims = given.type.tensor_type.shape.dim
        for axis in axes if given.name not in held else ():
            if axis < len(dims):
                dims[axis].dim_param = f"s{axis}"
    for out in made.graph.output:
        out.type.tensor_type.ClearField("shape")
    del made.graph.value_info[:]
    return made


def shapes_of(m: Any, rng: np.random.Generator, most: int, largest: int = 24) -> Iterator[dict[str, tuple[int, ...]]]:
    """Yield shapes that a module takes: those of its program's typical sizes, and random ones, of `most` sizes that are
    drawn those that fulfil its conditions, by one extent where others are drawn."""
    sizes: dict[str, int] = dict(m.program.typical)
    for _ in range(most):
        for tried in ({}, *({s: n} for s in rng.permutation(list(m.program.symbols)) for n in range(1, 3 * largest))):
            shapes = {v.name: static(substitute_shape(v.shape, sizes | tried)) for v in m.program.inputs}
            with suppress(InvalidInput):
                m.program.values(shapes)
                yield shapes
                break
        sizes = {
            s: int(rng.integers(max(1, s.least), min(s.most, max(1, s.least) + (3 if s == "s0" else largest)) + 1))
            for s in m.program.symbols
        }


def is_expected_open(model: onnx.ModelProto) -> bool:
    """Return whether there are extents for which the network is known to have a result."""
    try:
        settled(renorm.read(model.SerializeToString()))
    except RenormError:
        return False
    return True


def check(seed: int, axes: str, calls: int = 5) -> str:
    """Compile a network open, compare what it gives at random shapes, and return how open it is."""
    n = network(seed)
    model = opened(n.model, AXES[axes])
    rng = np.random.default_rng(seed)
    m = renorm.compile(model.SerializeToString(), threads=1)
    if isinstance(m, SpecializingModule):
        assert seed in CLOSED or not is_expected_open(model), f"seed {seed}: {m.obstacle}"
        return f"not open: {m.obstacle}"
    session = onnx_runtime.session(model)
    compared = 0
    for shapes in shapes_of(m, rng, 4 * calls):
        feeds: dict[str, Any] = {
            name: rng.standard_normal(shape).astype(n.feeds[name].dtype)
            if n.feeds[name].dtype.kind == "f"
            else np.resize(n.feeds[name], shape)
            for name, shape in shapes.items()
        }
        try:
            expected = onnx_runtime.run(session, feeds)
        except Exception as refused:  # as resizing a batch linearly: it knows elements, and then has no kernel
            if "ONNXRuntimeError" not in str(refused):
                raise
            continue
        for ours, theirs in zip(m.run(**feeds), expected, strict=True):
            assert ours.shape == theirs.shape, (seed, shapes)
            tolerance = 2e-3 * max(1.0, float(np.abs(theirs).max(initial=0)))
            np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=tolerance, err_msg=f"seed {seed}, {shapes}")
        compared += 1
        if compared == calls:
            break
    if not compared:
        pytest.skip(f"seed {seed}: of the shapes that were drawn none fulfils its conditions and runs in ONNX Runtime")
    return f"open: {', '.join(m.program.symbols) or 'no extent'}; {compared} shapes"


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("seed", [2, 5])
def test_random_shapes(seed: int, axes: str) -> None:
    assert check(seed, axes).startswith("open")


@pytest.mark.exhaustive
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize(
    "seed", [*range(6, 30), 31, 38, 61, 73, 78, 89, 90, 102, 131, 138, 157, 159, 163, 187, 317, 337, 340]
)
def test_many_random_shapes(seed: int, axes: str) -> None:
    check(seed, axes)


if __name__ == "__main__":
    for one in range(int(sys.argv[1]), int(sys.argv[2])):
        for kind in AXES:
            try:
                print(one, kind, check(one, kind).splitlines()[0][:200], flush=True)
            except (AssertionError, RenormError, pytest.skip.Exception) as e:
                print(one, kind, "FAILED", type(e).__name__, str(e)[:400], flush=True)
