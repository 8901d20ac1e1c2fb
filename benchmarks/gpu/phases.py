"""The phases of a measurement. Each returns data, and its lines for the terminal, within its seconds."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from statistics import geometric_mean
from typing import Any

from benchmarks.gpu import ops, sanitizers
from benchmarks.gpu.deviation import TOLERANCE
from benchmarks.gpu.place import Place
from benchmarks.gpu.tables import table
from benchmarks.gpu.workers import FAILED, Answer, Worker, shared_out, workers

SHOWN = 24  # failures; the file of results has all
DETAILED, LISTED = 2, 15  # networks whose longest kernels are listed, and how many


@dataclass
class Run:
    """The request to the phases. log: the file of the workers' output. networks: of benchmarks.networks; only: a part
    of the names of ops. limits: bytes and operations per second, which the phase "facts" finds."""

    place: Place
    networks: Sequence[str]
    batches: Sequence[int]
    log: str = ""
    only: str = ""
    count: int = 0  # of samples; 0: all
    limits: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def cores(self) -> int:
        return len(os.sched_getaffinity(0))


Found = tuple[dict[str, Any], list[str]]
Phase = Callable[[Run, float], Found]


def facts(run: Run, until: float) -> Found:
    """The device and its limits."""
    with workers(run.place, 1, run.log) as (worker,):
        worker.ask("benchmarks.gpu.facts:facts")
        found = worker.answer(until - time.monotonic())
    run.limits.update({k: found[k] for k in ("copy", "matmul") if k in found})
    return found, [", ".join(f"{k} {f'{v:.4g}' if isinstance(v, float) else v}" for k, v in found.items())]


def samples(run: Run, until: float) -> Found:
    """Every sample of every op."""
    found = dict[str, Answer]()
    names = ops.names(run.only)[: run.count or None]
    tasks = [(f"{op}-{i}", "benchmarks.gpu.ops:judged", (op, i)) for op, i in names]
    with workers(run.place, max(1, min(14, run.cores - 1, len(tasks))), run.log) as crew:
        left = shared_out(crew, tasks, until, 40.0, lambda name, answer: found.update({name: answer}))
    counts = Counter(answer.get("outcome", FAILED) for answer in found.values())
    off = {name: a for name, a in sorted(found.items()) if a.get("outcome") != ops.RIGHT}
    lines = [f"{len(found)} of {len(names)} samples: {', '.join(f'{n} {k}' for k, n in counts.most_common())}"]
    lines += [f"  {name}: {a.get('outcome', FAILED)}: {a.get('said') or a.get(FAILED)}"[:170] for name, a in _few(off)]
    if len(off) > SHOWN:
        lines.append(
            f"  and {len(off) - SHOWN} more, of {', '.join(sorted({n.rpartition('-')[0] for n in off}))}"[:600]
        )
    return {"counts": dict(counts), "not begun": left, "not right": off}, lines


def _few(off: dict[str, Answer]) -> list[tuple[str, Answer]]:
    """Return one of each op first: what fails alike says so once."""
    firsts = dict[str, str]()
    for name in off:
        firsts.setdefault(name.rpartition("-")[0], name)
    order = [*firsts.values(), *(name for name in off if name not in set(firsts.values()))]
    return [(name, off[name]) for name in order[:SHOWN]]


def networks(run: Run, until: float) -> Found:
    """Compare networks with a reference: trained files, and those with random weights at batch 2."""
    found = dict[str, Answer]()
    tasks = [(file.name, "benchmarks.gpu.files:checked", (str(file),)) for file in run.place.files]
    tasks += [(n, "benchmarks.gpu.contenders:checked", ("networks", n, 2)) for n in run.networks]
    with workers(run.place, max(1, min(4, run.cores // 2, len(tasks))), run.log) as crew:
        left = shared_out(crew, tasks, until, 150.0, lambda name, answer: found.update({name: answer}))
    head = ("network", "error", "eager float32", "launches", "compile s", "")
    rows = [
        (name, a.get("error"), a.get("eager_error"), a.get("launches"), a.get("compile_seconds"), _verdict(a))
        for name, a in found.items()
    ]
    return {"networks": found, "not begun": left}, [table(head, rows), *_left(left)]


def speed(run: Run, until: float) -> Found:
    """Networks beside PyTorch. All are compiled side by side first, and measured one after the other then."""
    subjects = {f"{name}, batch {batch}": (name, batch) for name in run.networks for batch in run.batches}
    begin = time.monotonic()
    found = dict[str, Answer]()
    with workers(run.place, len(run.networks), run.log) as crew:
        homes = dict(zip(run.networks, crew))
        failed = _prepare(homes, "networks", run.batches, begin + 0.6 * (until - begin), max(1, run.cores // 4))
        for key, (name, batch) in subjects.items():
            if name in failed:
                found[key] = failed[name]
            elif time.monotonic() < until:
                listed = LISTED if name in run.networks[:DETAILED] and batch == max(run.batches) else 0
                _measure(homes[name], found, key, ("networks", name, batch, 0.5, listed), until)
    head = ("network", "renorm ms", "eager ms", "graph ms", "graph/renorm", "MB", "eager MB", "error", "")
    rows = [(key, *_times(a), *_megabytes(a), a.get("error"), _verdict(a)) for key, a in found.items()]
    lines = [table(head, rows), *_means(found)]
    for key, answer in found.items():
        lines += _kernels(key, answer)
    return {"networks": found, "not begun": [k for k in subjects if k not in found]}, lines


def _prepare(
    homes: dict[str, Worker], kind: str, batches: Sequence[int], until: float, beside: int
) -> dict[str, Answer]:
    """Have each process compile its subject, `beside` of them at a time, and return what failed. What there was no time
    for is compiled when it is measured."""
    waiting, busy, failed = list(homes.items()), dict[str, Worker](), dict[str, Answer]()
    while (waiting or busy) and time.monotonic() < until:
        while waiting and len(busy) < beside:
            name, worker = waiting.pop(0)
            worker.ask("benchmarks.gpu.contenders:prepared", kind, name, list(batches))
            busy[name] = worker
        ready = wait([w.connection for w in busy.values()], until - time.monotonic())
        for name, worker in list(busy.items()):
            if worker.connection in ready:
                answer = busy.pop(name).answer(0.0)
                failed.update({name: answer} if FAILED in answer else {})
    for worker in busy.values():
        worker.answer(0.0)
    return failed


def _measure(worker: Worker, found: dict[str, Answer], key: str, args: tuple[Any, ...], until: float) -> None:
    worker.ask("benchmarks.gpu.contenders:measured", *args)
    found[key] = worker.answer(min(120.0, until + 5.0 - time.monotonic()))


def norms(run: Run, until: float) -> Found:
    """Normalizations alone, by how near they come to a copy."""
    from benchmarks.gpu import subjects

    kinds = subjects.norms(run.place.is_gpu)
    found, left = _alone(run, "norms", list(kinds), until)
    copy = run.limits.get("copy")
    rows = list[tuple[Any, ...]]()
    for name, a in found.items():
        speeds = [kinds[name].moved / (ms / 1e3) if ms else None for ms in _times(a)[:2]]
        a["bytes_per_second"] = dict(zip(("renorm", "eager"), speeds))
        shares = [s / copy if s and copy else None for s in speeds]
        rows.append((name, *_times(a)[:2], *shares, a.get("error"), _verdict(a)))
    head = ("norm", "renorm ms", "eager ms", "of copy", "eager of copy", "error", "")
    return {"norms": found, "not begun": left}, [table(head, rows), *_left(left)]


def layers(run: Run, until: float) -> Found:
    """Training steps of norm layers, by how near they come to a copy."""
    from benchmarks.gpu.layers import LAYERS

    found, copy = dict[str, Answer](), run.limits.get("copy")
    with workers(run.place, 1, run.log) as (worker,):
        for name in LAYERS:
            if time.monotonic() < until:
                worker.ask("benchmarks.gpu.layers:stepped", name, 0.15)
                found[name] = worker.answer(min(60.0, until + 5.0 - time.monotonic()))
    rows = list[tuple[Any, ...]]()
    for name, a in found.items():
        ms = _times(a)[:2]
        shares = [a["moved"] / (t / 1e3) / copy if t and copy else None for t in ms]
        rows.append((name, *ms, *shares, a.get("error"), _verdict(a)))
    head = ("step of a layer", "renorm ms", "eager ms", "of copy", "eager of copy", "error", "")
    return {"layers": found}, [table(head, rows), *_left([name for name in LAYERS if name not in found])]


def products(run: Run, until: float) -> Found:
    """Products of matrices and convolutions alone."""
    from benchmarks.gpu import subjects

    kinds = subjects.products(run.place.is_gpu)
    found, left = _alone(run, "products", list(kinds), until)
    rows, totals = list[tuple[Any, ...]](), [0.0, 0.0]
    for name, a in found.items():
        ms = _times(a)
        speeds = [kinds[name].flops / (t * 1e9) if t else None for t in ms[:2]]
        a["teraflops"] = dict(zip(("renorm", "eager"), speeds))
        rows.append((name, *ms[:2], *speeds, ms[1] / ms[0] if ms[0] and ms[1] else None, a.get("error"), _verdict(a)))
        if "x conv" in name and ms[0] and ms[1]:
            totals = [total + int(name.partition("x")[0]) * t for total, t in zip(totals, ms)]
    head = ("product", "renorm ms", "eager ms", "TFLOP/s", "eager", "eager/renorm", "error", "")
    lines = [table(head, rows), f"all convolutions measured: renorm {totals[0]:.3f} ms, eager {totals[1]:.3f} ms"]
    return {"products": found, "not begun": left}, [*lines, *_left(left)]


def ahead(run: Run, until: float) -> Found:
    """Compare products that copy a round ahead with those that do not."""
    from benchmarks.gpu import subjects

    found, names = dict[str, Answer](), list(subjects.products(run.place.is_gpu))
    with workers(run.place, 1, run.log) as (worker,):
        for name in names:
            if time.monotonic() < until:
                worker.ask("benchmarks.gpu.copies_ahead:measured", name, 0.1)
                found[name] = worker.answer(min(60.0, until + 5.0 - time.monotonic()))
    rows = list[tuple[Any, ...]]()
    for name, a in found.items():
        columns = list[Any]()
        for dtype in ("float32", "float16"):
            ms = [a.get("ms", {}).get(k, {}).get("median") for k in (dtype, f"{dtype}, ahead")]
            columns += [*ms, ms[1] / ms[0] if ms[0] and ms[1] else None]
        rows.append((name, *columns, a.get("error"), _verdict(a)))
    head = ("product", "float32 ms", "ahead ms", "of it", "float16 ms", "ahead ms", "of it", "error", "")
    return {"products": found}, [table(head, rows), *_left([name for name in names if name not in found])]


def _alone(run: Run, kind: str, names: list[str], until: float) -> tuple[dict[str, Answer], list[str]]:
    """Compile subjects in a few processes, each its share, and measure them one after the other."""
    begin, found, failed = time.monotonic(), dict[str, Answer](), dict[str, Answer]()
    with workers(run.place, max(1, min(4, run.cores // 2)), run.log) as crew:
        homes = {name: crew[i % len(crew)] for i, name in enumerate(names)}
        for shift in range(0, len(names), len(crew)):
            part = {name: homes[name] for name in names[shift : shift + len(crew)]}
            failed |= _prepare(part, kind, (0,), begin + 0.6 * (until - begin), len(crew))
        for name in names:
            if name in failed:
                found[name] = failed[name]
            elif time.monotonic() < until:
                _measure(homes[name], found, name, (kind, name, 0, 0.15), until)
    return found, [name for name in names if name not in found]


def sanitize(run: Run, until: float) -> Found:
    """Run NVIDIA's sanitizers over a small program."""
    found = sanitizers.sanitized(run.place, until - time.monotonic())
    return found, [
        table(("tool", "says", "of"), [(k, v["summary"][:110], v["program"][:110]) for k, v in found.items()])
    ]


