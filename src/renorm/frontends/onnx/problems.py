"""Problems in reading a model, collected node by node and raised as one error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from renorm.core.dtypes import BY_NAME
from renorm.core.errors import InvalidModel, RenormError, UnsupportedOp
from renorm.frontends.onnx import tensors
from renorm.frontends.onnx.library import INSTALL, is_installed
from renorm.frontends.onnx.messages import NodeProto
from renorm.frontends.onnx.model import Source, standard_domain
from renorm.graph.ir import Value

_SHOWN = 100  # faults of one file that have a line of their own
_ADVICE = {
    **dict.fromkeys(("GRU", "LSTM", "RNN", "Loop", "Scan"), "export with the loop unrolled"),
    "NonMaxSuppression": "cut the model before its postprocessing",
}


@dataclass(frozen=True)
class Problem:
    """A node that could not be read, or something else of the file (node: None). error: why, or None where renorm has
    no such op."""

    node: NodeProto | None
    name: str
    operands: Sequence[Value | None]
    error: RenormError | None


def raise_all(problems: Sequence[Problem], source: Source) -> None:
    """Raise one error for all problems, if there are any: missing ops first."""
    missing = [p for p in problems if p.error is None]
    failed = [p for p in problems if p.error is not None]
    if missing:
        raise _missing(missing, failed, source)
    if failed:
        raise _failed(failed, source)


def _missing(missing: Sequence[Problem], failed: Sequence[Problem], source: Source) -> UnsupportedOp:
    first, kind = missing[0], _kind(missing[0])
    facts = _results(first, source)
    others = Counter(_op(p, source, version=False) for p in missing if _kind(p) != kind)
    same = sum(_kind(p) == kind for p in missing) - 1
    if same:
        facts.append(f"{same} more {'node is' if same == 1 else 'nodes are'} {kind}")
    if others:
        listed = ", ".join(f"{op} ({n} {'node' if n == 1 else 'nodes'})" for op, n in others.items())
        facts.append(f"also missing in this model: {listed}")
    facts += _further(failed, source)
    if not is_installed():
        facts.append(f"the onnx package is not installed, which has functions for some of them: {INSTALL}")
    return UnsupportedOp(
        f"{source.label}: node {first.name!r} is {_op(first, source)}, which renorm does not define",
        facts,
        f"{_ADVICE.get(kind, 'export without it')}, or add an op file (docs/adding-an-op.md)",
    )


def _failed(failed: Sequence[Problem], source: Source) -> RenormError:
    first = failed[0].error
    assert first is not None
    facts = [*first.facts, *_further(failed[1:], source)]
    raised = type(first)(f"{source.label}: {_headline(failed[0], source)}", facts, first.do)
    raised.__cause__ = first
    return raised


def _further(problems: Sequence[Problem], source: Source) -> list[str]:
    """Return a line for each: thousands would hide the first."""
    lines = [f"also: {_headline(p, source)}" for p in problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        kinds = Counter(_op(p, source, version=False) if p.node is not None else "others" for p in problems[_SHOWN:])
        lines.append("and more: " + ", ".join(f"{kind} ({n})" for kind, n in kinds.items()))
    return lines


def _headline(problem: Problem, source: Source) -> str:
    assert problem.error is not None
    why, quoted = problem.error.headline.removeprefix(f"{source.label}: "), f"node {problem.name!r}"
    if problem.node is None:
        return why
    why = why.removeprefix(f"{quoted}: ")
    return f"{quoted} ({_op(problem, source)}): {why}"


def _kind(problem: Problem) -> str:
    return problem.node.op_type if problem.node is not None else ""


def _op(problem: Problem, source: Source, version: bool = True) -> str:
    domain = standard_domain(problem.node.domain) if problem.node is not None else ""
    stated = f" {source.opsets.get(domain, '')}" if version else ""
    if not domain:
        return _kind(problem) + (f" (ai.onnx{stated})" if version else "")
    return f"{_kind(problem)} ({domain}{stated})"


def _results(problem: Problem, source: Source) -> list[str]:
    """One line per result: its type, if ONNX can infer it, and who reads it."""
    types = _inferred_types(source)
    lines: list[str] = []
    for out in problem.node.output if problem.node is not None else ():
        if not out:
            continue
        readers = [n.name or f"{n.op_type}_{i}" for i, n in enumerate(source.model.graph.node) if out in n.input]
        shown = ", ".join(repr(r) for r in readers[:3]) + (f" and {len(readers) - 3} more" if len(readers) > 3 else "")
        read = f", read by {shown}" if readers else ", read by nobody"
        if any(o.name == out for o in source.model.graph.output):
            read = f"{read if readers else ''}, an output of the model"
        lines.append(f"result  {out} {types.get(out, 'of unknown type')}{read}")
    return lines


def _inferred_types(source: Source) -> dict[str, str]:
    model: Any = source.model
    with suppress(Exception):  # only a courtesy in a message: a model too large or damaged for onnx has its error
        import onnx.shape_inference

        model = source.proto()
        model = onnx.shape_inference.infer_shapes(model)
    return {v.name: _type(v) for v in (*getattr(model.graph, "value_info", ()), *model.graph.output)}


def _type(info: Any) -> str:
    tensor = info.type.tensor_type
    try:
        dtype = BY_NAME[tensors.dtype_name(tensor.elem_type, info.name)].short
    except (InvalidModel, UnsupportedOp):
        return "of unknown type"
    if not tensor.HasField("shape"):
        return f"{dtype} of unknown rank"
    extents = [str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim]
    return f"{dtype}[{', '.join(extents)}]"
