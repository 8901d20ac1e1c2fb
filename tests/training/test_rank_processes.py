"""Batch norm over ranks that are processes: three of MPI (mpiexec -n 3), three of torch.distributed over gloo."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.training.faults import FAULTS, check
from tests.training.rank_program import CASES, SPLITS, TIMEOUT
from tests.training.splits import compare, drawn, expected

ROOT = Path(__file__).parents[2]
MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
RANKS = 3

ENGINES = [
    pytest.param(
        "mpi",
        marks=pytest.mark.skipif(
            MPIEXEC is None or importlib.util.find_spec("mpi4py") is None,
            reason='mpi4py or mpiexec is not installed: pip install "renorm[mpi]"',
        ),
    ),
    pytest.param(
        "gloo",
        marks=pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
    ),
]
Found = list[dict[str, Any]]
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("engine", ENGINES)]


def run(engine: str, folder: Path) -> dict[str, Found]:
    """What each rank of `rank_program.py` found in each case; nothing where it had died."""
    program = [sys.executable, "-m", "tests.training.rank_program", engine, str(folder)]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(RANKS)}
    calls = [[str(MPIEXEC), "-n", str(RANKS), *program]] if engine == "mpi" else [program] * RANKS
    processes = [
        subprocess.Popen(call, cwd=ROOT, env=environment | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank, call in enumerate(calls)
    ]
    said = [process.communicate(timeout=300)[1] for process in processes]
    found: dict[str, Found] = {}
    for case in CASES:
        files = [folder / f"{rank}-{case}.npz" for rank in range(RANKS)]
        assert case.startswith("dies") or all(file.exists() for file in files), case + "\n".join(said)
        found[case] = [dict(np.load(file)) if file.exists() else {} for file in files]
    return found


def test_ranks_in_processes_are_one_rank_or_say_why_not(engine: str, tmp_path: Path) -> None:
    """One start for all cases: it takes longer than they do."""
    found = run(engine, tmp_path)
    check_splits(found["splits"])
    check_mismatch(found["mismatch"])
    check_raises(found["raises"])
    for name, fault in FAULTS.items():
        check(fault, [str(rank[name]) for rank in found["faults"]])
    check_subgroup(found["subgroup"], engine)
    check_late(found["late"])
    check_dies(found["dies"], engine, {0, 2}, "rank 1")
    check_dies(found["dies_backward"], engine, {0}, "rank 0")  # of the subgroup


def check_splits(ranks: Found) -> None:
    for name, (_, shape, ratio, masked) in SPLITS.items():
        parts = [{k.split("/")[1]: v for k, v in rank.items() if k.startswith(f"{name}/")} for rank in ranks]
        compare(parts, expected(drawn(len(name), shape, ratio, masked=masked)))
    for rank in ranks:
        assert rank["collectives"] == 2 * len(SPLITS), "one forward, one backward"


def check_mismatch(ranks: Found) -> None:
    (error,) = {str(rank["error"]) for rank in ranks}
    assert "ranks 0 and 1: 'moments, 3 channels of float64'" in error
    assert "rank 2: 'moments, 900 channels of float64'" in error


def check_raises(ranks: Found) -> None:
    first, second, third = (str(rank["error"]) for rank in ranks)
    assert "int32" in second
    for error in (first, third):
        assert error.startswith("rank 1 failed")
        assert "int32" in error


def check_late(ranks: Found) -> None:
    first, second, third = ranks
    for rank in (first, third):
        assert str(rank["error"]).startswith("rank 1 did not come to 'moments, 3 channels of float64'")
    assert "error" in second, "what the others had sent before they gave up is of no use to it alone"
    assert f"within {TIMEOUT:g} s" in str(first["error"]) + str(third["error"])


def check_subgroup(ranks: Found, engine: str) -> None:
    """World ranks 2 and 0 are ranks 0 and 1 of it."""
    assert engine == "mpi" or "this process is no rank of the process group" in str(ranks[1]["error"])
    parts = [{name: value for name, value in ranks[world].items() if name != "rank"} for world in (2, 0)]
    assert [int(ranks[world]["rank"]) for world in (2, 0)] == [0, 1]
    compare(parts, expected(drawn(31, (5, 3, 7), 10.0)))


def check_dies(ranks: Found, engine: str, living: set[int], killed: str) -> None:
    if engine == "mpi":
        assert not any(ranks), "the launcher ends all ranks of a job when one dies"
        return
    assert {rank for rank, found in enumerate(ranks) if found} == living
    for rank in living:
        assert str(ranks[rank]["error"]).startswith(f"{killed} did not come to 'bn: batch_norm ")
        assert "gloo says" in str(ranks[rank]["error"])
        assert ranks[rank]["is_unchanged"]
        assert ranks[rank]["seconds"] < TIMEOUT
