"""What tests of several rooms ask for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.shared_files import export_zoo

from renorm.core import locks
from renorm.runtime import module, threads

# The gate asks the same questions every time, so that a red run is the fault of what was changed; elsewhere each run
# draws new examples.
settings.register_profile(
    "ci", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
if os.environ.get("CI"):
    settings.load_profile("ci")

# Every test compiles what it asks for: a cache, even one that starts empty, would hand the code of one test to
# another, also where that puts something else in a schedule's place. Tests of the cache switch it on, each in its own
# directory, and `kept_code` those that ask what is done with code.
os.environ["RENORM_CACHE"] = "0"

locks.strict = True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what tests compare with, instead of failing")


Zoo = Callable[[str, int], Path]


@pytest.fixture(autouse=True)
def as_many_threads_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small a network of a test and however few the cores, the threads that it asks for run it."""
    monkeypatch.setattr(module, "WORTH_SHARING", 0)
    monkeypatch.setattr(threads, "working", lambda threads: threads)


def _shared(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """A directory of this session, for all processes of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@pytest.fixture
def kept_code(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests with this fixture compile is compiled once."""
    monkeypatch.setenv("RENORM_CACHE", "1")
    monkeypatch.setenv("RENORM_CACHE_DIR", str(_shared(tmp_path_factory, "code")))


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    """(name, batch) -> one of the benchmark's networks as an ONNX file, exported once for all processes of
    pytest-xdist."""
    folder = _shared(tmp_path_factory, "zoo")
    return lambda name, batch: export_zoo(name, folder, batch)
