"""Networks whose weights and values between kernels memory holds in bfloat16: compiled code computes what the
interpreter does, and both stay near the definition in float64."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.driver.test_layouts import TARGETS, Network, extents
from tests.exhaustive import one_of
from tests.ops.one_node import LAYERS, OneNode
from tests.ops.test_every_op import OPS

import renorm
from renorm import ops
from renorm.core import dtypes
from renorm.core.difference import relative_error
from renorm.core.dims import Sym
from renorm.core.tolerance import tolerance
from renorm.driver.compare import compare, compare_open
from renorm.driver.module import CompiledModule, OpenModule
from renorm.graph import interpret
from renorm.graph.ir import Graph, Value
from renorm.graph.op import OpDef, Sample
from renorm.ops.non_max_suppression import NonMaxSuppression
from renorm.passes import mixed_precision
from renorm.passes.sensitivity import Sensitivity
from renorm.runtime.cpu import missing_features
from renorm.targets import find

Array = np.ndarray[Any, Any]
FLIPS = 4  # layers that such roundings count for
ULP = 2.0**-7  # from a number of bfloat16 to the next, relative to it


@pytest.fixture
def small_values_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_precision, "SMALL", 16)


def held(module: CompiledModule) -> list[Value]:
    return [v for n in module.graph.nodes for v in n.outputs if v.held_dtype != v.dtype]


def check(module: CompiledModule, graph: Graph, x: Array) -> None:
    """Compares a module with the interpreter of what was compiled, and with the definition of the network."""
    (found,) = module.run(x)
    (expected,) = interpret.run(interpret.fixed(module.graph, {"x": x}), [x])
    # sums in another order round some values to the next number, from which later layers go on
    assert relative_error(found, expected) < tolerance("bfloat16", FLIPS)
    definition = Sensitivity.of(interpret.fixed(graph, {"x": x}), {"x": x})
    assert definition.of_compiled(module.graph, {"x": x}).judge(0, found).agrees


@pytest.mark.usefixtures("small_values_count")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("first", [0, 4, pytest.param(100, marks=pytest.mark.exhaustive)])
def test_random_networks(first: int, target: str) -> None:
    count = 0
    for seed in range(first, first + (4 if first < 100 else 60)):
        network = Network(seed)
        x = np.random.default_rng(seed).standard_normal(extents(network.graph.inputs[0])).astype(np.float32)
        level = seed % 3 if seed % 5 == 4 else 3
        given: dict[str, Any] = {"target": target, "threads": 1 + seed % 2, "opt_level": level}
        module = renorm.compile(network.graph, precision="bfloat16", **given)
        assert isinstance(module, CompiledModule)
        check(module, network.graph, x)
        count += len(held(module))
    assert count > 6  # else it tests nothing


class Surrounded(OneNode):
    """A sample between two kernels: it reads values that memory holds in bfloat16, and its results are held so too."""

    def __init__(self, op: type[OpDef], sample: Sample):
        super().__init__(op, sample)
        results = self.graph.nodes[-1].outputs
        self.graph.outputs = [ops.neg(v) if v.dtype == "float32" else v for v in results]

    def _value(self, name: str, spec: Any, is_static: bool, rng: np.random.Generator) -> Value:
        v = super()._value(name, spec, is_static, rng)
        return v if is_static or v.dtype != "float32" else ops.neg(v)


@pytest.mark.parametrize("level", [3, pytest.param(0, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("op", one_of(2, OPS), ids=lambda op: op.name)
def test_every_op_reads_and_writes_what_is_held_in_bfloat16(
    op: type[OpDef], level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a plan may leave float32 is held in bfloat16 here; but decisions of suppression rest on all digits."""

    def everything(graph: Graph, _context: Any) -> dict[Value, str]:
        inside = {n: g.name for g in graph.groups for n in g.nodes}
        made = [v for n in graph.nodes for v in n.outputs if v.dtype == "float32" and not graph.is_output(v)]
        return {v: "" for v in made if any(inside[u] != inside[n] for n in [v.producer] if n for u in v.readers)}

    monkeypatch.setattr(mixed_precision, "plan", everything)
    for sample in () if issubclass(op, NonMaxSuppression) else op.samples:
        case = Surrounded(op, sample)
        module = renorm.compile(case.graph, precision="bfloat16", opt_level=level, threads=1)
        assert isinstance(module, CompiledModule)
        for found, expected in zip(module.run(*case.arrays), interpret.run(module.graph.copy(), case.arrays)):
            if not dtypes.is_float(dtypes.from_numpy(expected.dtype)):
                assert np.array_equal(found, expected)
                continue
            a, b = found.astype(np.float64), expected.astype(np.float64)
            finite = np.isfinite(b)
            most = np.abs(b[finite]).max(initial=0.0)
            assert np.array_equal(np.isnan(a), np.isnan(b))
            few = max(1e-4, tolerance(dtypes.from_numpy(expected.dtype), LAYERS))  # states of float16 are, step by step
            assert (np.abs(a[finite] - b[finite]) <= ULP * np.abs(b[finite]) + few * most).all(), sample.attributes


