"""renorm doctor: what looks wrong in a model's norms, and what is on this machine."""

from __future__ import annotations

import importlib.metadata
import platform
import warnings
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import click

import renorm
from renorm.cli import output
from renorm.cli.options import FILE, limit, verb
from renorm.core import system
from renorm.core import target as targets
from renorm.core.limits import Limits
from renorm.frontends.diagnosis import ASSUMPTIONS, KEY, Diagnosis
from renorm.frontends.outline import Hosted

_PACKAGES = ("numpy", "llvmlite", "onnx", "ml-dtypes", "onnxruntime", "openvino", "torch")


@verb("doctor")
@click.argument("model", required=False, type=FILE)
@limit
def command(model: Path | None, limits: Limits) -> output.Outcome:
    """Prints what looks wrong in the statistics and parameters of MODEL's norms, with what to do: exit code 1 if there
    is anything; and what its file leaves open, with how it is read. Without MODEL: versions, the processor, and which
    extras are installed."""
    return _machine() if model is None else _model(model, limits)


def _model(path: Path, limits: Limits) -> output.Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is found is printed below
        try:
            graphs = [renorm.read(path, limits=limits)]
        except Hosted:
            from renorm.driver.compile import planned  # the compiler, which most need not

            graphs = [g for part in planned(path, limits=limits)[0] for g in part.sources]
    norms = sum(n.op.is_normalization for g in graphs for n in g.nodes)
    found: list[Diagnosis] = [d for g in graphs for d in g.metadata.get(KEY, ())]
    assumed: list[str] = [a for g in graphs for a in g.metadata.get(ASSUMPTIONS, ())]
    for (kind, fix), alike in groupby(sorted(found, key=_rank), lambda d: (d.kind, d.fix)):
        of_kind = list(alike)
        output.line(f"{kind}: {len(of_kind)} of {norms} norms")
        for d in of_kind:
            output.line(f"  {d.node}: {d.problem}")
        output.line(f"  do: {fix}")
    if not found:
        output.line(f"{path.name if len(graphs) > 1 else graphs[0].name}: {norms} norms, nothing looks wrong")
    for assumption in assumed:
        output.line(f"assumption: {assumption}")
    data = {"norms": norms, "diagnoses": [asdict(d) for d in found], "assumptions": assumed}
    return output.Outcome(data, 1 if found else 0)


def _rank(d: Diagnosis) -> tuple[bool, str, str]:
    """Grave ones first, then those that are alike together."""
    return not d.is_grave, d.kind, d.fix


def _machine() -> output.Outcome:
    host = targets.parse("llvm")
    facts: dict[str, object] = {
        "renorm": renorm.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "vector registers": f"{host.vector_registers} of {host.vector_bytes} bytes",
        **{name: _version(name) for name in _PACKAGES},
    }
    obstacles = system.obstacles()
    output.table("this machine", ("", ""), list(facts.items()))
    if obstacles:
        output.line(f"networks cannot run on this machine: {'; '.join(obstacles)}")
    return output.Outcome(facts | {"supported": not obstacles, "obstacles": obstacles}, 3 if obstacles else 0)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
