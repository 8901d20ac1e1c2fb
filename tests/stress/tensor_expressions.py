"""Attacks on tensor expressions and schedules: calls with anything, schedules by chance."""

from __future__ import annotations

import inspect
import random
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
from tests.stress.attack import attack

import renorm
from renorm import te, tir, topi
from renorm.errors import RenormError
from renorm.te import interpret as meaning
from renorm.te import names
from renorm.te.stage import Stage
from renorm.tir import interpret
from renorm.tir.verify import verify

CALLS, SCHEDULES, PRIMITIVES = 1500, 12, 8  # of one attempt; primitives of one schedule


def _functions() -> dict[str, Callable[..., Any]]:
    """What users call, by name."""
    found: dict[str, Callable[..., Any]] = {}
    for owner, public in (("te", names.__all__), ("topi", topi.__all__), ("topi.nn", dir(topi.nn))):
        module = {"te": te, "topi": topi, "topi.nn": topi.nn}[owner]
        for name in public:
            f = getattr(module, name)
            is_own = owner != "topi.nn" or getattr(f, "__module__", "").startswith("renorm.topi")
            if inspect.isfunction(f) and is_own and not name.startswith("_"):
                found[f"{owner}.{name}"] = f
    found |= {f"tir.{n}": getattr(tir, n) for n in (*tir.__all__, "exp", "floordiv", "truncdiv", "power")}
    for name in ("cpu", "device", "lower", "build"):
        found[f"renorm.{name}"] = getattr(renorm, name)
    return found | {"nd.array": renorm.nd.array, "nd.empty": renorm.nd.empty, "Target": renorm.target.Target}


def _values() -> tuple[te.Schedule, list[Any]]:
    """Anything, and a schedule of part of it."""
    n, k = te.var("n"), te.reduce_axis((0, 4), "k")
    a, whole = te.placeholder((3, 4), name="A"), te.placeholder((4,), "int32", name="B")
    c = te.compute((3,), lambda i: te.sum(a[i, k], axis=k), name="C")
    s = te.create_schedule(c.op)
    tensors = [a, whole, c, te.placeholder((), name="S"), te.placeholder((n, 4), name="O"), te.placeholder((0, 3))]
    scalars = [a[0, 0], a[0], whole[1], n, k, k.var, te.reduce_axis((0, n)), te.const(3), te.const(2.5)]
    numbers = [0, 1, -1, 2, 7, 2.0, -0.5, float("nan"), float("inf"), 1 << 70, True, 1j, np.float32(2), np.int64(1)]
    words = ["x", "", "float32", "int8", "max", "SAME", "threadIdx.x", "global", b"x", None]
    groups = [
        (),
        (1,),
        (1, 2),
        (2, -1),
        [0, 1],
        [1, 0],
        (0, n),
        [a],
        [a, c],
        [k],
        range(3),
        [range(2)],
        {1, 2},
        {"a": 1},
    ]
    others = [np.zeros(3), np.array([1, 2]), object(), iter([1]), s, s[c], c.op]
    functions = [lambda *i: 1, lambda *i: None, lambda *i: a, lambda *i: a[i]]  # of any number of axes
    return s, [*tensors, *scalars, *numbers, *words, *groups, *others, *functions]


def _refuses(act: Callable[[], Any], told: str) -> None:
    """Whether `act` works, or raises an error of renorm, or Python's own for a wrong number of arguments."""
    try:
        act()
    except RenormError:
        pass
    except Exception as error:
        is_python_s_own = isinstance(error, TypeError) and len(traceback.extract_tb(error.__traceback__)) == 2
        if not is_python_s_own:
            raise AssertionError(f"{told}: {error!r}") from error


@attack(limit_s=120, in_gate=1)
def arguments(seed: int) -> None:
    """Functions of te and topi, and primitives, called with anything: only renorm's errors."""
    rng, functions = random.Random(seed), _functions()
    primitives = [n for n in dir(Stage) if not n.startswith("_") and inspect.isfunction(getattr(Stage, n))]
    for _ in range(CALLS):
        s, values = _values()
        stage = s.stages[-1]
        bound = {f"s[T].{n}": getattr(stage, n) for n in primitives}
        bound |= {f"s.{n}": getattr(s, n) for n in ("cache_read", "cache_write", "rfactor", "__getitem__")}
        name, f = rng.choice([*functions.items(), *bound.items()])
        given = [rng.choice(values) for _ in range(rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4, 5)))]
        _refuses(lambda f=f, given=given: f(*given), f"{name}({', '.join(map(repr, given))})")


