"""What tests of several rooms ask for."""

from __future__ import annotations

import gc
import math
import os
import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

# Every core runs tests: more threads of NumPy's would wait for each other, and spin meanwhile. It reads this when it is
# imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings
from tests import kept_kernels, random_numbers
from tests.long_tests import LONG, Measured, function_of, left_out, measured
from tests.shared_files import export_zoo

from renorm.codegen import workers
from renorm.core import locks
from renorm.runtime import module, threads

# The gate asks the same questions every time, so that a red run is the fault of what was changed; elsewhere each run
# draws new examples.
settings.register_profile(
    "ci", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
if os.environ.get("CI"):
    settings.load_profile("ci")

# Every test lowers what it asks for: the driver's cache, even one that starts empty, would hand the code of one test to
# another, also where that puts something else in a schedule's place. Tests of the cache switch it on, each in its own
# directory, and `kept_code` those that ask what is done with code. Equal loops are compiled once: tests.kept_kernels.
os.environ["RENORM_CACHE"] = "0"

locks.strict = True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what tests compare with, instead of failing")
    parser.addoption("--measure", action="store_true", help=f"write which tests are long to {LONG.name}")
    parser.addoption("--cases", type=int, default=16, help="of a test's parameters so many at most are not slow")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # what a shell gives to what it starts in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    kept_kernels.keep(config.rootpath / ".pytest_cache" / "kernels")
    if config.getoption("--measure"):
        config.pluginmanager.register(Measured())


def pytest_sessionstart(session: pytest.Session) -> None:
    """Print the seed of the order also where pytest is quiet: it leaves out the header then, which has it."""
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if (seed := session.config.getoption("randomly_seed", None)) is not None and reporter and reporter.verbosity < 0:
        reporter.write_line(f"order: --randomly-seed={seed}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """What was long when it was measured is slow, and so is what is long in sum: by hand where somebody marked it, and
    of a test with very many parameters all but some, evenly spread. Of those that are long in sum the gate has some,
    too. First: what is quick must not depend on the order, which pytest-randomly changes."""
    seconds, families, quick = measured(), dict[str, list[pytest.Item]](), dict[str, list[pytest.Item]]()
    most: Any = config.getoption("cases")
    for item in items:
        families.setdefault(function_of(item.nodeid), []).append(item)
    for function, family in families.items():
        own = [item for item in family if not item.get_closest_marker("exhaustive")]
        for item in left_out(function, own, seconds.get(function, 0) * len(own) / len(family)):
            item.add_marker("exhaustive")
    for item in items:
        if item.nodeid in seconds or item.get_closest_marker("exhaustive"):
            item.add_marker("slow")
        else:
            quick.setdefault(function_of(item.nodeid), []).append(item)
    for family in quick.values():
        every = -(-len(family) // most)
        for i, item in enumerate(family):
            if i % every:
                item.add_marker("slow")
    return (yield)


def pytest_collection_finish() -> None:
    """What is there now stays to the end: no search for garbage looks at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def kernels_are_kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of codegen's own tests. Nor do others start processes to compile in: all cores run tests."""
    is_about_code = request.path.parent.name == "codegen"
    monkeypatch.setattr(kept_kernels, "is_on", not is_about_code)
    if not is_about_code:
        monkeypatch.setattr(workers, "START", math.inf)


@pytest.fixture(autouse=True)
def numbers_begin_anew(request: pytest.FixtureRequest) -> None:
    """As with examples of Hypothesis: the gate draws the same every time, other runs by the seed of their order."""
    seed: Any = 0 if os.environ.get("CI") else request.config.getoption("randomly_seed", 0)
    random_numbers.begin(int(seed), request.node.nodeid)


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
