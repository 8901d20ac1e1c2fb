"""Networks whose extents are open: what it costs to answer every shape at once, in five ratios.

    first       the first call of a shape never seen / the second call of the same
    kernels     kernels for all shapes / kernels compiled for the shape
    memory      most memory after calls of many shapes / that of a process that is called with the largest alone
    calls       calls of random shapes, each shape's first one included / ONNX Runtime on the same calls
    compile     to compile for all shapes / for one

Every measure is taken in processes of its own (benchmarks.any_shape_process), which load what was compiled: a module
there cannot compile. Those that are compared take turns.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import fsum, gcd
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np

import renorm
from benchmarks.any_shape_process import Job, Sizes, extent
from benchmarks.figures import geometric_mean
from benchmarks.machine import ROOT, commit, machine, now
from benchmarks.networks import any_size, export_open
from renorm.core.errors import RenormError
from renorm.driver.measure import GAP, environment

MEASURES = ("first", "kernels", "memory", "calls", "compile")
HERE = "llvm"  # the target: this machine
FILES = ROOT / "build" / "benchmarks" / "any_shape"  # exported networks and artifacts
TURN = 10  # calls that a runtime makes before it is the other's turn
LEAST = 0.15  # seconds in which a kernel that is compared is called over and over, at least three times
Stated = Mapping[str, Sequence[int | str]]
Tell = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Subject:
    """A network with open extents. stated: its inputs' shapes, as `compile` is told. sizes: what each symbol may be.
    is_served: whether it is one of those whose calls are measured; kernels are measured of all."""

    name: str
    stated: Stated
    sizes: Mapping[str, range]
    is_served: bool = False

    @property
    def model(self) -> Path:
        return FILES / f"{self.name}.onnx"

    def export(self) -> None:
        """Write the network as an ONNX file where there is none."""
        if self.model.exists():
            return
        FILES.mkdir(parents=True, exist_ok=True)
        if self.name in any_size.NETWORKS:
            any_size.export(self.name, self.model)
        else:
            axes = {
                name: {a: f"{name}{a}" for a, d in enumerate(shape) if isinstance(d, str)}
                for name, shape in self.stated.items()
            }
            export_open(self.name, self.model, axes)

    def drawn(self, count: int, seed: int = 0) -> list[Sizes]:
        """Return random sizes, different ones as long as there are."""
        rng, found = np.random.default_rng(seed), list[Sizes]()
        for _ in range(count):
            sizes = {s: int(rng.choice(of)) for s, of in self.sizes.items()}
            for _ in range(20):
                if sizes not in found:
                    break
                sizes = {s: int(rng.choice(of)) for s, of in self.sizes.items()}
            found.append(sizes)
        return found

    def spread(self, count: int) -> list[Sizes]:
        """Return sizes that reach from the least to the greatest in equal factors, of each symbol in another order."""
        turned = list[list[int]]()
        for k, of in enumerate(self.sizes.values()):
            chosen = np.geomspace(of[0], of[-1], min(count, len(of)))
            values = [min(of, key=lambda x, wanted=wanted: abs(x - wanted)) for wanted in chosen]
            values = list(dict.fromkeys(values)) or [of[0]]
            values += [x for x in of if x not in values][: count - len(values)]
            step = next(n for n in range(1 + 2 * k, 2 * len(values) + 2) if gcd(n, len(values)) == 1)
            turned.append([values[(k + i * step) % len(values)] for i in range(count)])
        return [dict(zip(self.sizes, values)) for values in zip(*turned)]

    @property
    def largest(self) -> Sizes:
        return {s: of[-1] for s, of in self.sizes.items()}

    def shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        """Return the shapes of inputs at these sizes."""
        return {name: tuple(extent(d, sizes) for d in shape) for name, shape in self.stated.items()}


def _batch(name: str, *rest: int, most: int = 8, is_served: bool = False) -> Subject:
    return Subject(name, {"x": ("n", *rest)}, {"n": range(1, most + 1)}, is_served)


SUBJECTS: dict[str, Subject] = {
    s.name: s
    for s in (
        _batch("resnet50", 3, 224, 224, most=16, is_served=True),
        Subject("unet", {"x": (1, 3, "16*h", "16*w")}, {"h": range(1, 21), "w": range(1, 21)}, is_served=True),
        Subject(
            "sentence_encoder",
            {"ids": (1, "L:1..384"), "mask": (1, "L:1..384")},
            {"L": range(1, 385)},
            is_served=True,
        ),
        _batch("style_transfer", 3, 256, 256, most=4),
        _batch("mobilenet_v2", 3, 224, 224),
        _batch("efficientnet_b0", 3, 224, 224),
        _batch("shufflenet_v2", 3, 224, 224),
        _batch("densenet121", 3, 224, 224),
        _batch("inception_v3", 3, 299, 299),
        _batch("resnext50", 3, 224, 224),
        _batch("se_resnet101_ibn", 3, 224, 224),
        _batch("dcgan", 100, 1, 1, most=16),
        _batch("vit_tiny", 3, 224, 224),
        _batch("odd_channels", 3, 112, 112),
    )
}


@dataclass(frozen=True)
class Settings:
    """shapes: of each network whose kernels are measured. seen: shapes that are called for the first time, and that a
    process's memory is measured after. calls: of random shapes. target: that this machine can run: an older CPU."""

    threads: int
    measures: tuple[str, ...] = MEASURES
    shapes: int = 8
    seen: int = 100
    calls: int = 300
    compilations: int = 3
    target: str = HERE


