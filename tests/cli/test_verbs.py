"""The verbs of the command line: what they print, write, and leave with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import helper, parser
from tests.frontends import onnx_runtime

import renorm
from renorm.cli import main
from renorm.cli.group import VERBS
from renorm.codegen import structural_hash
from renorm.driver import compare as comparing
from renorm.driver import kernels
from renorm.driver.disturbance import Disturbance
from renorm.driver.measure import Comparison, Measured, side_by_side
from renorm.graph.ir import Graph

pytestmark = pytest.mark.usefixtures("kept_code")

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "examples" / "digits" / "model.onnx"
FIXED = ("--shape", "pixels=2x1x8x8")


def run(*arguments: Any, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output + result.stderr
    return result


def run_json(*arguments: Any, code: int = 0) -> dict[str, Any]:
    """The one JSON object on standard output."""

    def refused(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(run(*arguments, "--json", code=code).stdout, parse_constant=refused)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compiled") / "digits.renorm"
    run("compile", MODEL, "-o", path, *FIXED, "--threads", 1)
    return path


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with an op that does not exist."""
    m = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "no" : 1]> g (float[2] x) => (float[2] y) { y = no.Such(x) }'
    )
    path = tmp_path_factory.mktemp("broken") / "broken.onnx"
    path.write_bytes(m.SerializeToString())
    return path


def test_compile_writes_an_artifact_that_loads(artifact: Path) -> None:
    x = np.zeros((2, 1, 8, 8), np.float32)
    theirs = onnx_runtime.run(MODEL, x)[0]
    (ours,) = renorm.load(artifact, threads=1).run(x)
    np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max())


