"""Operators that call subgraphs, and variables that these share: all is read into one graph.

CALL, STABLEHLO_COMPOSITE   the subgraph; passes make one node of a norm or an attention that a composite stands for
IF, STABLEHLO_CASE          the branch that its condition takes; where only data say which, both, and one is chosen
WHILE                       its body once for each round, as long as the condition is known
CALL_ONCE                   gives variables what they are before the first run

Where data end a loop, or choose one of two branches of other types, pieces of the network run one by one (`hosting`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.core.dims import Sym, is_static, static
from renorm.core.errors import InvalidModel, UntoldOperand
from renorm.core.inputs import FEW
from renorm.frontends.hosting import is_data
from renorm.frontends.tflite.call import OperatorCall, known
from renorm.frontends.tflite.operator import Operator, Result
from renorm.frontends.tflite.tensors import RESOURCE, Tensor, Variable
from renorm.graph.deciding import sources
from renorm.graph.ir import Value


def _calling(option: str) -> Callable[[OperatorCall], Result]:
    return lambda call: call.inlined(call.number(option), call.operands())


_Now = dict[Variable, Value | None]

# --- branches ---------------------------------------------------------------------------------------------------------


def _element(call: OperatorCall, value: Value) -> bool | int | None:
    """Return the one element of a value; None where it is not known before the network runs."""
    found = known(value)
    if found is not None and found.size != 1:
        raise InvalidModel(f"{call.kind} is decided by {value}, not one element")
    element = None if found is None else found.reshape(-1)[0]
    if element is None or isinstance(element, Sym):
        return None
    call.scope.reader.decided_by(value)
    return int(element)


def _untold(call: OperatorCall, value: Value, facts: Sequence[str] = ()) -> UntoldOperand:
    return UntoldOperand(
        f"what decides {call.kind}, {value.name!r}, is computed when the network runs",
        facts,
        "give the shapes (shapes=) or inputs (inputs=) that it depends on, or export for one case",
        value,
    )


def _if(call: OperatorCall) -> Result:
    branches = [call.number(f"{which}_subgraph_index") for which in ("else", "then")]
    return _branch(call, branches, lambda condition: condition)


def _case(call: OperatorCall) -> Result:
    """The branch of that number, the last one where there is none."""
    branches = [] if call.options is None else [int(i) for i in call.options.items("branch_subgraph_indices")]
    if not branches:
        raise InvalidModel("it has no branches")
    last = len(branches) - 1
    if last > 1:
        index = call.stored(0)
        number = _element(call, index)
        if number is None:
            raise _untold(call, index)
        return call.inlined(branches[number if 0 <= number <= last else last], call.operands()[1:])
    return _branch(call, branches, lambda index: ops.logical_not(ops.equal(index, np.asarray(0, index.dtype))))


def _branch(call: OperatorCall, branches: Sequence[int], truth: Callable[[Value], Value]) -> Result:
    """branches: where the first operand is 0, and where it is not."""
    condition, given = call.stored(0), call.operands()[1:]
    chosen = _element(call, condition)
    if chosen is not None or len(branches) == 1:
        return call.inlined(branches[-1 if chosen else 0], given)
    deciding = sources(call.graph, condition)
    reader = call.scope.reader
    if deciding and reader.computed is None and not any(map(is_data, deciding)):
        raise _untold(call, condition)
    before, made, after = {v: v.now for v in reader.variables.values()}, list[list[Value]](), list[_Now]()
    for number, branch in enumerate(branches):
        for v in reader.variables.values():
            v.now = before.get(v)
        made.append([t.stored() for t in call.inlined(branch, given, f".{number}")])
        after.append({v: v.now for v in reader.variables.values()})
    where = truth(condition) if condition.rank == 0 else ops.reshape(truth(condition), np.zeros(0, np.int64))

    def either(otherwise: Value, then: Value) -> Value:
        if then.type != otherwise.type:
            facts = [f"{then.type} or {otherwise.type}", "of one type, both would be computed"]
            raise _untold(call, condition, facts)
        return then if then is otherwise else ops.where(where, then, otherwise)

    for v in reader.variables.values():
        first, second = (found.get(v) for found in after)
        if first is not second:  # None: a branch leaves it as it is when a run begins
            v.now = either(*(reader.first(v) if now is None else now for now in (first, second)))
    reader.assume(
        f"both branches of {call.name} are computed, and one is chosen: data say which. What they demand of data "
        "(checked=True) is asked of both"
    )
    return [either(otherwise, then) for otherwise, then in zip(*made, strict=True)]


# --- loops ------------------------------------------------------------------------------------------------------------


def _while(call: OperatorCall) -> Result:
    condition, body = (call.number(f"{which}_subgraph_index") for which in ("cond", "body"))
    carried, rounds = call.operands(), 0
    while True:
        decided = call.inlined(condition, carried, f".condition{rounds}")
        if len(decided) != 1:
            raise InvalidModel(f"its condition has {len(decided)} results")
        going = _element(call, decided[0].stored())
        if going is None:
            raise _untold(call, decided[0].stored())
        if not going:
            return carried
        carried = [_settled(t) for t in call.inlined(body, carried, f".round{rounds}")]
        rounds += 1


def _settled(tensor: Tensor) -> Tensor:
    """Return a tensor that is a constant, where it holds a few integers which are known: a counter of rounds."""
    if not tensor.is_made or tensor.value.is_constant or dtypes.is_float(tensor.value.dtype):
        return tensor
    value = tensor.stored()
    if not is_static(value.shape) or np.prod(static(value.shape)) > FEW:
        return tensor
    found = known(value)
    if found is None or found.dtype == object:
        return tensor
    made = Tensor(value.graph, tensor.name)
    made.make(value.graph.constant(found, tensor.name))
    return made


# --- variables --------------------------------------------------------------------------------------------------------


def _once(call: OperatorCall) -> Result:
    reader, index = call.scope.reader, call.number("init_subgraph_index")
    if index not in reader.started:
        reader.started.add(index)
        outer, reader.is_starting = reader.is_starting, True
        try:
            call.inlined(index, [])
        finally:
            reader.is_starting = outer
    return []


def _handle(call: OperatorCall) -> Tensor:
    made = Tensor(call.graph, call.outputs[0].name)
    made.dtype, made.variable = RESOURCE, call.scope.reader.resource(call.options)
    return made


def _variable(call: OperatorCall) -> Variable:
    tensor = call.operands()[0]
    if tensor.variable is None or tensor.dtype != RESOURCE:
        raise InvalidModel(f"{call.kind}: {tensor.name!r} is no variable")
    return tensor.variable


def _read(call: OperatorCall) -> Value:
    return call.scope.reader.read_variable(_variable(call))


def _assign(call: OperatorCall) -> Result:
    variable, value = _variable(call), call.stored(1)
    if call.scope.reader.is_starting:
        variable.initial = call.array(1, "what a variable is before the first run")
    else:
        variable.now = value
    return []


WHILE, CASE = ("WHILE", "STABLEHLO_WHILE"), "STABLEHLO_CASE"
DECIDED = (*WHILE, CASE, "IF")  # by values

OPERATORS = [
    Operator("ASSIGN_VARIABLE", read=_assign),
    Operator("CALL", read=_calling("subgraph")),
    Operator("CALL_ONCE", read=_once),
    Operator("IF", read=_if),
    Operator("READ_VARIABLE", read=_read),
    Operator("STABLEHLO_CASE", read=_case),
    Operator("STABLEHLO_COMPOSITE", read=_calling("decomposition_subgraph_index")),
    Operator("STABLEHLO_WHILE", read=_while),
    Operator("VAR_HANDLE", read=_handle),
    Operator("WHILE", read=_while),
]