PHASES: dict[str, tuple[Phase, float]] = {  # in the order of their worth, with seconds
    "facts": (facts, 25.0),
    "ops": (samples, 90.0),
    "networks": (networks, 75.0),
    "speed": (speed, 120.0),
    "norms": (norms, 35.0),
    "layers": (layers, 40.0),
    "products": (products, 60.0),
    "sanitize": (sanitize, 75.0),
    "ahead": (ahead, 20.0),
}


def _times(answer: Answer) -> tuple[Any, ...]:
    """Return the milliseconds of renorm, eager PyTorch and its graph, and how many times as long the last one takes."""
    ms = [answer.get("ms", {}).get(who, {}).get("median") for who in ("renorm", "eager", "graph")]
    return (*ms, ms[2] / ms[0] if ms[0] and ms[2] else None)


def _megabytes(answer: Answer) -> list[Any]:
    held = answer.get("bytes", {})
    return [held[who] / 1e6 if held.get(who) else None for who in ("renorm", "eager")]


def _verdict(answer: Answer) -> str:
    if FAILED in answer:
        return f"failed: {answer[FAILED]}"[:150]
    said = [f"{who}: {why}"[:90] for who, why in answer.get("failures", {}).items()]
    return "; ".join([*([] if answer["error"] <= answer.get("tolerance", TOLERANCE) else ["WRONG"]), *said])


def _means(found: dict[str, Answer]) -> list[str]:
    ratios = [t[3] for t in map(_times, found.values()) if t[3]]
    return [f"geometric mean of graph/renorm: {geometric_mean(ratios):.3f}"] if ratios else []


def _kernels(key: str, answer: Answer) -> list[str]:
    """Return the table of a network's longest launches: what each reaches, in operations and bytes per second."""
    if "kernels" not in answer:
        return []
    told = answer["kernels"]
    rows = [
        (
            k["kernel"][:60],
            k["us"],
            100 * k["us"] / told["us"],
            k["flops"] / k["us"] / 1e3 if k["us"] else None,
            k["bytes"] / k["us"] / 1e3 if k["us"] else None,
        )
        for k in told["longest"]
    ]
    head = f"{key}: {told['kernels']} kernels, {told['launches']} launches, {told['us']} us"
    return [head, table(("kernel", "us", "%", "GFLOP/s", "GB/s"), rows)]


def _left(names: Sequence[str]) -> list[str]:
    return [f"no time for {', '.join(names)}"[:400]] if names else []