def measure(names: Sequence[str], settings: Settings, tell: Tell) -> dict[str, Any]:
    """Return all that is measured of networks, and the five ratios over all of them."""
    networks, failed = dict[str, Any](), dict[str, str]()
    for name in names:
        begin = time.perf_counter()
        try:
            networks[name] = _network(SUBJECTS[name], settings, lambda line, name=name: tell(f"{name}: {line}"))
        except (RenormError, RuntimeError) as error:  # the others are worth having
            failed[name] = str(error)
            tell(f"{name} FAILED: {error}")
            continue
        tell(f"{name}: {time.perf_counter() - begin:.0f} s")
    return {
        "when": now(),
        "commit": commit(),
        "machine": machine() | ({} if settings.target == HERE else {"vectors": settings.target}),
        "settings": asdict(settings),
        "ratios": {m: summary for m in settings.measures if (summary := _ratios(networks, m))},
        "networks": networks,
        "failed": failed,
    }


def _network(subject: Subject, settings: Settings, tell: Tell) -> dict[str, Any]:
    tell("export")
    subject.export()
    found = dict[str, Any]()
    served = settings.measures if subject.is_served else ("kernels",)
    measures = [m for m in settings.measures if m in served]
    if set(measures) - {"compile"}:
        tell("compile for all shapes")
        artifact = _compiled(subject, subject.stated, settings)
    else:
        artifact = subject.model
    for name in measures:
        found[name] = _MEASURED[name](subject, artifact, settings, tell)
        tell(f"{name}: {found[name]['ratio']:.3f}")
    return found


def _compiled(subject: Subject, stated: Stated, settings: Settings) -> Path:
    """Return the artifact for these shapes. Raises RuntimeError where it would serve fewer than are asked for."""
    module = renorm.compile(subject.model, shapes=stated, threads=settings.threads, target=settings.target)
    if obstacle := getattr(module, "obstacle", ""):
        raise RuntimeError(f"compiled for each shape alone: {obstacle}")
    path = FILES / f"{subject.name}{'' if stated is subject.stated else '_fixed'}.renorm"
    module.save(path)
    return path


def _first(subject: Subject, artifact: Path, settings: Settings, tell: Tell) -> dict[str, Any]:
    """Two calls of each shape, in random order; those of the first shape load code and weights, and do not count."""
    sizes = subject.drawn(settings.seen + 1)
    sizes = [s for i, s in enumerate(sizes) if s not in sizes[:i]]
    with _started(subject, "renorm", artifact, settings.threads) as process:
        told = [process.ask(sizes=[s], repeats=2)["ms"][0] for s in _shown(sizes, "calls of new shapes", tell)]
    ratios = [first / second for first, second in told[1:]]
    return {
        "ratio": geometric_mean(ratios),
        "median": median(ratios),
        "p90": float(np.percentile(ratios, 90)),
        "shapes": [{**s, "first": t[0], "second": t[1]} for s, t in zip(sizes, told, strict=True)],
    }


def _kernels(subject: Subject, artifact: Path, settings: Settings, tell: Tell) -> dict[str, Any]:
    """Kernels for all shapes and for one, in turns in one process; the medians' ratio, over shapes."""
    rows = list[dict[str, Any]]()
    for s in _shown(subject.spread(settings.shapes), "kernels of one shape", tell):
        fixed = _compiled(subject, subject.shapes(s), settings)
        with _started(subject, "renorm", artifact, settings.threads) as process:
            ours, theirs = process.ask(sizes=[s], beside=str(fixed), seconds=LEAST)["ms"]
        rows.append({**s, "open": median(ours), "fixed": median(theirs), "ratio": median(ours) / median(theirs)})
    return {"ratio": geometric_mean([r["ratio"] for r in rows]), "shapes": rows}


