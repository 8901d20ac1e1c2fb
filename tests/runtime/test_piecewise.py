"""Networks in parts: their artifacts, what cannot be one, and every verb of the command line on them."""

from __future__ import annotations

import json
import pickle
import struct
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from tests.frontends import onnx_runtime
from tests.frontends.models import model
from tests.frontends.test_hosted import CHOICE, GROWING, NESTED, NORM, decoder, floats

import renorm
from renorm.cli import main
from renorm.core.errors import InvalidArtifact, InvalidInput, InvalidModel
from renorm.core.limits import DEFAULT
from renorm.driver.compile import planned
from renorm.driver.foretold import Foretold
from renorm.driver.hosted import HostedModule
from renorm.frontends.outline import Hosted
from renorm.runtime import artifact
from renorm.runtime.piecewise import PiecewiseModule, part_calls
from renorm.runtime.program import TensorSpec
from renorm.runtime.steps import Body, Choice, Part, Plan, Rounds, Whole

pytestmark = pytest.mark.usefixtures("kept_code")

NETWORKS: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "norm": (model(NORM.format(count="", most=3)), [{"x": floats(2, 3, scale=s)} for s in (1, 30, 1e-3)]),
    "growing": (
        model(GROWING),
        [{"x": floats(n), "least": np.array(k)} for n, k in ((2, 4), (3, 2), (2, 7), (5, 1), (1, 9))],
    ),
    "choice": (model(CHOICE), [{"x": np.abs(floats(4, 3))}, {"x": -np.abs(floats(2, 3))}]),
    "decoder": (decoder(), [{"prompt": np.array([p])} for p in ([1, 2, 3], [4], [7, 1, 9, 2, 3])]),
    "nested": (model(NESTED), [{"x": floats(3, scale=s)} for s in (0.1, 1, 40)]),
}


def test_rounds_behind_a_part_that_cannot_be_read_are_not_foretold() -> None:
    """The fault is that of a call, which comes to the part."""

    def unread(*_: Any) -> Any:
        raise InvalidModel("this part cannot be read")

    with pytest.raises(Hosted) as found:
        renorm.read(NETWORKS["nested"][0])
    outline = found.value.outline
    assert outline is not None
    before = tuple(replace(p, read=unread) if i == outline.first else p for i, p in enumerate(outline.pieces))
    told = Foretold.of(replace(outline, pieces=before), DEFAULT)
    assert told.outputs is None
    assert not any(isinstance(s, Rounds) and s.body.part in told.types for s in outline.plan.steps)


@pytest.mark.parametrize("name", NETWORKS)
def test_an_artifact_gives_what_the_module_gives(name: str, tmp_path: Path) -> None:
    source, calls = NETWORKS[name]
    module = renorm.compile(source, threads=1)
    assert isinstance(module, HostedModule)
    digest = module.save(tmp_path / "a.renorm")
    held = renorm.load(tmp_path / "a.renorm", threads=1, digest=digest)
    assert isinstance(held, PiecewiseModule)
    assert held.plan == module.plan
    for call in calls:
        expected = onnx_runtime.run(onnx_runtime.session(source), call)
        for mine, other, wanted in zip(module.run(**call), held.run(**call), expected, strict=True):
            np.testing.assert_array_equal(mine, other)
            np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-6 * max(1.0, np.abs(wanted).max(initial=0.0)))
    assert held.outputs == module.outputs
    assert len(held.report.kernels) == len(module.report.kernels) > 0
    assert held.save(tmp_path / "b.renorm") == digest
    assert pickle.loads(pickle.dumps(module)).save(tmp_path / "c.renorm") == digest


def test_an_artifact_runs_without_the_compiler(tmp_path: Path) -> None:
    source, calls = NETWORKS["growing"]
    renorm.compile(source, threads=1).save(tmp_path / "a.renorm")
    np.savez(tmp_path / "x.npz", **calls[0])
    text = (
        "import sys, numpy as np, renorm; m = renorm.load(sys.argv[1], threads=1); "
        "print([a.shape for a in m.run(**np.load(sys.argv[2]))], *(n for n in sys.modules if n in "
        "('llvmlite', 'renorm.driver', 'renorm.graph', 'renorm.te')))"
    )
    paths = [str(tmp_path / "a.renorm"), str(tmp_path / "x.npz")]
    said = subprocess.run([sys.executable, "-c", text, *paths], capture_output=True, text=True, check=True).stdout
    assert said.strip() == str([a.shape for a in onnx_runtime.run(onnx_runtime.session(source), calls[0])])


