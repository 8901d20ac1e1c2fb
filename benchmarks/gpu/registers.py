"""What each kernel takes of a GPU by NVRTC, without one: registers, spills, stack and shared memory, within bounds.

    python -m benchmarks.gpu.registers --arch sm_75,sm_90 --networks resnet50

Kernels of every sample of every op, of networks and of files, scheduled for each architecture; equal texts of CUDA C
for one of them are compiled once.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import click

import renorm
from benchmarks.gpu import ops
from benchmarks.gpu.place import Place
from benchmarks.gpu.tables import table
from benchmarks.gpu.workers import said
from renorm.cli.progress import progress
from renorm.codegen.cuda import assemblers, nvrtc
from renorm.core.errors import RenormError
from renorm.core.random_inputs import random_inputs
from renorm.driver.module import SpecializingModule

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")
# of a multiprocessor, and of a thread
REGISTERS, MOST_REGISTERS = 65536, 255
WARP, REGISTERS_AT_ONCE = 32, 8  # registers are handed out to whole warps, so many for each of their threads
SHARED, SYSTEM = 48 << 10, 1 << 10  # bytes of a block; and those that may be counted with them from sm_90 on

Subject = tuple[str, Callable[[str], Any]]
"""A name, and what compiles it for an architecture."""
Source = tuple[str, str]
"""An architecture, and CUDA C for it."""


@dataclass
class Text:
    """Of CUDA C. threads: of a block, by the function of a launch. uses: launches of that function, by subject."""

    threads: dict[str, int] = field(default_factory=dict[str, int])
    uses: dict[str, Counter[str]] = field(default_factory=dict[str, "Counter[str]"])


@dataclass(frozen=True)
class Taken:
    """What a function takes on an architecture. subject: the first that launches it; launches: of all subjects.
    spills: bytes stored and loaded by a thread, loops counted once. stack, shared: bytes of a thread, of a block."""

    arch: str
    subject: str
    function: str
    launches: int
    registers: int
    spills: int
    stack: int
    shared: int
    threads: int

    @property
    def beyond(self) -> str:
        """Return which bound it exceeds, or ""."""
        warps = math.ceil(self.threads / WARP)
        held = warps * WARP * math.ceil(self.registers / REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
        if self.registers > MOST_REGISTERS:
            return f"{self.registers} registers of a thread, more than {MOST_REGISTERS}"
        if held > REGISTERS:
            return f"{held} registers of a block, more than {REGISTERS}"
        if self.shared > SHARED + SYSTEM:
            return f"{self.shared} bytes of shared memory, more than {SHARED}"
        return ""


@contextmanager
def as_text(architectures: Sequence[str]) -> Generator[None]:
    """A context in which code for these architectures is the CUDA C itself."""
    before = dict(assemblers._OTHERS)
    for arch in architectures:
        assemblers.register(arch, lambda text, _: text.encode())
    try:
        yield
    finally:
        assemblers._OTHERS.clear()
        assemblers._OTHERS.update(before)


def texts(subject: str, module: Any) -> dict[str, Text]:
    """Return the CUDA C of a module that was compiled `as_text`, with the launches of each function."""
    found = dict[str, Text]()
    for step in module.program.steps:
        code = module.program.codes[step.code]
        own = found.setdefault(module._objects[code.object].decode(), Text())
        for launch in code.launches:
            own.threads[launch.function] = math.prod(launch.block)
            own.uses.setdefault(launch.function, Counter())[subject] += 1
    return {text: own for text, own in found.items() if own.threads}  # what has no elements has no launches


def taken(text: str, own: Text, arch: str) -> list[Taken]:
    """Return what the functions of a text take. Raises as nvrtc.resources."""
    return [
        Taken(
            arch, next(iter(own.uses[r.name])), r.name, own.uses[r.name].total(), r.registers,
            r.spill_stores + r.spill_loads, r.stack, r.shared, own.threads[r.name],
        )
        for r in nvrtc.resources(text, arch)
    ]  # fmt: skip


def samples(only: str = "") -> Iterator[Subject]:
    """Yield samples of the ops whose name has `only` in it."""
    from tests.ops.one_node import OneNode

    by_name = {op.name: op for op in ops._all()}
    for name, i in sorted(ops.names(only)):
        graph = OneNode(by_name[name], by_name[name].samples[i]).graph
        yield f"{name}-{i}", lambda arch, graph=graph: _compiled(graph, arch)


def networks(names: Sequence[str], batch: int) -> Iterator[Subject]:
    """Yield networks of benchmarks.networks, untrained. batch: of those whose input is an image."""
    import torch

    from benchmarks.networks import NETWORKS

    def built(name: str, arch: str) -> Any:
        network = NETWORKS[name]
        inputs = list(network.inputs().values())
        if not network.examples:
            inputs = [torch.randn((batch, *network.shape[1:]))]
        return _compiled(network.build().eval(), arch, args=tuple(inputs))

    for name in names:
        yield f"{name}, batch {batch}", lambda arch, name=name: built(name, arch)


def files(folder: str) -> Iterator[Subject]:
    """Yield the networks of a folder."""
    for file in Place("", folder).files:
        yield file.name, lambda arch, file=file: _compiled(str(file), arch)


def _compiled(model: Any, arch: str, **options: Any) -> Any:
    module: Any = renorm.compile(model, target=f"cuda -arch={arch}", **options)
    is_open = isinstance(module, SpecializingModule)
    return module.specialized(**random_inputs(module.inputs)) if is_open else module


def collected(
    subjects: Sequence[Subject], architectures: Sequence[str], tell: Callable[[int], None]
) -> tuple[dict[Source, Text], dict[str, str]]:
    """Return the texts of all subjects for each architecture, and what was said of subjects that are refused."""
    found, refused = dict[Source, Text](), dict[str, str]()
    for i, ((name, compiled), arch) in enumerate(product(subjects, architectures)):
        tell(i)
        try:
            with as_text(architectures):
                module = compiled(arch)
        except RenormError as error:
            refused[name] = said(error)
            continue
        for text, own in texts(name, module).items():
            known = found.setdefault((arch, text), Text())
            known.threads |= own.threads
            for function, uses in own.uses.items():
                known.uses.setdefault(function, Counter()).update(uses)
    return found, refused


def measured(found: Mapping[Source, Text], tell: Callable[[int], None]) -> list[Taken]:
    """Return what each function takes on the architecture of its text, most registers first. Raises as
    nvrtc.resources."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        asked: list[Future[list[Taken]]] = [pool.submit(taken, t, own, a) for (a, t), own in found.items()]
        for done, _ in enumerate(as_completed(asked)):
            tell(done)
    return sorted((t for one in asked for t in one.result()), key=lambda t: (-t.registers, t.subject, t.function))