def normal(*shape: int) -> Array:
    rng = np.random.default_rng(sum(shape))
    return (rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))).astype(np.float32)


def mixed(n: Any = 2, h: Any = 33, w: Any = 31) -> Graph:
    """Convolutions of many kinds, a residual, a concat, a gate, norms and a head."""
    g = Graph("mixed")
    x = g.input("x", "float32", (n, 3, h, w))
    y = ops.relu(ops.conv(x, normal(32, 3, 3, 3), normal(32), pads=[1] * 4))
    y = ops.relu(ops.add(ops.conv(y, normal(32, 32, 3, 3), pads=[1] * 4), y))
    y = ops.concat([y, ops.conv(y, normal(16, 32, 1, 1))], axis=1)
    y = ops.conv(y, normal(48, 1, 3, 3), normal(48), pads=[1] * 4, group=48)
    gate = ops.sigmoid(ops.conv(ops.global_average_pool(y), normal(48, 48, 1, 1)))
    y = ops.conv(ops.mul(y, gate), normal(40, 24, 3, 3), pads=[1] * 4, group=2)
    y = ops.group_norm(y, normal(40), normal(40), num_groups=4)
    y = ops.conv_transpose(ops.relu(y), normal(40, 20, 2, 2), strides=(2, 2))
    y = ops.relu(ops.instance_norm(ops.conv(y, normal(24, 20, 3, 3), strides=(2, 2)), normal(24), normal(24)))
    y = ops.flatten(ops.global_average_pool(ops.conv(y, normal(56, 24, 1, 1))))
    g.outputs = [ops.gemm(ops.relu(ops.gemm(y, normal(56, 30), normal(30))), normal(30, 10))]
    return g


def encoder() -> Graph:
    g = Graph("encoder")
    y = g.input("x", "float32", (2, 37, 48))
    y = ops.add(ops.matmul(y, normal(48, 64)), normal(37, 64))
    for _ in range(2):
        z = ops.layer_norm(y, normal(64), normal(64))
        q, k, v = (
            ops.transpose(ops.reshape(ops.matmul(z, normal(64, 64) * s), np.array([2, 37, 4, 16])), perm=(0, 2, 1, 3))
            for s in (1.0, 0.5, 2.0)
        )
        scores = ops.softmax(ops.mul(ops.matmul(q, ops.transpose(k, perm=(0, 1, 3, 2))), np.float32(0.25)))
        z = ops.reshape(ops.transpose(ops.matmul(scores, v), perm=(0, 2, 1, 3)), np.array([2, 37, 64]))
        y = ops.add(y, ops.matmul(z, normal(64, 64)))
        z = ops.gelu(ops.matmul(ops.layer_norm(y, normal(64), normal(64)), normal(64, 256)))
        y = ops.add(y, ops.matmul(z, normal(256, 64)))
    g.outputs = [ops.matmul(ops.layer_norm(y, normal(64), normal(64)), normal(64, 10))]
    return g


@pytest.mark.parametrize("build", [mixed, encoder])
@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_known_networks(build: Any, level: int) -> None:
    graph = build()
    x = np.random.default_rng(0).standard_normal(extents(graph.inputs[0])).astype(np.float32)
    module = renorm.compile(graph, precision="bfloat16", opt_level=level)
    assert isinstance(module, CompiledModule)
    check(module, graph, x)
    plain = renorm.compile(graph, opt_level=level)
    assert len(held(module)) > 5
    assert module.report.memory.arena < 0.8 * plain.report.memory.arena
    filled = [k for k in module.report.kernels if k.name == "pad"]  # an image of three channels
    assert len(module.report.kernels) == len(plain.report.kernels) + len(filled)  # nothing else is copied for it


