"""The conformance cases of the onnx package, where renorm has their ops: through the reader and the ops' references."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.frontends.backend_cases import Case, collect, is_defined, told, with_constants

from renorm import frontends
from renorm.frontends.onnx import write
from renorm.frontends.onnx.provenance import KEY
from renorm.graph import interpret

# What is not run though renorm has the ops, each with the reason.
EXCLUDED = {
    r"test_training_dropout(?!_zero).*": "dropout in training drops nothing here",
    r"test_attention_\w*(causal|padded_kv)\w*(bf|fp)16(_expanded)?": "rounds every one of a dozen steps to 16 bits",
    r"test_bernoulli.*": "random numbers are others than those of the package",
    r"test_resize_downsample_scales_\w+_align_corners": "they take 2.4 for an extent of 2, unlike torch",
}

CASES = {c.name: c for c in collect() if is_defined(c.model)}


def _reason(name: str, excluded: dict[str, str] = EXCLUDED) -> str | None:
    return next((why for pattern, why in excluded.items() if re.fullmatch(pattern, name)), None)


@pytest.mark.parametrize("name", [n for n in CASES if _reason(n) is None])
def test_case(name: str) -> None:
    case = CASES[name]
    for inputs, expected in case.sets:
        model, given = with_constants(case, inputs)
        graph = frontends.read(model)
        given = {v.name: given[v.name] for v in graph.inputs}
        _check(interpret.run(graph, given), expected, case, inputs)


# What ONNX cannot say at the opset of the case, once it is not said in the case's own words.
INEXPRESSIBLE = {
    r"test_affine_grid_.*": "Range has operands of one axis in its body, where ONNX wants scalars",
    r"test_celu\w*_expanded": "CastLike becomes Cast, of which this opset has a definition newer than renorm's",
    r"test_operator_add_size1_\w*broadcast": "before opset 7, `axis` said what an inserted Unsqueeze says in the graph",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in CASES if _reason(n) is None and _reason(n, INEXPRESSIBLE) is None])
def test_case_written_back(name: str) -> None:
    """As the ops say it, not as the case did: attributes, operands and defaults at the opset of the case."""
    case = CASES[name]
    inputs, expected = case.sets[0]
    model, given = with_constants(case, inputs)
    graph = frontends.read(model)
    graph.metadata[KEY].forms.clear()
    again = frontends.read(write(graph))
    _check(interpret.run(again, {v.name: given[v.name] for v in again.inputs}), expected, case, inputs)


def _check(results: list[np.ndarray], expected: list[np.ndarray], case: Case, inputs: list[np.ndarray]) -> None:
    assert len(results) == len(expected)
    for ours, theirs in zip(results, expected):
        theirs = np.asarray(theirs)
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        a, b = (x.astype(np.float64)[told(case, inputs, theirs)] for x in (ours, theirs))
        np.testing.assert_allclose(a, b, rtol=case.rtol, atol=max(case.atol, 1e-6))
