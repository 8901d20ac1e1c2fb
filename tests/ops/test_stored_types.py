"""Ops that only move elements take those of at most 8 bits as they take others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.ops.one_node import OneNode

import renorm
from renorm.core import dtypes
from renorm.core.conversion import converted
from renorm.graph import registry
from renorm.graph.op import OpDef, Sample
from renorm.graph.types import Spec

OTHERS = frozenset({"cast", "shape", "size"})  # the latter two look at no element
MOVES = sorted(
    (
        op
        for op in registry.all_ops()
        if registry.is_own(op) and op.parsed.operands and op.name not in OTHERS
        and any(p.dtype == "T" for p in op.parsed.operands) and "T" not in op.types
    ),
    key=lambda op: op.name,
)  # fmt: skip


def stored(op: type[OpDef], sample: Sample, dtype: str) -> Sample | None:
    """The same sample of elements of another dtype; None where it has other elements than floats to move."""

    def other(spec: Any, is_moved: bool) -> Any:
        if isinstance(spec, list):
            return [other(s, is_moved) for s in spec]
        if not isinstance(spec, Spec) or not is_moved:
            return spec
        made = replace(spec, type=replace(spec.type, dtype=dtype))
        return made if spec.values is None else replace(made, values=converted(np.asarray(spec.values), dtype))

    specs = op.arrange([o for given in sample.operands for o in (given if isinstance(given, list) else [given])])
    moved = [p.dtype == "T" for p in op.parsed.operands]
    for spec, is_moved in zip(specs, moved):
        for s in spec if isinstance(spec, list) else [spec]:
            if s is not None and is_moved and s.type.dtype != "float32":
                return None
    return Sample(*(other(s, m) for s, m in zip(specs, moved)), **sample.attributes)


@pytest.mark.parametrize("op", MOVES, ids=lambda op: op.name)
def test_elements_of_few_bits_are_moved(op: type[OpDef]) -> None:
    for number, sample in enumerate(op.samples):
        dtype = dtypes.STORED[number % len(dtypes.STORED)]
        made = stored(op, sample, dtype)
        if made is None:
            continue
        case = OneNode(op, made)
        found = renorm.compile(case.graph, threads=1).run(*case.arrays)
        for got, expected in zip(found, case.reference(), strict=True):
            np.testing.assert_array_equal(got.astype(np.float64), np.asarray(expected, np.float64), err_msg=dtype)