def test_compile_leaves_the_model_alone(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(MODEL.read_bytes())
    said = run("compile", model, "-o", tmp_path / "." / "m.onnx", *FIXED, code=2)
    assert "is the model itself" in said.stderr
    assert model.read_bytes() == MODEL.read_bytes()


def test_compile_says_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RENORM_CACHE_DIR", str(tmp_path / "cache"))  # other tests' has kernels of this network
    found = run_json("compile", MODEL, "-o", tmp_path / "m.renorm", *FIXED, "--keep", "batch_norm", "--opt-level", 2)
    norms = [n for n in found["report"]["norms"] if n["kind"] == "batch_norm"]
    assert [n["fate"] for n in norms] == ["unit"] * 7
    assert any("batch_norm" in k["name"] for k in found["report"]["kernels"])
    assert Path(found["artifact"]).exists()
    assert list(found["seconds"]) == ["read", "passes", "schedule", "code", "assemble", "write"]
    code = found["report"]["code"]
    assert 0 < code["unique"] == code["compiled"] <= len(found["report"]["kernels"])


def test_compiling_again_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RENORM_CACHE", "0")
    assert run_json("cache")["directory"] is None
    assert "RENORM_CACHE says so" in run("cache").stdout
    monkeypatch.setenv("RENORM_CACHE", "1")
    monkeypatch.setattr(kernels, "_SOURCES", "sources")  # also while somebody edits them
    monkeypatch.setattr(structural_hash, "SOURCES", "sources")
    monkeypatch.setenv("RENORM_CACHE_DIR", str(tmp_path / "cache"))
    arguments = ("compile", MODEL, "-o", tmp_path / "m.renorm", *FIXED)
    assert re.search(r"(\d+) different kernels: \1 compiled in \d processes, 0 from the cache", run(*arguments).stdout)
    assert "none compiled" in run(*arguments).stdout
    assert str(tmp_path / "cache") in run("cache").stdout
    held = run_json("cache")
    assert held["entries"] > held["bytes"] / held["at_most"] > 0
    assert run_json("cache", "--clear")["entries"] == held["entries"]
    assert run_json("cache")["entries"] == 0


def test_keep_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RENORM_KEEP", "/up_norm/BatchNormalization")
    norms = run_json("inspect", MODEL)["report"]["norms"]
    assert [n["name"] for n in norms if n["fate"] == "unit"] == ["/up_norm/BatchNormalization"]


def test_run_reads_and_writes_arrays(artifact: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", pixels=x)
    theirs = onnx_runtime.run(MODEL, x)[0]
    files = {"y": tmp_path / "x.npy", "y.txt": f"pixels={tmp_path / 'x.npy'}", "y.npz": tmp_path / "x.npz"}
    for name, given in files.items():
        out = tmp_path / name
        found = run_json("run", artifact, "--input", given, "-o", out, "--threads", 1)
        with np.load(out) as held:
            np.testing.assert_allclose(held["scores"], theirs, atol=1e-4 * np.abs(theirs).max())
        assert (found["random"], found["saved"]) == ([], str(out))
        assert found["outputs"][0]["shape"] == "2x10"
        assert found["outputs"][0]["max"] == pytest.approx(theirs.max(), rel=1e-4)


def test_run_draws_inputs_that_are_not_given(artifact: Path) -> None:
    assert "random input: pixels (seed 3)" in run("run", artifact, "--seed", 3, "--threads", 1).stdout


def test_what_is_no_number_is_null(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[0, 2] x) => (float[0, 2] y) { y = Relu(x) }'
    onnx.save(parser.parse_model(text), tmp_path / "empty.onnx")
    (y,) = run_json("run", tmp_path / "empty.onnx", "--threads", 1)["outputs"]
    assert (y["min"], y["mean"], y["max"]) == (None, None, None)


def test_bench_prints_latency(artifact: Path) -> None:
    found = run_json("bench", artifact, "--seconds", 0.05, "--rounds", 2, "--threads", 1)
    (latency,) = found["latency_ms"]
    assert 0 < latency["least"] <= latency["median"] <= latency["p90"]
    assert found["shapes"] == {"pixels": [2, 1, 8, 8]}


def test_bench_measures_side_by_side(tmp_path: Path) -> None:
    brief = ("--seconds", 0.05, "--rounds", 2, "--threads", 1)
    found = run_json("bench", MODEL, *FIXED, "--against", "ort", *brief)
    assert [t["name"] for t in found["runtimes"]] == ["renorm", "ort"]
    for told, timed in zip(found["runtimes"], found["latency_ms"], strict=True):
        assert told["error"] < 1e-4
        assert told["peak_bytes"] > 2**20
        assert told["open_seconds"] > 0
        assert told["first_seconds"] > 0
        assert len(timed["rounds"]) == 2
    assert "ort" in run("bench", MODEL, *FIXED, "--against", "ort", *brief).stdout


def test_bench_prints_what_could_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(contenders: Any, *args: Any, **options: Any) -> Comparison:
        found = side_by_side(contenders[:1], *args, **options).measured
        lost = Measured("ort", None, failure="its process ended")
        return Comparison([*found, lost], (None, Disturbance(0.031, 0.0), Disturbance(0.0, 0.08)))

    monkeypatch.setattr("renorm.cli.bench.side_by_side", measured)
    brief = ("bench", MODEL, *FIXED, "--against", "ort", "--seconds", 0.01, "--rounds", 1, "--threads", 1)
    said = run(*brief).stdout
    assert "ort: its process ended" in said
    assert "disturbed in 2 rounds, at most by steal 0.0%, other processes 8.0%" in said
    assert [t["error"] for t in run_json(*brief)["runtimes"]] == [None, None]


def test_bench_fails_where_renorm_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(contenders: Any, *args: Any, **options: Any) -> Comparison:
        found = side_by_side(contenders[1:], *args, **options).measured
        return Comparison([Measured("renorm", None, failure="it needs a GPU"), *found], (None,))

    monkeypatch.setattr("renorm.cli.bench.side_by_side", measured)
    brief = ("bench", MODEL, *FIXED, "--against", "ort", "--seconds", 0.01, "--rounds", 1, "--threads", 1)
    assert "renorm: it needs a GPU" in run(*brief, code=1).stdout
    found = run_json(*brief, code=1)
    assert found["latency_ms"][0] is None
    assert found["latency_ms"][1]["median"] > 0


def test_bench_says_what_it_cannot_compare_with(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not a runtime to compare with" in run("bench", MODEL, *FIXED, "--against", "abacus", code=2).stderr
    assert "give the .onnx file" in run("bench", artifact, "--against", "ort", code=2).stderr
    torch = run("bench", MODEL, *FIXED, "--against", "torch", code=2).stderr
    assert ("give --torch FILE" if find_spec("torch") else "pip install torch") in torch
    monkeypatch.setattr("renorm.driver.measure.find_spec", lambda name: None)
    assert "pip install onnxruntime" in run("bench", MODEL, *FIXED, "--against", "ort", code=2).stderr


def test_profile_times_every_launch(artifact: Path) -> None:
    found = run_json("profile", artifact, "--repeats", 2, "--threads", 1)
    kernels = [k["name"] for k in run_json("inspect", artifact)["report"]["kernels"]]
    assert [launch["kernel"] for launch in found["launches"]] == kernels
    assert found["seconds"] == pytest.approx(sum(launch["seconds"] for launch in found["launches"]))
    assert found["network_seconds"] > 0
    assert found["limits"]["flops"] > found["limits"]["bytes"] > 0
    assert "of limit" in run("profile", MODEL, *FIXED, "--repeats", 2, "--threads", 1).stdout


def test_profile_writes_a_trace(artifact: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    found = run_json("profile", artifact, "--repeats", 2, "--threads", 1, "--trace", path)
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
    names = [e["name"] for e in events if e["cat"] == "kernel"]
    assert [name for name, _ in groupby(names)] == [launch["kernel"] for launch in found["launches"]]
    for event, following in pairwise(events):
        assert following["ts"] == pytest.approx(event["ts"] + event["dur"])
    flops = {e["name"]: e["args"]["work"]["flops"] for e in events if e["cat"] == "kernel"}
    assert max(flops.values()) > 1000


@pytest.mark.parametrize("reference", ["ort", "interpreter"])
def test_check_agrees(reference: str) -> None:
    found = run_json("check", MODEL, *FIXED, "--reference", reference, "--threads", 1)
    assert found["agrees"]
    assert found["reference"] == reference
    assert found["outputs"][0]["error"] < 1e-4


def test_check_has_the_error_of_each_value_that_is_held_in_bfloat16() -> None:
    found = run_json("check", MODEL, *FIXED, "--precision", "bfloat16")
    assert found["agrees"]
    assert all(h["l2"] < 0.05 and (h["reason"] or h["dtype"] == "bfloat16") for h in found["held"][:-1])
    assert "values as memory holds them" in run("check", MODEL, *FIXED, "--precision", "bfloat16").stdout
    told = run("inspect", MODEL, *FIXED, "--precision", "bfloat16").stdout
    assert "values between kernels" in told
    assert re.search("products run in float32|products of bfloat16 ", told)  # as the machine has it


@pytest.mark.parametrize("given", [("--inputs", "no.npz"), ("--draws", 2), ("--names",), ("--with", "ort")])
def test_check_of_one_file_takes_no_options_of_two(given: tuple[Any, ...]) -> None:
    assert f"{given[0]} is for two files" in run("check", MODEL, *given, code=2).stderr


def test_no_tolerance_is_nan() -> None:
    for option in ("-d", "--tolerance"):
        assert "a tolerance is" in run("check", MODEL, MODEL, option, "nan", code=2).stderr


def test_check_names_the_first_node_that_diverges() -> None:
    class Wrong:
        """An override whose compute is off by a tenth."""

        @staticmethod
        def compute(op: Any, x: Any) -> Any:
            return renorm.topi.maximum(x, 0.0) * 1.1

    renorm.override("relu", target="llvm", compute=Wrong.compute)
    try:
        printed = run("check", MODEL, *FIXED, "--threads", 1, code=1).stdout
        found = run_json("check", MODEL, *FIXED, "--threads", 1, code=1)
    finally:
        renorm.override("relu", target="llvm")
    assert "DIFFERS" in printed
    assert "first diverging node: '/Relu' (relu), relative error 0.1" in printed
    assert found["first"]["name"] == "/Relu"


def test_inspect_draws_the_graph_after_the_passes(artifact: Path, tmp_path: Path) -> None:
    run("inspect", MODEL, "--draw", tmp_path / "folded.dot")
    picture = (tmp_path / "folded.dot").read_text()
    assert '"instance_norm\\n' in picture
    assert '"batch_norm\\n' not in picture
    failed = run("inspect", artifact, "--draw", tmp_path / "none.mmd", code=2)
    assert "has no graph to draw" in failed.stderr
    failed = run("inspect", MODEL, "--draw", tmp_path / "none.png", code=2)
    assert "a drawing is not written to .png" in failed.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["folded.dot"]


def test_inspect_prints_the_fate_of_each_norm(artifact: Path) -> None:
    printed = run("inspect", MODEL, "--graph", "--refusals").stdout
    rows = {line.split()[0]: line for line in printed.splitlines() if "Normalization" in line and line[0] == "/"}
    assert len(rows) == 8
    assert "folded" in rows["/stem_norm/BatchNormalization"]
    assert "'/Relu_output_0' is also read by '/block/Add'" in rows["/block/norm1/BatchNormalization"]
    assert "graph main_graph(" in printed
    assert "pixels: f32[batch, 1, 8, 8]" in printed
    assert len(run_json("inspect", artifact)["report"]["norms"]) == 8


def test_inspect_shows_and_translates_the_convention_of_batch_norms(tmp_path: Path) -> None:
    """ONNX's momentum multiplies the old statistics: 0.75 there is 0.25 in PyTorch."""
    from onnx import TensorProto, helper

    rows = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3, 4]) for n in "xy"]
    ones = [helper.make_tensor(n, TensorProto.FLOAT, [3], [1.0] * 3) for n in ("s", "b", "m", "v")]
    node = helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], "n", momentum=0.75, epsilon=0.25)
    graph = helper.make_graph([node], "g", rows[:1], rows[1:], ones)
    path = tmp_path / "norm.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8), path)
    printed = run("inspect", path, "--convention", "torch").stdout
    assert "onnx: running = momentum * old + (1 - momentum) * batch" in printed
    assert re.search(r"1: n\s+stored ones\s+onnx\s+0.75\s+0.75 \* old \+ 0.25 \* batch\s+population\s+0.25", printed)
    assert re.search(r"torch\s+0.25\s+0.75 \* old \+ 0.25 \* batch\s+times n / \(n - 1\)\s+0.25", printed)
    (said,) = run_json("inspect", path, "--convention", "keras")["batch_norms"]
    assert said["keras"] == {"momentum": 0.75, "epsilon": 0.25, "running_var": "as it is"}
    assert (said["nodes"], said["convention"], said["is_training"]) == (["n"], "onnx", False)