def test_extents_that_change_alike_have_one_symbol() -> None:
    with pytest.raises(Hosted) as told:
        renorm.read(decoder())
    outline = told.value.outline
    assert outline is not None
    found = Foretold.of(outline, DEFAULT)
    (types,) = (t for number, t in found.types.items() if outline.pieces[number].part.name == "Loop_4.body")
    keys, values = (types[name] for name in ("k", "v"))
    assert keys.shape == values.shape
    assert not isinstance(keys.shape[1], int)
    assert found.outputs is not None
    assert [len(v.shape) for v in found.outputs] == [2, 3]
    parts, plan = planned(decoder())
    assert plan is not None
    assert [(p.name, bool(p.graphs)) for p in parts] == [("before", True), ("Loop_4.body", True)]


RANKS = """g (float[2] x) => (float[A] y) <bool t = {1}, float top = {9}, int64[1] ax = {0}> {
    z = Loop(, t, x) <body = b (int64 i, bool c, float a) => (bool d, float e) {
        e = Unsqueeze(a, ax) m = ReduceSum<keepdims = 0>(e) d1 = Less(m, top) n = Size(e) r = Shape(e)
        k = Size(r) k1 = Cast<to = 1>(k) three = Constant<value_float = 3.0>() d2 = Less(k1, three) d = And(d1, d2) }>
    y = ReduceSum<keepdims = 0>(z, ax) }"""


def test_no_rounds_of_a_body_in_parts(tmp_path: Path) -> None:
    """Give results of no rounds the type that a round would give, also after a call of another one."""
    source = model("""g (float[N] x) => (float[A] y, float[B, C] z) <bool t = {1}> {
        s = ReduceSum<keepdims = 0>(x) n = Cast<to = 7>(s)
        y, z = Loop(n, t, x) <body = b (int64 i, bool c, float[D] v) => (bool co, float[E] w, float[F] sc) {
            co = Identity(c)
            w = Loop(i, c, v) <body = b2 (int64 j, bool cc, float[G] vv) => (bool cco, float[H] ww) {
                cco = Identity(cc) ww = Neg(vv) }>
            sc = Identity(w) }> }""")
    module = renorm.compile(source, threads=1)
    module.save(tmp_path / "a.renorm")
    for made in (module, renorm.load(tmp_path / "a.renorm")):
        for x in (np.zeros(2, np.float32), np.ones(4, np.float32), np.zeros(3, np.float32)):
            (y, z), expected = made.run(x), onnx_runtime.run(source, {"x": x})
            np.testing.assert_array_equal(y, expected[0])
            assert z.shape == (len(expected[1]), len(x))  # to ONNX Runtime an extent that nobody states is 0
            np.testing.assert_array_equal(z.reshape(-1), expected[1].reshape(-1))
    onnx.save(source, tmp_path / "a.onnx")
    np.savez(tmp_path / "x.npz", x=np.zeros(2, np.float32))
    call = ["check", tmp_path / "a.onnx", "--input", tmp_path / "x.npz", "--reference", "interpreter"]
    assert CliRunner().invoke(main, list(map(str, call))).exit_code == 0


def test_states_of_another_rank_in_each_round_wait_for_a_call(tmp_path: Path) -> None:
    module = renorm.compile(model(RANKS.replace("y = ReduceSum<keepdims = 0>(z, ax)", "y = Reshape(z, neg)").replace(
        "int64[1] ax = {0}", "int64[1] ax = {0}, int64[1] neg = {-1}")), threads=1)  # fmt: skip
    with pytest.raises(InvalidInput, match="no outputs yet"):
        str(module.outputs)
    with pytest.raises(InvalidInput, match=r"(?s)not compiled as a whole.*Loop.*call run before"):
        module.save(tmp_path / "a.renorm")
    assert not (tmp_path / "a.renorm").exists()
    x = np.array([1, 2], np.float32)
    (y,) = module.run(x)
    np.testing.assert_array_equal(y, x)
    module.save(tmp_path / "a.renorm")
    held = renorm.load(tmp_path / "a.renorm")
    np.testing.assert_array_equal(held.run(x)[0], x)


