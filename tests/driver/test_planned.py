"""Plans of networks in parts, against what compiling makes of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from tests.driver.test_glue import LOOP, TAIL, behind, pasted
from tests.frontends.models import model
from tests.frontends.test_hosted import CHOICE, NESTED
from tests.random_numbers import RNG

import renorm
from renorm.cli import main
from renorm.core import system
from renorm.core.errors import InvalidInput, InvalidTarget
from renorm.driver.compile import planned
from renorm.driver.host_part import HostPart
from renorm.driver.hosted import HostedModule
from renorm.driver.planned import CODE, HOST, LATER, PlannedPart

pytestmark = pytest.mark.usefixtures("kept_code")


def made(module: HostedModule, before: str = "") -> dict[str, tuple[bool, list[str]]]:
    """Return the parts of a compiled network: whether the host runs them, and their kernels."""
    found = dict[str, tuple[bool, list[str]]]()
    for name, modules in module.parts.items():
        for m in modules[:1]:
            if isinstance(m, HostedModule):
                inner = {k.removeprefix(f"{m.name}."): v for k, v in made(m).items()}
                found |= {f"{before}{name}/{k}": v for k, v in inner.items()}
            else:
                found[before + name] = isinstance(m, HostPart), [k.name for k in m.report.kernels]
    return found


@pytest.mark.parametrize(
    "source",
    [pasted, behind, lambda: model(LOOP), lambda: model(CHOICE), lambda: model(NESTED)],
    ids=["pasted", "behind", "loop", "choice", "nested"],
)
def test_what_is_said_is_what_compiling_makes(source: Callable[[], onnx.ModelProto]) -> None:
    parts, plan = planned(source())
    assert plan is not None
    module = renorm.compile(source(), threads=1)
    assert isinstance(module, HostedModule)
    assert plan.outputs == module.plan.outputs
    assert plan.results == module.plan.results
    said = {p.name: (p.by == HOST, [k.name for k in p.report.kernels]) for p in parts if p.by != LATER}
    assert said == made(module)


def _by(parts: list[PlannedPart]) -> dict[str, list[str]]:
    return {by: sorted(n.op.name for p in parts for n in p.nodes if p.by == by) for by in (CODE, HOST, LATER)}


def test_who_runs_which_nodes() -> None:
    parts, _ = planned(behind())
    by = _by(parts)
    assert by[HOST] == ["add", "relu", "slice", "tanh"]
    assert by[LATER] == ["conv", "conv"]
    assert by[CODE].count("conv") == 1
    assert all("data decide begin.0" in p.why for p in parts if p.by == HOST)
    assert not any(p.why for p in parts if p.by != HOST)
    assert [len(p.report.kernels) for p in parts if p.by == LATER] == [1, 1]


def test_a_network_that_kernels_are_told_the_counts_of() -> None:
    parts, plan = planned(model(TAIL))
    assert plan is None
    assert [p.by for p in parts] == [CODE]
    assert parts[0].report.kernels


# states of another rank in each round
RANKS = """g (float[2] x) => (float[A] y) <bool t = {1}, int64[1] zero = {0}, float top = {9}, int64[1] neg = {-1}> {
    z = Loop(, t, x) <body = b (int64 i, bool c, float a) => (bool d, float e) {
        e = Unsqueeze(a, zero) m = ReduceSum<keepdims = 0>(e) d = Less(m, top) }>
    y = Reshape(z, neg) }"""


def test_what_only_calls_tell(tmp_path: Path) -> None:
    parts, _ = planned(model(RANKS))
    assert [(p.name, p.by) for p in parts] == [("before", CODE), ("Loop_0.body", ""), ("after", "")]
    onnx.save(model(RANKS), tmp_path / "m.onnx")
    assert re.search("Loop_0.body +its types are known once the network runs", _verb("inspect", tmp_path / "m.onnx"))
    assert [p["by"] for p in json.loads(_verb("inspect", tmp_path / "m.onnx", "--json"))["parts"]] == [CODE, "", ""]


def test_on_a_machine_that_cannot_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "obstacles", lambda: ["this is a test"])
    with pytest.raises(InvalidTarget, match="inspect work here"):
        renorm.compile(pasted())
    assert [p.by for p in planned(pasted())[0]] == [CODE, HOST]
    assert planned(model(TAIL))[1] is None
    with pytest.raises(InvalidInput, match="opt_level is 7"):
        planned(pasted(), opt_level=7)


@pytest.mark.parametrize(
    "given",
    [{"shapes": [1]}, {"shapes": {"x": 4}}, {"inputs": 3}, {"keep": [3]}, {"keep": 3}, {"target": 3}, {"limits": 3}],
)
def test_arguments_of_another_kind(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises((InvalidInput, InvalidTarget), match=name):
        renorm.compile(pasted(), **given)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(pasted(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def _verb(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output + result.stderr
    return result.stdout


def test_inspect(path: Path) -> None:
    told = json.loads(_verb("inspect", path, "--json"))
    start, host = told["parts"]
    assert (start["name"], start["by"], start["why"]) == ("g.start", CODE, "")
    assert (host["name"], host["by"], host["ops"]["resize"]) == ("g.host0", HOST, 1)
    assert "%big" in host["why"]
    assert told["obstacle"] == host["why"]
    assert told["ops"] == {op: start["ops"].get(op, 0) + host["ops"].get(op, 0) for op in told["ops"]}
    assert start["kernels"]
    assert not host["kernels"]
    text = _verb("inspect", path, "--graph")
    assert "it runs in 2 parts" in text
    assert "the host runs g.host0, because g does not compile" in text
    assert "output box i64[4]" in text
    assert "conv" in text.partition("ops\n")[0]


def test_other_verbs(path: Path) -> None:
    assert json.loads(_verb("check", path, "--json"))["agrees"]
    assert json.loads(_verb("check", path, "--reference", "interpreter", "--json"))["agrees"]
    assert json.loads(_verb("run", path, "--json"))["outputs"][0]["name"] == "y"
    parts = json.loads(_verb("profile", path, "--repeats", 1, "--json"))["parts"]
    assert [p["name"] for p in parts] == ["g.start", "g.host0"]
    _verb("compile", path, code=2)
    assert "0 norms, nothing looks wrong" in _verb("doctor", path)


NORMED = """g (float[2, 3, 5, 4] x) => (float[2, 3, 5, 4] y) <bool t = {1}, float top = {40}> {
    h = BatchNormalization(x, s, b, m, v)
    y = Loop(, t, h) <body = body (int64 i, bool c, float[2, 3, 5, 4] a) => (bool d, float[2, 3, 5, 4] e) {
        e = Add(a, a) q = Abs(e) r = ReduceSum<keepdims = 0>(q) d = Less(r, top) }> }"""


def test_the_doctor_looks_into_parts(tmp_path: Path) -> None:
    fine: dict[str, Any] = {n: RNG.normal(size=3).astype(np.float32) for n in "sbm"} | {"v": np.ones(3, np.float32)}
    for name, v in (("fine", fine["v"]), ("wrong", np.array([1, -2, 1], np.float32))):
        onnx.save(model(NORMED, fine | {"v": v}), tmp_path / f"{name}.onnx")
    assert "1 norms, nothing looks wrong" in _verb("doctor", tmp_path / "fine.onnx")
    assert "variance" in _verb("doctor", tmp_path / "wrong.onnx", code=1)
