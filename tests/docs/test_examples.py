"""Every program in examples/ runs, and what it asserts holds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("kept_code")

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LAUNCHERS = {  # of examples that run on several ranks
    "synchronized_mpi": [
        shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"),
        "-n",
        "2",
    ],
    "synchronized_torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"],
}

PRINTED = [  # by Kaixi Hou's article on moving mean and variance, on each of two ranks
    "batch_mean: [0.45652372 0.5745423 0.65629953]",
    "batch_var: [0.0657616 0.0710133 0.00523123]",
    "moving_mean: [0.7282618 0.78727114 0.8281498 ]",
    "moving_var: [0.5328808 0.53550667 0.50261563]",
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_example(example: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "error"}
    if example.stem == "restat_on_dask":
        pytest.importorskip("distributed", reason='not installed: pip install "renorm[dask]"')
    given = LAUNCHERS.get(example.stem, [])
    launcher = [word for word in given if word is not None]
    if len(launcher) < len(given):
        pytest.skip('mpiexec is not installed: pip install "renorm[mpi]"')
    call = [*launcher, sys.executable, str(example)]
    result = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    if example.stem.startswith("synchronized"):
        lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
        assert [sorted(line for line in lines if line.startswith(f"rank {rank}: ")) for rank in (0, 1)] == [
            [f"rank {rank}: {printed}" for printed in PRINTED] for rank in (0, 1)
        ]


def test_there_is_one_for_each_article_of_this_page() -> None:
    assert {"batch_norm_by_te", "keep_batch_norm", "instance_norm", "adding_an_op"} <= {p.stem for p in EXAMPLES}
