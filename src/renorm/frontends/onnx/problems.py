"""The error for a model of which something cannot be read: ops that renorm does not define, and whatever else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from renorm.core.dtypes import BY_NAME
from renorm.core.errors import InvalidModel, RenormError, UnsupportedOp
from renorm.frontends.onnx import tensors
from renorm.frontends.onnx.library import INSTALL, is_installed
from renorm.frontends.onnx.messages import NodeProto
from renorm.frontends.onnx.model import Source, standard_domain
from renorm.frontends.problems import Problem, further, together

_ADVICE = {  # by domain
    "com.microsoft.nchwc": "have ONNX Runtime save it at ORT_ENABLE_EXTENDED: higher levels are for one machine"
}


def problem(error: RenormError, node: NodeProto, name: str, source: Source) -> Problem:
    """Return that a node could not be read."""
    return Problem(error, name, _stated(node, source), _op(node))


def raise_all(missing: Sequence[tuple[NodeProto, str]], failed: Sequence[Problem], source: Source) -> None:
    """Raise one error for all that is wrong, if anything is. missing: nodes whose op renorm does not define, and their
    names; they come first."""
    if missing:
        raise _missing(missing, failed, source)
    if failed:
        raise together(failed, source.label)


def _missing(missing: Sequence[tuple[NodeProto, str]], failed: Sequence[Problem], source: Source) -> UnsupportedOp:
    (first, name), kind = missing[0], missing[0][0].op_type
    facts = _results(first, source)
    others = Counter(_op(node) for node, _ in missing if node.op_type != kind)
    same = sum(node.op_type == kind for node, _ in missing) - 1
    if same:
        facts.append(f"{same} more {'node is' if same == 1 else 'nodes are'} {kind}")
    if others:
        listed = ", ".join(f"{op} ({n} {'node' if n == 1 else 'nodes'})" for op, n in others.items())
        facts.append(f"also missing in this model: {listed}")
    facts += further(failed, source.label)
    if not is_installed():
        facts.append(f"the onnx package is not installed, which has functions for some of them: {INSTALL}")
    return UnsupportedOp(
        f"{source.label}: node {name!r} is {_stated(first, source)}, which renorm does not define",
        facts,
        _ADVICE.get(first.domain, "export without it, or add an op file (docs/adding-an-op.md)"),
    )


def _op(node: NodeProto) -> str:
    domain = standard_domain(node.domain)
    return f"{node.op_type} ({domain})" if domain else node.op_type


def _stated(node: NodeProto, source: Source) -> str:
    """Return the op of a node with the version that the model states."""
    domain = standard_domain(node.domain)
    return f"{node.op_type} ({domain or 'ai.onnx'} {source.opsets.get(domain, '')})"


def _results(node: NodeProto, source: Source) -> list[str]:
    """One line per result: its type, if ONNX can infer it, and who reads it."""
    types = _inferred_types(source)
    lines: list[str] = []
    for out in node.output:
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
        onnx.checker.check_model(model)  # of a damaged one, inference may read what is not there, and crash
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
