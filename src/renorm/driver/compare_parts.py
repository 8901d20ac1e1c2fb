"""Compare what a network in parts gives with ONNX Runtime, or with the definitions of its ops run by the same steps."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.difference import Difference, differ
from renorm.core.errors import InvalidInput
from renorm.core.limits import DEFAULT, Limits
from renorm.core.stated import Declared
from renorm.core.tolerance import Tolerance
from renorm.driver import runners
from renorm.driver.compare import Comparison
from renorm.driver.compile import compile
from renorm.driver.foretold import outputs_of
from renorm.frontends.outline import Hosted, Outline, Piece, Types
from renorm.graph import interpret
from renorm.runtime.piecewise import types_of
from renorm.runtime.rounds import ArrayType, Run

Array = np.ndarray[Any, Any]


def compare(
    model: Any,
    outline: Outline,
    calls: Iterable[Mapping[str, Array]],
    reference: str | None = None,
    tolerance: float | None = None,
    **options: Any,
) -> Iterator[Comparison]:
    """Compile a model once, and compare it at each call in turn. outline: of the model. The others are those of
    `driver.compare.compare`; where ONNX Runtime differs, the definition judges both."""
    if reference not in (None, "ort", "interpreter"):
        do = "take --reference ort, or interpreter"
        raise InvalidInput(f"{reference} runs no network in parts", [outline.plan.obstacle], do)
    limits = options.get("limits", DEFAULT)
    module, allowed = compile(model, **options), Tolerance(relative=tolerance, steps=tolerance or 0.0)
    for inputs in calls:
        ours = module.run(*[inputs[v.name] for v in module.inputs])
        chosen, (expected, by) = _reference(model, outline, inputs, reference, limits)
        found = [differ(v.name, right, mine, allowed) for v, mine, right in zip(module.outputs, ours, expected)]
        if chosen != "interpreter" and not all(d.agrees for d in found):
            definition = interpreted(outline, inputs, limits)
            found = [
                _judged(d, differ(d.name, true, mine, allowed), differ(d.name, true, right, allowed))
                for d, mine, right, true in zip(found, ours, expected, definition)
            ]
        yield Comparison(by, "renorm", tuple(found), chosen)


def _judged(found: Difference, own: Difference, other: Difference) -> Difference:
    """Return a difference between two, of which each is compared with the definition."""
    if found.agrees:
        return found
    return replace(found, own=own.error, departs=other.error, is_excused=own.agrees and not other.agrees)


def _reference(
    model: Any, outline: Outline, inputs: Mapping[str, Array], reference: str | None, limits: Limits
) -> tuple[str, runners.Run]:
    if reference != "interpreter" and importlib.util.find_spec("onnxruntime"):
        with suppress(*(() if reference == "ort" else (Exception,))):  # a runtime has exceptions of its own
            names = [name for name, _ in outline.plan.outputs]
            return "ort", (runners.session(model).run(names, dict(inputs)), "ONNX Runtime")
    if reference == "ort":
        raise InvalidInput("onnxruntime is not installed", do="pip install onnxruntime")
    return "interpreter", (interpreted(outline, inputs, limits), "renorm's interpreter, in float64 within each part")


def interpreted(outline: Outline, inputs: Mapping[str, Array], limits: Limits = DEFAULT) -> list[Array]:
    """Return the outputs of a network in parts by the references of its ops: in float64 within a part, rounded
    between parts."""
    values = dict(inputs)
    Run(outline.plan, [_Interpreted(p, limits) for p in outline.pieces], limits, lambda: 0, None).of(values)
    return [values[name] for _, name in outline.plan.outputs]


class _Interpreted:
    """A piece that is read for each call."""

    modules: Sequence[Any] = ()

    def __init__(self, piece: Piece, limits: Limits):
        self._piece, self._limits = piece, limits

    def _types(self, given: Sequence[Array]) -> Types:
        pairs = zip(self._piece.part.inputs, given)
        return {n: Declared(n, dtypes.from_numpy(a.dtype) or a.dtype.name, a.shape) for n, a in pairs}

    def module_for(self, given: Sequence[Array]) -> _Interpreted:
        """As Runner.module_for."""
        return self

    def run(self, *given: Array, timeout: float | None = None) -> list[Array]:
        """Return the outputs."""
        try:
            return interpret.run(self._piece.read(self._types(given), {}, self._limits), given)
        except Hosted as error:
            if error.outline is None:
                raise
            return interpreted(error.outline, dict(zip(self._piece.part.inputs, given)), self._limits)

    def types(self, given: Sequence[Array]) -> list[ArrayType]:
        """As Runner.types."""
        types = self._types(given)
        return types_of([*types.values()], outputs_of(self._piece, types, self._limits), given)
