"""renorm.compile and what it returns, on small networks: contract of the public interface."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest

import renorm
from renorm import te
from renorm.core.dims import Dim, Sym
from renorm.driver.module import OpenModule, SpecializingModule
from renorm.graph import interpret, registry
from renorm.graph.ir import Graph
from renorm.graph.op import ELEMENTWISE

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "model.onnx"


def small(batch: Dim = 2, height: Dim = 9) -> Graph:
    """conv -> batch norm -> relu -> instance norm -> mean -> gemm."""
    rng = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    g = Graph("small")
    x = g.input("x", "float32", (batch, 3, height, 8))
    y = renorm.ops.conv(x, array(6, 3, 3, 3), array(6), pads=(1, 1, 1, 1))
    y = renorm.ops.batch_norm(y, array(6), array(6), array(6), np.abs(array(6)) + 0.1)
    y = renorm.ops.instance_norm(renorm.ops.relu(y), array(6), array(6))
    y = renorm.ops.flatten(renorm.ops.global_average_pool(y))
    g.outputs = [renorm.ops.gemm(y, array(6, 4), array(4))]
    return g


def inputs(batch=2, height=9, seed=1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(batch, 3, height, 8)).astype(np.float32)


def expected(g: Graph, x: np.ndarray) -> np.ndarray:
    """The reference interpreter, in float64."""
    fixed = {s: n for d, n in zip(g.inputs[0].shape, x.shape) if isinstance(d, Sym) for s in d.symbols()}
    return interpret.run(g.copy(fixed), {"x": x})[0]


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_levels_and_threads_agree(level: int, threads: int) -> None:
    g, x = small(), inputs()
    m = renorm.compile(g, opt_level=level, threads=threads)
    np.testing.assert_allclose(m.run(x)[0], expected(g, x), rtol=1e-4, atol=1e-5)
    assert m.run(x)[0].tobytes() == renorm.compile(g, opt_level=level, threads=1).run(x)[0].tobytes()


def test_the_graph_given_is_not_changed() -> None:
    g = small()
    before = str(g)
    renorm.compile(g)
    assert str(g) == before


def test_calling_forms() -> None:
    g, x = small(), inputs()
    m = renorm.compile(g)
    first = m.run(x)
    kept = first[0].copy()
    out = np.empty((2, 4), np.float32)
    assert m.run(x=x, out=[out])[0] is out
    np.testing.assert_array_equal(out, kept)
    m.run(inputs(seed=5))
    np.testing.assert_array_equal(first[0], kept)  # fresh results are not touched by later calls
    assert [(i.name, i.shape, i.dtype) for i in m.inputs] == [("x", (2, 3, 9, 8), "float32")]
    with pytest.raises(renorm.errors.InvalidInput, match="float64"):
        m.run(x.astype(np.float64))


def test_arrays_of_torch() -> None:
    torch = pytest.importorskip("torch")
    g, x = small(), inputs()
    m = renorm.compile(g)
    np.testing.assert_array_equal(m.run(torch.from_numpy(x))[0], m.run(x)[0])


def test_symbolic_extents_specialize_and_are_bounded() -> None:
    g = small(Sym("N"), Sym("H"))
    m = renorm.compile(g)
    for batch, height in [(1, 5), (2, 9), (3, 1), (2, 9)]:
        x = inputs(batch, height)
        np.testing.assert_allclose(m.run(x)[0], expected(g, x), rtol=1e-4, atol=1e-5)
    assert isinstance(m, (OpenModule, SpecializingModule))
    assert m.specialized(x=(2, 3, 9, 8)) is m.specialized(x=(2, 3, 9, 8))
    with pytest.raises(renorm.errors.InvalidInput, match=r"'q' is not an input\n  input x: missing, expected f32\["):
        m.specialized(q=(2, 3, 9, 8))
    for batch in range(1, 12):
        m.specialized(x=(batch, 3, 4, 8))
    assert len((m._made if isinstance(m, SpecializingModule) else m._specializations).all()) <= 8
    m.cancel()  # none runs
    assert m.run(inputs(2, 9))
    with pytest.raises(renorm.errors.InvalidInput, match="axis 1: 4 where the model has 3"):
        m.run(np.zeros((1, 4, 9, 8), np.float32))
    fixed = renorm.compile(g, shapes={"x": (2, 3, 9, 8)})
    assert fixed.inputs[0].shape == (2, 3, 9, 8)
    with pytest.raises(renorm.errors.InvalidInput, match="'z' is not an input"):
        renorm.compile(g, shapes={"z": (1,)})


def test_saved_module_needs_neither_compiler_nor_onnx(tmp_path: Path) -> None:
    g, x = small(), inputs()
    m = renorm.compile(g)
    m.save(tmp_path / "small.renorm")
    np.save(tmp_path / "x.npy", x)
    program = """
