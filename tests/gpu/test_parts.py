"""Networks in parts with target="cuda": CUDA C of each part, run on the CPU, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.driver.test_glue import LOOP, agrees, behind, floats, kept
from tests.frontends.models import model
from tests.frontends.test_hosted import GROWING, NESTED, NORM
from tests.gpu import host_device
from tests.gpu.host_assembler import needs_compiler

import renorm
from renorm.driver.compile import planned
from renorm.driver.glue import GluedModule
from renorm.driver.hosted import HostedModule
from renorm.driver.planned import CODE, HOST, LATER
from renorm.runtime.gpu.module import GpuModule

TARGET = "cuda -arch=host"
pytestmark = needs_compiler


@pytest.fixture(autouse=True)
def host() -> Any:
    host_device.register()
    return host_device.host()


def test_data_end_a_loop(tmp_path: Path) -> None:
    source = model(NORM.format(count="", most=3))
    module: Any = renorm.compile(source, target=TARGET)
    assert isinstance(module, HostedModule)
    assert all(isinstance(m, GpuModule) for modules in module.parts.values() for m in modules)
    calls: list[dict[str, Any]] = [{"x": floats(2, 3) * s} for s in (1, 30, 1e-3)]
    agrees(source, *calls, module=module)
    module.save(tmp_path / "m.renorm")
    held: Any = renorm.load(tmp_path / "m.renorm")
    for call in calls:
        for mine, other in zip(held.run(**call), module.run(**call), strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("text", [GROWING, NESTED], ids=["growing", "nested"])
def test_states_that_grow_and_loops_in_loops(text: str) -> None:
    calls: list[dict[str, Any]] = [{"x": floats(n), "least": np.array(k)} for n, k in ((2, 4), (3, 2))]
    if text == NESTED:
        calls = [{"x": floats(3) * s} for s in (0.1, 1)]
    agrees(model(text), *calls, module=renorm.compile(model(text), target=TARGET))


def test_in_the_body_of_a_loop() -> None:
    module: Any = renorm.compile(model(LOOP), target=TARGET)
    assert any(isinstance(m, GluedModule) for modules in module.parts.values() for m in modules)
    agrees(model(LOOP), {"b": np.array([1.5, 1.25, 1.3, 2.1], np.float32), "x": floats(6, 5)}, module=module)


@pytest.mark.parametrize(
    ("source", "shapes"),
    [(behind(), [(1, 3, 8, 8)] * 3), (kept(), [(1, 3, 8, 6), (3, 3, 8, 6), (2, 3, 8, 6)])],
    ids=["behind", "kept"],
)
def test_the_host_computes_a_part(source: Any, shapes: list[tuple[int, ...]]) -> None:
    module: Any = renorm.compile(source, target=TARGET)
    assert isinstance(module, GluedModule)
    agrees(source, *({"x": np.abs(floats(*d)) * s} for d, s in zip(shapes, (0.3, 0.1, -0.3))), module=module)
    later = [m for name in module.later for m in module.parts[name]]
    assert len(module.later) == 2
    assert later
    assert [p.by for p in planned(source, target=TARGET)[0]] == [CODE, HOST, LATER, HOST, LATER, HOST]


@pytest.mark.parametrize("dtype", ["float", "int64"])
def test_a_sum_of_one_element(dtype: str) -> None:
    source = model(f"g ({dtype}[1] x) => ({dtype} y) {{ y = ReduceSum<keepdims = 0>(x) }}")
    (y,) = renorm.compile(source, target=TARGET).run(np.array([3], np.float32 if dtype == "float" else np.int64))
    assert (y.shape, y) == ((), 3)
