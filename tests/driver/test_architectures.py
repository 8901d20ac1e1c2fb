"""Known architectures as torch exports them, against ONNX Runtime: each at level 3 and in three ways more, so that
every level and target meets several."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.driver.random_networks import NORMS, RandomNetwork
from tests.driver.test_random_networks import SETTINGS, Setting, check
from tests.exhaustive import one_of

ROOT = Path(__file__).parents[2]
NAMES = (
    "mobilenet", "densenet", "resnext", "shufflenet", "convnext", "inception", "vit", "encoder", "text", "style",
    "segmentation", "volume", "wave",
)  # fmt: skip


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all of them; made by another process, for torch warns while it exports."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("architectures")
    call = [sys.executable, "-W", "ignore", "-m", "tests.driver.architectures", str(folder)]
    subprocess.run(call, check=True, capture_output=True, cwd=ROOT)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", one_of(2, NAMES))
def test_an_architecture(name: str, exported: Path, tmp_path: Path) -> None:
    model = onnx.load(exported / f"{name}.onnx")
    (x,) = model.graph.input
    shape = [d.dim_value for d in x.type.tensor_type.shape.dim]
    feeds = {x.name: np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    norms = sum(node.op_type in NORMS for node in model.graph.node)
    turn = NAMES.index(name)
    ways = dict.fromkeys((Setting(3), *(SETTINGS[(turn + k) % len(SETTINGS)] for k in (0, 4, 8))))
    check(RandomNetwork(0, model, feeds, norms), tuple(ways), tmp_path)
