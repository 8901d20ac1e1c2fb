"""Limits of a program: how deep loops and expressions stand within each other, and how many arrays there are."""

from __future__ import annotations

from renorm.core.errors import InvalidSchedule
from renorm.expr.rewrite import DEEPEST, levels
from renorm.te.given_loops import ExternOp
from renorm.te.schedule import Schedule
from renorm.te.tensor import Tensor

_ARRAYS = 200  # of one kernel: what allocates them stands within each other


def check_depth(s: Schedule) -> None:
    """Refuse what walks could not reach the end of."""
    depth = dict[Tensor, int]()
    for stage in s.stages:  # producers first
        before = max((depth.get(t, 0) for t in stage.op.input_tensors), default=0)
        if isinstance(stage.op, ExternOp):
            continue
        # what is inlined stands where a load and its index stood
        deep = max(before + levels(stage.op.body) - 2, 1) if before or stage.is_inline else 0
        if deep > DEEPEST:
            raise InvalidSchedule(
                f"{stage.name}: with what is computed inline, its expression has {deep} levels",
                [f"at most: {DEEPEST}, operations within each other"],
                "do not inline all of these stages",
            )
        if stage.is_inline:
            depth[stage.tensor] = deep
    arrays = sum(not stage.is_inline for stage in s.stages)
    if arrays > _ARRAYS:
        raise InvalidSchedule(
            f"a kernel of {arrays} stages that have arrays of their own",
            [f"at most: {_ARRAYS}"],
            "compute some inline, or build several kernels",
        )
