"""Subjects of a replay: benchmark networks, models and kernels of examples/, small networks, and every op alone.

    file NAME      models/NAME.onnx: benchmark networks, known architectures (small), random networks, examples/
    op NAME        each sample of an op, as a graph of one node
    kernels NAME   the kernels that examples/NAME.py builds of tensor expressions

Files are made once: two commits compile the same ones. Ops and kernels are each commit's own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import renorm
from benchmarks.machine import ROOT
from renorm import te
from renorm.core.dims import symbols_of
from renorm.driver import build
from renorm.frontends import read
from renorm.graph import registry
from renorm.graph.ir import Graph
from renorm.tir.nodes import Kernel

EXPORTED = ROOT / "build" / "benchmarks"  # where benchmarks.run looks for networks, too
EXAMPLES = ROOT / "examples"
RANDOM = range(60)  # seeds of tests.driver.random_networks
OPEN = 2  # every open extent


def make_files(models: Path, tell: Callable[[str], None]) -> None:
    """Writes the models that are not there yet. Needs PyTorch."""
    import onnx
    from tests.driver import architectures, random_networks

    from benchmarks import networks

    def made(name: str, make: Callable[[Path], object]) -> None:
        path = models / f"{name}.onnx"
        if not path.exists():
            tell(f"making {name}")
            part = path.with_suffix(".part")
            make(part)
            part.rename(path)

    def small(name: str, path: Path) -> None:
        with TemporaryDirectory(dir=models) as folder:
            architectures.export(name, Path(folder))
            (Path(folder) / f"{name}.onnx").rename(path)

    def fixed(network: random_networks.RandomNetwork) -> onnx.ModelProto:
        """Open extents get those of its arrays: some are right for these alone."""
        for given in network.model.graph.input:
            shape = network.feeds[given.name].shape if given.name in network.feeds else ()  # not of an initializer
            for dim, extent in zip(given.type.tensor_type.shape.dim, shape):
                dim.dim_value = extent
        return network.model

    models.mkdir(parents=True, exist_ok=True)
    for name in networks.NETWORKS:
        made(name, lambda path, name=name: shutil.copyfile(networks.export(name, EXPORTED)[0], path))
    for path in EXAMPLES.glob("*/*.onnx"):
        made(f"{path.parent.name}_{path.stem}", lambda to, path=path: shutil.copyfile(path, to))
    for name in architectures.NETWORKS:
        made(f"small_{name}", lambda path, name=name: small(name, path))
    for seed in RANDOM:
        made(f"random_{seed}", lambda path, seed=seed: onnx.save(fixed(random_networks.network(seed)), path))


def names(models: Path) -> list[str]:
    """Return all subjects, the longest first."""
    files = sorted(models.glob("*.onnx"), key=lambda path: -path.stat().st_size)
    examples = [path.stem for path in sorted(EXAMPLES.glob("*.py")) if "create_schedule" in path.read_text()]
    ops = sorted(op.name for op in registry.all_ops() if registry.is_own(op))
    return [f"file {p.stem}" for p in files] + [f"op {name}" for name in ops] + [f"kernels {name}" for name in examples]


def graphs(subject: str, models: Path) -> Iterator[tuple[str, Graph]]:
    """Yield the graphs of a file or an op, by names that no other has."""
    kind, _, name = subject.partition(" ")
    if kind == "file":
        graph = read(models / f"{name}.onnx", is_mapped=True)
        yield subject, graph.copy({s: OPEN for v in graph.inputs for d in v.shape for s in symbols_of(d)})
    elif kind == "op":
        from tests.ops.one_node import OneNode

        op = next(op for op in registry.all_ops() if op.name == name)
        for i, sample in enumerate(op.samples):
            yield f"{subject} {i}", OneNode(op, sample).graph


def kernels(subject: str) -> list[Kernel]:
    """Return the kernels that an example builds: its `main` is run for that."""
    kind, _, name = subject.partition(" ")
    if kind != "kernels":
        return []
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    built = list[Kernel]()

    def record(s: te.Schedule, args: Sequence[te.Tensor], target: str | None = None) -> Any:
        loops = build.lower(s, args)
        assert isinstance(loops, build.Loops)
        built.append(loops.kernel)
        return build.build(loops, target=target)

    with patch.object(renorm, "build", record), contextlib.redirect_stdout(io.StringIO()):
        spec.loader.exec_module(module)
        module.main()
    return built
