"""Random networks as machine code, at every level, against ONNX Runtime and the interpreter in float64.

A failure names its seed. To look at one network; to try it in every way; to go on for long, a few ways each:

    python -m tests.driver.test_random_networks show 17
    python -m tests.driver.test_random_networks try 17
    python -m tests.driver.test_random_networks fuzz 1000 2000

and with `vision` behind these numbers, the same of transformers of images.
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
from tests.driver.random_networks import RandomNetwork, network, vision
from tests.passes.networks import networks

import renorm
from renorm.core.difference import judge
from renorm.core.tolerance import tolerance
from renorm.driver.module import SpecializingModule
from renorm.graph import interpret
from renorm.ops.schedules import nesting
from renorm.ops.schedules.nesting import PARALLEL_FROM
from renorm.passes.sensitivity import Sensitivity
from renorm.runtime.report import FATES

Array = np.ndarray[Any, Any]
TOLERANCE = tolerance("float32")
LEVELS = (0, 1, 2, 3)
SENSITIVE = 0.1  # of all networks, at most, are judged by what their own rounding moves; 2 of the first 30 are


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


@dataclasses.dataclass
class Oracle:
    """What a network gives in float64, rounded once. is_sensitive: something was judged by what the network's own
    rounding moves, because it was off by more than float32 allows."""

    expected: list[Array]
    sensitivity: Sensitivity
    is_sensitive: bool = False

    @staticmethod
    def of(n: RandomNetwork) -> Oracle:
        graph = renorm.read(n.model, shapes={name: a.shape for name, a in n.feeds.items()})
        return Oracle(interpret.run(graph, n.feeds), Sensitivity.of(graph, n.feeds))

    def differs(self, ours: list[Array]) -> str:
        """How, or nothing."""
        if len(ours) != len(self.expected):
            return f"{len(ours)} outputs, not {len(self.expected)}"
        for i, (a, b) in enumerate(zip(ours, self.expected)):
            if a.shape != b.shape or a.dtype != b.dtype:
                return f"output {i} is {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}"
            if judge(a, b, TOLERANCE).agrees:
                continue
            self.is_sensitive = True
            judged = judge(a, b, TOLERANCE, self.sensitivity.movements(i))
            if not judged.agrees:
                return f"output {i} is off by {judged.error:.2e} of its largest value at {judged.worst}"
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


def is_empty(n: RandomNetwork) -> bool:
    """Whether nothing goes in: ONNX Runtime reduces empty values to wrong shapes."""
    return any(not a.size for a in n.feeds.values())


def compiled(n: RandomNetwork, setting: Setting) -> Any:
    least = 0 if setting.shared else PARALLEL_FROM
    with mock.patch.object(nesting, "PARALLEL_FROM", least):
        m = renorm.compile(
            n.model, opt_level=setting.level, keep=setting.keep, threads=setting.threads, target=setting.target
        )
        if isinstance(m, SpecializingModule):  # symbolic extents: one more module, for these inputs
            m.run(**n.feeds)
            return m.specialized(**{name: a.shape for name, a in n.feeds.items()})
    return m


def complaints(
    n: RandomNetwork, oracle: Oracle, settings: tuple[Setting, ...], *, folder: Path | None = None
) -> Iterator[str]:
    """What is wrong with the compiled forms of a network. folder: where to save and load, and to write the optimised
    file."""
    if not is_empty(n) and (wrong := oracle.differs(onnx_runtime(n.model, n.feeds))):
        yield f"ONNX Runtime: {wrong}"
    kernels: dict[int, int] = {}
    for setting in settings:
        level, keep = setting.level, setting.keep
        try:
            m = compiled(n, setting)
            ours = m.run(**n.feeds)
            wrong = oracle.differs(ours)
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
                wrong = "" if is_empty(n) else oracle.differs(onnx_runtime(folder / "folded.onnx", n.feeds))
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


def check(n: RandomNetwork, settings: tuple[Setting, ...], folder: Path | None = None) -> bool:
    """Whether the network was judged by its own sensitivity."""
    oracle = Oracle.of(n)
    wrong = list(complaints(n, oracle, settings, folder=folder))
    assert not wrong, "\n".join([str(n), *wrong])
    return oracle.is_sensitive


@pytest.mark.parametrize("first", range(3))
def test_random_files(first: int) -> None:
    seeds = range(10 * first, 10 * first + 10)
    sensitive = [seed for seed in seeds if check(network(seed), (SETTINGS[seed % len(SETTINGS)],))]
    assert len(sensitive) <= SENSITIVE * len(seeds)


@pytest.mark.parametrize("first", range(2))
def test_random_transformers_of_images(first: int) -> None:
    seeds = range(10 * first, 10 * first + 10)
    sensitive = [seed for seed in seeds if check(vision(seed), (SETTINGS[seed % len(SETTINGS)],))]
    assert len(sensitive) <= SENSITIVE * len(seeds)


def test_not_a_number_and_infinities_come_out_where_the_definition_has_them() -> None:
    """One element of each input; with Winograd's convolutions they spread over a tile, see docs/semantics.md."""
    for seed in range(12):
        n = network(seed)
        for x in n.feeds.values():
            x.reshape(-1)[seed % x.size : x.size : 10**9] = (np.nan, np.inf, -np.inf)[seed % 3]
        oracle = Oracle.of(n)
        m = renorm.compile(n.model, opt_level=seed % 4, precision="exact", threads=1)
        assert not oracle.differs(m.run(**n.feeds)), n


@pytest.mark.parametrize("seed", range(100, 103))
def test_a_random_file_in_every_way(seed: int, tmp_path: Path) -> None:
    check(network(seed), SETTINGS, tmp_path)


def compare(drawn: Any, level: int, keep: tuple[str, ...]) -> None:
    g, inputs = drawn
    sensitivity = Sensitivity.of(g, dict(zip((v.name for v in g.inputs), inputs, strict=True)))
    m = renorm.compile(g, opt_level=level, keep=keep)
    for i, (v, ours, theirs) in enumerate(zip(g.outputs, m.run(*inputs), interpret.run(g, inputs), strict=True)):
        assert ours.dtype == theirs.dtype
        assert judge(ours, theirs, tolerance(v.dtype), sensitivity.movements(i)).agrees


DRAWN = (st.sampled_from(LEVELS), st.sampled_from([(), ("batch_norm",)]))


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(networks(), *DRAWN)
def test_compiled_graphs_give_the_numbers_of_the_interpreter(drawn: Any, level: int, keep: tuple[str, ...]) -> None:
    compare(drawn, level, keep)


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(networks("float32"), *DRAWN)
def test_many_compiled_graphs(drawn: Any, level: int, keep: tuple[str, ...]) -> None:
    compare(drawn, level, keep)


def main(verb: str, *numbers: str) -> None:
    make = vision if numbers[-1] == "vision" else network
    first, last = (*(int(n) for n in numbers if n != "vision"), 0)[:2]
    if verb == "show":
        print(make(first))
        return
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, (last or first) + (verb == "try")):
            print(f"seed {seed}", file=sys.stderr, end="\r", flush=True)
            some = SETTINGS if verb == "try" else [SETTINGS[(seed + k) % len(SETTINGS)] for k in (0, 4, 7)]
            try:
                n = make(seed)
                for wrong in complaints(n, Oracle.of(n), tuple(some), folder=Path(folder)):
                    print(f"seed {seed}: {wrong}", flush=True)
            except Exception:
                print(f"seed {seed}: {traceback.format_exc()}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
