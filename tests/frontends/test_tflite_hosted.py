"""TensorFlow Lite loops that data end, and branches of other shapes that data choose, against LiteRT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.frontends.test_tflite_control import handle
from tests.frontends.tflite_files import File, litert
from tests.random_numbers import RNG

import renorm
from renorm.cli import main
from renorm.driver.hosted import HostedModule
from renorm.errors import InvalidModel, LimitExceeded, RenormError, UnsupportedOp

Xs = Sequence[Any]
Types = dict[str, Any]
Part = Callable[[File], Sequence[str]]  # adds operators, and says which tensors are results
OPTIONS = {
    "REDUCE_MAX": "ReducerOptions", "CONV_2D": "Conv2DOptions", "READ_VARIABLE": "ReadVariableOptions",
}  # fmt: skip


def f(*shape: int, scale: float = 1) -> Any:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def op(
    file: File, kind: str, inputs: Sequence[str], made: str, shape: Sequence[int], dtype: str = "float32", **more: Any
) -> str:
    scale = more.pop("scale", None)
    file.tensor(made, shape, dtype, scale=scale)
    file.operator(kind, inputs, [made], OPTIONS.get(kind, f"{kind.title()}Options"), **more)
    return made


def part(file: File, types: Types, made: Part) -> int:
    """Add a subgraph. types: of its inputs, shapes or all that `File.tensor` takes."""
    inner = file.subgraph()
    for name, kind in types.items():
        inner.tensor(name, *(kind if kind and isinstance(kind[0], tuple) else (kind,)))
    return file.call(inner, [*types], made(inner))


def less(most: float, x: str = "x", rank: int = 2) -> Part:
    """Return whether the largest element is less than a number."""

    def made(file: File) -> Sequence[str]:
        file.constant("axes", np.arange(rank, dtype=np.int32))
        file.constant("most", np.float32(most))
        return [op(file, "LESS", [op(file, "REDUCE_MAX", [x, "axes"], "largest", ()), "most"], "going", (), "bool")]

    return made


def times(by: float, shape: Sequence[int]) -> Part:
    def made(file: File) -> Sequence[str]:
        file.constant("by", np.asarray([by], np.float32))
        return [op(file, "MUL", ["x", "by"], "made", shape)]

    return made


def loop(
    file: File, types: dict[str, Any], condition: Part, body: Part, given: Sequence[str], made: Sequence[str]
) -> None:
    numbers = {"cond_subgraph_index": part(file, types, condition), "body_subgraph_index": part(file, types, body)}
    file.operator("WHILE", given, made, "WhileOptions", **numbers)


def choice(
    file: File, types: dict[str, Any], then: Part, other: Part, given: Sequence[str], made: Sequence[str]
) -> None:
    numbers = {"then_subgraph_index": part(file, types, then), "else_subgraph_index": part(file, types, other)}
    file.operator("IF", given, made, "IfOptions", **numbers)


def agrees(content: bytes, *calls: Xs, path: Any = None) -> Any:
    """Check calls, one after the other, and the last one of what was saved."""
    module, expected = renorm.compile(content, threads=1), list[Any]()
    assert isinstance(module, HostedModule)
    for xs in calls:
        expected = litert(content, *xs)
        same(module.run(*xs), expected)
    if path is not None:
        module.save(path / "m.renorm")
        same(renorm.load(path / "m.renorm").run(*calls[-1]), expected)
    return module


def same(found: Xs, expected: Xs) -> None:
    for mine, one in zip(found, expected, strict=True):
        assert (mine.dtype, mine.shape) == (one.dtype, one.shape)
        np.testing.assert_allclose(mine, one, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(one).max(initial=0)))


def growing() -> bytes:
    """x = 1.5 x while its largest element is less than 100, between two products."""
    file = File()
    file.tensor("x", (2, 3))
    file.constant("two", np.asarray([2], np.float32))
    op(file, "MUL", ["x", "two"], "h", (2, 3))
    file.tensor("y", (2, 3))
    loop(file, {"x": (2, 3)}, less(100), times(1.5, (2, 3)), ["h"], ["y"])
    return file.written(["x"], [op(file, "ADD", ["y", "x"], "z", (2, 3)), "y"])


def test_data_end_a_loop(tmp_path: Any) -> None:
    module = agrees(growing(), *([np.abs(f(2, 3, scale=s))] for s in (1, 20, 1e4, 0.1)), path=tmp_path)
    assert list(module.parts) == ["before", "WHILE_1.body", "after"]
    assert [n.name for n in module.parts["after"][0].graph.nodes] == ["ADD_2"]
    with pytest.raises(RenormError, match=r"what decides WHILE, 'WHILE_1.condition0/going', is computed"):
        renorm.read(growing())


def test_verbs_take_a_loop_that_data_end(tmp_path: Any) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(growing())
    for verb, said in (("check", "agrees"), ("inspect", "it runs in 3 parts"), ("doctor", "nothing looks wrong")):
        found = CliRunner().invoke(main, [verb, str(path)])
        assert (found.exit_code, said in found.output) == (0, True), found.output


def test_a_loop_with_what_rounds_hand_on_as_it_is() -> None:
    """A weight and a bias that operators outside make, an image that is an input; convolutions with channels first."""
    file, shape = File(), (2, 7, 5, 3)
    file.tensor("x", shape)
    file.constant("w", np.abs(f(3, 3, 3, 3, scale=0.2)))  # of 27 terms that do not cancel: rounds grow, and end
    file.constant("b", np.abs(f(3)) + 1)
    file.constant("none", np.asarray(0, np.int32))
    op(file, "CONV_2D", ["x", "w", "b"], "h", shape, stride_h=1, stride_w=1)
    for name, extents, dtype in (
        ("y", shape, "float32"),
        ("u", shape, "float32"),
        ("v", (3, 3, 3, 3), "float32"),
        ("n", (), "int32"),
    ):
        file.tensor(name, extents, dtype)
    types = {"x": shape, "image": shape, "w": (3, 3, 3, 3), "n": ((), "int32")}

    def body(inner: File) -> Sequence[str]:
        inner.constant("b", np.asarray([1, 2, 3], np.float32))
        inner.constant("one", np.asarray(1, np.int32))
        made = op(inner, "CONV_2D", ["x", "w", "b"], "made", shape, stride_h=1, stride_w=1)
        more = op(inner, "ADD", [op(inner, "ABS", [made], "size", shape), "image"], "more", shape)
        return [more, "image", "w", op(inner, "ADD", ["n", "one"], "next", (), "int32")]

    loop(file, types, less(50, rank=4), body, ["h", "x", "w", "none"], ["y", "u", "v", "n"])
    op(file, "CONV_2D", ["y", "v", "b"], "z", shape, stride_h=1, stride_w=1)
    module = agrees(file.written(["x"], ["z", "n", "u"]), *([f(*shape, scale=s)] for s in (1, 9, 1000)))
    (rounds,) = (p for p in module.plan.parts if p.name == "WHILE_1.body")
    assert len(rounds.inputs) == 3  # x, its image and the number: the weight is a constant of it


def test_a_loop_in_a_branch_in_a_loop(tmp_path: Any) -> None:
    file = File()
    file.tensor("x", (3,))
    file.constant("none", np.asarray(0, np.int32))
    file.tensor("y", (3,))
    file.tensor("n", (), "int32")
    types: dict[str, Any] = {"x": (3,), "n": ((), "int32")}

    def more(inner: File, by: int) -> str:
        inner.constant("count", np.asarray(by, np.int32))
        return op(inner, "ADD", ["n", "count"], "next", (), "int32")

    def inside(inner: File) -> Sequence[str]:
        inner.tensor("u", (3,))
        inner.tensor("k", (), "int32")

        def add(each: Any) -> list[str]:
            return [op(each, "ADD", ["x", "x"], "twice", (3,)), more(each, 1)]

        loop(inner, types, less(2, rank=1), add, ["x", "n"], ["u", "k"])
        return ["u", "k"]

    def body(inner: File) -> Sequence[str]:
        inner.tensor("u", (3,))
        inner.tensor("k", (), "int32")
        (small,) = less(2, rank=1)(inner)
        choice(
            inner,
            types,
            inside,
            lambda each: [*times(1.25, (3,))(each), more(each, 100)],
            [small, "x", "n"],
            ["u", "k"],
        )
        return ["u", "k"]

    loop(file, types, less(50, rank=1), body, ["x", "none"], ["y", "n"])
    calls = [[np.abs(f(3, scale=s)) + np.float32(0.01)] for s in (0.1, 1, 90)]
    agrees(file.written(["x"], ["y", "n"]), *calls, path=tmp_path)


def concatenated(file: File) -> Sequence[str]:
    return [op(file, "CONCATENATION", ["x", "x"], "made", (4, 6), axis=1)]


def first(file: File) -> Sequence[str]:
    file.constant("begin", np.asarray([0, 1], np.int32))
    file.constant("size", np.asarray([4, 1], np.int32))
    return [op(file, "SLICE", ["x", "begin", "size"], "made", (4, 1))]


def test_branches_of_other_shapes(tmp_path: Any) -> None:
    file = File()
    file.tensor("x", (4, 3))
    (small,) = less(0)(file)
    file.tensor("y", (4, -1))
    choice(file, {"x": (4, 3)}, concatenated, first, [small, "x"], ["y"])
    x = np.abs(f(4, 3)) + 1
    content = file.written(["x"], [op(file, "NEG", ["y"], "z", (4, -1))])
    module = agrees(content, [-x], [x], [-x], path=tmp_path)
    assert list(module.parts) == ["before", "IF_2.then", "IF_2.else", "after"]


def test_one_of_two_branches_of_other_shapes_by_number() -> None:
    file = File()
    file.tensor("x", (4, 3))
    file.tensor("y", (4, -1))
    (small,) = less(0)(file)
    numbers = np.asarray([part(file, {"x": (4, 3)}, made) for made in (concatenated, first)], np.int32)
    op(file, "CAST", [small], "i", (), "int32")
    file.operator("STABLEHLO_CASE", ["i", "x"], ["y"], "StablehloCaseOptions", branch_subgraph_indices=numbers)
    module, x = renorm.compile(file.written(["x"], ["y"])), np.abs(f(4, 3)) + 1
    np.testing.assert_array_equal(module.run(x)[0], np.concatenate([x, x], 1))
    np.testing.assert_array_equal(module.run(-x)[0], -x[:, 1:2])


def test_states_grow() -> None:
    file = File()
    file.tensor("x", (-1, 2))
    file.tensor("y", (-1, 2))

    def body(inner: File) -> Sequence[str]:
        inner.constant("1.5", np.asarray([1.5], np.float32))
        grown = op(inner, "CONCATENATION", ["x", "x"], "grown", (-1, 2), axis=0)
        return [op(inner, "MUL", [grown, "1.5"], "made", (-1, 2))]

    loop(file, {"x": (-1, 2)}, less(9), body, ["x"], ["y"])
    content = file.written(["x"], ["y"])
    module = renorm.compile(content)
    for n, scale in ((1, 1), (3, 2), (2, 20)):
        x = expected = np.abs(f(n, 2, scale=scale)) + np.float32(0.5)
        while expected.max() < 9:
            expected = np.concatenate([expected, expected]) * np.float32(1.5)
        np.testing.assert_allclose(module.run(x)[0], expected, rtol=1e-6)


def test_an_open_batch() -> None:
    file = File()
    file.tensor("x", (-1, 3))
    file.tensor("y", (-1, 3))
    loop(file, {"x": (-1, 3)}, less(30), times(1.5, (-1, 3)), ["x"], ["y"])
    module = agrees(file.written(["x"], ["y"]), *([np.abs(f(n, 3)) + 1] for n in (1, 5, 2)))
    assert all(len(m) == 1 for m in module.parts.values())


def test_integers_of_a_quantized_state() -> None:
    """A state of int8, which rounds hand each other as it is stored, beside a constant of int8."""
    file, scale = File(), ([0.05], [-3], 0)
    for name in "xy":
        file.tensor(name, (2, 5), "int8", scale=scale)
    types = {"x": ((2, 5), "int8", None, scale)}

    def condition(inner: File) -> Sequence[str]:
        op(inner, "DEQUANTIZE", ["x"], "real", (2, 5))
        return less(4, "real")(inner)

    def body(inner: File) -> Sequence[str]:
        inner.constant("step", np.asarray([17], np.int8), ([0.02], [1], 0))
        return [op(inner, "ADD", ["x", "step"], "made", (2, 5), "int8", scale=scale)]

    loop(file, types, condition, body, ["x"], ["y"])
    op(file, "DEQUANTIZE", ["y"], "z", (2, 5))
    x = RNG.integers(-128, 0, (2, 5), dtype=np.int8)
    agrees(file.written(["x"], ["y", "z"]), [x], [x + np.int8(90)], [np.full((2, 5), 127, np.int8)])


def test_a_loop_waits_for_another_one(tmp_path: Any) -> None:
    file = File()
    for name in "xyz":
        file.tensor(name, (2, 3))
    loop(file, {"x": (2, 3)}, less(9), times(1.5, (2, 3)), ["x"], ["y"])
    op(file, "NEG", ["y"], "n", (2, 3))
    loop(file, {"x": (2, 3)}, less(-0.1), times(0.5, (2, 3)), ["n"], ["z"])
    content = file.written(["x"], ["z", "y", "x"])
    agrees(content, *([np.abs(f(2, 3, scale=s)) + np.float32(0.3)] for s in (1, 0.5, 50)), path=tmp_path)


def test_variables_that_nothing_changes_are_constants_of_rounds() -> None:
    file = File()
    start = file.subgraph()
    start.constant("first", np.asarray([1.5, 2, 3], np.float32))
    start.operator("ASSIGN_VARIABLE", [handle(start), "first"], [], "AssignVariableOptions")
    file.operator("CALL_ONCE", [], [], "CallOnceOptions", init_subgraph_index=file.call(start, [], []))
    for name in "xy":
        file.tensor(name, (2, 3))
    at = handle(file)
    file.tensor("same", (), "RESOURCE")

    def body(inner: File) -> Sequence[str]:
        op(inner, "READ_VARIABLE", ["v"], "by", (3,))
        return [op(inner, "MUL", ["x", "by"], "made", (2, 3)), "v"]

    loop(file, {"x": (2, 3), "v": ((), "RESOURCE")}, less(99), body, ["x", at], ["y", "same"])
    agrees(file.written(["x"], ["y"]), [np.abs(f(2, 3)) + 1], [f(2, 3) + 200])


def test_what_is_drawn_outside_of_a_loop_is_drawn_once() -> None:
    file = File()
    for name in "xy":
        file.tensor(name, (2, 3))
    file.constant("shape", np.asarray([2, 3], np.int32))
    file.tensor("r", (2, 3))
    file.operator("RANDOM_UNIFORM", ["shape"], ["r"], "RandomOptions")

    def body(inner: File) -> Sequence[str]:
        return [op(inner, "ADD", ["x", "r"], "made", (2, 3)), "r"]

    file.tensor("same", (2, 3))
    loop(file, {"x": (2, 3), "r": (2, 3)}, less(9), body, ["x", "r"], ["y", "same"])
    module = renorm.compile(file.written(["x"], ["y", "same"]))
    assert isinstance(module, HostedModule)
    assert [{*p.inputs} for p in module.plan.parts if p.name == "WHILE_1.body"] == [{"WHILE_1.body/x", "r"}]
    y, r = module.run(np.zeros((2, 3), np.float32))
    np.testing.assert_allclose(y / r, np.full((2, 3), np.ceil(9 / r.max())), rtol=1e-5)


def test_all_that_is_wrong_with_a_loop_that_data_end_is_told() -> None:
    file = File()
    for name in "xy":
        file.tensor(name, (2, 3))
    at = handle(file)
    file.operator("ASSIGN_VARIABLE", [at, "x"], [], "AssignVariableOptions")

    def body(inner: File) -> Sequence[str]:
        op(inner, "DELEGATE", ["x"], "a", (2, 3))
        return [op(inner, "PRIVATE", ["a"], "made", (2, 3))]

    loop(file, {"x": (2, 3)}, less(99), body, ["x"], ["y"])
    with pytest.raises(UnsupportedOp) as raised:
        renorm.compile(file.written(["x"], ["y"]))
    for said in ("DELEGATE_0", "does not read CUSTOM 'PRIVATE'", "variables that runs hand on", "what decides WHILE"):
        assert said in str(raised.value)


def test_subgraphs_that_run_themselves() -> None:
    file = File()
    for name in "xy":
        file.tensor(name, (2, 3))
    numbers = {"cond_subgraph_index": part(file, {"x": (2, 3)}, less(9)), "body_subgraph_index": 0}
    file.operator("WHILE", ["x"], ["y"], "WhileOptions", **numbers)
    with pytest.raises(InvalidModel, match="subgraph 0 runs itself"):
        renorm.compile(file.written(["x"], ["y"]))


def test_loops_within_each_other_have_an_end() -> None:
    """Each of 20 subgraphs runs the next one twice."""
    file = File()
    inner: Part = times(1.5, (2, 3))
    number = part(file, {"x": (2, 3)}, inner)
    condition = part(file, {"x": (2, 3)}, less(9))
    for _ in range(20):
        outer = file.subgraph()
        for name in "xab":
            outer.tensor(name, (2, 3))
        for ends in ("xa", "ab"):
            numbers = {"cond_subgraph_index": condition, "body_subgraph_index": number}
            outer.operator("WHILE", [ends[0]], [ends[1]], "WhileOptions", **numbers)
        number = file.call(outer, ["x"], ["b"])
    for name in "xy":
        file.tensor(name, (2, 3))
    file.operator("WHILE", ["x"], ["y"], "WhileOptions", cond_subgraph_index=condition, body_subgraph_index=number)
    with pytest.raises(LimitExceeded, match="expansions"):
        renorm.compile(file.written(["x"], ["y"]))
