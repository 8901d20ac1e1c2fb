"""What a process that only runs looks like: what it imports, forks, how it ends. Each test is a process of its own."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.limited import without_threads

import renorm

SOURCE = str(Path(renorm.__file__).parents[1])


@pytest.fixture
def python(tmp_path, mirrors):
    """Runs a script in which m is a loaded module that mirrors 1000 floats ten times, x its input, y the result."""
    path = tmp_path / "m.renorm"
    mirrors(1000, 10).save(path)
    preamble = f"""
import os, sys, threading, time
before = set(sys.modules)  # what site packages load at start
import numpy as np
import renorm.runtime as runtime
runtime.threads.working = lambda threads: threads  # however few cores there are
PATH = {str(path)!r}
def tasks(expected):
    # once those that begin and end have done so
    until = time.monotonic() + 10
    while (found := len(os.listdir("/proc/self/task"))) != expected and time.monotonic() < until:
        time.sleep(0.01)
    return found
alone = len(os.listdir("/proc/self/task"))
m = runtime.load(PATH, threads=int(os.environ.get("THREADS", "3")))
x = np.arange(1000, dtype=np.float32)
y = x + np.float32(10)
"""

    def run(script: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", preamble + script],
            env={**os.environ, "PYTHONPATH": SOURCE, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert not done.stderr
        return done.stdout

    return run


def test_imports_numpy_and_the_standard_library_only(python):
    out = python("""
assert np.array_equal(m.run(x)[0], y)
roots = {name.split(".")[0] for name in set(sys.modules) - before}
print(*sorted(roots - set(sys.stdlib_module_names) - {"__main__"}))
print(*sorted(name for name in sys.modules if name.startswith("renorm")))
""")
    roots, modules = out.splitlines()
    assert roots.split() == ["numpy", "renorm"]
    assert {m.split(".")[1] for m in modules.split() if "." in m} <= {"core", "runtime", "errors"}


@pytest.mark.parametrize(
    "script",
    [
        "m.run(x)",  # parked workers
        "pass",  # no worker was ever started
        "threading.Thread(target=lambda: [m.run(x) for _ in range(10**9)], daemon=True).start(); time.sleep(0.2)",
        "import atexit; atexit.register(lambda: print(np.array_equal(m.run(x)[0], y)))",
        "m.run(x); del m",
        "m.run(x); sys.exit(0)",
        "t = threading.Thread(target=lambda: [m.run(x) for _ in range(2000)]); t.start()",  # outlives the main thread
    ],
)
def test_ends_without_a_hang(python, script):
    python(script)


def test_runs_after_the_workers_went_home(python):
    script = """
import atexit
from renorm.runtime import threads
m.run(x)
threads._at_exit()
assert np.array_equal(m.run(x)[0], y)
assert tasks(alone) == alone
"""
    python(script)


def test_a_child_of_fork_starts_its_own_workers(python):
    out = python("""
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process with threads is what this is about
assert np.array_equal(m.run(x)[0], y)
print("parent", tasks(alone + 2) - alone, flush=True)
for k in range(5):
    child = os.fork()
    if not child:
        good = all(np.array_equal(m.run(x)[0], y) for _ in range(100))
        os._exit(0 if good and tasks(3) == 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert np.array_equal(m.run(x)[0], y)
""")
    assert out.split() == ["parent", "2"]


def test_fork_while_another_thread_runs(python):
    python("""
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
stop = False
def busy():
    while not stop:
        m.run(x)
t = threading.Thread(target=busy)
t.start()
for k in range(10):
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(m.run(x)[0], y) else 1)
    assert os.waitpid(child, 0)[1] == 0
stop = True
t.join()
""")


TORCH = """
import torch
from renorm.runtime import openmp
region = openmp.region(3, torch._C.__file__)
with_region = runtime.load(PATH, threads=region)
for _ in range(20):
    assert np.array_equal(with_region.run(x)[0], y)
assert not [n for n in runtime.threads._teams.values() if n._entered.value]
"""


def test_a_child_of_fork_leaves_openmp_alone(python):
    """Which believes that its threads are there, and waits for them."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    python(f"""
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
{TORCH}
child = os.fork()
if not child:
    late = runtime.load(PATH, threads=region)
    good = all(np.array_equal(m.run(x)[0], y) for m in (with_region, late) for _ in range(20))
    os._exit(0 if good and tasks(5) == 5 else 1)  # two teams of three
assert os.waitpid(child, 0)[1] == 0
assert np.array_equal(with_region.run(x)[0], y)
""")


LIMITS = [{"OMP_THREAD_LIMIT": "1"}, {"OMP_THREAD_LIMIT": "2"}, {"OMP_DYNAMIC": "true"}]


@pytest.mark.parametrize("limit", LIMITS, ids=["1", "2", "dynamic"])
def test_openmp_gives_fewer_threads(python, limit):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    python(TORCH, **limit)


def test_a_thread_that_may_have_no_others_enters_no_region(python):
    """libgomp ends the process there."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    python(f"""
{TORCH}
go, found = threading.Event(), []
def run():
    go.wait()
    found.append(np.array_equal(with_region.run(x)[0], y))
other = threading.Thread(target=run)  # for which OpenMP has no threads yet
other.start()
{inspect.getsource(without_threads)}
without_threads()
go.set()
other.join()
assert found == [True]
""")


def test_where_no_library_has_openmp(python):
    python("""
from renorm.runtime import openmp
assert openmp.region(2, "libm.so.6") is openmp.region(2, "no such library") is None
""")


def test_multiprocessing(python):
    python("""
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
import multiprocessing
m.run(x)
def work(k, q):
    q.put(bool(np.array_equal(m.run(x)[0], y)))
context = multiprocessing.get_context("fork")
q = context.Queue()
children = [context.Process(target=work, args=(k, q)) for k in range(3)]
for c in children: c.start()
assert all(q.get(timeout=30) for _ in children)
for c in children: c.join()
assert all(c.exitcode == 0 for c in children)
""")


def test_sleeping_workers_take_no_time(python):
    out = python("""
m.run(x)
time.sleep(0.1)
before = time.process_time()
time.sleep(0.5)
print(time.process_time() - before)
m.run(x)
""")
    assert float(out) < 0.05


def test_oversubscribed(python):
    python("assert all(np.array_equal(m.run(x)[0], y) for _ in range(200))", THREADS="16")


def test_processes_share_weights(tmp_path, mirrors):
    weights = np.random.default_rng(0).bytes(8 << 20)
    path = tmp_path / "m.renorm"
    mirrors(10, 1, weights=weights).save(path)
    script = f"""
import renorm.runtime as runtime
m = runtime.load({str(path)!r}, threads=1)
m._weights.arrays[0].sum()
block = open("/proc/self/smaps").read().split({str(path)!r})[1].split("VmFlags")[0]
print({{line.split(":")[0]: int(line.split()[1]) for line in block.splitlines() if line.endswith("kB")}})
"""
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    out = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert out.returncode == 0, out.stderr
    sizes = eval(out.stdout)
    assert sizes["Rss"] >= 8 << 10
    assert sizes["Anonymous"] == 0  # no copies; pages of a file in memory (tmpfs) count as dirty all the same
