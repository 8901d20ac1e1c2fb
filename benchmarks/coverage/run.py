"""Take all networks through renorm, one after the other, each in a process of its own with a time limit."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from onnx import parser

import renorm
from benchmarks.coverage import check
from benchmarks.coverage.network import Row
from benchmarks.coverage.operators import with_operators
from benchmarks.machine import commit, now

PACKAGES = ("transformers", "torchvision", "timm", "pytorchcv", "diffusers", "papers")
SECONDS = 600.0
SMALL = """<ir_version: 8, opset_import: ["": 18]> g (float[N,3,9,7] x) => (float[N,3,9,7] y) { y = Relu(x) }"""


def cases(chosen: Sequence[str] = ()) -> Iterator[tuple[str, Row, str]]:
    """Return networks and their forms. chosen: packages, package/name or package/name/form; none means all."""
    for package in PACKAGES:
        for row in import_module(f"benchmarks.coverage.of_{package}").ROWS:
            for form in ("float", *row.forms):
                names = (package, f"{package}/{row.name}", f"{package}/{row.name}/{form}")
                if not chosen or any(name in chosen for name in names):
                    yield package, row, form


def one(package: str, row: Row, form: str, seconds: float = SECONDS) -> dict[str, Any]:
    """Return what became of a network in a form, measured in a process of its own."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(package, row, form, theirs), daemon=True)
    process.start()
    theirs.close()
    said = f"not done within {seconds:g} s"
    try:
        if ours.poll(seconds):
            return ours.recv()
    except EOFError:
        process.join()
        said = f"its process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()
    lost = check.Case(package, row.name, said=said, task=row.task, exporter=row.exporter, form=form, opens=row.opens)
    lost.stage = "process"
    return asdict(lost)


def _child(package: str, row: Row, form: str, results: Any) -> None:
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})  # code is made in this process alone
    for stream in (1, 2):  # exporters print graphs, and ONNX Runtime in colours
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    build = import_module(f"benchmarks.coverage.of_{package}").build
    with tempfile.TemporaryDirectory() as folder:
        results.send(asdict(check.measured(package, row, form, build, Path(folder))))


def run(chosen: Sequence[str], into: Path, seconds: float, tell: Callable[[str], None]) -> list[str]:
    """Write what became of networks to a file, which keeps what it has of others. Return those that are not right."""
    with_operators()
    renorm.compile(parser.parse_model(SMALL), threads=1)  # loads the compiler once for all processes
    held: dict[str, Any] = json.loads(into.read_text()) if into.exists() else {"networks": []}
    found = {_key(n): n for n in held["networks"]}
    wrong = list[str]()
    for package, row, form in cases(chosen):
        case = one(package, row, form, seconds)
        found[_key(case)] = case
        is_right = check.Case(**case).is_right
        what = f"{case['error']:.1e}" if is_right else f"{case['stage']}: {case['said'] or case['error']}"
        tell(f"{'/'.join(_key(case))}: {what}; {case['norms']} {case['seconds'].get('compile')} s")
        if not is_right:
            wrong.append("/".join(_key(case)))
        packages = {p: _version(p) for p in ("torch", "onnxruntime", "onnxscript", *PACKAGES)}
        said = {"commit": commit(), "when": now(), "packages": packages, "networks": [*found.values()]}
        into.write_text(json.dumps(said, indent=1))
    return wrong


def _key(case: dict[str, Any]) -> tuple[str, str, str, str]:
    return case["package"], case["network"], case["exporter"], case["form"]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