def test_open_extents() -> None:
    graph = mixed(Sym("n"), Sym("h"), Sym("w"))
    module = renorm.compile(graph, precision="bfloat16", verify=True)
    assert isinstance(module, OpenModule)
    assert held(module)
    for shape in ((1, 3, 33, 31), (3, 3, 8, 17), (2, 3, 64, 9)):
        check(module, graph, np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def test_an_artifact_runs_as_the_module_and_says_what_it_holds(tmp_path: Path) -> None:
    module = renorm.compile(mixed(), precision="bfloat16")
    x = np.random.default_rng(0).standard_normal((2, 3, 33, 31)).astype(np.float32)
    module.save(tmp_path / "net.renorm")
    loaded = renorm.load(tmp_path / "net.renorm")
    assert np.array_equal(loaded.run(x)[0], module.run(x)[0])
    assert loaded.report.precisions == module.report.precisions
    assert re.search(r"\d+ values between kernels, \d+ of them in their own dtype", str(loaded.report))
    assert loaded.report.to_json()["precisions"][0]["dtype"] == "bfloat16"
    assert loaded.report.arithmetic == module.report.arithmetic
    narrow = renorm.compile(mixed(), precision="bfloat16", target="llvm -mcpu=haswell")
    assert "products run in float32" in narrow.report.arithmetic


def products(n: Any = 2, h: Any = 30, w: Any = 22, crops: bool = True) -> Graph:
    """Products of all kinds, between a first layer of few channels and a last one. crops: also of a part of a plane,
    for which an open one may be too small."""
    g = Graph("products")
    x = ops.relu(ops.conv(g.input("x", "float32", (n, 3, h, w)), normal(64, 3, 3, 3), name="first"))
    x = ops.relu(ops.conv(x, normal(96, 64, 3, 3), pads=[2] * 4, dilations=(2, 2), name="padded"))
    x = ops.relu(ops.conv(x, normal(64, 96, 1, 1), strides=(2, 2), name="strided"))
    x = ops.add(x, ops.conv(x, normal(64, 64, 1, 1), name="pointwise"))
    x = ops.relu(ops.conv(x, normal(64, 64, 1, 1), pads=(1, 0, 1, 1), name="bordered"))
    if crops:
        x = ops.slice(x, np.array([1, 1]), np.array([99, 99]), np.array([2, 3]))
    x = ops.relu(ops.conv(x, normal(64, 64, 1, 1), name="cropped"))
    x = ops.relu(ops.conv_transpose(x, normal(64, 32, 3, 3), strides=(2, 2), name="transposed"))
    x = ops.transpose(ops.reshape(x, np.array([0, 32, -1])), perm=(0, 2, 1))
    x = ops.relu(ops.matmul(x, normal(32, 48), name="rows"))
    g.outputs = [ops.matmul(x, normal(48, 16), name="last")]
    return g


@pytest.mark.parametrize("results", [2, 3, 5, 33, 255])
@pytest.mark.parametrize(
    ("channels", "kernel", "strides"), [(3, (9, 9), (1, 1)), (1, (2, 5), (2, 3)), (3, (7, 7), (2, 2))]
)
def test_images_of_few_channels_are_read_and_written(
    channels: int, kernel: tuple[int, int], strides: tuple[int, int], results: int
) -> None:
    """The first layer reads them filled up; the last one has too few results for vectors, or an odd number."""
    g = Graph("image")
    x = ops.pad(g.input("x", "float32", (2, channels, 37, 45)), np.array([0, 0, 1, 2, 0, 0, 3, 1]), mode="reflect")
    x = ops.relu(
        ops.conv(x, normal(32, channels, *kernel), normal(32), pads=[1, 2, 0, 3], strides=strides, name="first")
    )
    g.outputs = [ops.conv(x, normal(results, 32, 3, 3), normal(results), pads=[1, 0, 1, 2], name="last")]
    found = renorm.compile(g, precision="bfloat16", target="llvm -mcpu=sapphirerapids")
    assert isinstance(found, CompiledModule)
    assert {n for k in found.report.kernels if "tdpbf16ps" in found.kernel(k.name).asm for n in k.nodes} >= {
        "first", "last",
    }  # fmt: skip
    module = renorm.compile(g, precision="bfloat16")
    assert isinstance(module, CompiledModule)
    check(module, g, np.random.default_rng(0).standard_normal((2, channels, 37, 45)).astype(np.float32))


@pytest.mark.parametrize(
    ("group", "channels", "results", "is_taken"),
    [(32, 4, 4, True), (8, 8, 16, True), (6, 16, 16, True), (8, 24, 24, True), (2, 32, 32, True), (16, 12, 8, True),
     (32, 2, 2, False), (3, 16, 32, True), (2, 24, 24, False)],
)  # fmt: skip
def test_groups_are_multiplied_where_several_are_whole_blocks(
    group: int, channels: int, results: int, is_taken: bool
) -> None:
    """Sixteen times the products in the time of one; and the networks with blocks of zeros compute the same."""
    g = Graph("groups")
    x = ops.relu(ops.conv(g.input("x", "float32", (1, 32, 13, 18)), normal(group * channels, 32, 1, 1), name="first"))
    w, b = normal(group * results, channels, 3, 3), normal(group * results)
    x = ops.relu(ops.conv(x, w, b, pads=[1] * 4, strides=(1, 2), group=group, name="grouped"))
    g.outputs = [ops.conv(x, normal(16, group * results, 1, 1))]
    found = renorm.compile(g, precision="bfloat16", target="llvm -mcpu=sapphirerapids")
    assert isinstance(found, CompiledModule)
    multiplied = {n for k in found.report.kernels if "tdpbf16ps" in found.kernel(k.name).asm for n in k.nodes}
    assert ("grouped" in multiplied) == is_taken
    module = renorm.compile(g, precision="bfloat16")
    assert isinstance(module, CompiledModule)
    check(module, g, np.random.default_rng(0).standard_normal((1, 32, 13, 18)).astype(np.float32))


PAIRS_HERE = "llvm -mcpu=cooperlake"  # others that multiply pairs can run what this one can


def needs_pairs() -> None:
    if missing := missing_features("x86_64", sorted(find(PAIRS_HERE).has or ())):
        pytest.skip(f"no products of pairs without {', '.join(missing)}")


@pytest.mark.parametrize(
    ("cpu", "instruction", "said"),
    [
        ("sapphirerapids", "tdpbf16ps", "on the CPU's matrix unit"),
        *((cpu, "vdpbf16ps", "in pairs, by vector instructions") for cpu in ("znver4", "znver5", "cooperlake")),
    ],
)
def test_products_run_on_what_multiplies_bfloat16(cpu: str, instruction: str, said: str) -> None:
    """All but those whose channels do not fill a register."""
    module = renorm.compile(products(), precision="bfloat16", target=f"llvm -mcpu={cpu}")
    assert isinstance(module, CompiledModule)
    found = {n for k in module.report.kernels if instruction in module.kernel(k.name).asm for n in k.nodes}
    assert found >= {"padded", "strided", "pointwise", "bordered", "cropped", "transposed", "rows", "last"}
    assert ("first" in found) == (instruction == "tdpbf16ps")
    assert said in module.report.arithmetic


def test_products_on_this_machine() -> None:
    module = renorm.compile(products(), precision="bfloat16")
    assert isinstance(module, CompiledModule)
    check(module, products(), np.random.default_rng(0).standard_normal((2, 3, 30, 22)).astype(np.float32))


@pytest.mark.parametrize(("channels", "side", "fewer"), [(64, 28, True), (256, 7, False)])
def test_pairs_are_weighed_against_algorithms_of_fewer_products(channels: int, side: int, fewer: bool) -> None:
    g = Graph("convolutions")
    x = ops.relu(ops.conv(g.input("x", "float32", (1, channels, side, side)), normal(channels, channels, 1, 1)))
    x = ops.relu(ops.conv(x, normal(channels, channels, 3, 3), pads=[1] * 4))
    g.outputs = [ops.conv(x, normal(8, channels, 1, 1))]
    found = [
        [k.name for k in renorm.compile(g, precision=p, target="llvm -mcpu=znver4").report.kernels]
        for p in ("fast", "bfloat16")
    ]
    assert [any("winograd" in name for name in names) for names in found] == [True, fewer]


@pytest.mark.parametrize("build", [products, encoder])
def test_products_of_pairs(build: Any) -> None:
    needs_pairs()
    graph: Graph = build()
    module = renorm.compile(graph, precision="bfloat16", target=PAIRS_HERE)
    assert isinstance(module, CompiledModule)
    assert any("vdpbf16ps" in module.kernel(k.name).asm for k in module.report.kernels)
    check(module, graph, np.random.default_rng(0).standard_normal(extents(graph.inputs[0])).astype(np.float32))


def test_products_of_pairs_of_open_extents() -> None:
    needs_pairs()
    graph = products(Sym("n"), Sym("h"), Sym("w"), crops=False)
    module = renorm.compile(graph, precision="bfloat16", target=PAIRS_HERE)
    assert isinstance(module, OpenModule)
    assert sum("vdpbf16ps" in module.kernel(k.name).asm for k in module.report.kernels) >= 4
    for shape in ((1, 3, 33, 31), (3, 3, 8, 17), (2, 3, 64, 9)):
        check(module, graph, np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def attending(tokens: Any = 51, rows: Any = None, held: int = 32, past: int = 0, is_kept: bool = False) -> Graph:
    """Two heads of `held`, of as many queries as rows, or tokens, with a mask or the keys of earlier tokens, which may
    be kept for later ones."""
    g = Graph("attending")
    y = ops.layer_norm(g.input("x", "float32", (1, tokens, 64)), normal(64), normal(64))
    heads = np.array([0, 0, 2, held])
    q, k, v = (
        ops.transpose(ops.reshape(ops.matmul(y, 4 * normal(64, 2 * held) * s), heads), perm=(0, 2, 1, 3))
        for s in (1.0, 0.5, 2.0)
    )
    if rows is not None:
        q = ops.slice(q, np.array([0]), np.array([rows]), np.array([2]))
    if past:
        k = ops.concat([g.input("past", "float32", (1, 2, past, held)), k], axis=2)
        v = ops.concat([g.input("values", "float32", (1, 2, past, held)), v], axis=2)
    mask = None if past or not isinstance(tokens, int) else np.log(np.arange(1, tokens + 1)).astype(np.float32)
    y = ops.attention(q, k, v, *([] if mask is None else [mask]), scale=held**-0.5, name="attention")
    y = ops.reshape(ops.transpose(y, perm=(0, 2, 1, 3)), np.array([0, 0, 2 * held]))
    g.outputs = [ops.matmul(ops.relu(ops.matmul(y, normal(2 * held, 64))), normal(64, 16)), *([k, v] * is_kept)]
    return g


def multiplied(graph: Graph, target: str = "llvm -mcpu=sapphirerapids") -> str | None:
    module = renorm.compile(graph, precision="bfloat16", target=target)
    (node,) = (n for n in module.graph.nodes if n.op.name == "attention")
    return node.op.values["multiplied_as"]


@pytest.mark.usefixtures("small_values_count")
def test_attention_multiplies_what_is_held_in_bfloat16() -> None:
    """Where the machine does: the graph says that weights are rounded, and the interpreter rounds them."""
    graph = attending()
    assert multiplied(graph) == "bfloat16"
    assert multiplied(graph, "llvm -mcpu=haswell") is None
    assert multiplied(attending(past=40)) == "bfloat16"
    module = renorm.compile(graph, precision="bfloat16")
    assert isinstance(module, CompiledModule)
    check(module, graph, np.random.default_rng(0).standard_normal((1, 51, 64)).astype(np.float32))


@pytest.mark.usefixtures("small_values_count")
@pytest.mark.parametrize(
    "given", [{"tokens": 47}, {"rows": 15}, {"held": 24}, {"past": 40, "is_kept": True}, {"tokens": Sym("n")}], ids=str
)
def test_attention_stays_float32_where_registers_are_not_full_or_an_operand_is(given: dict[str, Any]) -> None:
    assert multiplied(attending(**given)) is None


def test_other_precisions_hold_nothing_in_bfloat16() -> None:
    for precision in ("fast", "exact"):
        module = renorm.compile(mixed(), precision=precision)
        assert isinstance(module, CompiledModule)
        assert not held(module)
        assert not module.report.precisions


def test_verified() -> None:
    module = renorm.compile(mixed(), precision="bfloat16", verify=True)
    assert isinstance(module, CompiledModule)
    assert held(module)
    assert module.report.verified
    (output,) = module.report.verified.outputs
    assert 1e-5 < output.error < output.tolerance == tolerance("bfloat16")
    assert not any("reverted" in reason for _, _, reason in module.report.refusals)


def test_a_comparison_has_the_error_of_each_value() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 33, 31)).astype(np.float32)
    found = compare(mixed(), {"x": x}, precision="bfloat16")
    assert found.agrees
    assert [h.value for h in found.held][-1] == found.outputs[0].name
    assert all(0.0 < h.l2 < 0.02 for h in found.held)
    assert {h.dtype for h in found.held} == {"float32", "bfloat16"}
    assert all(h.reason or h.dtype == "bfloat16" for h in found.held[:-1])
    (opened,) = compare_open(mixed(Sym("n"), Sym("h"), Sym("w")), [{"x": x}], precision="bfloat16")
    assert opened.agrees
    assert [h.value for h in opened.held] == [h.value for h in found.held]


def test_what_a_kernel_computes_wrongly_is_found() -> None:
    """A wrong tenth is more than rounding to bfloat16 explains; the first node that differs is named."""
    g = mixed()
    x = np.random.default_rng(0).standard_normal((2, 3, 33, 31)).astype(np.float32)
    definition = Sensitivity.of(g, {"x": x})
    module = renorm.compile(g, precision="bfloat16")
    assert isinstance(module, CompiledModule)
    (found,) = module.run(x)
    assert not definition.of_compiled(module.graph, {"x": x}).judge(0, found + 0.1 * np.abs(found).max()).agrees
