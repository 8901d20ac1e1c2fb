"""Whole trained networks against ONNX Runtime, at every level, with and without `keep`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.conftest import Zoo
from tests.shared_files import shared

import renorm
from renorm.core.difference import relative_error
from renorm.core.dims import static
from renorm.core.tolerance import tolerance
from renorm.driver.compile import analyze
from renorm.driver.runners import session
from renorm.graph import interpret as graph_interpreter
from renorm.runtime.report import NormRecord
from renorm.tir import interpret as loop_interpreter

Array = np.ndarray[Any, Any]
SLOW = pytest.mark.slow


def assert_close(ours: list[Array], theirs: list[Array]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        assert np.isfinite(b).all()
        assert relative_error(a, b) <= tolerance("float32")  # of the largest: one row has no channels to compare by


class Faces:
    """A trained face detector with 35 batch norms, compiled when first asked for."""

    def __init__(self) -> None:
        self.path = shared("models/ultra_light_rfb_320.onnx")
        self.x = np.random.default_rng(0).uniform(-1, 1, (1, 3, 240, 320)).astype(np.float32)
        self.expected: list[Array] = session(self.path).run(None, {"input": self.x})
        self._modules: dict[tuple[int, tuple[str, ...]], Any] = {}

    def module(self, level: int, keep: Sequence[str] = ()) -> Any:
        key = level, tuple(keep)
        if key not in self._modules:
            self._modules[key] = renorm.compile(self.path, opt_level=level, keep=keep)
        return self._modules[key]


@pytest.fixture(scope="module")
def faces() -> Faces:
    return Faces()


@pytest.fixture
def no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs an interpreter fails."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an interpreter was used to run a network")

    monkeypatch.setattr(graph_interpreter, "run", refuse)
    monkeypatch.setattr(loop_interpreter, "run", refuse)


@pytest.mark.parametrize("level", [0, pytest.param(1, marks=SLOW), pytest.param(2, marks=SLOW), 3])
def test_faces_agree_at_every_level(level: int, faces: Faces, no_interpreter: None) -> None:
    m = faces.module(level)
    assert_close(m.run(faces.x), faces.expected)
    fates = [n.fate for n in m.report.norms]
    assert len(fates) == 35
    if level == 3:
        assert fates == ["folded"] * 35
        assert not any("batch_norm" in str(k) for k in m.report.kernels)
    if level == 0:
        assert len(m.report.kernels) == len(m.graph.nodes)
        assert "folded" not in fates


@pytest.mark.parametrize("level", [pytest.param(0, marks=SLOW), pytest.param(2, marks=SLOW), 3])
def test_faces_keep_batch_norm(level: int, faces: Faces) -> None:
    m = faces.module(level, ["batch_norm"])
    assert_close(m.run(faces.x), faces.expected)
    assert [n.fate for n in m.report.norms] == ["unit"] * 35
    assert all(n.reason for n in m.report.norms)
    assert str(m.graph).count(" = batch_norm(") == 35
    launches = [str(k) for k in m.report.kernels if "batch_norm" in str(k)]
    assert len(launches) >= 35
    if level >= 2:
        assert any(k.startswith("fused_conv2d_batch_norm_relu") for k in launches)


@pytest.fixture
def norms(faces: Faces) -> Callable[..., list[NormRecord]]:
    """What becomes of the norms under options of `compile`; no code is generated."""
    return lambda **options: list(analyze(faces.path, **options)[1].norms)


def test_level_2_needs_fewer_kernels(faces: Faces) -> None:
    counts = [len(analyze(faces.path, opt_level=level)[1].kernels) for level in (0, 2)]
    assert counts[1] < counts[0]


def test_keep_from_the_environment(norms: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RENORM_KEEP", "batch_norm")
    assert {n.fate for n in norms()} == {"unit"}


@SLOW
def test_keep_one_node(faces: Faces, norms: Any) -> None:
    name = norms()[17].name
    m = faces.module(3, [name])
    assert [n.fate for n in m.report.norms] == [*["folded"] * 17, "unit", *["folded"] * 17]
    assert_close(m.run(faces.x), faces.expected)


@SLOW
@pytest.mark.parametrize(
    ("name", "batch", "is_tight"),
    [("resnet50", 1, True), ("se_resnet101_ibn_a", 1, True), ("unet", 1, True), ("dcgan", 8, True)]
    + [("resnet50", 8, False), ("unet", 3, False), ("dcgan", 1, False)],
)
def test_zoo_agrees(name: str, batch: int, is_tight: bool, zoo: Zoo, no_interpreter: None) -> None:
    """is_tight: the arena is as small as can be."""
    path = zoo(name, batch)
    m = renorm.compile(path)
    assert m.report.memory.arena == m.report.memory.lower_bound or not is_tight
    shape = static(m.inputs[0].shape)
    assert shape[0] == batch
    x = np.random.default_rng(batch).standard_normal(shape, dtype=np.float32)
    assert_close(m.run(x), session(path).run(None, {m.inputs[0].name: x}))
    assert m.report.norms
    assert all(n.fate == "folded" or n.reason for n in m.report.norms)
