"""What exporters write for attention becomes one op that computes the same; what is nearly that stays, and why."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.random_numbers import RNG

import renorm
from renorm import ops
from renorm.core.target import Target
from renorm.graph import interpret
from renorm.graph.ir import Graph, Value
from renorm.passes import pipeline
from renorm.runtime.report import Report

B, H, Q, K, D = 2, 4, 5, 7, 6


def number(x: float) -> Any:
    return np.asarray(x, np.float32)


class Network:
    """A graph that is built, and what it is run on."""

    def __init__(self) -> None:
        self.g, self.arrays = Graph("network"), list[Any]()

    def input(self, *shape: int) -> Value:
        self.arrays.append(RNG.standard_normal(shape).astype(np.float32))
        return self.g.input(f"x{len(self.arrays)}", "float32", shape)

    def chosen(self, *shape: int) -> Value:
        self.arrays.append((RNG.random(shape) < 0.6) | (np.arange(shape[-1]) == 0))
        return self.g.input(f"x{len(self.arrays)}", "bool", shape)

    def heads(self, length: int, heads: int = H) -> Value:
        """As a projection gives them, then heads in front."""
        x = ops.reshape(self.input(B, length, heads * D), np.array([B, length, heads, D]))
        return ops.transpose(x, perm=(0, 2, 1, 3))

    def optimized(self, *outputs: Value) -> tuple[list[str], Report]:
        """Ops after the passes, the results of which are what they were."""
        self.g.outputs = list(outputs)
        before = interpret.run(self.g, [a if a.dtype == bool else a.astype(np.float64) for a in self.arrays])
        compiled = renorm.compile(self.g.copy())
        for a, b in zip(compiled.run(*self.arrays), before, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        graph, _ = pipeline.optimize(self.g, target=Target())
        return [n.op.name for n in graph.nodes], compiled.report


def turned(k: Value) -> Value:
    return ops.transpose(k, perm=(0, 1, 3, 2))


def plain(n: Network) -> Value:
    q, k, v = n.heads(Q), n.heads(K), n.heads(K)
    return ops.matmul(ops.softmax(ops.div(ops.matmul(q, turned(k)), number(math.sqrt(D)))), v)


def scaled_queries(n: Network) -> Value:
    q, k, v = n.heads(Q), n.heads(K), n.heads(K)
    return ops.matmul(ops.softmax(ops.matmul(ops.mul(q, number(0.3)), turned(k))), v)


def scaled_both(n: Network) -> Value:
    q, k, v = n.heads(Q), n.heads(K), n.heads(K)
    a, b = ops.mul(q, number(0.6)), ops.mul(turned(k), number(0.6))
    return ops.matmul(ops.softmax(ops.matmul(a, b)), v)


def keys_turned_at_once(n: Network) -> Value:
    q, v = n.heads(Q), n.heads(K)
    k = ops.transpose(ops.reshape(n.input(B, K, H * D), np.array([B, K, H, D])), perm=(0, 2, 3, 1))
    return ops.matmul(ops.softmax(ops.matmul(q, k)), v)


def keys_turned_as_three_axes(n: Network) -> Value:
    """As torch.onnx writes it, with a scale of the square root on both sides."""
    q, k, v = n.heads(Q), n.heads(K), n.heads(K)
    flat = ops.transpose(ops.reshape(k, np.array([B * H, K, D])), perm=(0, 2, 1))
    turned = ops.mul(ops.reshape(flat, np.array([B, H, D, K])), number(0.6))
    return ops.matmul(ops.softmax(ops.matmul(ops.mul(q, number(0.6)), turned)), v)


def padded(n: Network) -> Value:
    q, k, v = n.heads(Q), n.heads(K), n.heads(K)
    scores = ops.div(ops.matmul(q, turned(k)), number(2.0))
    return ops.matmul(ops.softmax(ops.add(scores, n.input(B, 1, 1, K))), v)


def masked_then_scaled(n: Network) -> Value:
    q, k, v = n.heads(Q), n.heads(K), n.heads(K)
    scores = ops.add(n.input(H, Q, K), ops.matmul(q, turned(k)))
    return ops.matmul(ops.softmax(ops.mul(scores, number(0.5))), v)


def chosen(n: Network) -> Value:
    q, k, v = n.heads(Q), n.heads(K), n.heads(K)
    scores = ops.where(n.chosen(1, 1, Q, K), ops.matmul(q, turned(k)), number(-math.inf))
    return ops.matmul(ops.softmax(scores), v)


def without_numbers(n: Network) -> Value:
    """As torch.export writes it: scales on both sides, and rows without keys are 0."""
    q, k, v = (ops.mul(n.heads(Q), number(0.6)), ops.mul(turned(n.heads(K)), number(0.6)), n.heads(K))
    taken = np.ones((1, 1, Q, K), bool)
    taken[:, :, 1] = False
    n.arrays.append(taken)
    mask = ops.where(n.g.input("taken", "bool", taken.shape), number(0), number(-math.inf))
    weights = ops.softmax(ops.add(ops.matmul(q, k), mask))
    return ops.matmul(ops.where(ops.isnan(weights), number(0), weights), v)


def left_out(n: Network) -> Value:
    q, k, v = n.heads(Q), n.heads(K), n.heads(K)
    out = ops.logical_not(n.chosen(B, 1, Q, K))
    return ops.matmul(ops.softmax(ops.where(out, number(-1e9), ops.matmul(q, turned(k)))), v)


def causal_and_padded(n: Network) -> Value:
    q, k, v = n.heads(K), n.heads(K), n.heads(K)
    causal, scores = n.chosen(1, 1, K, K), ops.matmul(q, turned(k))
    scores = ops.add(ops.where(causal, scores, number(-3e38)), n.input(B, 1, 1, K))
    return ops.matmul(ops.softmax(scores), v)


def heads_in_the_batch(n: Network) -> Value:
    """Three axes where products are, four where masks are, as in models for translation."""
    flat = [ops.reshape(n.heads(length), np.array([B * H, length, D])) for length in (Q, K, K)]
    q, k, v = ops.mul(flat[0], number(0.4)), flat[1], flat[2]
    scores = ops.reshape(ops.matmul(q, ops.transpose(k, perm=(0, 2, 1))), np.array([B, H, Q, K]))
    masked = ops.reshape(ops.add(scores, n.input(B, 1, Q, K)), np.array([B * H, Q, K]))
    return ops.matmul(ops.softmax(masked), v)


def one_projection(n: Network) -> Value:
    x = ops.reshape(n.input(B, Q, 3 * H * D), np.array([B, Q, 3, H, D]))
    x = ops.transpose(x, perm=(2, 0, 3, 1, 4))
    q, k, v = (ops.gather(x, np.asarray(i), axis=0) for i in range(3))
    y = ops.matmul(ops.softmax(ops.mul(ops.matmul(q, turned(k)), number(0.4))), v)
    return ops.reshape(ops.transpose(y, perm=(0, 2, 1, 3)), np.array([B, Q, H * D]))


def cached(n: Network) -> Value:
    q = n.heads(1)
    k, v = (ops.concat([n.input(B, H, K, D), n.heads(1)], axis=2) for _ in range(2))
    return ops.matmul(ops.softmax(ops.matmul(q, turned(k))), v)


def shared_heads(n: Network) -> Value:
    def spread(x: Value) -> Value:
        x = ops.expand(ops.unsqueeze(x, axes=[2]), np.array([B, 2, 2, K, D]))
        return ops.reshape(x, np.array([B, H, K, D]))

    q, k, v = n.heads(Q), spread(n.heads(K, 2)), spread(n.heads(K, 2))
    return ops.matmul(ops.softmax(ops.matmul(q, turned(k))), v)


def summed_over_named_axes(n: Network) -> Value:
    q, k, v = (ops.reshape(n.input(B, length, H * D), np.array([B, length, H, D])) for length in (Q, K, K))
    weights = ops.softmax(ops.einsum([q, k], equation="bqhd,bkhd->bhqk"))
    return ops.einsum([weights, v], equation="bhqk,bkhd->bqhd")


def of_windows(n: Network, images: int, first: bool) -> Value:
    """Windows of images, as Swin has them: numbers of each head, and what a window's rows do not see. first: that
    before the heads' numbers."""
    w, windows = 3, images * 3
    q, k, v = (ops.reshape(n.input(windows, t, H * D), np.array([windows, t, H, D])) for t in (Q, K, K))
    q, k, v = (ops.transpose(x, perm=(0, 2, 1, 3)) for x in (q, k, v))

    def seen(scores: Value) -> Value:
        apart = ops.reshape(scores, np.array([images, w, H, Q, K]))
        return ops.reshape(ops.add(apart, n.input(w, 1, Q, K)), np.array([windows, H, Q, K]))

    scores, of_heads = ops.matmul(q, turned(k)), n.input(1, H, Q, K)
    scores = ops.add(seen(scores), of_heads) if first else seen(ops.add(scores, of_heads))
    return ops.matmul(ops.softmax(scores), v)