def summary(found: Sequence[Taken]) -> list[str]:
    """Return lines on each architecture: most registers, spills, frames on the stack, and what exceeds a bound."""
    lines = list[str]()
    for arch in dict.fromkeys(sorted((t.arch for t in found), key=lambda a: int(a.strip("sm_af")))):
        own = [t for t in found if t.arch == arch]
        spills, frames = [t for t in own if t.spills], [t for t in own if t.stack]
        most, shared = max(own, key=lambda t: t.registers), max(own, key=lambda t: t.shared)
        lines.append(
            f"{arch}: {len(own)} kernels; at most {most.registers} registers ({_name(most)}), {shared.shared} bytes of "
            f"shared memory ({_name(shared)}); {len(spills)} spill, {len(frames)} have a stack frame"
        )
        lines += [f"  spills {t.spills} bytes: {_name(t)}" for t in spills]
        lines += [f"  stack of {t.stack} bytes: {_name(t)}" for t in frames if not t.spills]
        lines += [f"  BEYOND: {_name(t)}: {t.beyond}" for t in own if t.beyond]
    return lines


def _name(t: Taken) -> str:
    return f"{t.function} of {t.subject}"


@click.command()
@click.option("--arch", default="sm_90", show_default=True, help=f"As {','.join(ARCHITECTURES)}.")
@click.option("--networks", "names", default="", help="Names of benchmarks.networks.  [default: none]")
@click.option("--batch", default=1, show_default=True, help="Of networks.")
@click.option("--models", type=click.Path(exists=True, file_okay=False), help="A folder of networks.")
@click.option("--only", default=None, metavar="OP", help='Ops whose name has this in it, "-" for none.  [default: all]')
@click.option("--rows", default=40, show_default=True, help="Of the table; 0: all.")
@click.option("--json", "into", type=click.Path(path_type=Path), help="A file for all rows.")
def main(arch: str, names: str, batch: int, models: str | None, only: str | None, rows: int, into: Path | None) -> None:
    """Prints registers, spills, stack and shared memory of kernels; fails where a bound is exceeded."""
    subjects = [] if only == "-" else [*samples(only or "")]
    subjects += [*networks([n for n in names.split(",") if n], batch), *(files(models) if models else [])]
    architectures = arch.split(",")
    with progress("kernels") as bar:
        tell = bar or (lambda stage, done, of: None)
        total = len(subjects) * len(architectures)
        found, refused = collected(subjects, architectures, lambda done: tell("CUDA C", done, total))
        kernels = measured(found, lambda done: tell("NVRTC", done, len(found)))
    head = ("kernel", "of", "arch", "launches", "registers", "spills", "stack", "shared", "threads")
    shown = [
        (t.function, t.subject, t.arch, t.launches, t.registers, t.spills, t.stack, t.shared, t.threads)
        for t in kernels[: rows or None]
    ]
    lines = [table(head, shown), "", f"{len(subjects)} subjects, {len(found)} texts; NVRTC: {nvrtc.identity()}"]
    print(*lines, *(f"refused: {name}: {why}" for name, why in refused.items()), *summary(kernels), sep="\n")
    if into:
        into.write_text(json.dumps({"kernels": [asdict(t) for t in kernels], "refused": refused}, indent=1))
    sys.exit(bool(refused) or any(t.beyond for t in kernels))


if __name__ == "__main__":
    main()
