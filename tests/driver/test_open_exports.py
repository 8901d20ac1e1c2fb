"""Parts of networks that torch has exported with open extents are compiled once, and agree with ONNX Runtime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.frontends import onnx_runtime
from tests.frontends.models import model

import renorm
from renorm.driver.module import OpenModule

ROOT = Path(__file__).parents[2]
NAMES = (
    *("shifted windows", "cached", "pyramid", "anchors", "neighbours", "distances", "reflected", "patches"),
    *("cropped", "correlation", "blocks", "shifted", "wave", "text", "grid", "repeated", "halves", "volumes", "pairs"),
)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("parts")  # another process exports, for torch warns while it does
    call = [sys.executable, "-W", "ignore", "-m", "tests.driver.exported_parts", str(folder)]
    subprocess.run(call, check=True, capture_output=True, cwd=ROOT)
    return folder


def test_every_part_is_tested() -> None:
    pytest.importorskip("torch")
    from tests.driver.exported_parts import PARTS

    assert tuple(PARTS) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_one_module_serves_any_size(name: str, exported: Path) -> None:
    from tests.driver.exported_parts import PARTS

    path, rng = exported / f"{name}.onnx", np.random.default_rng(len(name))
    m, session = renorm.compile(path, threads=1), onnx_runtime.session(path)
    assert isinstance(m, OpenModule), getattr(m, "obstacle", m)
    for i in range(10):
        inputs = PARTS[name].drawn(rng, is_least=i == 0)
        for ours, theirs in zip(m.run(**inputs), onnx_runtime.run(session, inputs), strict=True):
            assert ours.shape == theirs.shape
            said = str({n: a.shape for n, a in inputs.items()})
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4, err_msg=said)


PADDED = """g (float[N, W] x, {dtype}[K] at) => (float[N, K] y)
<int64[4] pads = {{0, 2, 0, 1}}> {{ q = Pad(x, pads) y = Gather<axis = 1>(q, at) }}"""


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_rows_of_what_is_padded_by_indices_from_memory(dtype: str) -> None:
    source = model(PADDED.format(dtype=dtype))
    session = onnx_runtime.session(source)
    for m in (renorm.compile(source), renorm.compile(source, shapes={"x": (3, 7), "at": (5,)})):
        assert not hasattr(m, "obstacle")
        x, at = np.random.default_rng(1).random((3, 7), np.float32), np.array([0, 9, -1, -10, 2], dtype)
        np.testing.assert_array_equal(m.run(x=x, at=at)[0], onnx_runtime.run(session, {"x": x, "at": at})[0])
        limits = np.iinfo(dtype)
        far = m.run(x=x, at=np.array([limits.min, limits.max, -11, 10, 0], dtype))[0]
        np.testing.assert_array_equal(far, np.zeros((3, 5), np.float32))