import sys, numpy as np, renorm
m = renorm.load(sys.argv[1] + "/small.renorm", threads=2)
np.save(sys.argv[1] + "/y.npy", m.run(np.load(sys.argv[1] + "/x.npy"))[0])
print(m.report.norms[0].fate)
loaded = {name.split(".")[0] for name in sys.modules}
assert not loaded & {"llvmlite", "onnx", "torch", "lark"}, loaded
assert not any(n.startswith(("renorm.driver", "renorm.te", "renorm.codegen", "renorm.graph")) for n in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "folded"
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), m.run(x)[0])


def test_importing_is_cheap() -> None:
    program = "import sys, renorm; assert not {'numpy', 'onnx', 'llvmlite', 'lark'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_several_python_threads_at_once() -> None:
    g = small()
    m = renorm.compile(g, threads=2)
    cases = [inputs(seed=s) for s in range(6)]
    wanted = [m.run(x)[0] for x in cases]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(200):
            if m.run(cases[i])[0].tobytes() != wanted[i].tobytes():
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not wrong


def test_results_that_are_inputs_or_constants_or_stand_twice() -> None:
    g = Graph("odd")
    x = g.input("x", "float32", (3,))
    y = renorm.ops.relu(x)
    g.outputs = [x, y, y, g.constant(np.arange(4, dtype=np.int64), "c")]
    given = np.array([-1, 0, 2], np.float32)
    results = renorm.compile(g).run(given)
    for ours, theirs in zip(results, [given, np.maximum(given, 0), np.maximum(given, 0), np.arange(4)]):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("batch", [0, 1])
def test_empty_and_single_batches(batch: int) -> None:
    g, x = small(batch), inputs(batch)
    assert renorm.compile(g).run(x)[0].shape == (batch, 4)


class Broken(renorm.OpDef):
    """y = x, if its compute were right."""

    signature = "x: T[*S] -> y: T[*S]"
    types = {"T": ("float32",)}
    fusion = ELEMENTWISE

    def compute(self, x):
        return te.compute(x.shape, lambda i: x[i, i], name="broken")  # the line that the error must name


def test_an_exception_in_a_compute_names_its_place() -> None:
    registry.register(Broken)
    try:
        g = Graph("user")
        x = g.input("x", "float32", (4,))
        g.outputs = [Broken()(x, name="my_node")]
        with pytest.raises(renorm.errors.UserCodeError) as caught:
            renorm.compile(g)
    finally:
        registry.unregister("broken")
    message = str(caught.value)
    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "must name" in text)
    for part in ("'my_node'", "broken", "f32[4]", f"{Path(__file__).name}:{line}", "indexed by 2"):
        assert part in message, message


class Unruly(renorm.OpDef):
    """An op every part of which can be made to fail."""

    signature = "x: T[N] -> y: T[N]"
    types = {"T": ("float32",)}
    fusion = ELEMENTWISE
    wrong: ClassVar[str] = ""

    def infer(self, x):
        return 1 // 0 if self.wrong == "infer" else None

    def compute(self, x):
        return te.compute((5,) if self.wrong == "compute" else x.shape, lambda i: x[i], name="unruly")

    def schedule(self, s, outs, target):
        axis = s[outs[0]].op.axis[0]
        if self.wrong == "schedule":
            s[outs[0]].split(axis, factor=0)
        if self.wrong == "lower":
            s[outs[0]].bind(axis, te.thread_axis("threadIdx.x"))

    def reference(self, x):
        return [][0]


def compile_unruly(verify: bool = False) -> None:
    g = Graph("user")
    g.outputs = [Unruly()(g.input("x", "float32", (4,)), name="mine")]
    renorm.compile(g, verify=verify)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("infer", ("node 'mine': infer of unruly failed: ZeroDivisionError", "f32[4]", "return 1 // 0")),
        ("compute", ("node 'mine': compute of unruly", "gives another type", "float32[5]", "f32[4]")),
        ("schedule", ("node 'mine': schedule of unruly failed: ", "f32[4]", "factor=0")),
        ("reference", ("node 'mine': reference of unruly failed: IndexError", "f32[4]", "return [][0]")),
    ],
)
def test_an_exception_in_any_part_of_an_op_names_its_place(part: str, words, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unruly, "wrong", part)
    with pytest.raises(renorm.errors.UserCodeError) as caught:
        compile_unruly(verify=part == "reference")
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_a_schedule_that_cannot_be_lowered_names_kernel_and_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unruly, "wrong", "lower")
    with pytest.raises(renorm.errors.InvalidLoops, match="kernel unruly: loop threadIdx"):
        compile_unruly()


