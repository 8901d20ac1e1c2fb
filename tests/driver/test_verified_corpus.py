"""The whole corpus of tests through verify=True: no rewrite is over its budget, and no pass is taken back.

Of the samples of ops every tenth is taken, and all of them where slow tests run.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from tests.exhaustive import one_of
from tests.frontends.backend_cases import collect, is_defined, with_constants
from tests.frontends.models import DIGITS
from tests.ops.one_node import OneNode
from tests.passes.networks import networks
from tests.shared_files import shared

import renorm
from renorm.core.dtypes import is_float
from renorm.core.errors import InvalidInput, OperandError, UnsupportedOp
from renorm.core.tolerance import tolerance
from renorm.graph import registry
from renorm.graph.ir import Graph
from renorm.passes.pipeline import optimize
from renorm.runtime.report import Report

ROOT = Path(__file__).parents[2]
PART = 10


def objections(report: Report, most: float = 1e-5) -> list[str]:
    """What was taken back, and norms whose measured error is more than a rewrite may cost."""
    told = [f"{rule} at {node}: {reason}" for rule, node, reason in report.refusals if reason.startswith("reverted")]
    return told + [f"{n.name}: {n.max_error:.2g}" for n in report.norms if n.max_error and n.max_error > most]


def check(graph: Graph) -> list[str]:
    return objections(optimize(graph.copy(), verify=True)[1])


def samples(part: int, of: int) -> Iterator[tuple[str, Graph]]:
    at = 0
    for op in registry.all_ops():
        for i, sample in enumerate(op.samples):
            at += 1
            if at % of == part:
                yield f"{op.name} {i}", OneNode(op, sample).graph


def refused(cases: Iterator[tuple[str, Graph]]) -> dict[str, list[str]]:
    """Objections by case; those that nobody can compute on random numbers count as none."""
    found: dict[str, list[str]] = {}
    for name, graph in cases:
        try:
            told = check(graph)
        except InvalidInput as error:
            told = [] if "cannot compute it on random inputs" in str(error) else [str(error)]
        if told:
            found[name] = told
    return found


def test_samples_of_ops() -> None:
    assert refused(samples(0, PART)) == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(1, PART))
def test_other_samples_of_ops(part: int) -> None:
    assert refused(samples(part, PART)) == {}


@cache
def conformance() -> list[Any]:
    return [c for c in collect() if is_defined(c.model)]


def conforming(part: int, of: int) -> Iterator[tuple[str, Graph]]:
    for case in conformance()[part::of]:
        model, _ = with_constants(case, case.sets[0][0] if case.sets else [])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield case.name, renorm.read(model)
        except UnsupportedOp:
            continue
        except OperandError:  # what ONNX's Attention says beyond ours is refused when it is read
            assert case.name.startswith("test_attention"), case.name


@pytest.mark.slow
@pytest.mark.parametrize("part", one_of(PART, range(PART)))
def test_conformance_cases(part: int) -> None:
    assert refused(conforming(part, PART)) == {}


@settings(deadline=None, max_examples=15)
@given(networks())
def test_random_networks(network: Any) -> None:
    assert check(network[0]) == []


def cases_of_norms(seeds: range) -> dict[int, list[str]]:
    """Those without constants below the normal numbers, which have few digits: folds of these are taken back."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from tests.passes.folding.cases import numbered

    found: dict[int, list[str]] = {}
    for seed in seeds:
        case = numbered(seed)
        graph = renorm.read(case.build()[0].model())
        floats = [v.data for v in graph.constants.values() if v.data is not None and is_float(v.dtype)]
        if not any((np.abs(c) < np.finfo(np.float32).tiny)[c != 0].any() for c in floats):
            report = optimize(graph, verify=True)[1]
            if told := objections(report, tolerance(case.dtype)):
                found[seed] = told
    return found


def test_cases_of_norms() -> None:
    assert cases_of_norms(range(20)) == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("hundred", range(4))
def test_more_cases_of_norms(hundred: int) -> None:
    assert cases_of_norms(range(100 * hundred + 20, 100 * hundred + 120)) == {}


def test_the_digits_network_compiled() -> None:
    m = renorm.compile(DIGITS / "model.onnx", shapes={"pixels": (2, 1, 8, 8)}, verify=True)
    assert objections(m.report) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ultra_light_rfb_320.onnx", "tiny_resnet8.tflite"])
def test_trained_networks_compiled(name: str) -> None:
    m = renorm.compile(shared(f"models/{name}"), verify=True)
    assert objections(m.report) == []


_EXPORT = """
import sys, warnings
warnings.simplefilter("ignore")
import torch
from dataclasses import replace
from benchmarks import networks
folder, *names = sys.argv[1:]
for name in names:
    network = networks.NETWORKS[name]
    n, c, *extents = network.shape
    side = 75 if name == "inception_v3" else 32
    shape = (1, c, *(e if e == 1 else side for e in extents))
    torch.onnx.export(networks.trained(replace(network, shape=shape)), (torch.randn(shape),), f"{folder}/{name}.onnx",
        input_names=["x"], output_names=["y"], opset_version=17, dynamo=False, do_constant_folding=False,
        training=torch.onnx.TrainingMode.PRESERVE)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    one_of(
        3,
        [
            ["se_resnet101_ibn", "dcgan", "shufflenet_v2"],
            ["resnet50", "unet", "resnext50", "mobilenet_v2", "efficientnet_b0"],
            ["densenet121", "inception_v3", "style_transfer"],
        ],
    ),
    ids=lambda names: names[0],
)
def test_networks_of_the_benchmarks_when_they_are_small(names: list[str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    subprocess.run([sys.executable, "-c", _EXPORT, str(tmp_path), *names], check=True, cwd=ROOT)
    assert refused((name, beginning(renorm.read(tmp_path / f"{name}.onnx"))) for name in names) == {}


def beginning(graph: Graph, most: int = 250) -> Graph:
    """The graph up to the last image among its first nodes: deep networks repeat themselves."""
    if len(graph.nodes) > most:
        graph.outputs = [next(n.output for n in reversed(graph.nodes[:most]) if n.output.rank == 4)]
    return graph


@pytest.mark.slow
def test_known_architectures(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.driver.architectures", str(tmp_path)], check=True, cwd=ROOT
    )
    files = sorted(tmp_path.glob("*.onnx"))
    assert len(files) > 10
    assert refused((f.stem, renorm.read(f)) for f in files) == {}
