"""Programs of the articles, built for a GPU and called with NumPy arrays: what g++ makes of their CUDA C runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.gpu import host_device
from tests.gpu.host_assembler import needs_compiler
from tests.te.test_articles import (
    batch_norm_arrays,
    batch_norm_program,
    instance_norm,
    instance_norm_functions,
    normal,
    run_program,
)

import renorm
from renorm import te
from renorm.core.errors import InvalidInput, InvalidLoops
from renorm.runtime.function import load_module

TARGET = "cuda -arch=host"
pytestmark = needs_compiler

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> host_device.HostDevice:
    """A device of this test alone, that finds races."""
    host_device.register()
    made = host_device.HostDevice(check_races=True)
    monkeypatch.setitem(host_device._DEVICES, 0, made)
    return made


class Program:
    """Instance norm of the article 004: tensors in the order of the arguments, and arrays for them."""

    def __init__(self, shape: tuple[int, int, int, int], fix_gamma: bool):
        names = instance_norm_functions()
        channels = shape[1]
        data, scale, bias = te.placeholder(shape, name="data"), te.placeholder((channels,)), te.placeholder((channels,))
        self.out: Any = names["instance_norm_inference"](data, scale, bias, 1e-5, fix_gamma)
        self.schedule: te.Schedule = names["schedule_instance_norm"]([self.out])
        x, g, b = normal(*shape) - 2, normal(channels), normal(channels)
        self.args = [data, *([] if fix_gamma else [scale]), bias, self.out]
        self.arrays: list[Array] = [x, *([] if fix_gamma else [g]), b, np.full(shape, np.nan, np.float32)]
        self.wanted: Array = instance_norm(x, g, b, 1e-5, fix_gamma)

    def agrees(self) -> None:
        """Hold the last array against float64; the article takes the variance as a difference of means."""
        np.testing.assert_allclose(self.arrays[-1], self.wanted, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("fix_gamma", [False, True])
@pytest.mark.parametrize("shape", [(3, 10, 4, 6), (1, 1, 1, 1), (9, 8, 5, 3)])
def test_instance_norm(host: host_device.HostDevice, shape: tuple[int, int, int, int], fix_gamma: bool) -> None:
    """With the article's blocks and threads as they are: a launch for each of its four stages, tails in both axes."""
    p = Program(shape, fix_gamma)
    f = renorm.build(p.schedule, p.args, target=TARGET)
    given = [a.copy() for a in p.arrays[:-1]]
    f(*p.arrays)
    p.agrees()
    assert host.launches == f.get_source().count("__global__") == 4
    for array, before in zip(p.arrays, given):
        np.testing.assert_array_equal(array, before)


def test_default_loops_are_for_no_gpu() -> None:
    """Nothing is guessed: the error names each stage that is bound to no thread."""
    p = Program((3, 10, 4, 6), False)
    with pytest.raises(InvalidLoops, match="stage compute is bound to no thread"):
        renorm.build(te.create_schedule(p.out.op), p.args, target=TARGET)
    names = run_program(*batch_norm_program()[:2])
    with pytest.raises(InvalidLoops) as error:
        renorm.build(names["sch"], [names[k] for k in ("X", "Mean", "Var", "Gamma", "Beta", "Y")], target=TARGET)
    for stage in ("T_subtract", "T_add", "compute", "T_divide", "T_multiply"):
        assert f"stage {stage} is bound to no thread" in str(error.value)


def batch_norm(c: int, n: int) -> tuple[te.Schedule, list[te.Tensor]]:
    """The article's tensors with all loops of the result bound; what is before it is computed in place."""
    tensors = list(run_program(batch_norm_program()[0])["batch_norm"](c, n))
    y = tensors[-1]
    s = te.create_schedule(y.op)
    for stage in s.stages:
        if isinstance(stage.op, te.ComputeOp) and stage.op is not y.op:
            stage.compute_inline()
    block, thread = s[y].split(s[y].fuse(*s[y].op.axis), factor=64)
    s[y].bind(block, te.thread_axis("blockIdx.x"))
    s[y].bind(thread, te.thread_axis("threadIdx.x"))
    return s, tensors


@pytest.mark.parametrize(("c", "n"), [(32, 28), (3, 5), (1, 1)])
def test_batch_norm(c: int, n: int) -> None:
    s, tensors = batch_norm(c, n)
    x, mean, var, scale, bias = arrays = batch_norm_arrays(c, n)
    y = np.full_like(x, np.nan)
    renorm.build(s, tensors, target=TARGET)(*arrays, y)
    want = (x - mean).astype("f8") / np.sqrt(var.astype("f8") + 1e-5) * scale + bias
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


def test_a_file_holds_the_kernel(tmp_path: Path) -> None:
    p = Program((3, 10, 4, 6), False)
    f = renorm.build(p.schedule, p.args, target=TARGET, name="norm")
    f.export_library(tmp_path / "norm")
    loaded = load_module(tmp_path / "norm")
    assert loaded.entry_name == "norm"
    loaded(*p.arrays)
    p.agrees()
    again = np.full_like(p.arrays[-1], np.nan)
    loaded["norm"](*p.arrays[:-1], again)
    assert again.tobytes() == p.arrays[-1].tobytes()
    again[...] = np.nan
    (found,) = renorm.load(tmp_path / "norm").run(*p.arrays[:-1], out=again)
    assert found is again
    p.arrays[-1] = again
    p.agrees()
    with pytest.raises(InvalidInput, match="takes 4 arrays, not 3"):
        loaded(*p.arrays[:-1])


def test_a_kernel_is_timed(host: host_device.HostDevice) -> None:
    p = Program((2, 3, 4, 5), False)
    f = renorm.build(p.schedule, p.args, target=TARGET)
    times = f.time_evaluator(f.entry_name, number=3, repeat=2)(*p.arrays)
    assert len(times.results) == 2
    assert min(times.results) > 0
    assert host.launches == 4 * (1 + 3 * 2)
    p.agrees()
