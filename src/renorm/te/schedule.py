"""Schedules: how the stages of a tensor program become loops: their order, place and kind, but never what they give.

    S ::= stage ...                        producers before readers
    stage ::= axes, one per data and reduce axis of the compute, then relations, then leaves
    relation ::= split(parent -> outer, inner) | fuse(outer, inner -> fused) | singleton(-> axis of extent 1)
    leaves ::= the axes that are loops now, outermost first
    kind of a leaf ::= serial | parallel | vectorized | unrolled | tensorized | GPU axis
    place ::= root | inline | at (stage, leaf)

Where a factor does not divide an extent, the last round is a tail: lowering adds the condition, only where it can fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from renorm.core.absent_names import missing
from renorm.core.errors import InvalidExpression, InvalidSchedule, suggest
from renorm.te import rewriting
from renorm.te.given_loops import ExternOp
from renorm.te.mirror import Mirror, primitive
from renorm.te.stage import Stage
from renorm.te.tensor import ComputeOp, IterVar, Operation, PlaceholderOp, Tensor, check_reduce_axes, producers_first


class Schedule:
    """The stages of a program. `s[T]` is the stage of a tensor or operation; placeholders have none. mirror: a schedule
    of another program to which is done what is done to this one (te.mirror)."""

    mirror: Mirror | None = None

    def __init__(self, outputs: Sequence[Operation]):
        self.outputs: list[Operation] = list(outputs)
        self.stages: list[Stage] = []
        self._by_tensor: dict[Tensor, Stage] = {}
        for op in producers_first(outputs):
            if isinstance(op, (ComputeOp, ExternOp)):
                self.insert(len(self.stages), op)
        check_reduce_axes(stage.op for stage in self.stages)

    def __getattr__(self, name: str) -> Any:
        raise missing("s", name)

    def __getitem__(self, key: Tensor | Operation) -> Stage:
        tensor = key.tensor if isinstance(key, Operation) else key
        stage = self._by_tensor.get(tensor) if isinstance(tensor, Tensor) else None
        if stage is not None:
            return stage
        if isinstance(tensor, Tensor) and isinstance(tensor.op, PlaceholderOp):
            raise InvalidSchedule(
                f"{tensor.name} is a placeholder and has no loops", do="s.cache_read(T, scope, readers) makes a stage"
            )
        name = getattr(tensor, "name", repr(tensor))
        known = [stage.name for stage in self.stages]
        raise InvalidSchedule(f"{name} is not a stage of this schedule", [f"stages: {suggest(str(name), known)}"])

    def open_axes(self, tensor: Tensor) -> tuple[bool, ...]:
        """Return along which axes of a tensor an extent is but a typical one, for a program where it is open."""
        return (False,) * len(tensor.shape) if self.mirror is None else self.mirror.open_axes(tensor)

    def normalize(self) -> Schedule:
        """This schedule: nothing has to be prepared before it is lowered."""
        return self

    def insert(self, position: int, op: ComputeOp | ExternOp) -> Stage:
        """A new stage for `op`, before the stage at `position`."""
        stage = Stage(op, self)
        self.stages.insert(position, stage)
        self._by_tensor[op.tensor] = stage
        return stage

    @primitive("s.")
    def cache_read(
        self, tensor: Tensor, scope: str, readers: Sequence[Tensor | Operation] | Tensor | Operation
    ) -> Tensor:
        """A copy of `tensor` in `scope`, which the given readers read instead.

            C[i] = A[i] * 2           AA = s.cache_read(A, "shared", [C])        A.shared[i] = A[i]
                                                                                 C[i] = A.shared[i] * 2

        Gives the tensor of the copy, a stage to be placed with compute_at. `tensor` may be a placeholder.
        """
        return rewriting.cache_read(self, tensor, scope, readers)

    @primitive("s.")
    def cache_write(self, tensor: Tensor, scope: str, joined: int = 1, ahead: int = 0) -> Tensor:
        """Computes `tensor` in `scope` first; what was its stage then copies the result out.

            C[i] = sum(A[i, k])       CC = s.cache_write(C, "register")          C.register[i] = sum(A[i, k])
                                                                                 C[i] = C.register[i]

        Gives the new tensor, a stage with axes of its own and the reduce axes of the old one; the last `joined` axes,
        ahead of the last `ahead` ones, are one, whose tiles need not end with rows: C.register[i*J + j]. Must come
        first on the stage of `tensor`.
        """
        return rewriting.cache_write(self, tensor, scope, joined, ahead)

    @primitive("s.")
    def rfactor(self, tensor: Tensor, axis: IterVar, factor_axis: int = 0) -> Tensor:
        """Splits a reduction in two: partial results for each value of the reduce loop `axis`, then their reduction.

            for (i, 0, 8)             k0, k1 = s[C].split(k, factor=4)           for (k1, 0, 4)
              C[i] = 0                CF = s.rfactor(C, k1)                        for (i, 0, 8)
              for (k, 0, 64)                                                         C.rf[k1, i] = 0
                C[i] += A[i, k]                                                      for (k0, 0, 16)
                                                                                       C.rf[k1, i] += A[i, k0*4 + k1]
                                                                                 for (i, 0, 8)
                                                                                   C[i] = 0
                                                                                   for (k1, 0, 4)
                                                                                     C[i] += C.rf[k1, i]

        Gives the tensor of the partial results; `axis` is its axis number factor_axis, a data axis that may be
        vectorized or bound. Sums of floats are added in another order, so the last bits may differ.
        """
        return rewriting.rfactor(self, tensor, axis, factor_axis)


def create_schedule(ops: Operation | Tensor | Sequence[Operation | Tensor]) -> Schedule:
    """A schedule of all that the given operations need, every stage at root in default loops, producers first.

    ops: one operation (T.op) or several. Raises InvalidExpression where two computes share a reduce axis.
    """
    given: list[Any] = list(ops) if isinstance(ops, (list, tuple)) else [ops]
    for x in given:
        if not isinstance(x, (Tensor, Operation)):
            raise InvalidExpression(f"create_schedule: {type(x).__name__} {x!r}", ["expected tensors or operations"])
    return Schedule([x.op if isinstance(x, Tensor) else x for x in given])


def AutoInlineInjective(sch: Schedule) -> None:
    """Inline all stages that are no reductions and no outputs, but for given loops and what these read."""
    given = {t for x in sch.stages if isinstance(x.op, ExternOp) for t in (x.tensor, *x.op.input_tensors)}
    for stage in sch.stages:
        if not stage.op.reduce_axis and not stage.is_output and stage.tensor not in given:
            stage.compute_inline()


def __getattr__(name: str) -> Any:
    raise missing("te.schedule", name)
