"""Random networks as machine code, at every level, against ONNX Runtime and the interpreter in float64.

A failure names its seed. To look at one network; to try it in every way; to go on for long, a few ways each:

    python -m tests.driver.test_random_networks show 17
    python -m tests.driver.test_random_networks try 17
    python -m tests.driver.test_random_networks fuzz 1000 2000
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.driver.random_networks import RandomNetwork, network
from tests.passes.networks import networks

import renorm
from renorm.graph import interpret
from renorm.ops.schedules import cpu_injective
from renorm.ops.schedules.cpu_injective import PARALLEL_FROM
from renorm.runtime.report import FATES

Array = np.ndarray[Any, Any]
TOLERANCE = 1e-4  # of the largest output
LEVELS = (0, 1, 2, 3)
# float32 rounds each node's result; a network whose own rounding moves its outputs this far is no oracle
CONDITION = 2e-5


@dataclasses.dataclass(frozen=True)
class Setting:
    """shared: work is handed to threads however little there is of it, as in large networks."""

    level: int
    keep: tuple[str, ...] = ()
    threads: int = 1
    target: str = "llvm"
    shared: bool = False


SETTINGS = (
    *(Setting(level) for level in LEVELS),
    Setting(3, threads=2, shared=True),
    Setting(0, shared=True),
    Setting(0, keep=("batch_norm",)),
    Setting(1, keep=("batch_norm",)),
    Setting(2, keep=("batch_norm",), threads=2),
    Setting(3, keep=("batch_norm",)),
    Setting(3, target="llvm -mcpu=haswell"),
    Setting(0, target="llvm -mcpu=haswell", threads=2, shared=True),
)


def differs(ours: list[Array], theirs: list[Array]) -> str:
    """How, or nothing."""
    if len(ours) != len(theirs):
        return f"{len(ours)} outputs, not {len(theirs)}"
    for i, (a, b) in enumerate(zip(ours, theirs)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {i} is {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}"
        scale = max(float(np.abs(b).max(initial=0)), 1e-30)
        error = float(np.abs(a.astype(np.float64) - b).max(initial=0)) / scale
        if not error <= TOLERANCE:
            return f"output {i} is off by {error:.2e} of its largest value"
    return ""


def onnx_runtime(model: onnx.ModelProto | Path, feeds: dict[str, Array]) -> list[Array]:
    """What ONNX Runtime gives; without its own rewrites where one of them fails."""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    try:
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"]).run(None, feeds)
    except Exception:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"]).run(None, feeds)


def oracle(n: RandomNetwork) -> tuple[list[Array], str]:
    """Outputs in float64, and how ONNX Runtime differs from them; raises where the network says nothing because
    rounding alone moves its outputs."""
    graph = renorm.read(n.model, shapes={name: a.shape for name, a in n.feeds.items()})
    exact = interpret.run(graph, n.feeds)
    rounded = interpret.run(graph, n.feeds, rounded=True)
    for a, b in zip(exact, rounded):
        if np.abs(a - b).max(initial=0) > CONDITION * np.abs(a).max(initial=0) or not np.isfinite(a).all():
            raise IllConditioned
    return exact, "" if is_empty(n) else differs(onnx_runtime(n.model, n.feeds), exact)


def is_empty(n: RandomNetwork) -> bool:
    """Whether nothing goes in: ONNX Runtime reduces empty values to wrong shapes."""
    return any(not a.size for a in n.feeds.values())


class IllConditioned(Exception):
    pass


def compiled(n: RandomNetwork, setting: Setting) -> Any:
    least = 0 if setting.shared else PARALLEL_FROM
    with mock.patch.object(cpu_injective, "PARALLEL_FROM", least):
        m = renorm.compile(
            n.model, opt_level=setting.level, keep=setting.keep, threads=setting.threads, target=setting.target
        )
        if hasattr(m, "specialized"):  # symbolic extents: one more module, for these inputs
            m.run(**n.feeds)
            return m.specialized(**{name: a.shape for name, a in n.feeds.items()})
    return m


def complaints(n: RandomNetwork, settings: tuple[Setting, ...], *, folder: Path | None = None) -> Iterator[str]:
    """What is wrong with the compiled forms of a network. folder: where to save and load, and to write the optimised
    file."""
    try:
        expected, wrong = oracle(n)
    except IllConditioned:
        return
    if wrong:
        yield f"ONNX Runtime: {wrong}"
    kernels: dict[int, int] = {}
    for setting in settings:
        level, keep = setting.level, setting.keep
        try:
            m = compiled(n, setting)
            ours = m.run(**n.feeds)
            wrong = differs(ours, expected)
            if wrong:
                yield f"{setting}: {wrong}"
                continue
            if any(not np.array_equal(a, b) for a, b in zip(ours, m.run(**n.feeds))):
                yield f"{setting}: a second run gives other numbers"
            yield from (f"{setting}: {c}" for c in _report(n, m, setting))
            if not keep and setting.target == "llvm":
                kernels[level] = len(m.report.kernels)
            if folder is not None and level == 3 and not keep:
                m.save(folder / "network.renorm")
                again = renorm.load(folder / "network.renorm", threads=setting.threads).run(**n.feeds)
                if any(not np.array_equal(a, b) for a, b in zip(ours, again)):
                    yield f"{setting}: saved and loaded, it gives other numbers"
        except Exception:
            yield f"{setting}: {traceback.format_exc()}"
    if {0, 2} <= kernels.keys() and kernels[2] > kernels[0]:
        yield f"{kernels[2]} kernels at level 2, {kernels[0]} at level 0"
    if folder is not None:
        for keep in ((), ("batch_norm",)):
            try:
                renorm.optimize(n.model, folder / "folded.onnx", keep=keep)
                onnx.checker.check_model(folder / "folded.onnx")
                wrong = "" if is_empty(n) else differs(onnx_runtime(folder / "folded.onnx", n.feeds), expected)
            except Exception:
                wrong = traceback.format_exc()
            if wrong:
                yield f"optimize, keep={keep}: {wrong}"


def _report(n: RandomNetwork, m: Any, setting: Setting) -> Iterator[str]:
    norms = m.report.norms
    for norm in norms:
        if norm.fate not in FATES:
            yield f"{norm.name}: fate {norm.fate!r}"
        if norm.fate != "folded" and not norm.reason:
            yield f"{norm.name}: {norm.fate} without a reason"
        if norm.kind == "batch_norm" and setting.keep and norm.fate != "unit" and norm.into:
            yield f"{norm.name}: {norm.fate}, though kept"
    raised = sum(bool(norm.raised) for norm in norms)  # out of pieces, or out of pieces and a norm of the file
    if not len(norms) - raised <= n.norms <= len(norms):
        yield f"{len(norms)} norms in the report, {raised} of them raised; {n.norms} in the file"
    if m.report.memory.arena < m.report.memory.lower_bound:
        yield f"an arena of {m.report.memory.arena} bytes below its bound of {m.report.memory.lower_bound}"


def check(n: RandomNetwork, settings: tuple[Setting, ...], folder: Path | None = None) -> None:
    wrong = list(complaints(n, settings, folder=folder))
    assert not wrong, "\n".join([str(n), *wrong])


@pytest.mark.parametrize("seed", range(30))
def test_a_random_file(seed: int) -> None:
    check(network(seed), (SETTINGS[seed % len(SETTINGS)],))


@pytest.mark.parametrize("seed", range(100, 103))
def test_a_random_file_in_every_way(seed: int, tmp_path: Path) -> None:
    check(network(seed), SETTINGS, tmp_path)


def compare(drawn: Any, level: int, keep: tuple[str, ...], tolerance: float) -> None:
    g, inputs = drawn
    expected = interpret.run(g, inputs)
    m = renorm.compile(g, opt_level=level, keep=keep)
    for ours, theirs in zip(m.run(*inputs), expected, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * max(1.0, np.abs(theirs).max(initial=0)))


DRAWN = (st.sampled_from(LEVELS), st.sampled_from([(), ("batch_norm",)]))


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(networks(), *DRAWN)
def test_compiled_graphs_give_the_numbers_of_the_interpreter(drawn: Any, level: int, keep: tuple[str, ...]) -> None:
    compare(drawn, level, keep, 1e-9)


@pytest.mark.slow
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(networks("float32"), *DRAWN)
def test_many_compiled_graphs(drawn: Any, level: int, keep: tuple[str, ...]) -> None:
    compare(drawn, level, keep, 1e-4)


def main(verb: str, first: str, last: str = "") -> None:
    if verb == "show":
        print(network(int(first)))
        return
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(int(first), int(last or first) + (verb == "try")):
            print(f"seed {seed}", file=sys.stderr, end="\r", flush=True)
            some = SETTINGS if verb == "try" else [SETTINGS[(seed + k) % len(SETTINGS)] for k in (0, 4, 7)]
            try:
                for wrong in complaints(network(seed), tuple(some), folder=Path(folder)):
                    print(f"seed {seed}: {wrong}", flush=True)
            except Exception:
                print(f"seed {seed}: {traceback.format_exc()}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