def test_inspect_lists_what_is_nearly_a_norm(tmp_path: Path) -> None:
    g = Graph("near")
    x = g.input("x", "float32", (2, 3, 8))
    c = renorm.ops.sub(x, renorm.ops.reduce_mean(x, axes=(-1,)))
    root = renorm.ops.sqrt(renorm.ops.reduce_mean(renorm.ops.mul(c, c), axes=(-1,)))
    g.outputs = [renorm.ops.div(c, renorm.ops.add(root, np.float32(0.1)), name="quotient")]
    renorm.optimize(g, tmp_path / "near.onnx")
    printed = run("inspect", tmp_path / "near.onnx").stdout
    assert "nearly normalizations" in printed
    assert "epsilon stands outside the root: a norm adds it to the variance" in printed
    (near,) = run_json("inspect", tmp_path / "near.onnx")["report"]["near_norms"]
    assert (near["name"], near["kind"], len(near["nodes"])) == ("quotient", "layer_norm", 7)


def test_optimize_writes_a_model(tmp_path: Path) -> None:
    out = tmp_path / "folded.onnx"
    found = run_json("optimize", MODEL, out)
    onnx.checker.check_model(out, full_check=True)
    assert [n["fate"] for n in found["report"]["norms"]].count("folded") == 6
    assert [o.name for o in onnx.load(out).graph.output] == ["scores"]


