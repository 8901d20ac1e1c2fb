"""What kernels take of GPUs by NVRTC, without one: a draw of op samples, and layers of real sizes, on four
architectures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.random_numbers import RNG

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed: pip install 'renorm[cuda]'")
pytest.importorskip("torch", reason="benchmarks.gpu times PyTorch beside renorm")

from benchmarks.gpu import registers
from benchmarks.gpu.registers import ARCHITECTURES, Taken

import renorm
from renorm.codegen.cuda import assemblers
from renorm.graph.ir import Graph

ROOT = Path(__file__).parents[2]
DRAWN = 12
FEW = 12  # bytes that a thread spills at most, where it calls functions of CUDA's

# Whose threads keep an array that data index, or call functions of CUDA's that do, so that it lies on the stack: boxes
# that were chosen, statistics of groups that share a thread, and reductions of large angles.
ON_STACK = (
    "non_max_suppression",
    "suppression_in_order",
    "group_norm",
    "layer_norm",
    "mean_variance_norm",
    "sin",
    "cos",
    "tan",
)


def array(*shape: int) -> np.ndarray[Any, Any]:
    return np.full(shape, 0.5, np.float32)


def of(shape: tuple[int, ...], *layers: Any) -> Graph:
    g = Graph("layers")
    y: Any = g.input("x", "float32", shape)
    for layer in layers:
        y = layer(y)
    g.outputs = [y]
    return g


def of_halves(shape: tuple[int, ...], layer: Any) -> Graph:
    g = Graph("layers")
    g.outputs = [layer(g.input("x", "float16", shape))]
    return g


def halves(*shape: int) -> np.ndarray[Any, Any]:
    return array(*shape).astype(np.float16)


LAYERS = {
    "conv 3x3": lambda: of((2, 64, 28, 28), lambda x: renorm.ops.conv(x, array(96, 64, 3, 3), pads=(1,) * 4)),
    "conv 1x1": lambda: of((2, 256, 14, 14), lambda x: renorm.ops.conv(x, array(130, 256, 1, 1)), renorm.ops.relu),
    "conv 7x7/2": lambda: of(
        (1, 3, 112, 112), lambda x: renorm.ops.conv(x, array(64, 3, 7, 7), strides=(2, 2), pads=(3,) * 4)
    ),
    "depthwise": lambda: of(
        (1, 96, 29, 29), lambda x: renorm.ops.conv(x, array(96, 1, 3, 3), group=96, pads=(1,) * 4)
    ),
    "gemm": lambda: of((130, 511), lambda x: renorm.ops.gemm(x, array(511, 257), array(257))),
    "gemm of float16": lambda: of_halves((256, 512), lambda x: renorm.ops.gemm(x, halves(512, 384))),
    "conv of float16": lambda: of_halves(
        (2, 64, 28, 28), lambda x: renorm.ops.conv(x, halves(96, 64, 3, 3), pads=(1,) * 4)
    ),
    "attention of float16": lambda: of_halves((2, 4, 197, 64), lambda x: renorm.ops.attention(x, x, x, scale=0.125)),
    "one row": lambda: of((1, 2048), lambda x: renorm.ops.gemm(x, array(2048, 1000), array(1000))),
    "instance norm": lambda: of((4, 32, 57, 57), lambda x: renorm.ops.instance_norm(x, array(32), array(32))),
    "layer norm": lambda: of((300, 768), lambda x: renorm.ops.layer_norm(x, array(768), array(768))),
    "softmax": lambda: of((300, 1000), renorm.ops.softmax),
}  # fmt: skip


IN_TF32 = ("conv 3x3", "conv 1x1", "gemm")


def layer(name: str, precision: str = "fast") -> registers.Subject:
    return name, lambda arch: renorm.compile(LAYERS[name](), target=f"cuda -arch={arch}", precision=precision)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_fit(name: str, arch: str) -> None:
    """No register of theirs goes to memory, nothing lies on the stack, and blocks fit."""
    texts, refused = registers.collected([layer(name)], [arch], lambda _: None)
    assert not refused
    found = registers.measured(texts, lambda _: None)
    assert found
    assert {t.arch for t in found} == {arch}
    assert any("mma.sync" in text for _, text in texts) == ("float16" in name)
    assert not [t for t in found if t.spills or t.stack or t.beyond]
    assert max(t.registers for t in found) > 8


@pytest.mark.parametrize("name", IN_TF32)
def test_layers_in_tf32_fit(name: str) -> None:
    texts, refused = registers.collected([layer(name, "tf32")], ["sm_80", "sm_90"], lambda _: None)
    assert not refused
    assert any(".f32.tf32.tf32.f32 " in text for _, text in texts)
    assert not [t for t in registers.measured(texts, lambda _: None) if t.spills or t.stack or t.beyond]


def test_samples_fit() -> None:
    """Drawn anew where tests draw anew."""
    everyone = [*registers.samples()]
    drawn = [everyone[i] for i in sorted(RNG.choice(len(everyone), DRAWN, replace=False))]
    found, refused = registers.collected(drawn, ARCHITECTURES, lambda _: None)
    assert not refused
    for t in registers.measured(found, lambda _: None):
        op = t.subject.rpartition("-")[0]
        assert not t.beyond, t
        assert not t.stack or t.spills or op in ON_STACK, t
        assert t.spills <= FEW, t


def test_equal_texts_of_an_architecture_are_compiled_once() -> None:
    (_, compiled) = layer("gemm")
    before = dict(assemblers._OTHERS)
    found, _ = registers.collected([("a", compiled), ("b", compiled)], ["sm_75", "sm_90"], lambda _: None)
    assert sorted(arch for arch, _ in found) == ["sm_75", "sm_90"]
    assert {name for own in found.values() for uses in own.uses.values() for name in uses} == {"a", "b"}
    assert before == assemblers._OTHERS


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"registers": 64, "threads": 1024}, ""),
        ({"registers": 65, "threads": 1024}, "73728 registers of a block"),
        ({"registers": 255, "threads": 256}, ""),
        ({"registers": 255, "threads": 257}, "73728 registers of a block"),
        ({"registers": 256}, "256 registers of a thread"),
        ({"shared": 49 << 10}, ""),
        ({"shared": (49 << 10) + 1}, "50177 bytes of shared memory"),
    ],
)
def test_bounds(changed: dict[str, int], said: str) -> None:
    given = {"launches": 1, "registers": 32, "spills": 0, "stack": 0, "shared": 0, "threads": 256, **changed}
    beyond = Taken("sm_90", "subject", "function", **given).beyond
    assert beyond.startswith(said)
    assert bool(beyond) == bool(said)


def test_the_script_prints_a_table(tmp_path: Path) -> None:
    into = tmp_path / "found.json"
    call = [sys.executable, "-m", "benchmarks.gpu.registers", "--only", "hard_sw", "--arch", "sm_75"]
    done = subprocess.run([*call, "--json", str(into)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split() == [
        "kernel", "of", "arch", "launches", "registers", "spills", "stack", "shared", "threads",
    ]  # fmt: skip
    assert "sm_75: " in done.stdout
    found = json.loads(into.read_text())
    assert {k["arch"] for k in found["kernels"]} == {"sm_75"}
    assert found["refused"] == {}