def _memory(subject: Subject, artifact: Path, settings: Settings, tell: Tell) -> dict[str, Any]:
    """The most that a process has held after calls of many shapes, the largest one among them, and of that alone."""
    tell("memory")
    peaks = list[int]()
    for sizes in ([*subject.drawn(settings.seen - 1), subject.largest], [subject.largest]):
        with _started(subject, "renorm", artifact, settings.threads) as process:
            peaks.append(process.ask(sizes=sizes)["peak_bytes"])
    return {"ratio": peaks[0] / peaks[1], "bytes": peaks}


def _calls(subject: Subject, artifact: Path, settings: Settings, tell: Tell) -> dict[str, Any]:
    """Seconds of all calls, of each runtime in a process of its own, some calls at a time in turns."""
    sizes = [subject.drawn(1, seed)[0] for seed in range(settings.calls)]
    threads = settings.threads
    with (
        _started(subject, "renorm", artifact, threads) as ours,
        _started(subject, "ort", subject.model, threads) as theirs,
    ):
        spent = {ours: list[float](), theirs: list[float]()}
        for i in _shown(range(0, len(sizes), TURN), "calls of random shapes", tell):
            for process, ms in spent.items():
                time.sleep(GAP)  # in which the threads of the other come to rest
                ms += [t for told in process.ask(sizes=sizes[i : i + TURN])["ms"] for t in told]
    renorm_s, ort_s = (fsum(ms) / 1e3 for ms in spent.values())
    return {"ratio": renorm_s / ort_s, "renorm_seconds": renorm_s, "ort_seconds": ort_s, "calls": len(sizes)}


def _compile(subject: Subject, artifact: Path, settings: Settings, tell: Tell) -> dict[str, Any]:
    """Seconds of `renorm compile` with an empty cache, in turns; the least of each."""
    sizes = subject.spread(3)[1]
    seconds = {"open": list[float](), "fixed": list[float]()}
    for _ in _shown(range(settings.compilations), "compilations", tell):
        for of, shapes in (("open", subject.stated), ("fixed", subject.shapes(sizes))):
            with tempfile.TemporaryDirectory() as cache:
                call = [sys.executable, "-m", "renorm", "compile", str(subject.model), "-o", f"{cache}/made.renorm"]
                call += ["--target", settings.target]
                for name, shape in shapes.items():
                    call += ["--shape", f"{name}={'x'.join(map(str, shape))}"]
                variables = environment(settings.threads) | {"RENORM_CACHE_DIR": cache}
                begin = time.perf_counter()
                done = subprocess.run(call, env=variables, capture_output=True, text=True)
                seconds[of].append(time.perf_counter() - begin)
            if done.returncode:
                raise RuntimeError(f"{' '.join(call)} ended with {done.returncode}: {done.stderr[-1000:]}")
    return {"ratio": min(seconds["open"]) / min(seconds["fixed"]), "seconds": seconds, "fixed_at": dict(sizes)}


_MEASURED: dict[str, Callable[[Subject, Path, Settings, Tell], dict[str, Any]]] = {
    "first": _first,
    "kernels": _kernels,
    "memory": _memory,
    "calls": _calls,
    "compile": _compile,
}


def _ratios(networks: Mapping[str, Any], of: str) -> dict[str, float]:
    """Return the ratio of each network, and their geometric mean."""
    found = {name: round(n[of]["ratio"], 4) for name, n in networks.items() if of in n}
    return found | {"geometric mean": round(geometric_mean(list(found.values())), 4)} if found else {}


class _Process:
    """The side of benchmarks.any_shape_process that asks."""

    def __init__(self, process: subprocess.Popen[str]):
        self._process = process
        self._answer()

    def ask(self, **asked: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise RuntimeError(f"{self._process.args} ended with {self._process.wait()}")
        return json.loads(line)


@contextmanager
def _started(subject: Subject, runtime: str, model: Path, threads: int) -> Generator[_Process]:
    job = Job(runtime, str(model), threads, {name: list(shape) for name, shape in subject.stated.items()})
    call = [sys.executable, "-m", "benchmarks.any_shape_process", json.dumps(asdict(job))]
    pipe = subprocess.PIPE
    with subprocess.Popen(call, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=environment(threads)) as process:
        try:
            yield _Process(process)
        finally:
            process.kill()


def _shown(items: Sequence[T], what: str, tell: Tell) -> Generator[T]:
    """Give items one by one, and tell how far it is about every tenth."""
    for i, item in enumerate(items):
        if i % max(1, len(items) // 10) == 0:
            tell(f"{what}, {i + 1} of {len(items)}")
        yield item