def test_passes_are_listed() -> None:
    known = run_json("optimize", "--list-passes")["passes"]
    printed = run("optimize", "--list-passes").stdout
    assert "Drop" in known
    assert all(re.search(rf"(?m)^{name} ", printed) for name in known)
    assert run_json("optimize", MODEL, code=2)["error"]["headline"] == "MODEL or OUT is missing"


def test_demo() -> None:
    found = run_json("demo", "--threads", 1)
    assert found["accuracy"] > 0.97
    assert found["agrees"]
    assert found["reference"] == "ort"
    assert len(found["report"]["norms"]) == 8


def test_inspect_tells_error_growth_headroom_and_names() -> None:
    found = run_json("inspect", MODEL, *FIXED, "--verify")["report"]
    stem = found["norms"][0]
    assert stem["fate"] == "folded"
    assert stem["error"] == stem["max_error"] < 1e-6
    assert 0.1 < stem["growth"] < 100 < stem["headroom"]
    assert stem["float16"] == ""
    assert {c["node"] for c in stem["constants"]} == {*stem["into"]}
    assert found["names"]["scores"] == "scores"
    printed = run("inspect", MODEL, "--names").stdout
    row = next(line.split() for line in printed.splitlines() if line.startswith("/stem_norm/BatchNormalization"))
    assert row[4].startswith("~")
    assert row[5] == f"{stem['growth']:.3g}x"
    gone = next(name for name, now in found["names"].items() if now is None)
    assert re.search(rf"(?m)^{re.escape(gone)} +- *$", printed)


def test_doctor() -> None:
    assert run_json("doctor")["onnx"] == onnx.__version__


def test_doctor_of_a_model(tmp_path: Path) -> None:
    assert "8 norms, nothing looks wrong" in run("doctor", MODEL).stdout
    assert run_json("doctor", MODEL) == {"norms": 8, "diagnoses": [], "assumptions": []}
    model, ill = onnx.load(MODEL), 0
    for v in model.graph.initializer:
        if v.name.endswith("running_var"):
            var = onnx.numpy_helper.to_array(v).copy()
            ill += 1
            var[: 1 + ill % 2] = -1 if ill < 3 else var[: 1 + ill % 2]
            v.CopyFrom(onnx.numpy_helper.from_array(var, v.name))
    for node in model.graph.node[-8:]:
        for a in node.attribute:
            if a.name == "momentum":
                a.f = 0.1
    onnx.save(model, tmp_path / "ill.onnx")
    printed = run("doctor", tmp_path / "ill.onnx", code=1).stdout
    assert "negative variance: 2 of 8 norms" in printed
    assert printed.count("do: re-estimate") == 1  # what is alike is told once
    found = run_json("doctor", tmp_path / "ill.onnx", code=1)["diagnoses"]
    assert [d["is_grave"] for d in found if d["kind"] == "negative variance"] == [True, True]


