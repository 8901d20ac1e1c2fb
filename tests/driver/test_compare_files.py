"""Two files on the same inputs: values by position, names apart, and files of kept values."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from tests.frontends.models import model
from tests.frontends.tflite_files import File

import renorm
from renorm.cli import main
from renorm.core.difference import differ, relative_error
from renorm.core.tolerance import Tolerance
from renorm.driver.compare import compare_draws
from renorm.driver.draws import Draw, load_draws, save_draws
from renorm.errors import InvalidInput


def network(
    *, names: tuple[str, str, str] = ("x", "s", "y"), bias: float = 0.0, weight: float = 1.0
) -> onnx.ModelProto:
    """Two convolutions. weight, bias: of the first and the second one, as factors and shifts of what is drawn."""
    x, s, y = names
    rng = np.random.default_rng(3)
    w, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 3, 3, 3), (2, 4, 1, 1)))
    return model(
        f"""two (float[N, 3, 7, 6] {x}) => (float[N, 2, 5, 4] {y}, float[N, 4, 5, 4] {s})
        {{ [first] {s} = Conv(x0, w) [act] r = Relu({s}) [second] {y} = Conv(r, v, b) }}""".replace("x0", x),
        w=w * np.float32(weight), v=v, b=np.full(2, bias, np.float32),
    )  # fmt: skip


def channels_last(w: np.ndarray, b: np.ndarray) -> bytes:
    file = File()
    file.tensor("input", (1, 7, 6, 3))
    file.constant("w", np.ascontiguousarray(w.transpose(0, 2, 3, 1)))
    file.constant("b", b)
    file.tensor("output", (1, 5, 4, 4))
    file.operator("CONV_2D", ["input", "w", "b"], ["output"], "Conv2DOptions", padding=1, stride_h=1, stride_w=1)
    return file.written(["input"], ["output"])


def check(*arguments: Any, code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["check", *map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == code, result.output + result.stderr
    return json.loads(result.stdout)


def shown(*arguments: Any) -> str:
    return CliRunner().invoke(main, ["check", *map(str, arguments)], catch_exceptions=False).output


@pytest.fixture
def before(tmp_path: Path) -> Path:
    onnx.save(network(), tmp_path / "before.onnx")
    return tmp_path / "before.onnx"


@pytest.mark.parametrize(
    "runner", ["interpreter", "renorm", "ort", "litert", pytest.param("circle", marks=pytest.mark.slow)]
)
def test_names_are_no_difference_of_values(runner: str, before: Path):
    """Values agree; three names differ, and are listed; only --names makes that count."""
    after = before.with_name("after.onnx")
    onnx.save(network(names=("in", "mid", "out")), after)
    pair = (before, after, "--with", runner, "--opt-level", 1, "--shape", "x=2x3x7x6", "-d", 1e-5)
    found = check(*pair)
    assert found["agrees"]
    assert [o["before_type"] for o in found["outputs"]] == ["f32[2, 2, 5, 4]", "f32[2, 4, 5, 4]"]
    assert all(o["largest"] > 1 and o["error"] < 1e-5 for o in found["outputs"])
    assert found["names"] == [["input 0", "x", "in"], ["output 0", "y", "out"], ["output 1", "s", "mid"]]
    assert not check(*pair, "--names", code=1)["agrees"]


def test_a_limit_is_absolute_or_relative(before: Path):
    after = before.with_name("after.onnx")
    onnx.save(network(bias=0.01), after)
    found = check(before, after, "-d", 0.011)
    assert found["outputs"][0]["distance"] == pytest.approx(0.01, abs=1e-6)
    worst = check(before, after, "-d", 0.009, code=1)["outputs"][0]
    assert (worst["differing"], worst["count"]) == (40, 40)
    relative = 0.01 / worst["largest"]
    check(before, after, "--tolerance", relative * 1.1)
    check(before, after, "--tolerance", relative * 0.9, code=1)
    check(before, after, "--tolerance", relative * 0.9, "-d", 0.011)  # above one limit only
    check(before, after, code=1)


def test_the_first_tensor_that_diverges_is_named(before: Path):
    after = before.with_name("after.onnx")
    onnx.save(network(weight=1.5), after)
    found = check(before, after, code=1)
    assert [found["first"][key] for key in ("name", "node", "op")] == ["s", "first", "conv"]
    assert "first diverging tensor: 's', made by first (conv)" in shown(before, after)
    onnx.save(network(bias=1.0), after)
    found = check(before, after, "--draws", 3, "--seed", 5, code=1)
    assert (found["first"]["name"], found["draws"]) == ("y", 3)


def test_rounding_of_folded_weights_is_not_the_first_divergence(before: Path):
    """Every layer computes the same but for rounding, and the last one another bias."""
    scaled, folded = (network(weight=1.0), network(weight=1.0))
    node = scaled.graph.node[0]
    assert node.name == "first"
    scale = onnx.numpy_helper.from_array(np.array([1.1, 0.7, 1.3, 0.9], np.float32).reshape(4, 1, 1), "scale")
    scaled.graph.initializer.append(scale)
    node.output[0] = "unscaled"
    scaled.graph.node.insert(1, onnx.helper.make_node("Mul", ["unscaled", "scale"], ["s"], name="scaling"))
    w = next(t for t in folded.graph.initializer if t.name == "w")
    factor = onnx.numpy_helper.to_array(scale)[..., None]
    w.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(w) * factor, "w"))
    b = next(t for t in folded.graph.initializer if t.name == "b")
    after = before.with_name("after.onnx")
    onnx.save(scaled, before)
    onnx.save(folded, after)
    assert check(before, after)["first"] is None
    b.CopyFrom(onnx.numpy_helper.from_array(np.full(2, 0.5, np.float32), "b"))
    onnx.save(folded, after)
    found = check(before, after, code=1)
    assert (found["first"]["name"], found["first"]["node"]) == ("y", "second")


def test_files_of_different_formats(tmp_path: Path):
    """One has channels first, the other last: axes are moved, both ways."""
    rng = np.random.default_rng(1)
    w, b = rng.standard_normal((4, 3, 3, 3)).astype(np.float32), rng.standard_normal(4).astype(np.float32)
    first = model("one (float[1, 3, 7, 6] x) => (float[1, 4, 5, 4] y) { y = Conv(x, w, b) }", w=w, b=b)
    onnx.save(first, tmp_path / "net.onnx")
    (tmp_path / "net.tflite").write_bytes(channels_last(w, b))
    found = check(tmp_path / "net.onnx", tmp_path / "net.tflite", "-d", 1e-5)
    assert found["outputs"][0]["moved"] == "channels last to first"
    found = check(tmp_path / "net.tflite", tmp_path / "net.onnx", "-d", 1e-5, "--with", "ort")
    assert found["outputs"][0]["moved"] == "channels first to last"
    assert "written as ONNX" in found["before"]
    assert found["after"] == "ONNX Runtime"
    (tmp_path / "net.tflite").write_bytes(channels_last(w[::-1], b))
    check(tmp_path / "net.onnx", tmp_path / "net.tflite", code=1)


def test_networks_that_cannot_be_compared(before: Path):
    other = before.with_name("other.onnx")
    onnx.save(model("one (float[N, 3, 7, 6] x) => (float[N, 3, 7, 6] y) { y = Relu(x) }"), other)
    assert "2 and 1 outputs" in check(before, other, code=2)["error"]["headline"]
    onnx.save(model("one (double[N, 3, 7] x) => (double[N, 3, 7] y) { y = Relu(x) }"), other)
    (fact,) = check(before, other, code=2)["error"]["facts"]
    assert fact == "input 0 'x' is f64[N, 3, 7]; what is given is f32[1, 3, 7, 6]"
    assert "-d compares two files" in check(before, "-d", 1, code=2)["error"]["headline"]


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (np.zeros((2, 3)), np.zeros((3, 2)), "shapes differ: [2, 3] and [3, 2]"),
        (np.zeros(3), np.zeros(3, np.float32), "types differ: float64 and float32"),
        (np.array([np.nan, np.inf]), np.array([np.nan, np.inf]), ""),
    ],
)
def test_what_else_differs(a: np.ndarray, b: np.ndarray, said: str):
    found = differ("t", a, b, Tolerance(1.0))
    assert (found.why, found.agrees) == (said, not said)


def test_infinities_and_nan_differ_from_numbers():
    a = np.array([np.nan, np.inf, 1.0, np.inf, np.nan])
    b = np.array([1.0, -np.inf, 1.0, np.inf, np.nan])
    assert differ("t", a, b, Tolerance(1e9)).differing == 2


def test_inputs_of_the_same_names_are_taken_by_name(tmp_path: Path):
    for file, inputs in (("a", "float[2] p, float[2] q"), ("b", "float[2] q, float[2] p")):
        onnx.save(model(f"sub ({inputs}) => (float[2] y) {{ y = Sub(p, q) }}"), tmp_path / f"{file}.onnx")
    found = check(tmp_path / "a.onnx", tmp_path / "b.onnx", "-d", 0)
    assert found["names"] == [["input 0", "p", "q"], ["input 1", "q", "p"]]
    np.savez(tmp_path / "in.npz", q=np.ones(2, np.float32), p=np.zeros(2, np.float32))
    check(tmp_path / "a.onnx", "--inputs", tmp_path / "in.npz", "--save", tmp_path / "kept.npz")
    np.testing.assert_array_equal(load_draws(tmp_path / "kept.npz")[0].outputs[0][1], [-1, -1])


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
def test_values_are_kept_and_compared_later(suffix: str, before: Path):
    if suffix == ".h5":
        pytest.importorskip("h5py")
    kept, after = before.with_name(f"kept{suffix}"), before.with_name("after.onnx")
    told = check(before, "--save", kept, "--draws", 2, "--shape", "x=3x3x7x6", "--with", "ort")
    assert (told["draws"], told["by"]) == (2, "ONNX Runtime")
    draws = load_draws(kept)
    assert [[*d.inputs] for d in draws] == [["x"], ["x"]]
    assert [[(n, a.shape) for n, a in d.outputs] for d in draws] == [[("y", (3, 2, 5, 4)), ("s", (3, 4, 5, 4))]] * 2
    assert not np.array_equal(draws[0].inputs["x"], draws[1].inputs["x"])
    renorm.optimize(before, after)
    assert check(after, "--expected", kept, "-d", 1e-5)["draws"] == 2
    onnx.save(network(bias=0.01), after)
    check(after, "--expected", kept, code=1)
    assert check(before, after, "--inputs", kept, code=1)["draws"] == 2


def test_files_as_other_tools_keep_them(before: Path):
    """Values alone in one file, inputs in another; inputs by name in an .npz."""
    h5py = pytest.importorskip("h5py")
    x = np.random.default_rng(0).standard_normal((1, 3, 7, 6)).astype(np.float32)
    (y, s), directory = renorm.compile(before, opt_level=0).run(x), before.parent
    for file, held in (("in.h5", {"x": x}), ("out.h5", {"other": y, "s": s})):
        with h5py.File(directory / file, "w") as f:
            for i, (name, array) in enumerate(held.items()):
                f.require_group("name").attrs[str(i)] = name
                f.create_dataset(f"value/{i}", data=array)
    found = check(before, "--expected", directory / "out.h5", "--inputs", directory / "in.h5", "-d", 1e-5)
    assert found["names"] == [["output 0", "other", "y"]]
    np.savez(directory / "in.npz", x=x)
    np.testing.assert_array_equal(load_draws(directory / "in.npz")[0].inputs["x"], x)


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32", "uint8", "bool"])
def test_integers_are_compared_exactly(dtype: str, tmp_path: Path):
    """Neither as float64, which 2**60 + 1 is not, nor relative to the largest of them."""
    large = {"int64": 2**60, "uint64": 2**63, "int32": 2**30, "uint8": 200, "bool": 0}[dtype]
    x = np.array([large, 0, 1]).astype(dtype)
    y = x.copy()
    y[0] += 1
    same, apart = (differ("y", x, other, Tolerance(relative=1.0)) for other in (x.copy(), y))
    assert same.agrees
    assert (apart.differing, apart.error, apart.worst) == (1, 1.0, (0,))
    assert (relative_error(x, x.copy()), relative_error(y, x)) == (0.0, 1.0)
    for name, held in (("before", x), ("after", y)):
        save_draws(tmp_path / f"{name}.npz", [Draw({"x": x}, [("y", held)])])
    before, after = ((load_draws(tmp_path / f"{n}.npz"), "") for n in ("before", "after"))
    found = compare_draws(before, after, Tolerance(0.5, 1.0))
    assert not found.agrees


def test_files_that_cannot_be_kept_or_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    draw = [Draw({"x": np.zeros(2)}, [("y", np.ones(2))])]
    with pytest.raises(InvalidInput, match=r"known: \.h5, \.hdf5, \.npz"):
        save_draws(tmp_path / "kept.txt", draw)
    (tmp_path / "bad.npz").write_bytes(b"PK nothing")
    with pytest.raises(InvalidInput, match=r"bad\.npz"):
        load_draws(tmp_path / "bad.npz")
    with (tmp_path / "bad.npz").open("wb") as file:
        np.save(file, np.zeros(2))
    with pytest.raises(InvalidInput, match=r"bad\.npz: it is one array"):
        load_draws(tmp_path / "bad.npz")
    np.savez_compressed(tmp_path / "bad.npz", x=np.zeros(100))
    content = (tmp_path / "bad.npz").read_bytes()
    at = content.index(b"x.npy") + 40
    (tmp_path / "bad.npz").write_bytes(content[:at] + b"\xff" * 8 + content[at + 8 :])
    with pytest.raises(InvalidInput, match=r"bad\.npz"):
        load_draws(tmp_path / "bad.npz")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(InvalidInput, match=r"renorm\[hdf5\]"):
        save_draws(tmp_path / "kept.h5", draw)
    assert [p.name for p in tmp_path.iterdir()] == ["bad.npz"]
