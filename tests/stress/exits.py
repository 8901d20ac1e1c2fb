"""Processes that end in all ways while renorm works: in time, with their own exit status, no noise, nothing left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.stress.attack import attack

from renorm.core.files import TEMPORARY
from renorm.driver.cache import DIRECTORY, SWITCH

IN_TIME = 30.0  # seconds; of a process that would wait for a thread, hundreds

_WORK = {
    "runs": "while True: assert np.array_equal(m.run(x)[0], y)",
    "runs_with_state": "while True: stateful.run(data)",
    "compiles": "while True: compiled(random.randrange(1, 500))",
    "many_kernels": "while True: many(random.randrange(1, 500))",
    "specializes": "while True: grows.run(np.ones((random.randrange(1, 500), 8), np.float32))",
    "trains": "while True: training.moments(np.ones((random.randrange(2, 300), 3)))",
    "ranks": """
while True:
    training.Threads(3).run(lambda comm: training.moments(np.ones((4, 3)), comm=comm))""",
    "saves": "while True: m.save(os.environ['PLACE'] + '/saved.renorm')",
    "in_the_background": """
from renorm.ops.batch_norm_parts import BatchMoments
from renorm.training import kernels
while True:
    types = ((random.randrange(2, 300), 3), np.dtype(float)), None
    try:
        kernels.early((BatchMoments, (), 1, types))
    except kernels.NotYet:
        time.sleep(1e-3)""",
}

_ENDS = {
    "returns": ("", 0),
    "sys.exit": ("sys.exit(7)", 7),
    "raises": ("raise RuntimeError('its own')", 1),
    "os._exit": ("os._exit(7)", 7),
    "killed": ("os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)", -signal.SIGTERM),
    "sys.exit in a handler": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nos.kill(os.getpid(), signal.SIGTERM)\n{work}",
        7,
    ),
    "interrupted": (
        "signal.signal(signal.SIGALRM, lambda *_: sys.exit(7))\nsignal.setitimer(signal.ITIMER_REAL, {after})\n{work}",
        7,
    ),
}

_AT_EXIT = {
    "": "",
    "runs": "assert np.array_equal(m.run(x)[0], y)",
    "compiles": "compiled(3)",
    "runs_with_state": "stateful.run(data)",
    "trains": "training.moments(np.ones((4, 3)))",
}

_SCRIPT = """
import atexit, os, random, signal, sys, threading, time
import numpy as np, onnx
from tests.frontends.models import running
import renorm
from renorm import training
random.seed({seed})
def network(n, count=1):
    ops = ["Relu", "Neg", "Exp", "Abs", "Tanh"][:count]
    text = " ".join(f"t{{i + 1}} = {{op}} (t{{i}})" for i, op in enumerate(ops))
    text = text.replace("t0", "x", 1).replace(f"t{{count}} =", "y =")
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> m (float[{{n}}, 8] x) => (float[{{n}}, 8] y) {{{{ {{text}} }}}}')
def compiled(n):
    renorm.compile(network(n)).run(np.ones((n, 8), np.float32))
def many(n):
    renorm.compile(network(n, 5), opt_level=0).run(np.ones((n, 8), np.float32))
x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
m, y = renorm.compile(network(4), threads=2), np.maximum(x, 0)
grows = renorm.compile(network("N"))
data = np.ones((16, 3, 8), np.float32)
stateful = renorm.compile(running(16, 3, 8), train_state=True)
def work():
    {work}
def at_exit():
    {at_exit}
atexit.register(at_exit)
for _ in range({threads}):
    threading.Thread(target=work, daemon=True).start()
time.sleep({after})
{end}
"""


def _indented(text: str) -> str:
    return text.strip().replace("\n", "\n    ") or "pass"


def _of(marker: str) -> list[int]:
    """Processes that have this in their environment."""
    found = list[int]()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and marker.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:  # it has ended, or is another user's
            continue
    return found


@attack(limit_s=120, in_gate=3)
def while_it_works(seed: int) -> None:
    """A process that ends while threads run, compile and train ends in time, with its status, and leaves nothing."""
    rng = random.Random(seed)
    name, (end, status) = rng.choice([*_ENDS.items()])
    work, at_exit, after = rng.choice([*_WORK]), rng.choice([*_AT_EXIT]), rng.choice((0.0, rng.uniform(0, 1.0)))
    texts = {"work": _indented(_WORK[work]), "after": after}
    script = _SCRIPT.format(
        **texts,
        seed=seed,
        at_exit=_AT_EXIT[at_exit] or "pass",
        threads=rng.randint(0, 2),
        end=end.format(work=_WORK[work].strip(), after=after + 1e-3),
    )
    what = f"{work}, {name}, at exit {at_exit or 'nothing'}, after {after:.3f} s"
    with tempfile.TemporaryDirectory() as folder:
        places = {kind: Path(folder, kind) for kind in ("temporary", "cache", "place")}
        for place in places.values():
            place.mkdir()
        marker = f"{os.getpid()}.{seed}.{time.monotonic_ns()}"
        environment = os.environ | {
            "TMPDIR": str(places["temporary"]),
            "PLACE": str(places["place"]),
            "MARKER": marker,
            DIRECTORY: str(places["cache"]) if rng.random() < 0.5 else os.environ.get(DIRECTORY, ""),
            SWITCH: rng.choice("011"),
            "RENORM_NUM_THREADS": str(rng.randint(1, 3)),
        }
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == status, f"{what}: exit status {done.returncode}\n{done.stderr}"
        assert time.monotonic() - began < IN_TIME, what
        said = done.stderr.strip()
        if name == "raises":
            assert said.startswith("Traceback"), f"{what}:\n{said}"
            assert said.endswith("RuntimeError: its own"), f"{what}:\n{said}"
            assert said.count("Traceback") == 1, f"{what}:\n{said}"
        else:
            assert not said, f"{what}:\n{said}"
        assert not done.stdout, f"{what}: {done.stdout}"
        until = time.monotonic() + 5
        while (left := _of(marker)) and time.monotonic() < until:
            time.sleep(0.05)
        assert not left, f"{what}: processes {left}"
        assert not [*places["temporary"].iterdir()], what
        if status >= 0 and name != "os._exit":  # who is not asked cannot take a file back; the cache does later
            half = [p for p in Path(folder).rglob("*") if TEMPORARY.fullmatch(p.name)]
            assert not half, f"{what}: {half}"