def test_errors_have_codes_and_texts(broken: Path, tmp_path: Path) -> None:
    assert "UnsupportedOp: broken.onnx: node 'Such_0' is Such (no 1)" in run("inspect", broken, code=3).stderr
    error = run_json("inspect", broken, code=3)["error"]
    assert error["kind"] == "UnsupportedOp"
    assert error["do"].startswith("export without it")
    assert "InvalidModel" in run("inspect", tmp_path / "none.onnx", code=3).stderr
    assert "InvalidTarget" in run("compile", MODEL, "--target", "abacus", code=2).stderr
    assert "InvalidInput" in run("run", MODEL, "--input", "nowhere.npy", *FIXED, code=2).stderr
    for shape in ("pixels=1xx8", "pixels=1x-1", "pixels=a!b", "1x8", "=1x8"):
        assert "not of the form" in run("compile", MODEL, "--shape", shape, code=2).stderr
    (tmp_path / "junk.npz").write_bytes(b"PK\003\004zzz")
    (tmp_path / "junk.npy").write_bytes(b"")
    for file in (tmp_path / "junk.npz", tmp_path / "junk.npy"):
        for call in (("run", MODEL, "--input", file, *FIXED), ("restat", MODEL, file, "-o", tmp_path / "q.onnx")):
            error = run_json(*call, code=2)["error"]
            assert (error["kind"], str(file) in error["headline"]) == ("InvalidInput", True)
    (tmp_path / "bad.renorm").write_bytes(b"nothing")
    assert "InvalidArtifact" in run("run", tmp_path / "bad.renorm", code=4).stderr


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (("run", "--seed", -1), "-1 is not in the range"),
        (("run", "--limit", "nodes=-1"), "'nodes=-1' is not of the form nodes=1e15, a whole number, 0 or more"),
        (("run", "--limit", "nodes=nan"), "'nodes=nan' is not of the form"),
        (("bench", "--seconds", "nan"), "'nan' is not finite"),
        (("restat", "x.npy", "-o", "q.onnx", "--memory", "nan"), "'nan' is not finite"),
        (("restat", "x.npy", "-o", "q.onnx", "--memory", "inf"), "'inf' is not finite"),
    ],
)
def test_a_number_that_is_none_is_refused(call: tuple[Any, ...], why: str) -> None:
    verb, *more = call
    assert why in run(verb, MODEL, *more, "--json", code=2).stderr


@pytest.mark.parametrize("verb", ["run", "bench", "profile", "check", "inspect", "compile"])
def test_a_shape_that_does_not_fit_is_refused(verb: str) -> None:
    for shape, why in (("foo=1", "'foo' is not an input"), ("pixels=2x1x9x9", "pixels, axis 2: 9 where")):
        assert why in run(verb, MODEL, "--shape", shape, code=2).stderr


def test_open_extents_are_stated() -> None:
    """Names, multiples, ranges; what runs is of the least size."""
    for shape, extent in (("?x1x8x8", "batch"), ("n:2..9x1x8x8", "n"), ("4*m,1,8,8", "4*m"), ("3..64x1x8x8", "batch")):
        printed = run("inspect", MODEL, "--shape", f"pixels={shape}").stdout
        assert f"input pixels: f32[{extent}, 1, 8, 8]" in printed
    outputs = run_json("run", MODEL, "--shape", "pixels=3..64x1x8x8")["outputs"]
    assert outputs[0]["shape"] == "3x10"
    assert "which is not open" in run("inspect", MODEL, "--shape", "pixels=nxnx8x8", code=2).stderr


SIZES = ("--shape", "pixels=1x1x8x8", "--shape", "pixels=5x1x8x8")


@pytest.mark.parametrize("kind", ["model", "open", "fixed"])
def test_verbs_take_several_shapes(kind: str, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row for each, of one open module; of a file of fixed shapes an error."""
    if kind == "fixed":
        for verb in ("run", "bench", "profile"):
            assert "pixels, axis 0: 1 where the model has 2" in run(verb, artifact, *SIZES, code=2).stderr
        return
    subject = MODEL
    if kind == "open":
        subject = tmp_path / "open.renorm"
        run("compile", MODEL, "-o", subject)
        monkeypatch.setattr(renorm, "compile", None)
    shapes = [{"pixels": [1, 1, 8, 8]}, {"pixels": [5, 1, 8, 8]}]
    found = run_json("run", subject, *SIZES, "-o", tmp_path / "y.npz")
    assert [call["shapes"] for call in found["calls"]] == shapes
    assert [call["outputs"][0]["shape"] for call in found["calls"]] == ["1x10", "5x10"]
    with np.load(tmp_path / "y.npz") as held:
        assert {name: held[name].shape for name in held.files} == {"scores": (1, 10), "1/scores": (5, 10)}
    brief = ("--seconds", 0.02, "--rounds", 1, "--threads", 1)
    found = run_json("bench", subject, *SIZES, *brief)
    assert [call["shapes"] for call in found["calls"]] == shapes
    assert all(call["latency_ms"][0]["median"] > 0 for call in found["calls"])
    printed = run("profile", subject, *SIZES, "--repeats", 1, "--threads", 1).stdout
    assert [line.split()[0] for line in printed.splitlines() if line.startswith("pixels=")] == [
        "pixels=1x1x8x8",
        "pixels=5x1x8x8",
    ]
    calls = run_json("profile", subject, *SIZES, "--repeats", 1, "--threads", 1)["calls"]
    one, five = (sum(launch["work"]["flops"] for launch in call["launches"]) for call in calls)
    assert five == pytest.approx(5 * one, rel=0.01)
    assert "--trace shows one run" in run("profile", subject, *SIZES, "--trace", tmp_path / "t", code=2).stderr


def test_check_draws_what_nodes_can_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of open extents the least that a window fits into, with and without shapes that leave some open."""
    monkeypatch.chdir(tmp_path)
    text = """<ir_version: 8, opset_import: ["": 18]>
    net (float[1, 1, H, W] x) => (y) <float[1, 1, 3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}> { y = Conv(x, w) }"""
    onnx.save(parser.parse_model(text), "net.onnx")
    for shape, found in (
        ((), [1, 1, 3, 3]),
        (("--shape", "x=1x1x?x4"), [1, 1, 3, 4]),
        (("--shape", "x=1x1x5x6"), [1, 1, 5, 6]),
    ):
        assert run_json("check", "net.onnx", *shape)["shapes"]["x"] == found
    assert (
        run_json("check", "net.onnx", "net.onnx", "--with", "renorm")["outputs"][0]["before_type"] == "f32[1, 1, 1, 1]"
    )


def test_open_code_is_checked_at_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Any]()
    given = comparing.compile
    monkeypatch.setattr(comparing, "compile", lambda *args, **named: made.append(given(*args, **named)) or made[-1])
    found = run_json("check", MODEL, *SIZES, "--reference", "interpreter")
    assert found["agrees"]
    assert [call["shapes"]["pixels"][0] for call in found["calls"]] == [1, 5]
    assert [type(m).__name__ for m in made].count("OpenModule") == 1
    made.clear()
    assert run_json("check", MODEL, "--shape", "pixels=?x1x8x8", "--shape", "pixels=3x1x8x8")["agrees"]
    assert [type(m).__name__ for m in made].count("OpenModule") == 1
    printed = run("check", MODEL, *SIZES, "--reference", "interpreter").stdout
    assert "against interpreter at pixels=5x1x8x8" in printed

    class Wrong:
        """An override whose compute is off by a tenth."""

        @staticmethod
        def compute(op: Any, x: Any) -> Any:
            return renorm.topi.maximum(x, 0.0) * 1.1

    renorm.override("relu", target="llvm", compute=Wrong.compute)
    try:
        found = run_json("check", MODEL, *SIZES, code=1)
    finally:
        renorm.override("relu", target="llvm")
    assert [call["first"]["name"] for call in found["calls"]] == ["/Relu", "/Relu"]
    assert not found["agrees"]


