"""SyncBatchNorm in DistributedDataParallel over gloo: two processes learn what one learns with the whole batch.

Also with parameters that a rank does not use, gradients of several steps, checkpoints, torch.compile, and torch's
layers made ours; and norms of samples where each rank has a part of each parameter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.torch.ddp_program import KINDS, RANKS, SAMPLES, SHARDED, Network, learned, norms, trained

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_two_processes_learn_as_one(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(RANKS)}
    call = [sys.executable, "-m", "tests.torch.ddp_program", str(tmp_path)]
    processes = [
        subprocess.Popen(call, cwd=ROOT, env=environment | {"RANK": str(r)}, stderr=subprocess.PIPE, text=True)
        for r in range(RANKS)
    ]
    said = [p.communicate(timeout=200)[1] for p in processes]
    assert [p.returncode for p in processes] == [0] * RANKS, "\n".join(said)
    for kind in KINDS + SHARDED:
        whole, learn = (norms(""), learned) if kind in SHARDED else (Network(kind), trained)
        learn(whole, slice(0, RANKS * SAMPLES))
        first, second = (dict(np.load(tmp_path / f"{r}-{kind}.npz")) for r in range(RANKS))
        for name, expected in whole.state_dict().items():
            assert first[name].tobytes() == second[name].tobytes(), f"{kind}: {name}"
            np.testing.assert_allclose(first[name], expected.numpy(), rtol=1e-10, atol=1e-10, err_msg=f"{kind}: {name}")
    assert [(tmp_path / f"{r}-freed").read_text() for r in range(RANKS)] == ["True"] * RANKS
