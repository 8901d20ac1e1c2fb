"""Norms in pieces become one op where the pieces are those of a norm, and stay, with a sentence, where they are not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.frontends import onnx_runtime

import renorm
from renorm import ops
from renorm.core import records
from renorm.core.dims import static
from renorm.graph import interpret
from renorm.graph.ir import Graph, Value
from renorm.graph.verify import verify
from renorm.passes.context import Context
from renorm.passes.pipeline import optimize
from renorm.passes.raising import RaiseNorms

EPSILON = 0.03
AXES = (2,)


def kinds(graph: Graph) -> dict[str, int]:
    """How often each op is there."""
    found: dict[str, int] = {}
    for n in graph.nodes:
        found[n.op.name] = found.get(n.op.name, 0) + 1
    return found


def normal(*shape: int, seed: int = 3) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def network(build: Callable[[Value], Any], shape: tuple[int, ...] = (2, 3, 6), dtype: str = "float32") -> Graph:
    g = Graph()
    g.outputs = [build(g.input("x", dtype, shape))]
    return g


def f32(number: float) -> Any:
    return np.asarray(number, np.float32)


def mean(x: Value, axes: tuple[int, ...] = AXES, keepdims: bool = True) -> Value:
    return ops.reduce_mean(x, axes=axes, keepdims=keepdims)


# --- what there is of means, squares and roots ------------------------------------------------------------------------

SQUARES: dict[str, Callable[[Value], Value]] = {
    "mul": lambda c: ops.mul(c, c),
    "pow": lambda c: ops.pow(c, f32(2)),
    "pow_int": lambda c: ops.pow(c, np.asarray(2, np.int64)),
}

MEANS: dict[str, Callable[[Value, tuple[int, ...]], Value]] = {
    "reduce_mean": mean,
    "sum_by_count": lambda x, axes: ops.div(ops.reduce_sum(x, axes=axes), f32(prod(static(x.shape[a] for a in axes)))),
    "sum_times": lambda x, axes: ops.mul(ops.reduce_sum(x, axes=axes), f32(1 / prod(static(x.shape[a] for a in axes)))),
    "unsqueezed": lambda x, axes: ops.unsqueeze(mean(x, axes, False), axes=axes),
    "reshaped": lambda x, axes: ops.reshape(mean(x, axes, False), np.array(mean(x, axes).shape)),
}  # fmt: skip

QUOTIENTS: dict[str, Callable[[Value, Value], Value]] = {
    "div_sqrt": lambda c, v: ops.div(c, ops.sqrt(v)),
    "mul_reciprocal": lambda c, v: ops.mul(c, ops.reciprocal(ops.sqrt(v))),
    "mul_one_by": lambda c, v: ops.mul(ops.div(f32(1), ops.sqrt(v)), c),
    "mul_rsqrt": lambda c, v: ops.mul(c, ops.rsqrt(v)),
    "mul_pow": lambda c, v: ops.mul(c, ops.pow(v, f32(-0.5))),
    "div_pow": lambda c, v: ops.div(c, ops.pow(v, f32(0.5))),
}


def layered(square: str = "mul", average: str = "reduce_mean", quotient: str = "div_sqrt", axes: Any = AXES) -> Any:
    def build(x: Value) -> Value:
        c = ops.sub(x, MEANS[average](x, axes))
        return QUOTIENTS[quotient](c, ops.add(MEANS[average](SQUARES[square](c), axes), f32(EPSILON)))

    return build


def rms(x: Value) -> Value:
    return ops.mul(x, ops.rsqrt(ops.add(mean(ops.mul(x, x)), f32(EPSILON))))


def standard(x: Any, axes: tuple[int, ...] = AXES, epsilon: float = EPSILON, centred: bool = True) -> Any:
    """The oracle."""
    c = x.astype(np.float64)
    c = c - c.mean(axis=axes, keepdims=True) if centred else c
    return c / np.sqrt((c * c).mean(axis=axes, keepdims=True) + np.float32(epsilon))


def raised(g: Graph, expected: dict[str, int], y: Callable[[Any], Any], scale: float = 1.0) -> None:
    """Checks what is left of a network, and that it computes what the oracle says."""
    (before,) = interpret.run(g, [x := scale * normal(*[int(str(d)) for d in g.inputs[0].shape], seed=8)])
    RaiseNorms().run(g, context := Context())
    verify(g)
    after, report = optimize(g, level=2, verify=True)
    assert kinds(after) == expected, f"{after}\n{context.log.refusals}\n{report}"
    (found,) = interpret.run(after, [x])
    np.testing.assert_allclose(found, y(x), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(before, y(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("average", MEANS)
@pytest.mark.parametrize("quotient", QUOTIENTS)
def test_layer_norm_of_all_its_pieces(square: str, average: str, quotient: str):
    raised(network(layered(square, average, quotient)), {"layer_norm": 1}, standard)


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("quotient", QUOTIENTS)
def test_rms_norm_of_all_its_pieces(square: str, quotient: str):
    def build(x: Value) -> Value:
        return QUOTIENTS[quotient](x, ops.add(f32(EPSILON), mean(SQUARES[square](x))))

    raised(network(build), {"rms_norm": 1}, lambda x: standard(x, centred=False))


W = normal(6, seed=1)
B = normal(6, seed=2)


def with_affine(x: Value) -> Value:
    return ops.add(ops.mul(W, layered()(x)), B)


def reassociated(x: Value) -> Value:
    """The factor first, as frameworks with a function for batch norm write it."""
    m = mean(x)
    d = ops.sub(x, m)
    f = ops.mul(ops.rsqrt(ops.add(mean(ops.mul(d, d)), f32(EPSILON))), W)
    return ops.add(ops.mul(x, f), ops.sub(B, ops.mul(m, f)))


def fast_variance(x: Value) -> Value:
    m = mean(x)
    var = ops.relu(ops.sub(mean(ops.mul(x, x)), ops.mul(m, m)))
    return ops.add(ops.mul(ops.mul(ops.sub(x, m), W), ops.rsqrt(ops.add(var, f32(EPSILON)))), B)


def other_signs(x: Value) -> Value:
    d = ops.sub(mean(x), x)
    f = ops.mul(ops.rsqrt(ops.add(mean(ops.mul(d, d)), f32(EPSILON))), -W)
    return ops.sub(ops.mul(d, f), -B)


def twice_subtracted(x: Value) -> Value:
    """The distance from the mean, once for the variance and once for the quotient, each the other way round."""
    var = mean(ops.pow(ops.sub(mean(x), x), f32(2)))
    return ops.add(ops.mul(ops.div(ops.sub(x, mean(x)), ops.sqrt(ops.add(var, f32(EPSILON)))), W), B)


@pytest.mark.parametrize("build", [with_affine, reassociated, fast_variance, other_signs, twice_subtracted])
def test_layer_norm_takes_its_scale_and_bias(build: Callable[[Value], Value]):
    raised(network(build), {"layer_norm": 1}, lambda x: standard(x) * W + B)


def test_constants_over_several_axes():
    w, b = normal(3, 6, seed=4), normal(3, 6, seed=5)

    def build(x: Value) -> Value:
        return ops.add(ops.mul(layered(axes=(1, 2))(x), w), b)

    raised(network(build, (2, 3, 6)), {"layer_norm": 1}, lambda x: standard(x, (1, 2)) * w + b)


@pytest.mark.parametrize(("op", "c"), [("mul", np.inf), ("div", 0.0), ("mul", 1e38)])
def test_constants_that_a_scale_cannot_take_stay_behind_it(op: str, c: float):
    """norm * scale + bias and then * inf is inf where scale * inf + bias * inf is inf - inf."""
    scale, bias, k = 9 * np.ones((3, 6), np.float32), -np.ones((3, 6), np.float32), normal(3, 6, seed=6)
    k[1, 2] = c

    def build(x: Value) -> Value:
        return getattr(ops, op)(ops.layer_norm(x, scale, bias, axis=1, epsilon=EPSILON), k)

    g = network(build)
    RaiseNorms().run(g, Context())
    assert kinds(g) == {"layer_norm": 1, op: 1}


def test_a_sum_of_squares_is_an_rms_norm_of_another_scale():
    def build(x: Value) -> Value:
        return ops.div(x, ops.sqrt(ops.add(ops.reduce_sum_square(x, axes=(-1,)), f32(EPSILON))))

    def expected(x: Any) -> Any:
        wide = x.astype(np.float64)
        return wide / np.sqrt((wide * wide).sum(axis=-1, keepdims=True) + np.float32(EPSILON))

    raised(network(build), {"rms_norm": 1}, expected)


@pytest.mark.parametrize("axes", [(1,), (2,), (1, 2)])
@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("spread", [False, True])
def test_l2_normalization(axes: tuple[int, ...], bounded: bool, spread: bool):
    """Divided by its Euclidean length it is an RMS norm; bounded below, as frameworks write it, it is nearly one."""

    def build(x: Value) -> Value:
        length = ops.reduce_l2(x, axes=axes)
        length = ops.clip(length, f32(1e-3)) if bounded else length
        return ops.div(x, ops.expand(length, np.array(x.shape)) if spread else length)

    def expected(x: Any) -> Any:
        return x / np.maximum(np.linalg.norm(x.astype(np.float64), axis=axes, keepdims=True), 1e-3 * bounded)

    g, x = network(build), 1e-4 * normal(2, 3, 6, seed=8)
    module = renorm.compile(g.copy())
    np.testing.assert_allclose(module.run(x)[0], expected(x), rtol=1e-5)
    if bounded:
        (near,) = module.report.near_norms
        assert (near.kind, near.reason) == ("rms_norm", "epsilon bounds the root below: a norm adds it to the variance")
        assert len(near.nodes) == 3 + spread
    else:
        assert [n.kind for n in module.report.norms] == ["rms_norm"]
        raised(g, {"rms_norm": 1, **({"transpose": 2} if axes == (1,) else {})}, expected)


@pytest.mark.parametrize(
    ("shape", "axes", "along", "op"),
    [
        ((2, 3, 5, 4), (2, 3), (3, 1, 1), "instance_norm"),
        ((2, 3, 5, 4), (2, 3), None, "instance_norm"),
        ((2, 3, 5, 4), (2, 3), (1, 3, 1, 1), "instance_norm"),
        ((2, 3, 5), (2,), (3, 1), "instance_norm"),
        ((2, 3, 4, 2, 5), (2, 3, 4), (3, 1, 1, 1), "instance_norm"),
        ((2, 3, 5, 4), (1, 2, 3), (3, 1, 1), "group_norm"),
        ((2, 3, 5, 4), (2, 3), (5, 4), "layer_norm"),
        ((2, 3, 5, 4), (1, 2, 3), (3, 5, 4), "layer_norm"),
        ((2, 3, 5, 4), (3,), (4,), "layer_norm"),
        ((4, 6), (1,), (6,), "layer_norm"),
        ((4, 6), (0, 1), None, "layer_norm"),
    ],
)
def test_axes_and_constants_tell_the_kind(shape: Any, axes: Any, along: Any, op: str):
    w, b = (np.float32(1), np.float32(0)) if along is None else (normal(*along, seed=4), normal(*along, seed=5))

    def build(x: Value) -> Value:
        y = layered(axes=axes)(x)
        return y if along is None else ops.add(ops.mul(y, w), b)

    raised(network(build, shape), {op: 1}, lambda x: standard(x, axes) * w + b)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((2, 5, 4, 3), (1,)), ((1, 7, 5, 6), (1,)), ((2, 5, 3), (1,)), ((2, 3, 2, 4, 3), (1,)), ((2, 5, 4, 3), (1, 2)),
     ((2, 5, 4, 3), (2,)), ((3, 4, 5), (1,))],
)  # fmt: skip
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_norms_over_other_axes_than_the_last(shape: Any, axes: Any, centred: bool, affine: bool, tmp_path: Path):
    """Above all over the channels of an image, as networks write it that have a class for that."""
    along = (shape[1], *[1] * (len(shape) - 2))
    w, b = normal(*along, seed=4), normal(*along, seed=5)

    def build(x: Value) -> Value:
        c = ops.sub(x, mean(x, axes)) if centred else x
        y = ops.div(c, ops.sqrt(ops.add(mean(ops.pow(c, f32(2)), axes), f32(EPSILON))))
        y = ops.mul(w, y) if affine else y
        return ops.add(y, b) if affine and centred else y

    def expected(x: Any) -> Any:
        y = standard(x, axes, centred=centred)
        return y if not affine else y * w + b if centred else y * w

    kind = "layer_norm" if centred else "rms_norm"
    g = network(build, shape)
    x = 3 * normal(*shape, seed=8) + 2
    module = renorm.compile(g.copy())
    np.testing.assert_allclose(module.run(x)[0], expected(x), rtol=1e-5, atol=1e-5)
    (record,) = module.report.norms
    assert (record.kind, record.fate, len(record.into)) == (kind, "kept", 1)
    assert len(module.report.kernels) == 1
    after, _ = optimize(g.copy(), level=2, verify=True, for_export=True)
    assert kinds(after) == {kind: 1, "transpose": 2}
    (found,) = interpret.run(after, [x])
    np.testing.assert_allclose(found, expected(x), rtol=1e-5, atol=1e-5)
    if centred:
        renorm.optimize(g, tmp_path / "y.onnx")
        np.testing.assert_allclose(onnx_runtime.run(tmp_path / "y.onnx", x)[0], expected(x), rtol=1e-5, atol=1e-5)


def test_a_global_average_is_a_mean():
    def build(x: Value) -> Value:
        c = ops.sub(x, ops.global_average_pool(x))
        return ops.div(c, ops.sqrt(ops.add(ops.global_average_pool(ops.mul(c, c)), f32(EPSILON))))

    raised(network(build, (2, 3, 5, 4)), {"instance_norm": 1}, lambda x: standard(x, (2, 3)))


# --- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [(2, 3, -1), (6, -1), (2, 3, 2, 20), (2, 3, 2, 5, 4)])
@pytest.mark.parametrize("affine", ["none", "inside", "behind"])
def test_group_norm_of_reshapes_and_pieces(inside: tuple[int, ...], affine: str):
    shape, w, b = (2, 6, 5, 4), normal(6, 1, 1, seed=4), normal(6, 1, 1, seed=5)
    axes = tuple(range(min(2, len(inside) - 1), len(inside)))
    if affine == "inside" and len(inside) <= 3:
        pytest.skip("three axes have none that the channels of a group run along")

    def build(x: Value) -> Value:
        y = layered(axes=axes)(ops.reshape(x, np.array(inside)))
        if affine == "inside":
            own = (3, 2, *[1] * (len(inside) - 3))
            y = ops.add(ops.mul(y, w.reshape(own)), b.reshape(own))
        y = ops.reshape(y, np.array(shape))
        return ops.add(ops.mul(y, w), b) if affine == "behind" else y

    def expected(x: Any) -> Any:
        y = standard(x.reshape(2, 3, -1)).reshape(shape)
        return y if affine == "none" else y * w + b

    raised(network(build, shape), {"group_norm": 1}, expected)


# --- narrow types -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_casts_around_a_norm_of_narrow_values_go(dtype: str):
    w = renorm.nd.array(W).asnumpy()

    def build(x: Value) -> Value:
        y = ops.cast(rms(ops.cast(x, to="float32")), to=dtype)
        return ops.mul(y, ops.cast(x.graph.constant(w), to=dtype))

    g = network(build, dtype=dtype)
    x = normal(2, 3, 6).astype(g.inputs[0].type.dtype if dtype == "float16" else np.float32)
    module = renorm.compile(g, opt_level=2)
    assert kinds(module.graph) == {"rms_norm": 1}
    if dtype == "float16":
        expected = standard(x, centred=False) * W.astype(np.float16)
        np.testing.assert_allclose(module.run(x)[0].astype(np.float64), expected, rtol=2e-3, atol=2e-3)


# --- what is no norm --------------------------------------------------------------------------------------------------


def spelled(
    x: Value,
    *,
    inside: Any = EPSILON,
    outside: float = 0.0,
    between: float = 0.0,
    floor: float | None = None,
    root_floor: float | None = None,
    count: float = 1.0,
    mean_axes: Any = AXES,
    var_axes: Any = AXES,
    mean_of: Value | None = None,
    var_of: Value | None = None,
    numerator: str = "centred",
    mean_factor: float = 1.0,
) -> Value:
    m = mean(x if mean_of is None else mean_of, mean_axes)
    m = m if mean_factor == 1 else ops.mul(m, f32(mean_factor))
    c = ops.sub(x, m)
    squared = c if var_of is None else ops.sub(var_of, mean(var_of, mean_axes))
    var = mean(ops.mul(squared, squared), var_axes)
    var = var if count == 1 else ops.mul(var, f32(count))
    var = ops.relu(ops.add(var, f32(between))) if between else var
    var = var if floor is None else ops.max(var, f32(floor))
    if isinstance(inside, Value) or np.size(inside) != 1 or inside:
        var = ops.add(var, inside if isinstance(inside, Value) else np.asarray(inside, np.float32))
    root = ops.sqrt(var)
    root = ops.add(root, f32(outside)) if outside else root
    root = root if root_floor is None else ops.max(root, f32(root_floor))
    return ops.div(c if numerator == "centred" else x, root)


NEAR: dict[str, tuple[dict[str, Any], str]] = {
    "outside": ({"inside": 0, "outside": 0.1}, "epsilon stands outside the root"),
    "both": ({"outside": 0.1}, "epsilon stands outside the root"),
    "floor": ({"inside": 0, "floor": 0.1}, "epsilon bounds the variance below"),
    "root_floor": ({"inside": 0, "root_floor": 0.1}, "epsilon bounds the root below"),
    "unbiased": ({"count": 6 / 5}, "divided by n - 1 = 5"),
    "factor": ({"count": 2.0}, "the variance is multiplied by 2"),
    "other_axes": ({"mean_axes": (1,)}, r"the mean is over axes \(1,\), the variance over axes \(2,\)"),
    "samples": ({"mean_axes": (0, 2), "var_axes": (0, 2)}, r"it is over axes \(0, 2\) of 3, and norms do not mix samp"),
    "per_row": ({"inside": [[0.1], [0.2], [0.3]]}, "with different elements"),
    "broadcast": ({"inside": np.full((1, 3, 6), 0.1)}, "broadcasts the variance"),
    "twice": ({"between": 0.5}, "epsilon is added twice"),
    "negative": ({"inside": -0.5, "count": 1}, "epsilon is -0.5"),
    "not_centred": ({"numerator": "x"}, "not centred"),
    "twice_the_mean": ({"mean_factor": 2.0}, "2 times the mean is subtracted"),
}


@pytest.mark.parametrize("name", NEAR)
def test_what_is_nearly_a_norm_stays(name: str):
    options, words = NEAR[name]
    refused(network(lambda x: spelled(x, **options)), words)


def test_a_mean_square_below_zero():
    def build(x: Value) -> Value:
        return ops.div(x, ops.sqrt(ops.add(ops.mul(mean(ops.mul(x, x)), f32(-1)), f32(9))))

    refused(network(build), "the mean of squares is multiplied by -1")


def test_instance_norms_of_float64_are_layer_norms(tmp_path: Path):
    """ONNX Runtime has no instance norm of float64."""

    def build(x: Value) -> Value:
        c = ops.sub(x, mean(x, (2, 3)))
        y = ops.div(c, ops.sqrt(ops.add(mean(ops.mul(c, c), (2, 3)), np.asarray(EPSILON))))
        return ops.mul(y, np.array([1.0, -2.0, 0.5]).reshape(3, 1, 1))

    g = network(build, (2, 3, 5, 4), "float64")
    renorm.optimize(g, tmp_path / "y.onnx")
    x = np.random.default_rng(5).standard_normal((2, 3, 5, 4))
    c = x - x.mean(axis=(2, 3), keepdims=True)
    expected = c / np.sqrt((c * c).mean(axis=(2, 3), keepdims=True) + EPSILON) * np.array([[[1.0]], [[-2.0]], [[0.5]]])
    np.testing.assert_allclose(onnx_runtime.run(tmp_path / "y.onnx", x)[0], expected, rtol=1e-6, atol=1e-6)


def refused(g: Graph, words: str) -> None:
    RaiseNorms().run(g, context := Context())
    assert not any(n.op.is_normalization for n in g.nodes)
    reasons = [r.reason for r in context.log.refusals]
    with pytest.raises(AssertionError, match=words):
        raise AssertionError("; ".join(reasons))
    assert len(set(reasons)) == 1
    nodes = {n.name for n in g.nodes}
    _, report = optimize(g, level=2)
    assert {n.reason for n in report.near_norms} == {*reasons}
    assert {n.kind for n in report.near_norms} <= {"layer_norm", "rms_norm", "instance_norm"}
    assert all(n.name in n.nodes and {*n.nodes} <= nodes for n in report.near_norms)
    assert report.norms == ()


@pytest.mark.parametrize(
    ("option", "words"), [("mean_of", "the mean is that of 'z'"), ("var_of", "the variance is that of 'z'")]
)
def test_statistics_of_another_tensor(option: str, words: str):
    g = Graph()
    x, z = g.input("x", "float32", (2, 3, 6)), g.input("z", "float32", (2, 3, 6))
    options: Any = {option: z}
    g.outputs = [spelled(x, **options)]
    refused(g, words)


def test_an_epsilon_that_is_computed():
    g = Graph()
    x, z = g.input("x", "float32", (2, 3, 6)), g.input("z", "float32", (1,))
    g.outputs = [spelled(x, inside=z)]
    refused(g, "epsilon 'z' is not a constant")


def test_inner_values_with_other_readers():
    g = network(lambda x: layered()(x))
    inner = next(n for n in g.nodes if n.op.name == "sqrt").output
    g.outputs = [*g.outputs, ops.relu(inner)]
    refused(g, "is also read by 'relu'")
    g.outputs = [g.outputs[0], inner]
    refused(g, "is an output of the graph")


def test_rms_is_of_what_it_divides():
    """The root mean square of another tensor is no norm, and nothing to speak of."""
    g = Graph()
    x, z = g.input("x", "float32", (2, 3, 6)), g.input("z", "float32", (2, 3, 6))
    g.outputs = [ops.mul(x, ops.rsqrt(ops.add(mean(ops.mul(z, z)), f32(EPSILON))))]
    RaiseNorms().run(g, Context())
    assert kinds(g)["rsqrt"] == 1


def test_a_long_chain_ends():
    """Readings follow a few nodes, however many there are."""

    def build(x: Value) -> Value:
        y = mean(x)
        for _ in range(1000):
            y = ops.mul(ops.add(y, f32(0.5)), f32(1.01))
        return ops.div(x, ops.sqrt(y))

    g = network(build)
    RaiseNorms().run(g, Context())
    assert kinds(g)["sqrt"] == 1


# --- batch norm -------------------------------------------------------------------------------------------------------

CHANNEL = {"column": (4, 1, 1), "whole": (1, 4, 1, 1)}


@pytest.mark.parametrize("form", CHANNEL)
@pytest.mark.parametrize("turned", [False, True])
def test_batch_norm_of_its_pieces(form: str, turned: bool):
    def constant(seed: int, positive: bool = False) -> Any:
        v = normal(*CHANNEL[form], seed=seed)
        return np.abs(v) + np.float32(0.5) if positive else v

    m, var, w, b = constant(1), constant(2, True), constant(3), constant(4)

    def build(x: Value) -> Value:
        root = ops.sqrt(ops.add(x.graph.constant(var), f32(1e-3)))
        y = ops.div(ops.sub(x, m), root)
        return ops.add(b, ops.mul(w, y)) if turned else ops.add(ops.mul(y, w), b)

    def expected(x: Any) -> Any:
        return (x.astype(np.float64) - m) / np.sqrt(var + np.float64(np.float32(1e-3))) * w + b

    g = network(build, (2, 4, 3, 5))
    _, report = optimize(g.copy(), level=2, for_export=True)
    (record,) = report.norms
    assert (record.kind, record.fate, len(record.raised)) == ("batch_norm", "kept", 4)
    raised(g, {"mul": 1, "add": 1}, expected)


@pytest.mark.parametrize("op", ["conv", "conv_transpose", "gemm"])
def test_scale_and_shift_behind_a_linear_op_are_a_batch_norm_that_folds(op: str):
    w, k, b = normal(3, 4, 3, 3), normal(4, 1, 1, seed=1), normal(1, 4, 1, 1, seed=2)

    def build(x: Value) -> Value:
        if op == "gemm":
            return ops.add(ops.mul(ops.matmul(x, w[:, :, 0, 0]), k[:, 0, 0]), b[:, :, 0, 0])
        y = ops.conv(x, w.transpose(1, 0, 2, 3)) if op == "conv" else ops.conv_transpose(x, w)
        return ops.add(ops.mul(y, k), b)

    g = network(build, (2, 3) if op == "gemm" else (2, 3, 5, 6))
    (before,) = interpret.run(g, [x := normal(*[int(str(d)) for d in g.inputs[0].shape])])
    after, report = optimize(g, level=2, for_export=True)
    assert kinds(after) == {op: 1}
    (record,) = report.norms
    assert (record.kind, record.fate, len(record.raised)) == ("batch_norm", "folded", 2)
    np.testing.assert_allclose(interpret.run(after, [x])[0], before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", ["mul", "div"])
def test_factors_of_one_are_no_batch_norm(op: str):
    """One was raised, which a pad of zeros does not let through, where an addition is all that is left."""

    def build(x: Value) -> Value:
        padded = ops.pad(ops.conv(x, normal(4, 3, 2, 2)), np.array([0, 0, 1, 1, 0, 0, 0, 2]))
        return ops.add(getattr(ops, op)(ops.add(padded, normal(4, 1, 1)), np.ones((4, 1, 1), np.float32)), f32(0.5))

    after, report = optimize(network(build, (2, 3, 5, 6)), level=2, for_export=True)
    assert kinds(after) == {"conv": 1, "pad": 1, "add": 1}
    assert report.norms == ()


EXTREME: dict[str, tuple[list[tuple[str, Sequence[float]]], float, float]] = {
    "divided_by_zero": ([("sub", (0.1, 0.2)), ("div", (0.0, 2.0))], 0, 1),
    "divided_by_zero_and_moved": ([("sub", (0.1, 0.2)), ("div", (0.0, 2.0)), ("add", (1, 2))], 0, 1),
    "square_underflows": ([("sub", (0.1, 0.2)), ("div", (1e-30, 2.0))], 0, 1),
    "square_overflows": ([("sub", (0.1, 0.2)), ("div", (1e30, 2.0)), ("mul", (1e30, 2.0))], 0, 1),
    "scale_overflows": ([("sub", (0.0, 0.2)), ("mul", (1e30, 2.0)), ("mul", (1e30, 2.0))], 0, 1e-30),
    "infinite": ([("sub", (0.1, 0.2)), ("mul", (np.inf, 2.0)), ("add", (1, 2))], 0, 1),
    "far_from_zero": ([("sub", (1e6, 1e6)), ("div", (1, 2)), ("add", (1, 2))], 1e6, 10),
    "far_from_zero_scaled": ([("sub", (1e6, 1e6)), ("mul", (1, 2))], 1e6, 10),
}


@pytest.mark.parametrize("name", EXTREME)
def test_constants_at_the_ends_of_their_range(name: str):
    """What pieces make of extreme constants they make afterwards: as a norm, or in pieces where a norm cannot."""
    steps, centre, spread = EXTREME[name]
    constants = [(op, np.array(c, np.float32).reshape(2, 1, 1)) for op, c in steps]

    def build(x: Value) -> Value:
        for op, c in constants:
            x = getattr(ops, op)(x, c)
        return x

    x = (centre + spread * normal(2, 2, 3, 5)).astype(np.float32)
    expected = x.astype(np.float64)
    with np.errstate(all="ignore"):
        for op, c in constants:
            expected = getattr(np, {"sub": "subtract", "mul": "multiply", "div": "divide", "add": "add"}[op])(
                expected, c.astype(np.float64)
            )
        expected = np.where(np.abs(expected) > 3.4e38, np.sign(expected) * np.inf, expected)
    after, _ = optimize(network(build, (2, 2, 3, 5)), level=2, for_export=True)
    with np.errstate(all="ignore"):
        (found,) = interpret.run(after, [x])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected[np.isfinite(expected)]).min())


def test_arithmetic_of_the_input_is_no_batch_norm():
    """Mapping 0..255 to -1..1 is, whatever it is, nothing that was trained."""
    for build in (
        lambda x: ops.sub(ops.mul(x, f32(1 / 127.5)), f32(1)),
        lambda x: ops.mul(ops.sub(x, f32(127.5)), f32(1 / 127.5)),
        lambda x: ops.add(ops.mul(ops.relu(x), normal(4, 1, 1)), normal(4, 1, 1)),
    ):
        _, report = optimize(network(build, (2, 4, 3, 5)), level=2)
        assert report.norms == ()


# --- what the user sees -----------------------------------------------------------------------------------------------


def test_the_report_says_what_is_nearly_a_norm(tmp_path: Path):
    g = network(lambda x: ops.relu(spelled(x, inside=0, outside=0.1)))
    module = renorm.compile(g)
    (near,) = module.report.near_norms
    assert (near.name, near.kind) == ("div", "layer_norm")
    assert str(near) in str(module.report)
    module.save(tmp_path / "m.renorm")
    assert renorm.load(tmp_path / "m.renorm").report.near_norms == module.report.near_norms
    assert renorm.compile(network(with_affine)).report.near_norms == ()


def test_far_means_are_nearly_a_batch_norm():
    far = np.full((4, 1, 1), 1e6, np.float32)
    g = network(lambda x: ops.mul(ops.sub(x, far), normal(4, 1, 1)), (2, 4, 3, 5))
    (near,) = optimize(g, level=2)[1].near_norms
    assert (near.name, near.kind, near.nodes) == ("mul", "batch_norm", ("sub", "mul"))
    assert "its mean is so far from 0" in near.reason


def test_the_report_says_what_was_raised():
    g = network(with_affine)
    names = {n.name for n in g.nodes}
    module = renorm.compile(g)
    (record,) = module.report.norms
    assert (record.kind, record.fate, record.name) == ("layer_norm", "kept", "div")
    assert set(record.raised) <= names
    assert len(record.raised) >= 6
    assert "raised from" in str(record)
    x = normal(2, 3, 6)
    np.testing.assert_allclose(module.run(x)[0], standard(x) * W + B, rtol=1e-5, atol=1e-5)
    assert records.record(type(module.report), json.loads(json.dumps(records.plain(module.report)))) == module.report


@pytest.mark.parametrize("kept", ["layer_norm", "sqrt", "div"])
def test_keep_holds(kept: str):
    """A raised norm stays whole where the user asks for it; and pieces that are to stay are not raised."""
    g, _ = optimize(network(with_affine), level=3, keep=[kept])
    assert kinds(g).get(kept) == 1
    assert (kept == "layer_norm") == ("layer_norm" in kinds(g))


@given(
    shape=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    first=st.integers(0, 3),
    square=st.sampled_from(sorted(SQUARES)),
    average=st.sampled_from(sorted(MEANS)),
    quotient=st.sampled_from(sorted(QUOTIENTS)),
    centred=st.booleans(),
    affine=st.integers(0, 2),
)
@settings(max_examples=60, deadline=None)
def test_random_pieces(
    shape: list[int], first: int, square: str, average: str, quotient: str, centred: bool, affine: int
):
    axes = tuple(range(min(first, len(shape) - 1), len(shape)))
    inside = [shape[a] for a in axes]

    def build(x: Value) -> Value:
        c = ops.sub(x, MEANS[average](x, axes)) if centred else x
        y = QUOTIENTS[quotient](c, ops.add(MEANS[average](SQUARES[square](c), axes), f32(EPSILON)))
        y = ops.mul(y, normal(*inside, seed=4)) if affine else y
        return ops.add(y, normal(*inside, seed=5)) if affine == 2 else y

    g = network(build, tuple(shape))
    x = normal(*shape, seed=9)
    (before,) = interpret.run(g, [x])
    after, report = optimize(g, level=2)
    assert len(report.norms) == 1
    assert "sqrt" not in kinds(after)
    np.testing.assert_allclose(interpret.run(after, [x])[0], before, rtol=1e-5, atol=1e-5)