def windows(n: Network) -> Value:
    return of_windows(n, B, first=False)


def windows_of_one_image(n: Network) -> Value:
    return of_windows(n, 1, first=False)


def windows_of_one_image_seen_first(n: Network) -> Value:
    return of_windows(n, 1, first=True)


def windows_seen_first(n: Network) -> Value:
    return of_windows(n, B, first=True)


def relative_positions(n: Network, lead: tuple[int, ...] = (B, H)) -> Value:
    """Numbers of rows and of columns between queries and keys of images, as MViTv2 and SAM have them."""
    rows, columns, of_keys = 3, 5, (2, 4)
    q, k, v = (n.input(*lead, t, D) for t in (rows * columns, of_keys[0] * of_keys[1], of_keys[0] * of_keys[1]))
    scores = ops.matmul(ops.mul(q, number(0.4)), ops.transpose(k, perm=(*range(len(lead)), len(lead) + 1, len(lead))))
    apart = ops.reshape(scores, np.array([*lead, rows, columns, *of_keys]))
    for axes in ((of_keys[0], 1), (1, of_keys[1])):
        apart = ops.add(apart, n.input(*lead, rows, columns, *axes))
    return ops.matmul(ops.softmax(ops.reshape(apart, np.array(scores.shape))), v)


def relative_positions_of_heads_in_the_batch(n: Network) -> Value:
    return relative_positions(n, (B * H,))