def test_signed_artifacts(tmp_path: Path) -> None:
    from tests.runtime.test_artifact import pem

    pytest.importorskip("cryptography", reason="cryptography is not installed")
    private, public = pem()
    module, path = renorm.compile(NETWORKS["norm"][0], threads=1), tmp_path / "a.renorm"
    module.save(path, private)
    assert renorm.load(path, key=public).name == "g"
    with pytest.raises(InvalidArtifact, match="not signed with the key"):
        renorm.load(path, key=pem()[1])


def test_every_damaged_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.renorm"
    renorm.compile(NETWORKS["norm"][0], threads=1).save(path)
    good = path.read_bytes()
    holds = [place for place in range(len(good)) if good[place]]
    pads = [place for place in range(len(good)) if not good[place]]
    for place in (*holds[:: max(1, len(holds) // 150)], *pads[:: max(1, len(pads) // 150)]):
        bad = bytearray(good)
        bad[place] ^= 1
        path.write_bytes(bad)
        with pytest.raises(InvalidArtifact):
            renorm.load(path)
    for size in (0, 8, 255, 4096, len(good) - 1):
        path.write_bytes(good[:size])
        with pytest.raises(InvalidArtifact):
            renorm.load(path)


def _sealed(content: bytes, manifest: bytes) -> bytes:
    """An artifact of a network in parts with another manifest, as the format says (renorm/runtime/artifact.py)."""
    head, _, weights = struct.unpack_from("<QQQ", content, 16)
    code = bytes(-(256 + len(manifest)) % 4096)
    stated = content[:16] + struct.pack("<QQQ8x", 256 + len(manifest) + len(code), len(manifest), weights)
    stated += b"".join(sha256(part).digest() for part in (manifest, code, content[head:]))
    header = stated + bytes(80)
    return header + sha256(header).digest() + manifest + code + content[head:]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda plan: plan["steps"][0].update(part=9), "a part that there is not"),
        (lambda plan: plan["steps"].pop(0), "read before it is there"),
        (lambda plan: plan["steps"][1].update(carried=["a"]), "other numbers of states"),
        (lambda plan: plan["steps"][1].update(results=["a"] * 9), "other numbers of states"),
        (lambda plan: plan["parts"][0].update(outputs=[]), "read before it is there"),
        (lambda plan: plan["parts"][0].update(inputs=[]), "has other inputs or outputs than its code"),
        (lambda plan: plan["parts"].pop(), "other parts than it holds|a part that there is not"),
        (lambda plan: plan.update(outputs=[["y", "nowhere"]], results=[]), "output 'y' is not there"),
        (lambda plan: plan.update(steps=[{"part": "0"}]), "manifest that cannot be read"),
        (lambda plan: plan.update(steps=[{"parts": 0}]), "does not have the fields of any"),
    ],
)
def test_a_plan_that_cannot_be(change: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.renorm"
    renorm.compile(NETWORKS["norm"][0], threads=1).save(path)
    good = path.read_bytes()
    data = json.loads(good[256 : 256 + struct.unpack_from("<Q", good, 24)[0]])
    path.write_bytes(_sealed(good, json.dumps(data, separators=(",", ":")).encode()))
    assert path.read_bytes() == good  # the helper writes what the format says
    change(data["plan"])
    path.write_bytes(_sealed(good, json.dumps(data).encode()))
    with pytest.raises(InvalidArtifact, match=said):
        renorm.load(path)


def test_artifacts_that_lie_outside_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.renorm"
    renorm.compile(NETWORKS["norm"][0], threads=1).save(path)
    good = path.read_bytes()
    for change in ([1 << 60, 512], [0, 1 << 60], [-4096, 8192]):
        data = json.loads(good[256 : 256 + struct.unpack_from("<Q", good, 24)[0]])
        data["held"][0][0][:2] = change
        path.write_bytes(_sealed(good, json.dumps(data).encode()))
        with pytest.raises(InvalidArtifact, match="contradicts itself"):
            renorm.load(path)
    data["held"][0][0][:2] = [4096, 8192]
    path.write_bytes(_sealed(good, json.dumps(data).encode()))
    with pytest.raises(InvalidArtifact):
        renorm.load(path)


def test_faults_of_plans() -> None:
    x, part = TensorSpec("x", "float32", (2,)), Part("p", ("x",), ("y",))
    good = Plan("g", (x,), (part,), (Whole(0),), (("y", "y"),))
    assert good.fault() == ""
    branch = Choice("If", "If", "x", (Body(0, ("y",)), Body(0, ())), ("z",))
    assert "more results than a branch" in replace(good, steps=(branch,), outputs=()).fault()
    loop = Rounds("L", "Loop", "n", None, ("x",), None, None, ("a",), Body(0, ("y",)), ("z",))
    assert "'n' is read" in replace(good, steps=(loop,), outputs=()).fault()
    assert replace(good, steps=(replace(loop, count="x"),), outputs=(("z", "z"),)).fault() == ""


def test_calls_of_parts_are_seen() -> None:
    source, calls = NETWORKS["decoder"]
    module: Any = renorm.compile(source, threads=1)
    tokens, _ = module.run(**calls[0])
    made = part_calls(module, calls[0])
    assert [c.name for c in made] == ["before"] + ["Loop_4.body"] * (tokens.shape[1] - 3)
    assert all(c.seconds > 0 for c in made)


def _verb(*arguments: object, code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(main, [str(a) for a in (*arguments, "--json")], catch_exceptions=False)
    assert result.exit_code == code, result.output + result.stderr
    return json.loads(result.stdout)


NORMED = """g (float[2, 3, 5, 4] x) => (float[2, 3, 5, 4] y) <bool t = {1}, float top = {40}, int64[1] one = {1}> {
    h0 = Conv<pads = [1, 1, 1, 1]>(x, w)
    h = BatchNormalization(h0, s, b, m, v)
    y = Loop(, t, h) <body = body (int64 i, bool c, float[2, 3, 5, 4] a) => (bool d, float[2, 3, 5, 4] e) {
        a2 = Add(a, a) e = InstanceNormalization(a2, s, b) q = Abs(a2) r = ReduceSum<keepdims = 0>(q)
        d = Less(r, top) }> }"""


@pytest.fixture
def normed(tmp_path: Path) -> Path:
    held = {"w": floats(3, 3, 3, 3), **{name: floats(3) for name in "sbm"}, "v": np.abs(floats(3)) + 1}
    onnx.save(model(NORMED, held), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_every_verb_takes_a_network_in_parts(normed: Path, tmp_path: Path) -> None:
    made = _verb("inspect", normed)
    assert [n["fate"] for n in made["report"]["norms"]] == ["folded", "kept"]
    assert _verb("check", normed)["agrees"]
    assert _verb("check", normed, "--reference", "interpreter")["agrees"]
    path = tmp_path / "m.renorm"
    digest = _verb("compile", normed, "-o", path)["digest"]
    held = _verb("inspect", path)
    assert (held["digest"], held["outputs"]) == (digest, ["y"])
    assert [p["name"] for p in held["parts"]] == [p["name"] for p in made["parts"]] == ["before", "Loop_2.body"]
    assert held["report"]["norms"] == made["report"]["norms"]
    for file in (normed, path):
        _verb("run", file, "-o", tmp_path / "y.npz")
        assert np.load(tmp_path / "y.npz")["y"].shape == (2, 3, 5, 4)
        parts = _verb("profile", file, "--repeats", 2)["parts"]
        assert [p["name"] for p in parts] == ["before", "Loop_2.body"]
        assert all(p["launches"] for p in parts)
        assert _verb("bench", file, "--rounds", 1, "--seconds", 0.1)["latency_ms"][0]["median"] > 0
    said = CliRunner().invoke(main, ["inspect", str(path), "--draw", str(tmp_path / "a.dot")])
    assert said.exit_code == 2
    assert "no graph to draw" in said.stderr


def test_check_says_where_they_differ(normed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = HostedModule.run

    def wrong(self: HostedModule, *args: Any, **named: Any) -> list[Any]:
        return [a + 1 for a in run(self, *args, **named)]

    monkeypatch.setattr(HostedModule, "run", wrong)
    found = _verb("check", normed, code=1)
    assert not found["agrees"]
    assert found["outputs"][0]["own"] > 0.1
    assert found["outputs"][0]["departs"] < 1e-5


def test_no_code_for_a_call(tmp_path: Path) -> None:
    path = tmp_path / "a.renorm"
    renorm.compile(NETWORKS["norm"][0], threads=1).save(path)
    with pytest.raises(InvalidInput, match=r"float32\[3\], expected float32\[2, 3\]"):
        renorm.load(path).run(np.zeros(3, np.float32))
    assert artifact.is_plan(path)
    with pytest.raises(InvalidArtifact, match="where one program is expected"):
        artifact.read(path)
