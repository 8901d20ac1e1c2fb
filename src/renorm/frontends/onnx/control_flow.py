"""If, Loop and Scan, as far as they end before the network runs: bodies are read into the graph around them.

    If        the branch that its condition takes; where only data say which, both, and one is chosen by element
    Loop      its body once for each round, as long as the number of rounds and the condition are known
    Scan      its body once for each slice of its inputs, whose number is an extent that is known

A body is read by what `read` gives: it takes nodes and the scope of their names, and reads them before it goes on.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.core.dims import Dim, Sym
from renorm.core.errors import InvalidModel, UnsupportedOp, UntoldOperand
from renorm.core.shapes import normalize_axis
from renorm.frontends.onnx.held import chosen_by, described
from renorm.frontends.onnx.messages import GraphProto, NodeProto
from renorm.graph.deciding import sources
from renorm.graph.interpret import Known
from renorm.graph.ir import Value

if TYPE_CHECKING:
    from renorm.frontends.onnx.reader import Reader
    from renorm.frontends.onnx.scope import Scope

Results = Sequence[Value | None]
Reading = Generator[tuple[Sequence[NodeProto], "Scope"], None, Results]

OPS = frozenset({"If", "Loop", "Scan"})


def results(reader: Reader, proto: NodeProto, name: str, operands: Results, scope: Scope) -> Reading:
    """Return the results of a node of one of OPS. Raises what keeps it from being read."""
    attributes = {a.name: a for a in proto.attribute}
    match proto.op_type:
        case "If":
            return (yield from _branch(reader, proto, name, attributes, operands, scope))
        case "Loop":
            return (yield from _loop(reader, proto, name, attributes, operands, scope))
        case _:
            return (yield from _scan(reader, proto, name, attributes, operands, scope))


def _branch(
    reader: Reader, proto: NodeProto, name: str, attributes: Mapping[str, Any], operands: Results, scope: Scope
) -> Reading:
    condition = operands[0] if operands else None
    if condition is None:
        raise InvalidModel("If has no condition")
    branches = [attributes.get(which) for which in ("then_branch", "else_branch")]
    what = f"the condition {condition.name!r} of If"
    chosen = _truth(reader, condition, what)
    if chosen is not None:
        if (taken := branches[0 if chosen else 1]) is None:
            raise InvalidModel(f"If has no {'then_branch' if chosen else 'else_branch'}")
        names = {made.name: str(scope.names.get(out, out)) for made, out in zip(taken.g.output, proto.output)}
        return (yield from _once(reader, taken.g, {}, reader.scope_of(taken.g, scope), names, ""))
    if None in branches:
        raise InvalidModel("If has no then_branch, or no else_branch")
    deciding = sources(reader.graph, condition)
    if deciding and not reader.has_data and not any(dtypes.is_float(v.dtype) for v in deciding):
        raise _untold(condition, what)
    both = list[Results]()
    for k, taken in enumerate(branches):
        assert taken is not None
        inner = reader.scope_of(taken.g, scope)
        both.append((yield from _once(reader, taken.g, {}, inner, {}, ".else" if k else ".then")))
    if len(both[0]) != len(both[1]):
        raise InvalidModel(f"If: its branches have {len(both[0])} and {len(both[1])} results")
    scalar = condition if condition.rank == 0 else ops.reshape(condition, np.zeros(0, np.int64))
    made = list[Value | None]()
    for one, other in zip(*both, strict=True):
        if one is None or other is None:
            made.append(None)
            continue
        if described(one) != described(other):
            untold = _untold(condition, what)
            facts = [f"then  {described(one)}", f"else  {described(other)}", "of one type, both would be computed"]
            raise UntoldOperand(untold.headline, facts, untold.do, condition)
        made.append(chosen_by(scalar, one, other))
    reader.assumed.append(
        f"both branches of If {name!r} are computed, and one is chosen: data say which. What they demand of data "
        "(checked=True) is asked of both"
    )
    return made


def _loop(
    reader: Reader, proto: NodeProto, name: str, attributes: Mapping[str, Any], operands: Results, scope: Scope
) -> Reading:
    body = _body(attributes, "Loop")
    limit, condition, *rest = [*operands, *([None] * (2 - len(operands)))]
    carried: Results = _whole(rest, "Loop")
    count, scanned = len(carried), len(body.output) - 1 - len(carried)
    if len(body.input) != count + 2 or scanned < 0:
        raise InvalidModel(
            f"Loop: its body takes {len(body.input)} values and gives {len(body.output)}",
            [f"{count} are carried: expected {count + 2}, and {count + 1} or more"],
        )
    rounds = None if limit is None else whole_number(reader, limit, f"the number of rounds {limit.name!r} of Loop")
    if rounds is None and condition is None:
        raise InvalidModel("Loop has neither a number of rounds nor a condition: it has no end")
    going = condition is None or _known(reader, condition, f"the condition {condition.name!r} of Loop")
    number, found, held = 0, list[list[Value]](), reader.scope_of(body, scope)
    while going and (rounds is None or number < rounds):
        given = [reader.graph.constant(np.asarray(number, np.int64), f"{name}.round{number}"), condition]
        if condition is None:
            given[1] = reader.graph.constant(np.asarray(True), f"{name}.true{number}")
        after, *made = yield from _round(reader, body, [*given, *carried], held, number, name)
        if after is None or None in made:  # which is noted: every round would say it again
            return [None] * len(proto.output)
        carried = made[:count]
        found.append(_whole(made[count:], "Loop"))
        going = condition is None or _known(reader, after, f"the condition {after.name!r} of Loop")
        condition = None if condition is None else after
        number += 1
    if found or not scanned:
        return [*carried, *(_stacked(one, 0) for one in zip(*found))]
    going = reader.graph.constant(np.asarray(True), f"{name}.true") if condition is None else condition
    given = [reader.graph.constant(np.asarray(0, np.int64), f"{name}.round0"), going, *carried]
    made = yield from _round(reader, body, given, held, 0, name)  # which tells the types of what no round gives
    if None in made:
        return [None] * len(proto.output)
    empty = (ops.slice(_stacked([one], 0), [0], [0], [0]) for one in _whole(made[1 + count :], "Loop"))
    return [*carried, *empty]


def _scan(
    reader: Reader, proto: NodeProto, name: str, attributes: Mapping[str, Any], operands: Results, scope: Scope
) -> Reading:
    if scope.opsets[""] < 9:
        raise UnsupportedOp("Scan before opset 9 has a batch axis", do="export at opset 9 or later")
    if "num_scan_inputs" not in attributes:
        raise InvalidModel("Scan does not say num_scan_inputs")
    body, count = _body(attributes, "Scan"), int(attributes["num_scan_inputs"].i)
    given = _whole(operands, "Scan")
    if not 0 < count <= len(given) or len(body.input) != len(given):
        raise InvalidModel(
            f"Scan: {count} of {len(given)} values are inputs that it goes along",
            [f"its body takes {len(body.input)} values"],
        )
    carried, inputs = list(given[: len(given) - count]), given[len(given) - count :]
    scanned = len(body.output) - len(carried)

    def listed(attribute: str, length: int) -> list[int]:
        held = attributes.get(attribute)
        found = [0] * length if held is None else [int(i) for i in held.ints]
        if len(found) != length:
            raise InvalidModel(f"Scan: {attribute} has {len(found)} numbers, expected {length}")
        return found

    axes = [normalize_axis(a, x.rank) for a, x in zip(listed("scan_input_axes", count), inputs)]
    backward, reversed_results = listed("scan_input_directions", count), listed("scan_output_directions", scanned)
    result_axes = listed("scan_output_axes", scanned)
    rounds = _one_length(dict.fromkeys(x.shape[a] for a, x in zip(axes, inputs)))
    found, held = list[list[Value]](), reader.scope_of(body, scope)
    for number in range(rounds):
        slices = [
            ops.gather(x, np.asarray(rounds - 1 - number if back else number, np.int64), axis=axis)
            for x, axis, back in zip(inputs, axes, backward)
        ]
        made = yield from _round(reader, body, [*carried, *slices], held, number, name)
        if None in made:  # which is noted
            return [None] * len(proto.output)
        whole = _whole(made, "Scan")
        carried, found = whole[: len(carried)], [*found, whole[len(carried) :]]
    if not found and scanned:
        raise UnsupportedOp("Scan makes no rounds, and its results are of their number")
    stacked = [_stacked(one[::-1] if reversed_results[k] else one, result_axes[k]) for k, one in enumerate(zip(*found))]
    return [*carried, *stacked]


def _round(
    reader: Reader, body: GraphProto, given: Sequence[Value | None], held: Scope, number: int, name: str
) -> Reading:
    """Return what a body makes of these values in one round. held: what all rounds see."""
    reader.expand(len(body.node) + 1, f"round {number} of {name!r}")
    values = dict(zip((i.name for i in body.input), given, strict=True))
    return (yield from _once(reader, body, values, held, {}, f".round{number}"))


def _once(
    reader: Reader,
    body: GraphProto,
    given: Mapping[str, Value | None],
    held: Scope,
    names: Mapping[str, str],
    place: str,
) -> Reading:
    """Read a body once. given: values by the names of its inputs. held: what it sees. names: what results are called
    outside. place: what stands behind names of its nodes."""
    inner = reader.scope_within(held, given, names, place)
    yield body.node, inner
    return [reader.find(o.name, inner, f"the body {body.name!r}") for o in body.output]


def _body(attributes: Mapping[str, Any], kind: str) -> GraphProto:
    if "body" not in attributes:
        raise InvalidModel(f"{kind} has no body")
    return attributes["body"].g


def _whole(values: Results, kind: str) -> list[Value]:
    """Return values that are all there. Raises InvalidModel."""
    found = [v for v in values if v is not None]
    if len(found) < len(values):
        raise InvalidModel(f"{kind}: a value is left out, or could not be read")
    return found


def _stacked(values: Sequence[Value], axis: int) -> Value:
    """Return values along a new axis, which may be counted from the end."""
    axis = normalize_axis(axis, values[0].rank + 1)
    return ops.concat([ops.unsqueeze(v, axes=[axis]) for v in values], axis=axis)


def _element(value: Value, what: str) -> Any:
    known = value.known if value.known is not None else value.data
    if known is None and sources(value.graph, value) == set():  # computed of constants
        known = Known(lambda v: v.told)(value)
    if known is not None and np.size(known) != 1:
        raise InvalidModel(f"{what} is {value.type}, not one element")
    return None if known is None else np.asarray(known).reshape(-1)[0]


def _truth(reader: Reader, value: Value, what: str) -> bool | None:
    """Return a condition; None where it is not known."""
    if value.dtype != "bool":
        raise InvalidModel(f"{what} is {value.type}, not bool")
    found = _element(value, what)
    if found is None or isinstance(found, Sym):
        return None
    reader.decided_by(value)
    return bool(found)


def _known(reader: Reader, value: Value, what: str) -> bool:
    """Return a condition. Raises UntoldOperand where it is not known."""
    found = _truth(reader, value, what)
    if found is None:
        raise _untold(value, what)
    return found


def whole_number(reader: Reader, value: Value, what: str) -> int:
    """Return an integer. Raises UntoldOperand where it is not known."""
    if not dtypes.is_int(value.dtype):
        raise InvalidModel(f"{what} is {value.type}, not an integer")
    found = _element(value, what)
    if found is None or isinstance(found, Sym):
        raise _untold(value, what)
    reader.decided_by(value)
    return int(found)


def _untold(value: Value, what: str) -> UntoldOperand:
    return UntoldOperand(
        f"{what} is computed when the network runs",
        do="give the shapes (shapes=) or inputs (inputs=) that it depends on, or export for one case",
        operand=value,
    )


def _one_length(lengths: Mapping[Dim, None]) -> int:
    """Return the number of slices that all inputs of a Scan have."""
    if len(lengths) != 1:
        raise InvalidModel("Scan: its inputs have other numbers of slices", [", ".join(map(str, lengths))])
    (length,) = lengths
    if not isinstance(length, int):
        raise UntoldOperand(f"Scan: how often its body runs, {length}, is not known", do="give shapes=", operand=length)
    return length