def relative_rows(n: Network) -> Value:
    """Of keys in rows and columns: what is added depends on rows alone."""
    q, k, v = n.heads(Q), n.heads(8), n.heads(8)
    apart = ops.reshape(ops.matmul(q, turned(k)), np.array([B, H, Q, 2, 4]))
    apart = ops.add(apart, n.input(H, Q, 2, 1))
    return ops.matmul(ops.softmax(ops.reshape(apart, np.array([B, H, Q, 8]))), v)


FORMS: list[Callable[[Network], Value]] = [
    plain, scaled_queries, scaled_both, keys_turned_at_once, keys_turned_as_three_axes, padded, masked_then_scaled,
    chosen, left_out, without_numbers, causal_and_padded, heads_in_the_batch, one_projection, cached, shared_heads,
    summed_over_named_axes, windows, windows_of_one_image, windows_of_one_image_seen_first, windows_seen_first,
    relative_positions, relative_positions_of_heads_in_the_batch, relative_rows,
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_it_becomes_one_op(form: Callable[[Network], Value]) -> None:
    n = Network()
    left, report = n.optimized(form(n))
    assert left.count("attention") == 1
    assert not {"matmul", "softmax", "einsum"} & {*left}
    assert "expand" not in left or form.__name__.startswith(("windows", "relative"))  # masks, which kernels spread
    assert not [k for k in report.kernels if k.name == "expand"]
    assert len([k for k in report.kernels if "attention" in {*k.name.split("_"), *k.nodes}]) == 1


def test_heads_are_read_and_written_where_they_lie() -> None:
    n = Network()
    _, report = n.optimized(one_projection(n))
    assert len(report.kernels) == 1


def test_what_a_cache_is_made_of_stays_a_kernel_of_its_own() -> None:
    n = Network()
    _, report = n.optimized(cached(n))
    assert [k.name.count("concat") for k in report.kernels if "attention" in k.name] == [0]


def refusal(report: Report) -> str:
    return next(reason for rule, _, reason in report.refusals if rule == "RaiseAttention")


def test_weights_that_are_a_result_stay() -> None:
    n = Network()
    y = plain(n)
    weights = n.g.nodes[-1].inputs[0]
    assert weights is not None
    left, report = n.optimized(y, weights)
    assert "attention" not in left
    assert weights.name in refusal(report)


def test_keys_that_are_no_rows_stay() -> None:
    n = Network()
    q, v = n.heads(Q), n.heads(K)
    left, report = n.optimized(ops.matmul(ops.softmax(ops.matmul(q, n.input(B, H, D, K))), v))
    assert "attention" not in left
    assert refusal(report) == "keys do not lie one behind the other in memory"


def test_one_of_several_masks_that_is_a_number_stays() -> None:
    n = Network()
    q, k, v = n.heads(Q), n.heads(K), n.heads(K)
    scores = ops.where(n.chosen(Q, K), ops.matmul(q, turned(k)), number(-5))
    left, report = n.optimized(ops.matmul(ops.softmax(ops.add(scores, n.input(B, 1, 1, K))), v))
    assert "attention" not in left
    assert "puts a number in the place of scores" in refusal(report)


def test_a_softmax_over_queries_stays() -> None:
    n = Network()
    q, k, v = n.heads(K), n.heads(K), n.heads(K)
    left, _ = n.optimized(ops.matmul(ops.softmax(ops.matmul(q, turned(k)), axis=2), v))
    assert "attention" not in left