def _program(rng: random.Random) -> tuple[te.Schedule, list[te.Tensor], list[te.Tensor]]:
    """A map, a reduction of it, and a map of both; inputs, and all that is computed."""
    rows, columns = (rng.choice((1, 2, 3, 5, 8, 13)) for _ in range(2))
    a, b = te.placeholder((rows, columns), "int32", name="a"), te.placeholder((columns,), "int32", name="b")
    first = te.compute((rows, columns), lambda i, j: a[i, j] * 2 + b[j], name="first")
    k = te.reduce_axis((0, columns), "k")
    reduce = rng.choice((te.sum, te.max, te.min))
    second = te.compute((rows,), lambda i: reduce(first[i, k], axis=k), name="second")
    third = te.compute((rows, columns), lambda i, j: first[i, columns - 1 - j] - second[i], name="third")
    outs = [third] if rng.random() < 0.7 else [third, second]
    return te.create_schedule([t.op for t in outs]), [a, b], [first, second, third]


def _primitive(rng: random.Random, s: te.Schedule, tensors: list[te.Tensor], axes: list[te.IterVar]) -> None:
    """One primitive on axes and stages by chance, with numbers by chance; axes: all that there have been."""
    stage, other = (s[rng.choice(tensors)] for _ in range(2))
    own = [*stage.leaf_iter_vars] if rng.random() < 0.9 else axes
    axis: Any = rng.choice(own) if own else None
    number: Any = rng.choice((1, 2, 3, 4, 7, 100, 2.0, 0, -1, 1.5, "3", None, 1 << 40))
    scope = rng.choice(("global", "local", "shared", "texture"))
    second: Any = rng.choice(own) if own else None
    inside: Any = rng.choice(other.leaf_iter_vars or [None])
    acts: list[Callable[[], Any]] = [
        lambda: stage.split(axis, number),
        lambda: stage.split(axis, nparts=number),
        lambda: stage.fuse(*rng.sample(own, min(2, len(own)))),
        lambda: stage.reorder(*rng.sample(own, rng.randint(0, len(own)))),
        lambda: stage.tile(axis, second, number, 2),
        lambda: rng.choice((stage.vectorize, stage.unroll, stage.parallel))(axis),
        lambda: stage.compute_at(other, inside),
        lambda: rng.choice((stage.compute_inline, stage.compute_root, stage.store_root))(),
        lambda: stage.bind(axis, te.thread_axis(rng.choice((None, (0, 4))), rng.choice(("blockIdx.x", "threadIdx.x")))),
        lambda: stage.set_scope(scope),
        lambda: tensors.append(s.cache_read(rng.choice(tensors), scope, [other.tensor])),
        lambda: tensors.append(s.cache_write(stage.tensor, scope)),
        lambda: tensors.append(s.rfactor(stage.tensor, axis, rng.choice((0, 0, 1, -1, 9)))),
        lambda: te.schedule.AutoInlineInjective(s),
    ]
    act = rng.choice(acts)
    _refuses(act, f"a primitive on {stage!r}")
    axes += [a for x in s.stages for a in x.leaf_iter_vars if a not in axes]


@attack(limit_s=120, in_gate=1)
def schedules(seed: int) -> None:
    """Primitives by chance, right and wrong: what lowers verifies, and gives what it means."""
    rng = random.Random(seed)
    for _ in range(SCHEDULES):
        s, inputs, computed = _program(rng)
        results = [op.tensor for op in s.outputs]
        arrays = {t: np.random.default_rng(seed).integers(-9, 9, t.shape).astype(np.int32) for t in inputs}
        wanted = meaning.run(results, arrays)
        axes: list[te.IterVar] = []
        for _ in range(rng.randint(0, PRIMITIVES)):
            _primitive(rng, s, computed, axes)
        try:
            kernel = te.lower(s, [*inputs, *results])
        except RenormError:
            continue
        verify(kernel)
        got = [np.zeros(t.shape, np.int32) for t in results]
        interpret.run(kernel, [*arrays.values(), *got])
        for t, x, y in zip(results, got, wanted, strict=True):
            assert np.array_equal(x, y), f"{t.name} differs:\n{kernel}"
