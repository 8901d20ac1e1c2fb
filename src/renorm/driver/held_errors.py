"""What it costs that memory holds values in fewer digits: how far each is from its definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.core.difference import relative_error
from renorm.driver.compile import analyze
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.runtime.report import PrecisionRecord

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class HeldError:
    """How far a value that goes from kernel to kernel is from its definition in float64, where memory holds some in
    fewer digits: as the interpreter computes it, so that kernels' own roundings are left out. value, node: its name,
    and that of the node which makes it. dtype: what memory holds it in; reason: why in its own. l2, largest: as of a
    Rounding."""

    value: str
    node: str
    dtype: str
    reason: str
    l2: float
    largest: float


def held_errors(
    source: Graph, compiled: Graph, records: Sequence[PrecisionRecord], inputs: Mapping[str, Array], **options: Any
) -> tuple[HeldError, ...]:
    """Return one record for each value between kernels, in their order, and for each output; none for those that passes
    make for this precision alone.

    source: with fixed extents; compiled: what the passes made of it; records: of its report. options: `target`,
    `opt_level` and `keep` that it was compiled with.
    """
    if not records or any(v.name not in inputs for v in compiled.inputs):  # counts are inputs that nobody has given
        return ()
    fixed = interpret.fixed(compiled, inputs)
    rounded = {v.name: a for v, a in interpret.evaluate(fixed, {v.name: inputs[v.name] for v in fixed.inputs}).items()}
    direct = analyze(source, **options, precision="exact")[0]
    plain = {v.name: a for v, a in interpret.evaluate(direct, inputs).items()}
    ends = [PrecisionRecord(v.name, v.producer.name, v.dtype, 0) for v in fixed.outputs if v.producer]
    found = list[HeldError]()
    for r in (*records, *ends):
        if r.name in rounded and r.name in plain and rounded[r.name].shape == plain[r.name].shape:
            got, expected = rounded[r.name], plain[r.name]
            l2 = float(np.linalg.norm(got - expected) / (np.linalg.norm(expected) or 1.0))
            found.append(HeldError(r.name, r.node, r.dtype, r.reason, l2, relative_error(got, expected)))
    return tuple(found)
