"""renorm bench: how long a network takes, beside other runtimes if asked."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from renorm.cli import network, output
from renorm.cli.options import FILE, Finite, calling, model, seed, train_state, trusting, verb
from renorm.driver.disturbance import Disturbance
from renorm.driver.measure import PEERS, Contender, Measured, obstacle, side_by_side
from renorm.errors import InvalidInput

_MIB = 2**20


@verb("bench")
@model
@click.option("--against", default="", metavar="NAMES", help=f"Runtimes to measure beside renorm: {','.join(PEERS)}.")
@click.option(
    "--torch",
    "program",
    type=FILE,
    help="MODEL as torch.export.save wrote it: for torch, inductor.",
)
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="How often they take turns.")
@click.option("--seconds", type=Finite(0), default=2.0, show_default=True, help="How long each of them runs in all.")
@seed
@train_state
@trusting
@calling
def command(
    model: Path,
    against: str,
    program: Path | None,
    rounds: int,
    seconds: float,
    seed: int,
    options: dict[str, Any],
    trust: dict[str, Any],
) -> output.Outcome:
    """Measures the latency of MODEL (any file that renorm reads, or .renorm) on random inputs, each runtime in a
    process of its own. With several shapes of an input, at each of them."""
    peers = [_peer(name.strip(), model, program) for name in against.split(",") if name.strip()]
    opened, calls = network.with_inputs(model, options, seed, trust)
    threads = network.at(opened, calls[0]).threads
    told, disturbed = list[tuple[dict[str, Any], list[Measured], list[float | None]]](), list[Disturbance]()
    with TemporaryDirectory() as folder:
        artifact, saved = Path(folder) / "network.renorm", None
        for inputs in calls:
            if saved is not (saved := network.at(opened, inputs)):
                saved.save(artifact)
            contenders = [Contender("renorm", "renorm", artifact), *peers]
            compared = side_by_side(contenders, inputs, threads, rounds=rounds, seconds=seconds)
            found = compared.measured
            disturbed += [d for d in compared.disturbances if d and d.is_large]
            reference = found[1] if peers and found[1].latency else None
            errors = [m.error(reference) if m.latency and reference else None for m in found]
            told.append((inputs, found, errors))
    columns = ("runtime", "median", "p90", "least", "spread", "calls", "peak MiB")
    rows = [
        row if len(told) == 1 else (network.shapes_text(inputs), *row) for inputs, f, e in told for row in _rows(f, e)
    ]
    has_errors = any(e is not None for _, _, errors in told for e in errors)
    shown = (*(("call",) if len(told) > 1 else ()), *columns, *((f"error to {peers[0].name}",) if has_errors else ()))
    rows = [row if has_errors else row[:-1] for row in rows]
    output.table(f"{model.name}, {threads} threads, ms per call", shown, rows)
    for m in (m for _, found, _ in told for m in found if m.failure):
        output.line(f"{m.name}: {m.failure}")
    if disturbed:
        output.line(f"disturbed in {len(disturbed)} rounds, at most by {max(disturbed, key=lambda d: d.size)}")
    keys = ("name", "open_seconds", "first_seconds", "peak_bytes", "failure")

    def data(found: list[Measured], errors: list[float | None]) -> dict[str, Any]:
        runtimes = [{k: getattr(m, k) for k in keys} | {"error": e} for m, e in zip(found, errors)]
        return {"latency_ms": [asdict(m.latency) if m.latency else None for m in found], "runtimes": runtimes}

    is_lost = any(found[0].latency is None for _, found, _ in told)  # renorm itself
    measured = network.of_calls([(inputs, data(f, e)) for inputs, f, e in told])
    return output.Outcome({"threads": threads, **measured}, code=int(is_lost))


def _peer(name: str, model: Path, program: Path | None) -> Contender:
    missing = obstacle(name)
    if missing:
        raise InvalidInput(f"{name} cannot run here", do=missing)
    if model.suffix == ".renorm":
        raise InvalidInput(f"{name} does not read {model.name}, an artifact of renorm", do="give the .onnx file")
    if name in ("torch", "inductor"):
        if program is None:
            raise InvalidInput(
                f"{name} does not read {model.name}",
                do="save the network with torch.export.save(torch.export.export(...), FILE), and give --torch FILE",
            )
        return Contender(name, name, program)
    return Contender(name, name, model)


def _rows(found: list[Measured], errors: list[float | None]) -> list[tuple[Any, ...]]:
    return [
        (t.name, t.median, t.p90, t.least, f"{t.spread:.1%}", t.calls, m.peak_bytes / _MIB, "" if e is None else e)
        for m, e in zip(found, errors)
        if (t := m.latency)
    ]
