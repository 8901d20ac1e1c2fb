"""Subgraphs of TensorFlow Lite that others call, branches, loops and variables, against LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.tflite_files import File, litert, litert_runs
from tests.random_numbers import RNG

import renorm
from renorm.driver.undecided import DecidingModule
from renorm.errors import InvalidInput, LimitExceeded, RenormError, UnsupportedOp

Xs = list[Any]


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def agrees(content: bytes, *runs: Xs, module: Any = None) -> Any:
    """Check runs that follow each other; the module."""
    made = renorm.compile(content) if module is None else module
    for xs, expected in zip(runs, litert_runs(content, *runs), strict=True):
        for found, one in zip(made.run(*xs), expected, strict=True):
            assert (found.dtype, found.shape) == (one.dtype, one.shape)
            np.testing.assert_allclose(found, one, rtol=1e-5, atol=1e-5)
    return made


def binary(file: File, kind: str, by: float, shape: tuple[int, ...] = (2, 3)) -> File:
    """A further subgraph: kind(x, by)."""
    part = file.subgraph()
    part.tensor("x", shape)
    part.constant("by", np.float32(by).reshape(1))
    part.tensor("made", shape)
    part.operator(kind, ["x", "by"], ["made"], f"{kind.title()}Options")
    return part


def branching(condition: Any = None) -> bytes:
    """IF: x + 3 or x * 5. condition: None for an input."""
    file = File()
    file.tensor("x", (2, 3))
    if condition is None:
        file.tensor("c", (), "bool")
    else:
        file.constant("c", np.asarray(condition))
    file.tensor("y", (2, 3))
    then, other = (file.call(binary(file, k, by), ["x"], ["made"]) for k, by in (("ADD", 3), ("MUL", 5)))
    file.operator("IF", ["c", "x"], ["y"], "IfOptions", then_subgraph_index=then, else_subgraph_index=other)
    return file.written(["x", *(["c"] if condition is None else [])], ["y"])


@pytest.mark.parametrize("condition", [True, False])
def test_a_branch_that_is_known(condition: bool) -> None:
    module = agrees(branching(condition), [f(2, 3)])
    assert [n.op.name for n in module.graph.nodes] == ["add" if condition else "mul"]


def cases(index: int | None, count: int) -> bytes:
    """STABLEHLO_CASE: x + 1, x + 2 and so on. index: None for what x says."""
    file = File()
    file.tensor("x", (2, 3))
    if index is None:
        for name, shape, dtype in (("at", (1,), "float32"), ("i", (), "int32")):
            file.tensor(name, shape, dtype)
        file.constant("axes", np.asarray([0, 1], np.int32))
        file.operator("REDUCE_MAX", ["x", "axes"], ["at"], "ReducerOptions")
        file.operator("CAST", ["at"], ["i"], "CastOptions")
    else:
        file.constant("i", np.asarray(index, np.int32))
    file.tensor("y", (2, 3))
    parts = [file.call(binary(file, "ADD", k + 1), ["x"], ["made"]) for k in range(count)]
    fields = {"branch_subgraph_indices": np.asarray(parts, np.int32)}
    file.operator("STABLEHLO_CASE", ["i", "x"], ["y"], "StablehloCaseOptions", **fields)
    return file.written(["x"], ["y"])


@pytest.mark.parametrize(("index", "taken"), [(0, 0), (1, 1), (2, 2), (3, 2), (-1, 2)])
def test_the_branch_of_a_number(index: int, taken: int) -> None:
    x = f(2, 3)
    np.testing.assert_allclose(renorm.compile(cases(index, 3)).run(x)[0], x + (taken + 1), rtol=1e-6)


def test_data_choose_one_of_two_branches_by_number() -> None:
    module, x = renorm.compile(cases(None, 2)), np.zeros((2, 3), np.float32)
    for largest, added in ((0, 1), (1, 2), (5, 2)):
        x[1, 2] = largest
        np.testing.assert_array_equal(module.run(x)[0], x + added)
    with pytest.raises(RenormError, match="what decides STABLEHLO_CASE"):
        renorm.read(cases(None, 3))


def test_an_input_decides_a_branch() -> None:
    module = renorm.compile(branching())
    assert isinstance(module, DecidingModule)
    assert module.deciding == ("c",)
    for c in (True, False):
        agrees(branching(), [f(2, 3), np.asarray(c)], module=module)
    fixed = renorm.compile(branching(), inputs={"c": True})
    assert [v.name for v in fixed.inputs] == ["x"]


def test_data_choose_a_branch() -> None:
    file = File()
    file.tensor("x", (2, 3))
    file.constant("axes", np.asarray([0, 1], np.int32))
    file.constant("zero", np.float32(0).reshape(()))
    for name, shape, dtype in (("sum", (), "float32"), ("c", (), "bool"), ("y", (2, 3), "float32")):
        file.tensor(name, shape, dtype)
    then, other = (file.call(binary(file, k, by), ["x"], ["made"]) for k, by in (("ADD", 3), ("MUL", 5)))
    file.operator("SUM", ["x", "axes"], ["sum"], "ReducerOptions")
    file.operator("LESS", ["sum", "zero"], ["c"], "LessOptions")
    file.operator("IF", ["c", "x"], ["y"], "IfOptions", then_subgraph_index=then, else_subgraph_index=other)
    x = f(2, 3)
    module = agrees(file.written(["x"], ["y"]), [np.abs(x)], [-np.abs(x)])
    assert any("both branches of IF_2" in a for a in module.report.assumptions)


def counting(rounds: int | None, kind: str = "WHILE", **more: Any) -> bytes:
    """WHILE, or that of StableHLO: x = 2 x + 1, `rounds` times, or as often as an input says."""
    file = File()
    file.tensor("x", (2, 3))
    file.constant("zero", np.asarray(0, np.int32))
    if rounds is None:
        file.tensor("n", (), "int32")
    else:
        file.constant("n", np.asarray(rounds, np.int32))
    for name, shape, dtype in (("i", (), "int32"), ("m", (), "int32"), ("y", (2, 3), "float32")):
        file.tensor(name, shape, dtype)
    condition, body = file.subgraph(), file.subgraph()
    for part in (condition, body):
        for name, shape, dtype in (("i", (), "int32"), ("n", (), "int32"), ("x", (2, 3), "float32")):
            part.tensor(name, shape, dtype)
    condition.tensor("going", (), "bool")
    condition.operator("LESS", ["i", "n"], ["going"], "LessOptions")
    body.constant("one", np.asarray(1, np.int32))
    body.constant("1.0", np.asarray([1], np.float32))
    body.tensor("next", (), "int32")
    for name in ("twice", "more"):
        body.tensor(name, (2, 3))
    body.operator("ADD", ["i", "one"], ["next"], "AddOptions")
    body.operator("ADD", ["x", "x"], ["twice"], "AddOptions")
    body.operator("ADD", ["twice", "1.0"], ["more"], "AddOptions")
    parts = {
        "cond_subgraph_index": file.call(condition, ["i", "n", "x"], ["going"]),
        "body_subgraph_index": file.call(body, ["i", "n", "x"], ["next", "n", "more"]), **more,
    }  # fmt: skip
    options = {"WHILE": "WhileOptions", "STABLEHLO_WHILE": "StablehloWhileOptions"}[kind]
    file.operator(kind, ["zero", "n", "x"], ["i", "m", "y"], options, **parts)
    return file.written(["x", *(["n"] if rounds is None else [])], ["y", "i"])


@pytest.mark.parametrize("rounds", [0, 1, 7])
def test_a_loop_whose_rounds_are_known(rounds: int) -> None:
    x = f(2, 3)
    module = agrees(counting(rounds), [x])
    np.testing.assert_array_equal(renorm.compile(counting(rounds, "STABLEHLO_WHILE")).run(x)[0], module.run(x)[0])


def test_an_input_says_how_many_rounds_there_are() -> None:
    module = renorm.compile(counting(None))
    assert isinstance(module, DecidingModule)
    assert module.deciding == ("n",)
    for rounds in (3, 0):
        agrees(counting(None), [f(2, 3), np.asarray(rounds, np.int32)], module=module)


def test_loops_have_an_end() -> None:
    with pytest.raises(LimitExceeded, match="expansions"):
        renorm.read(counting(10**9), limits=renorm.Limits(expansions=1000))
    endless = counting(3, body_subgraph_index=0)  # its body is the subgraph that it stands in
    with pytest.raises(RenormError):
        renorm.read(endless)


def test_data_end_a_loop() -> None:
    file = File()
    file.tensor("x", (1,))
    file.tensor("y", (1,))
    condition = file.subgraph()
    condition.tensor("x", (1,))
    condition.constant("most", np.asarray([100], np.float32))
    condition.tensor("going", (1,), "bool")
    condition.operator("LESS", ["x", "most"], ["going"], "LessOptions")
    parts = {
        "cond_subgraph_index": file.call(condition, ["x"], ["going"]),
        "body_subgraph_index": file.call(binary(file, "MUL", 2, (1,)), ["x"], ["made"]),
    }
    file.operator("WHILE", ["x"], ["y"], "WhileOptions", **parts)
    with pytest.raises(RenormError, match=r"what decides WHILE, 'WHILE_0.condition0/going', is computed"):
        renorm.read(file.written(["x"], ["y"]))


def test_a_subgraph_that_is_called_twice() -> None:
    """With an operator inside that has channels first in the graph; LiteRT has no CALL."""
    file, plain, w, b = File(), File(), f(3, 3, 3, 3), f(3)
    part = file.subgraph()
    for each, names in ((file, "xay"), (plain, "xay"), (part, "xy")):
        for name in names:
            each.tensor(name, (2, 5, 4, 3))
    for each, ends in ((part, ["xy"]), (plain, ["xa", "ay"])):
        each.constant("w", w)
        each.constant("b", b)
        for x, y in ends:
            each.operator("CONV_2D", [x, "w", "b"], [y], "Conv2DOptions", stride_h=1, stride_w=1)
    number = file.call(part, ["x"], ["y"])
    for x, y in ("xa", "ay"):
        file.operator("CALL", [x], [y], "CallOptions", subgraph=number)
    graph, x = renorm.read(file.written(["x"], ["y"])), f(2, 5, 4, 3)
    assert [n.name for n in graph.nodes if n.op.name == "conv"] == ["CALL_0/CONV_2D_0", "CALL_1/CONV_2D_0"]
    assert len(graph.constants) == 4  # a weight and a bias for each call: equal ones become one
    expected = litert(plain.written(["x"], ["y"]), x)[0]
    np.testing.assert_allclose(renorm.compile(graph).run(x)[0], expected, rtol=1e-5, atol=1e-5)


def test_faults_inside_of_a_subgraph_are_named() -> None:
    file = File()
    file.tensor("x", (2, 3))
    file.tensor("y", (2, 3))
    part = file.subgraph()
    part.tensor("x", (2, 3))
    part.tensor("made", (2, 3))
    part.operator("DELEGATE", ["x"], ["made"])
    file.operator("CALL", ["x"], ["y"], "CallOptions", subgraph=file.call(part, ["x"], ["made"]))
    with pytest.raises(UnsupportedOp, match="node 'CALL_0/DELEGATE_0': renorm does not read DELEGATE"):
        renorm.read(file.written(["x"], ["y"]))


def handle(file: File, name: str = "v") -> str:
    file.tensor(f"{name}.handle", (), "RESOURCE")
    file.operator("VAR_HANDLE", [], [f"{name}.handle"], "VarHandleOptions", container="c", shared_name=name)
    return f"{name}.handle"


def with_variables(changes: bool) -> bytes:
    """y = v + x, and v = y if it changes; v begins as a constant that a subgraph of CALL_ONCE assigns."""
    file, start = File(), None
    file.tensor("x", (2, 3))
    start = file.subgraph()
    at = handle(start)
    start.constant("first", np.arange(6, dtype=np.float32).reshape(2, 3))
    start.operator("ASSIGN_VARIABLE", [at, "first"], [], "AssignVariableOptions")
    file.operator("CALL_ONCE", [], [], "CallOnceOptions", init_subgraph_index=file.call(start, [], []))
    at = handle(file)
    file.tensor("v", (2, 3))
    file.tensor("y", (2, 3))
    file.operator("READ_VARIABLE", [at], ["v"], "ReadVariableOptions")
    file.operator("ADD", ["v", "x"], ["y"], "AddOptions")
    if changes:
        file.operator("ASSIGN_VARIABLE", [at, "y"], [], "AssignVariableOptions")
    return file.written(["x"], ["y"])


def test_variables_go_on_from_run_to_run() -> None:
    module = agrees(with_variables(True), *([f(2, 3)] for _ in range(3)))
    assert [*module.state] == ["v"]
    assert [v.name for v in module.inputs] == ["x"]


def test_a_variable_that_nothing_changes_is_a_constant() -> None:
    module = agrees(with_variables(False), [f(2, 3)], [f(2, 3)])
    assert len(module.state) == 0
    assert [v.name for v in renorm.read(with_variables(False)).inputs] == ["x"]


def test_a_variable_that_one_branch_assigns() -> None:
    """A counter of inputs whose first element is above 0."""
    file = File()
    file.tensor("x", (2,))
    start = file.subgraph()
    at = handle(start)
    start.constant("first", np.zeros(1, np.float32))
    start.operator("ASSIGN_VARIABLE", [at, "first"], [], "AssignVariableOptions")
    file.operator("CALL_ONCE", [], [], "CallOnceOptions", init_subgraph_index=file.call(start, [], []))
    file.constant("axis", np.asarray([0], np.int32))
    file.constant("zero", np.float32(0))
    for name, shape, dtype in (("s", (), "float32"), ("c", (), "bool"), ("u", (2,), "float32"), ("y", (1,), "float32")):
        file.tensor(name, shape, dtype)
    then, other = file.subgraph(), file.subgraph()
    for part in (then, other):
        part.tensor("x", (2,))
    at = handle(then)
    then.constant("one", np.ones(1, np.float32))
    then.tensor("v", (1,))
    then.tensor("more", (1,))
    then.operator("READ_VARIABLE", [at], ["v"], "ReadVariableOptions")
    then.operator("ADD", ["v", "one"], ["more"], "AddOptions")
    then.operator("ASSIGN_VARIABLE", [at, "more"], [], "AssignVariableOptions")
    parts = {
        "then_subgraph_index": file.call(then, ["x"], ["x"]),
        "else_subgraph_index": file.call(other, ["x"], ["x"]),
    }
    file.operator("SUM", ["x", "axis"], ["s"], "ReducerOptions")
    file.operator("GREATER", ["s", "zero"], ["c"], "GreaterOptions")
    file.operator("IF", ["c", "x"], ["u"], "IfOptions", **parts)
    at = handle(file)
    file.operator("READ_VARIABLE", [at], ["y"], "ReadVariableOptions")
    content, module = file.written(["x"], ["y", "u"]), None
    runs = [[np.asarray([k, 0], np.float32)] for k in (1, -1, 2, 3, -4)]
    module = agrees(content, *runs)
    assert [float(a[0]) for a in module.state.values()] == [3]


def test_what_is_read_before_anything_is_assigned() -> None:
    file = File()
    file.tensor("v", (2, 3))
    file.operator("READ_VARIABLE", [handle(file)], ["v"], "ReadVariableOptions")
    with pytest.raises(RenormError, match="variable 'v' is read before anything is assigned"):
        renorm.read(file.written([], ["v"]))


def test_files_with_variables_are_not_written(tmp_path: Any) -> None:
    path = tmp_path / "with.tflite"
    path.write_bytes(with_variables(True))
    with pytest.raises(RenormError, match="hands variables on"):
        renorm.optimize(path, tmp_path / "out.tflite")


def test_files_of_several_subgraphs_have_no_recipe(tmp_path: Any) -> None:
    path = tmp_path / "with.tflite"
    path.write_bytes(branching(True))
    with pytest.raises(InvalidInput, match="2 more subgraphs"):
        renorm.optimize(path, tmp_path / "out.tflite", reversible=True)
    renorm.optimize(path, tmp_path / "out.tflite")
    x = f(2, 3)
    written = (tmp_path / "out.tflite").read_bytes()
    np.testing.assert_allclose(litert(written, x)[0], litert(branching(True), x)[0], rtol=1e-6)


def test_there_is_no_such_subgraph() -> None:
    file = File()
    file.tensor("x", (2, 3))
    file.tensor("y", (2, 3))
    file.operator("CALL", ["x"], ["y"], "CallOptions", subgraph=7)
    with pytest.raises(RenormError, match="there is no subgraph 7 among 1"):
        renorm.read(file.written(["x"], ["y"]))


def test_known_shapes_are_read_where_they_are_computed() -> None:
    """SHAPE, STRIDED_SLICE and PACK of an open batch, and the size of a resize."""
    file = File()
    file.tensor("x", (-1, 4, 5, 2))
    for name, data in (("from", [0]), ("to", [1]), ("step", [1]), ("w", [40]), ("at", [1]), ("end", [3])):
        file.constant(name, np.asarray(data, np.int32))
    file.constant("two", np.asarray([2, 2], np.int32))
    file.tensor("s", (4,), "int32")
    for name, shape in (("n", ()), ("p", (2,)), ("hw", (2,)), ("twice", (2,))):
        file.tensor(name, shape, "int32")
    file.tensor("y", (1, 8, 10, 2))
    file.tensor("z", (1, 40))
    file.constant("width", np.asarray(40, np.int32))
    file.operator("SHAPE", ["x"], ["s"], "ShapeOptions", out_type=2)
    file.operator("STRIDED_SLICE", ["s", "from", "to", "step"], ["n"], "StridedSliceOptions", shrink_axis_mask=1)
    file.operator("PACK", ["n", "width"], ["p"], "PackOptions", values_count=2)
    file.operator("STRIDED_SLICE", ["s", "at", "end", "step"], ["hw"], "StridedSliceOptions")
    file.operator("MUL", ["hw", "two"], ["twice"], "MulOptions")
    file.operator("RESIZE_BILINEAR", ["x", "twice"], ["y"], "ResizeBilinearOptions", version=3)
    file.operator("RESHAPE", ["x", "p"], ["z"], "ReshapeOptions")
    content = file.written(["x"], ["y", "z"])
    module = renorm.compile(content)
    for batch in (1, 3):
        x = f(batch, 4, 5, 2)
        for found, expected in zip(module.run(x), litert(content, x), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_state_of_another_type_is_refused() -> None:
    module = renorm.compile(with_variables(True))
    with pytest.raises(InvalidInput, match="do not fit the state"):
        module.state["v"] = np.zeros((3, 2), np.float32)
