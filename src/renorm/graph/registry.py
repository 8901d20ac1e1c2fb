"""Which ops exist, and what a user has put in their place for a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from renorm.core.errors import InvalidTarget, OperandError, UnsupportedOp, UserCodeError, suggest
from renorm.core.target import Target
from renorm.graph.ir import Node
from renorm.graph.op import Fusion, OpDef

_OPS: dict[str, type[OpDef]] = {}
_ONNX: dict[str, list[tuple[int, type[OpDef]]]] = {}


@dataclass(frozen=True)
class Override:
    """The parts that `renorm.override` replaces for one op on one target; None leaves the op's own."""

    compute: Callable[..., Any] | None = None
    schedule: Callable[..., Any] | None = None
    fusion: Fusion | None = None


_OVERRIDES: dict[tuple[str, str], Override] = {}


def register(op: type[OpDef]) -> type[OpDef]:
    """Adds an op. Usable as a decorator. One without a signature is read in files only, as other ops. Raises
    OperandError where another op has its name."""
    other = _OPS.get(op.name)
    if other is op:
        return op
    if other is not None and (other.__module__, other.__qualname__) != (op.__module__, op.__qualname__):
        raise OperandError(
            f"op {op.name!r} is defined already, in {other.__module__}", do="name it otherwise, or use renorm.override"
        )
    if hasattr(op, "signature"):
        _OPS[op.name] = op
    for op_type, since in op.onnx.items():
        versions = [v for v in _ONNX.get(op_type, []) if v[1].name != op.name]
        _ONNX[op_type] = sorted([*versions, (since, op)], key=lambda v: v[0])
    return op


def unregister(name: str) -> None:
    """Takes an op away again; for tests and notebooks."""
    op = _OPS.pop(name, None)
    for op_type in op.onnx if op else ():
        _ONNX[op_type] = [v for v in _ONNX[op_type] if v[1] is not op]


def find(name: str) -> type[OpDef]:
    """The op of that name; UnsupportedOp lists the nearest ones."""
    if name not in _OPS:
        raise UnsupportedOp(f"{name!r} is not an op", [f"nearest: {suggest(name, _OPS)}"], "see docs/adding-an-op.md")
    return _OPS[name]


def find_onnx(op_type: str, opset: int) -> type[OpDef] | None:
    """The op that an ONNX op type means at an opset, or None."""
    fitting = [op for since, op in _ONNX.get(op_type, []) if since <= opset]
    return fitting[-1] if fitting else None


def first_onnx(op_type: str) -> tuple[int, type[OpDef]] | None:
    """The oldest version of an ONNX op type, and the op that it means there; None where no op is that type."""
    return next(iter(_ONNX.get(op_type, ())), None)


def newest_onnx(domain: str) -> int:
    """The newest version since which an op means a type of an ONNX domain; 1 where no op is of that domain."""
    return max((since for key, held in _ONNX.items() if key.startswith(f"{domain}::") for since, _ in held), default=1)


def is_own(definition: Any) -> bool:
    """Return whether a class or a function is renorm's, not one from a user's file."""
    return definition.__module__.partition(".")[0] == __name__.partition(".")[0]


def all_ops() -> list[type[OpDef]]:
    return [_OPS[name] for name in sorted(_OPS)]


def override(
    name: str,
    *,
    target: str | Target,
    compute: Callable[..., Any] | None = None,
    schedule: Callable[..., Any] | None = None,
    fusion: Fusion | None = None,
) -> None:
    """Replaces parts of one op on one target: the first word of a target string ("llvm", "cuda", or a registered name),
    or a Target, of which only its kind counts.

    compute(op, *tensors): results as te tensors; `op` carries the attributes. schedule(s, outs, target): schedules in
    place, or returns another schedule for the same outputs. fusion: for example OPAQUE, which keeps the op alone in
    its kernel. Calling it with none of them restores the op. Raises UnsupportedOp for an unknown op, InvalidTarget for
    a target with options, to which no override is bound, and UserCodeError for what is no function.
    """
    find(name)
    target = target.kind if isinstance(target, Target) else target
    if target.split() != [target]:
        kind = (target.split() or [""])[0]
        raise InvalidTarget(f"override: target {target!r} is no kind of target", [], f"give its first word, {kind!r}")
    for what, given in (("compute", compute), ("schedule", schedule)):
        if given is not None and not callable(given):
            raise UserCodeError(f"override: {what} of {name} is {given!r}, which is no function")
    if compute is None and schedule is None and fusion is None:
        _OVERRIDES.pop((name, target), None)
    else:
        _OVERRIDES[name, target] = Override(compute, schedule, fusion)


def is_overridden(op: type[OpDef]) -> bool:
    """Return whether something replaces a part of it, on whatever target."""
    return any(op.name in key for key in _OVERRIDES)


def overridden(name: str, target: Target) -> Override:
    """Return what is replaced for an op on a target, or else on the target's base; an empty Override where nothing
    is."""
    found = (_OVERRIDES.get((name, kind)) for kind in (target.kind, *target.base.split()[:1]))
    return next((o for o in found if o), Override())


def scheduler(nodes: Sequence[Node], target: Target) -> Node:
    """The node of a group whose op schedules the kernel: that of the highest fusion kind, the last one of several."""
    return max(reversed(nodes), key=lambda n: fusion_kind(n, target))


def fusion_kind(node: Node, target: Target) -> Fusion:
    """Return how a node may share a kernel on a target: what a user has put there, or else what its op says."""
    own = overridden(node.op.name, target).fusion
    return node.op.fusion_of(node.operand_types()) if own is None else own