def test_shapes_that_say_too_much_are_refused(artifact: Path) -> None:
    assert "pixels has 2 shapes" in run("compile", MODEL, *SIZES, code=2).stderr
    more = ("--shape", "other=1x2", "--shape", "other=2x2", "--shape", "other=3x2")
    assert "take their shapes in turn" in run("run", MODEL, *SIZES, *more, code=2).stderr
    ranks = ("--shape", "pixels=1x1x8x8", "--shape", "pixels=1x8x8")
    assert "different ranks" in run("run", MODEL, *ranks, code=2).stderr
    facts = ("--shape", "pixels=nx1x8x8", "--shape", "pixels=2*nx1x8x8")
    assert "two shapes with open extents" in run("bench", MODEL, *facts, code=2).stderr
    assert "two files are compared at one shape" in run("check", MODEL, MODEL, *SIZES, code=2).stderr


def test_inputs_become_constants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = """<ir_version: 8, opset_import: ["": 17]>
    net (float[N, 6] x, int64[2] to) => (float[A, B] y) { y = Reshape(x, to) }"""
    onnx.save(parser.parse_model(text), "net.onnx")
    given = ("--shape", "x=2x6", "--input", "to=[3,4]")
    assert "input x: f32[2, 6]" in run("inspect", "net.onnx", *given).stdout
    run("compile", "net.onnx", "-o", "net.renorm", *given)
    assert run_json("run", "net.renorm")["outputs"][0]["shape"] == "3x4"
    assert run_json("run", "net.onnx", *given)["outputs"][0]["shape"] == "3x4"
    assert run_json("check", "net.onnx", *given)["agrees"]
    run("profile", "net.onnx", *given)
    run("optimize", "net.onnx", "flat.onnx", "--input", "to=[12,-1]")
    assert [i.name for i in onnx.load("flat.onnx").graph.input] == ["x"]
    assert "to is int64[2]: it cannot be [1.5]" in run("compile", "net.onnx", "--input", "to=[1.5]", code=2).stderr
    assert "'z' is not an input" in run("compile", "net.onnx", "--input", "z=1", code=2).stderr
    assert "is not of the form" in run("compile", "net.onnx", "--input", "to=file.npy", code=2).stderr
    assert "cannot become constants" in run("run", "net.renorm", "--input", "to=[3,4]", code=2).stderr