def test_what_is_asked_wrongly_is_refused() -> None:
    g = small()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"opt_level": 4}, "known: 0, 1, 2, 3"),
        ({"precision": "low"}, "known: 'fast', 'exact', 'bfloat16'"),
        ({"target": "npu"}, "known: "),
        ({"target": "cuda -arch=sm_9"}, r"sm_90|renorm\[cuda\]"),
        ({"keep": ["batchnorm"]}, "batch_norm"),
    ]
    for options, words in cases:
        with pytest.raises(renorm.errors.RenormError, match=words):
            renorm.compile(g, **options)
    with pytest.raises(renorm.errors.InvalidModel, match=r"(?i)no such file"):
        renorm.compile("missing.onnx")


def test_a_registered_target_keeps_its_units_and_overrides() -> None:
    g, x = small(), inputs()
    renorm.register_target(renorm.Target("my_npu", base="llvm", supports=["batch_norm"]))
    m = renorm.compile(g, target="my_npu")
    (record,) = [n for n in m.report.norms if n.kind == "batch_norm"]
    assert record.fate == "unit"
    assert "my_npu" in record.reason
    np.testing.assert_allclose(m.run(x)[0], expected(g, x), rtol=1e-4, atol=1e-5)

    def scaled(op, x, *parameters):
        return te.compute(x.shape, lambda *i: x[i] * 3.25, name="scaled")

    renorm.override("relu", target="my_npu", compute=scaled)
    try:
        loops = [renorm.compile(g, target=t) for t in ("my_npu", "llvm")]
        assert [any("*3.25f)" in m.kernel(k).loops for k in m.report.kernels) for m in loops] == [True, False]
    finally:
        renorm.override("relu", target="my_npu")


def test_a_network_of_open_extents_says_at_once_what_will_become_of_it() -> None:
    m = renorm.compile(small(batch=Sym("N")))
    assert [n.fate for n in m.report.norms] == ["folded", "kept"]
    planned = [str(k) for k in m.report.kernels]
    m.run(inputs())
    assert [str(k) for k in m.report.kernels] == planned
    assert m.report.memory.weights > 0


def test_an_input_may_have_any_name() -> None:
    g = Graph("names")
    a, b = (g.input(name, "float32", (Sym("N"), 3)) for name in ("self", "x.1"))
    g.outputs = [renorm.ops.add(a, b)]
    one = np.ones((2, 3), np.float32)
    given: dict[str, Any] = {"self": one, "x.1": one}
    for m in (renorm.compile(g), renorm.compile(g, shapes={"self": (2, 3)})):
        np.testing.assert_array_equal(m.run(**given)[0], 2 * one)


def test_kernels_can_be_read() -> None:
    m = renorm.compile(small())
    for record in m.report.kernels:
        text = m.kernel(record)
        assert text.name == str(record)
        assert text.loops.startswith("kernel ")
        assert "define" in text.llvm
        assert "ret" in text.asm
    with pytest.raises(renorm.errors.InvalidInput, match="nearest: "):
        m.kernel("conv")


def test_equal_kernels_are_compiled_once() -> None:
    g = Graph("twins")
    x = g.input("x", "float32", (2, 4, 5, 5))
    rng = np.random.default_rng(0)
    for _ in range(3):
        x = renorm.ops.relu(renorm.ops.conv(x, rng.normal(size=(4, 4, 3, 3)).astype(np.float32), pads=(1, 1, 1, 1)))
    g.outputs = [x]
    m = renorm.compile(g)
    assert len(m.report.kernels) == 3
    assert isinstance(m, renorm.Module)
    assert len(m.program.codes) == 1


def test_verified_rewrites_have_their_error() -> None:
    m = renorm.compile(small(), verify=True)
    (folded,) = [n for n in m.report.norms if n.fate == "folded"]
    assert folded.max_error is not None
    assert folded.max_error < 1e-5


def test_optimize_writes_a_model_with_the_same_names(tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    path = tmp_path / "folded.onnx"
    renorm.optimize(DIGITS, path)
    before, after = onnx.load(DIGITS), onnx.load(path)
    assert [o.name for o in after.graph.output] == [o.name for o in before.graph.output]
    assert after.ir_version == before.ir_version
    assert [(o.domain, o.version) for o in after.opset_import] == [(o.domain, o.version) for o in before.opset_import]
    counts = [sum(n.op_type == "BatchNormalization" for n in m.graph.node) for m in (before, after)]
    assert counts[1] < counts[0]
    x = np.random.default_rng(0).uniform(0, 1, (5, 1, 8, 8)).astype(np.float32)
    ys = [ort.InferenceSession(str(p)).run(None, {before.graph.input[0].name: x})[0] for p in (DIGITS, path)]
    np.testing.assert_allclose(ys[0], ys[1], rtol=1e-4, atol=1e-5)
