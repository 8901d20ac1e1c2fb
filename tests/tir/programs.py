"""Random loop programs that stay inside their buffers, for comparing a program with what a pass makes of it.

Passes keep the order of what a round computes, so results are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from renorm.expr.nodes import Binary, Call, Const, Expr, Load, Select, Var, const, if_then_else
from renorm.tir.interpret import run
from renorm.tir.nodes import Allocate, Buffer, For, If, Kernel, Let, Prefetch, Produce, Stmt, Store, seq
from renorm.tir.verify import verify

Array = np.ndarray[Any, Any]


def execute(kernel: Kernel, seed: int = 0) -> list[Array]:
    """The arrays after a run on small integers that depend on the seed."""
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-4, 5, p.size).astype(p.dtype) for p in kernel.params]
    run(kernel, arrays)
    return arrays


def check_same(before: Kernel, after: Kernel) -> None:
    """Both are valid, and leave the same bits in every array."""
    verify(before)
    verify(after)
    for a, b in zip(execute(before), execute(after), strict=True):
        np.testing.assert_array_equal(a, b)


class Axis:
    """An axis of n values, as one loop or split into an outer and an inner one with a ragged end."""

    def __init__(self, draw: st.DrawFn, name: str, kinds: tuple[str, ...]):
        self.extent = draw(st.sampled_from([1, 2, 3, 5, 8, 12, 13]))
        factor = draw(st.sampled_from([None, None, 2, 4, 8]))
        self.guards: list[Expr] = []
        if factor is None:
            var = Var(name)
            self.loops = [(var, self.extent, draw(st.sampled_from(kinds)))]
            self.value: Expr = var
        else:
            outer, inner = Var(f"{name}.outer"), Var(f"{name}.inner")
            rounds = -(-self.extent // factor)
            outer_kind = draw(st.sampled_from([k for k in kinds if k != "vectorized"]))
            self.loops = [(outer, rounds, outer_kind), (inner, factor, draw(st.sampled_from(kinds)))]
            self.value = outer * factor + inner
            if rounds * factor != self.extent:
                self.guards.append(self.value < self.extent)


def _wrap(draw: st.DrawFn, body: Stmt, axes: list[Axis]) -> Stmt:
    """The body in the loops of the axes, in a random order that keeps outer before inner."""
    order: list[tuple[Axis, tuple[Var, int, str]]] = []
    pending = [[(a, loop) for loop in a.loops] for a in axes]
    while any(pending):
        chosen = draw(st.sampled_from([p for p in pending if p]))
        order.append(chosen.pop(0))
    for guard in (g for a in axes for g in a.guards):
        body = If(guard, body)
    for _, (var, extent, kind) in reversed(order):
        body = For(var, const(0), const(extent), kind, body)
    return body


def _flat(axes: list[Axis]) -> tuple[Expr, int]:
    index: Expr = const(0)
    size = 1
    for a in axes:
        index, size = index * a.extent + a.value, size * a.extent
    return index, size


def _source(draw: st.DrawFn, axes: list[Axis], params: list[Buffer]) -> Expr:
    """A read that stays inside: shifted and guarded (padding), transposed, divided, clamped, by index from memory."""
    index, size = _flat(draw(st.permutations(axes)))
    form = draw(
        st.sampled_from(["plain", "plain", "pad", "divided", "modulo", "clamped", "gather", "concat", "scalar"])
    )
    data = Buffer(f"X{len(params)}", "float32", size)
    params.append(data)
    match form:
        case "pad":
            a = draw(st.sampled_from(axes))
            shift = draw(st.integers(-2, 2))
            at = a.value + shift
            inside = Binary("&&", at >= 0, at < a.extent)
            low = index - index + at
            return if_then_else(inside, Load(Buffer_of(params, a.extent), (low,)), 0.5)
        case "divided":
            return Load(data, (index // draw(st.sampled_from([1, 2, 3, 8])),))
        case "modulo":
            return Load(data, (index % draw(st.integers(1, size)),))
        case "clamped":
            shift = draw(st.integers(-3, 3))
            return Load(data, (Binary("max", Binary("min", index + shift, const(size - 1)), const(0)),))
        case "gather":
            table = Buffer(f"I{len(params)}", "int32", size)
            params.append(table)
            read = Load(table, (index,))
            return Load(data, (Binary("max", Binary("min", read, const(size - 1)), const(0)),))
        case "concat":
            a = draw(st.sampled_from(axes))
            cut = draw(st.integers(0, a.extent))
            first, second = Buffer_of(params, max(cut, 1)), Buffer_of(params, max(a.extent - cut, 1))
            return if_then_else(a.value < cut, Load(first, (a.value,)), Load(second, (a.value - cut,)))
        case "scalar":
            a = draw(st.sampled_from(axes))
            return Load(Buffer_of(params, a.extent), (a.value,))
        case _:
            return Load(data, (index,))


def Buffer_of(params: list[Buffer], size: int) -> Buffer:
    params.append(Buffer(f"X{len(params)}", "float32", size))
    return params[-1]


def _value(draw: st.DrawFn, axes: list[Axis], params: list[Buffer]) -> Expr:
    value = _source(draw, axes, params)
    for _ in range(draw(st.integers(0, 2))):
        other = _source(draw, axes, params)
        make: Callable[[Expr, Expr], Expr] = draw(
            st.sampled_from([
                lambda a, b: a + b,
                lambda a, b: a * b,
                lambda a, b: Binary("max", a, b),
                lambda a, b: Select(Binary("<", a, b), a, b - 1.0),
                lambda a, b: Call("abs", (a,)) + b,
                lambda a, b: a + b / 4.0,
                lambda a, b: Binary("max", a / (b * b + 1.0), Call("sqrt", (Call("abs", (b,)),))),
            ])
        )  # fmt: skip
        value = make(value, other)
    return value


@st.composite
def kernels(draw: st.DrawFn, kinds: tuple[str, ...] = ("serial", "parallel", "vectorized", "unrolled")) -> Kernel:
    """One to three stages: elementwise, through a temporary of the inner loops, or a reduction."""
    params: list[Buffer] = []
    stages: list[Stmt] = []
    outputs: list[Buffer] = []
    for number in range(draw(st.integers(1, 3))):
        axes = [Axis(draw, f"{name}{number}", kinds) for name in "ij"[: draw(st.integers(1, 2))]]
        index, size = _flat(axes)
        out = Buffer(f"Y{number}", "float32", size)
        outputs.append(out)
        match draw(st.sampled_from(["map", "map", "temporary", "let", "position", "sum"])):
            case "map":
                body: Stmt = Store(out, index, _value(draw, axes, params))
            case "temporary":
                held = Buffer(f"T{number}", "float32", 2, draw(st.sampled_from(["global", "local", "register"])))
                one = Store(held, const(1), _value(draw, axes, params))
                body = Allocate(held, seq([one, Store(out, index, Load(held, (const(1),)) + 1.0)]))
            case "let":
                var = Var("t", "float32")
                body = Let(var, _value(draw, axes, params), Store(out, index, Binary("*", var, var)))
            case "position":
                at, data = Var("at"), Buffer_of(params, size)
                place = Binary("max", Binary("min", index * draw(st.integers(-1, 3)), const(size - 1)), const(0))
                body = Let(at, place, Store(out, index, Load(data, (at,)) + _value(draw, axes, params)))
            case _:
                safe = tuple(k for k in kinds if k in ("serial", "unrolled"))
                reduced = Axis(draw, f"k{number}", safe)
                start = Store(out, index, Const(0, "float32"))
                value = Load(out, (index,)) + _value(draw, [*axes, reduced], params)
                update = _wrap(draw, Store(out, index, value), [reduced])
                body = seq([start, update])
        if params and draw(st.integers(0, 3)) == 0:
            hint = Prefetch(draw(st.sampled_from(params)), index * 3 + draw(st.integers(-64, 64)))
            body = seq(draw(st.permutations([hint, body])))
        stages.append(Produce(f"Y{number}", _wrap(draw, body, axes)))
    names = frozenset(b.name for b in outputs)
    return Kernel("random", (*params, *outputs), seq(stages), names)