def test_elements_of_inputs_that_decide_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = """<ir_version: 8, opset_import: ["": 18]>
    net (float[N, 6] x, int64[1] begin, int64[1] end) => (float[A, 6] y) { y = Slice(x, begin, end) }"""
    onnx.save(parser.parse_model(text), "net.onnx")
    np.save("begin.npy", np.asarray([2]))
    np.save("end.npy", np.asarray([5]))
    run("compile", "net.onnx", "-o", "net.renorm")
    told = run("inspect", "net.renorm").stdout
    assert "begin i64[1] = [begin.0]" in told
    assert "input begin: i64[1] = [begin.0]" in run("inspect", "net.onnx").stdout
    bounded = run("inspect", "net.onnx", "--input", 'end=["b:..9"]', "--input", "begin=[2]").stdout
    assert "input end: i64[1] = [b]" in bounded
    files = ("--input", "begin=begin.npy", "--input", "end=end.npy", "--shape", "x=7x6")
    for file in ("net.onnx", "net.renorm"):
        assert run_json("run", file, *files)["outputs"][0]["shape"] == "3x6"
    assert run_json("check", "net.onnx", *files)["agrees"]
    assert run_json("check", "net.onnx", *files[:4], "--shape", "x=?x6", "--shape", "x=9x6")["agrees"]
    values = ("--input", "begin=[4]", "--input", "end=[5]", "--shape", "x=7x6")
    assert run_json("run", "net.renorm", *values)["outputs"][0]["shape"] == "1x6"
    assert run_json("run", "net.renorm")["outputs"][0]["shape"] == "1x6"
    wrong = run("run", "net.renorm", "--input", "begin=[4]", "--input", "end=[9]", "--shape", "x=7x6", code=2).stderr
    assert "x, axis 0: 7" in wrong
    assert "end.0" in wrong
    assert "cannot become constants" in run("run", "net.renorm", "--input", "x=[3,4]", code=2).stderr


def test_files_that_cannot_be_read_or_written(artifact: Path, tmp_path: Path) -> None:
    missing, nowhere = tmp_path / "missing.renorm", tmp_path / "nowhere" / "out"
    for verb in ("run", "bench", "profile", "inspect"):
        assert run_json(verb, missing, code=4)["error"]["headline"].endswith(
            "cannot be read: No such file or directory"
        )
    assert "cannot be written" in run("compile", MODEL, *FIXED, "-o", nowhere, code=4).stderr
    assert "cannot write" in run("optimize", MODEL, nowhere, code=3).stderr
    for verb, *more in (("run", artifact), ("restat", MODEL, "x.npy")):
        assert "is a directory" in run(verb, *more, "-o", tmp_path, code=2).stderr
    assert "No space left" in run_json("run", artifact, "-o", "/dev/full", "--threads", 1, code=2)["error"]["headline"]
    assert "No such file" in run_json("run", artifact, "-o", nowhere, "--threads", 1, code=2)["error"]["headline"]


def test_a_node_that_cannot_be_kept_is_named() -> None:
    for model in ((MODEL,), (MODEL, *FIXED)):
        assert "InvalidInput: keep" in run("inspect", *model, "--keep", "no_such_op", code=2).stderr


def test_the_module_is_the_command(artifact: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "renorm", "--version"], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert result.stdout == f"renorm, version {renorm.__version__}\n"


def test_help_lists_every_verb() -> None:
    printed = run("--help").stdout
    for verb in VERBS:
        assert re.search(rf"\n  {verb} +[A-Z].*\.", printed)
        assert "--json" in run(verb, "--help").stdout
    assert "RENORM_KEEP" in printed


def test_help_loads_no_compiler() -> None:
    script = "import sys; from renorm.cli import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "renorm.cli.group" in loaded
    assert not {"numpy", "onnx", "llvmlite", "renorm.graph", "renorm.runtime"} & set(loaded)


def test_an_artifact_runs_without_the_compiler(artifact: Path) -> None:
    script = f"import sys; from renorm.cli import main; main(['run', {str(artifact)!r}], standalone_mode=False); "
    loaded = subprocess.run(
        [sys.executable, "-c", script + "print(*sys.modules)"], check=True, capture_output=True, text=True
    ).stdout.split()
    assert "renorm.runtime.module" in loaded
    assert not {"onnx", "llvmlite", "renorm.driver", "renorm.graph"} & set(loaded)


