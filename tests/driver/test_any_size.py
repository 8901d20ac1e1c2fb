"""Networks whose inputs have no fixed size are compiled once, and give ONNX Runtime's results at random ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests import any_size
from tests.any_size import NAMES, drawn, stated
from tests.frontends import onnx_runtime

import renorm
from renorm.driver.module import OpenModule


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return any_size.export(tmp_path_factory.mktemp("any_size"))


def serves(name: str, exported: Path, count: int) -> None:
    """The network, compiled once, has the results of ONNX Runtime at so many random sizes, the least one among them."""
    path, rng = exported / f"{name}.onnx", np.random.default_rng(len(name))
    m = renorm.compile(path, shapes=stated(name))
    assert isinstance(m, OpenModule), getattr(m, "obstacle", m)
    session = onnx_runtime.session(path)
    for i in range(count):
        sizes, inputs = drawn(name, rng, longest=2 if i == 1 else 70)
        expected = onnx_runtime.run(session, inputs)
        for ours, theirs in zip(m.run(**inputs), expected, strict=True):
            assert ours.shape == theirs.shape
            tolerance = 1e-3 * max(1.0, float(np.abs(theirs).max(initial=0)))
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=tolerance, err_msg=str(sizes))


@pytest.mark.parametrize("name", ["segmentation", "sentence_encoder"])
def test_one_module_serves_any_size(name: str, exported: Path) -> None:
    serves(name, exported, 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_one_module_serves_twenty_sizes(name: str, exported: Path) -> None:
    serves(name, exported, 20)
