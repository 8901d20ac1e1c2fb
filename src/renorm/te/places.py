"""Which tensors a stage reads, and in whose loops it stands."""

from __future__ import annotations

from collections.abc import Mapping

from renorm.te.stage import Stage
from renorm.te.tensor import Tensor


def read_by(stage: Stage, stages: Mapping[Tensor, Stage]) -> list[Tensor]:
    """Tensors with an array that a stage reads, through those that are inlined."""
    found, pending = dict[Tensor, None](), list(stage.op.input_tensors)
    while pending:
        t = pending.pop(0)
        if t in stages and stages[t].is_inline:
            pending += stages[t].op.input_tensors
        else:
            found[t] = None
    return list(found)


def around(stage: Stage) -> list[Stage]:
    """The stages in whose loops a stage is computed, innermost first."""
    found = list[Stage]()
    while stage.attach is not None:
        stage = stage.attach[0]
        found.append(stage)
    return found


def root_of(stage: Stage) -> Stage:
    """The stage at root in whose loops a stage is computed."""
    return [stage, *around(stage)][-1]