def test_a_model_made_in_memory_is_named_in_errors() -> None:
    node = helper.make_node("NoSuch", ["x"], ["y"])
    x = helper.make_tensor_value_info("x", 1, [2])
    y = helper.make_tensor_value_info("y", 1, [2])
    m = helper.make_model(helper.make_graph([node], "built", [x], [y]), opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(renorm.errors.UnsupportedOp, match="built: node 'NoSuch_0'"):
        renorm.compile(m)


def test_a_network_in_training_mode_keeps_its_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    network = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
      net (float[N, 2] x) => (float[N, 2] y)
      <float[2] s = {1, 1}, float[2] b = {0, 0}, float[2] mean = {0, 0}, float[2] var = {1, 1}>
      { [bn] y, new_mean, new_var = BatchNormalization <training_mode = 1, momentum = 0.5> (x, s, b, mean, var) }""")
    onnx.save(network, "net.onnx")
    data = np.random.default_rng(3).normal(4, 2, (7, 2)).astype(np.float32)
    (tmp_path / "data").mkdir()
    np.save("data/a.npy", data)
    parts = [data[:3].astype(np.float64), data[3:6].astype(np.float64), data[6:].astype(np.float64)]
    mean, var = np.zeros(2), np.ones(2)
    for part in parts:
        mean, var = (mean + part.mean(0)) / 2, (var + part.var(0)) / 2
    call = ("run", "net.onnx", "--batches", "data", "--batch-size", 3, "--train-state")
    found = run_json(*call, "--write-state", "after.onnx", "-o", "y.npz")
    assert found["runs"] == 3
    assert [s["name"] for s in found["state"]] == ["mean", "var"]
    assert found["state"][0]["moved"] == pytest.approx(np.abs(mean).max(), rel=1e-5)
    held = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load("after.onnx").graph.initializer}
    np.testing.assert_allclose(held["mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(held["var"], var, rtol=1e-5)
    with np.load("y.npz") as outputs:
        assert outputs["y"].shape == (1, 2)
    said = run(*call).stdout
    assert "state after 3 runs" in said
    assert "\nvar " in said

    told = run_json("compile", "net.onnx", "-o", "net.renorm", "--shape", "x=7x2", "--train-state")
    assert told["state"] == ["mean", "var"]
    assert run_json("inspect", "net.renorm")["state"] == ["mean f32[2]", "var f32[2]"]
    printed = run("inspect", "net.onnx", "--convention", "keras").stdout
    assert "the batch's (training)  onnx        0.5       0.5 * old + 0.5 * batch" in printed
    assert "its statistics come from the batch" in printed
    run("run", "net.renorm", "--input", "data/a.npy", "--write-state", "after.renorm")
    again = renorm.load("after.renorm", threads=1)
    np.testing.assert_allclose(again.state["mean"], data.astype(np.float64).mean(0) / 2, rtol=1e-5)
    assert run_json("bench", "net.renorm", "--train-state", "--rounds", 1, "--seconds", 0.01)["latency_ms"]

    np.save("far.npy", data * np.float32(1e30))
    far = run_json("run", "net.onnx", "--input", "far.npy", "--train-state")
    assert far["warnings"] == ["net: var of channel 0, 1 is beyond float32 and becomes inf"]
    assert far["state"][1]["max"] is None
    run("compile", "net.onnx", "-o", "plain.renorm", "--shape", "x=7x2")
    for wrong, because in (
        (("plain.renorm", "--train-state"), "has no state"),
        (("net.onnx", "--write-state", "z.onnx"), "has no state to write"),
        (("net.renorm", "--write-state", "z.onnx"), "goes into a .renorm file"),
        (("net.onnx", "--input", "far.npy", "--batches", "data"), "twice"),
    ):
        assert because in run("run", *wrong, code=2).stderr
    assert not (tmp_path / "z.onnx").exists()


def test_an_artifact_is_looked_at_without_any_of_its_code(artifact: Path, tmp_path: Path) -> None:
    found = run_json("inspect", artifact)
    assert (found["inputs"], found["is_signed"]) == (["pixels f32[2, 1, 8, 8]"], False)
    assert found["machine"]["features"]
    data = bytearray(artifact.read_bytes())
    begin = 256 + int.from_bytes(data[24:32], "little")
    data[begin:] = bytes(len(data) - begin)  # neither code nor weights
    (tmp_path / "empty.renorm").write_bytes(data)
    assert run_json("inspect", tmp_path / "empty.renorm") == found
    printed = run("inspect", tmp_path / "empty.renorm").stdout
    assert f"digest {found['digest']}, not signed" in printed
    assert f"requires {', '.join(found['machine']['features'])}" in printed
    assert "SHA-256" in run("run", tmp_path / "empty.renorm", code=4).stderr


def test_names_do_not_steer_the_terminal(tmp_path: Path) -> None:
    g = Graph("loud\x1b[2J")
    g.outputs = [renorm.ops.batch_norm(g.input("x\x1b[31m", "float32", (1, 2)), *np.ones((4, 2), np.float32))]
    m = renorm.compile(g, opt_level=1)
    m.save(tmp_path / "m.renorm")
    said = run("inspect", tmp_path / "m.renorm").stdout
    assert "loud\\u001b[2J" in said
    assert "x\\u001b[31m f32[1, 2]" in said
    assert "\x1b" not in said + run("run", tmp_path / "m.renorm", "--input", "\x1b=no.npy", code=2).stderr


def test_what_is_trusted_can_be_said(artifact: Path, tmp_path: Path) -> None:
    digest, trusted = run_json("inspect", artifact)["digest"], tmp_path / "signed.renorm"
    run("run", artifact, "--digest", digest)
    for verb in ("run", "inspect", "profile", "bench"):
        assert "another artifact" in run(verb, artifact, "--digest", "0" * 64, code=4).stderr
    assert "is no artifact" in run("inspect", MODEL, "--digest", digest, code=2).stderr
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    told = run_json("compile", MODEL, "-o", trusted, *FIXED, "--sign", private)
    assert told["digest"] == run_json("inspect", trusted, "--key", public)["digest"]
    run("run", trusted, "--key", public)
    assert "is not signed" in run("run", artifact, "--key", public, code=4).stderr


@pytest.mark.parametrize("where", ["renorm.cli.network.opened", "renorm.cli.group.import_module"])
def test_an_interrupt_has_its_exit_code_and_no_traceback(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(where, interrupted)
    assert "Traceback" not in run("run", "model.onnx", code=130).output
