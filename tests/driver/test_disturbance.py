"""What others take of the cores is told apart from what is measured."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from renorm.driver import disturbance
from renorm.driver.disturbance import Disturbance, Watch


def test_a_process_is_one_of_the_others_unless_it_is_named() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.2)
        all_are_others, named = Watch([]), Watch([busy.pid])
        time.sleep(0.6)
        others, own = all_are_others.disturbance(), named.disturbance()
    finally:
        busy.kill()
        busy.wait()
    assert others is not None
    assert own is not None
    assert others.others - own.others > 0.1 / len(os.sched_getaffinity(0))
    assert 0 <= own.others <= others.others <= 1


def test_shares_of_the_cores_that_may_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr(disturbance, "Path", lambda name: stat if name == "/proc/stat" else Path(name))
    monkeypatch.setattr(disturbance, "_ticks", lambda process: stat.stat().st_size // 1000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2})
    first = "cpu 9 9 9 9 9 9 9 9 9 9\ncpu0 10 0 5 100 1 0 0 3 0 0\ncpu1 9 9 9 9 9 9 9 9 9 9\ncpu2 0 0 0 50 0 0 0 0 0 0"
    then = "cpu0 40 5 15 130 6 3 2 18 7 0\ncpu1 900 9 9 9 9 9 9 900 9 9\ncpu2 0 0 0 150 0 0 0 0 0 0"
    stat.write_text(first)
    watch = Watch([])
    stat.write_text(then.ljust(10_000))  # 10 ticks of its own
    assert watch.disturbance() == Disturbance(15 / 200, 40 / 200)  # of 30 + 5 + 10 + 3 + 2 that were busy
    stat.write_text(first)
    watch = Watch([])
    assert watch.disturbance() is None  # no time has passed


def test_what_disturbs() -> None:
    assert not Disturbance(0.019, 0.049).is_large
    assert Disturbance(0.021, 0.0).is_large
    assert Disturbance(0.0, 0.051).is_large
    assert Disturbance(0.1, 0.0).size > Disturbance(0.0, 0.2).size
    assert Disturbance(0.0, 0.0, 0.16).is_large
    assert str(Disturbance(0.034, 0.5)) == "steal 3.4%, other processes 50.0%"
    assert str(Disturbance(0.0, 0.0, 0.2)) == "steal 0.0%, other processes 0.0%, cores slowed by 20% for a while"


def test_where_nothing_is_told_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disturbance, "Path", lambda name: Path("/nowhere"))
    assert Watch([1]).disturbance() is None
