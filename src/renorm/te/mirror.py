"""One schedule for two programs: what is done to the loops of one is done to those of the other.

    s, other    of programs of equal structure, at different extents
    s[T].split(i, factor=8)    ->    other[U].split(j, factor=8)      U stands for T, j for i

Schedules are chosen at known extents: by sizes of tiles, costs, what divides what. A program with open extents has none
to choose by, but no primitive changes what a program computes. So a schedule is chosen where its extents have typical
values, and holds for all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from renorm.core.errors import InvalidSchedule
from renorm.te.arguments import checked
from renorm.te.tensor import IterVar, Operation, Tensor

if TYPE_CHECKING:
    from renorm.te.schedule import Schedule
    from renorm.te.stage import Stage

P = ParamSpec("P")
R = TypeVar("R")


class Mirror:
    """The schedule that follows another one, and what stands in it for tensors and axes of that one."""

    def __init__(self, s: Schedule, other: Schedule):
        self._s, self._other = s, other
        self._tensors: dict[Tensor, Tensor] = {}
        self._axes: dict[IterVar, IterVar] = {}
        self._is_inside = False
        problem = self._difference()
        if problem:
            raise InvalidSchedule("programs of different structure cannot have one schedule", [problem])
        self._meet()

    def _difference(self) -> str | None:
        """Return where the programs differ in more than their extents."""
        if len(self._s.stages) != len(self._other.stages):
            return f"{len(self._s.stages)} stages beside {len(self._other.stages)}"
        for a, b in zip(self._s.stages, self._other.stages):
            counts = [(len(x.op.axis), len(x.op.reduce_axis), x.op.tag) for x in (a, b)]
            if type(a.op) is not type(b.op):
                return f"{a.name} and {b.name}: {type(a.op).__name__} and {type(b.op).__name__}"
            if counts[0] != counts[1]:
                return f"{a.name} and {b.name}: axes, reduce axes and tag are {counts[0]} and {counts[1]}"
            inputs = a.op.input_tensors, b.op.input_tensors
            if len(inputs[0]) != len(inputs[1]):
                return f"{a.name} reads {len(inputs[0])} tensors, {b.name} {len(inputs[1])}"
            for x, y in zip(*inputs):
                is_other = self._tensors.setdefault(x, y) is not y
                if is_other or type(x.op) is not type(y.op):
                    return f"{a.name} reads {x.name} where {b.name} reads {y.name}"
            self._tensors[a.tensor] = b.tensor
        return None

    def both(self, primitive: Callable[..., Any], receiver: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        """Call a primitive on the first schedule, then on the other one; return what the first call returns."""
        if self._is_inside:  # a primitive that is made of others
            return primitive(receiver, *args, **given)
        self._is_inside = True
        try:
            found = primitive(receiver, *args, **given)
        finally:
            self._is_inside = False
        others = [self._of(x) for x in args], {name: self._of(x) for name, x in given.items()}
        made = primitive(self._of(receiver), *others[0], **others[1])
        self._same(found, made)
        self._meet()
        return found

    def open_axes(self, tensor: Tensor) -> tuple[bool, ...]:
        """Return which axes of a tensor of the first schedule have no number as extent in the other."""
        return tuple(not isinstance(extent, int) for extent in self._tensors[tensor].shape)

    def _of(self, x: Any) -> Any:
        """What stands for something of the first schedule in the other."""
        if x is self._s:
            return self._other
        if isinstance(x, Tensor):
            return self._tensors[x]
        if isinstance(x, IterVar):
            return self._axes.get(x, x)  # axes of a GPU are those of both
        if isinstance(x, Operation):
            return self._tensors[x.tensor].op
        if isinstance(x, (list, tuple)):
            return type(x)(self._of(part) for part in x)
        if hasattr(x, "schedule") and x.schedule is self._s:
            return self._other[self._tensors[x.tensor]]
        return x

    def _same(self, found: Any, made: Any) -> None:
        """Remembers that what primitives returned stands for each other."""
        if isinstance(found, tuple):
            for a, b in zip(found, made, strict=True):
                self._same(a, b)
        elif isinstance(found, IterVar):
            self._axes[found] = made
        elif isinstance(found, Tensor):
            self._tensors[found] = made

    def _meet(self) -> None:
        """Pairs the axes of all stages as they are now."""
        for a, b in zip(self._s.stages, self._other.stages, strict=True):
            self._pair(a, b)

    def _pair(self, a: Stage, b: Stage) -> None:
        for x, y in zip(
            (*a.op.axis, *a.op.reduce_axis, *a.leaf_iter_vars),
            (*b.op.axis, *b.op.reduce_axis, *b.leaf_iter_vars),
            strict=True,
        ):
            self._axes[x] = y


def primitive(receiver: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a method a primitive: its arguments are checked, and it is called on the schedule's mirror as well."""

    def decorate(f: Callable[P, R]) -> Callable[P, R]:
        fit = checked(receiver, InvalidSchedule)(f)

        @functools.wraps(f)
        def call(*args: P.args, **given: P.kwargs) -> R:
            mirror = getattr(args[0], "mirror", None)
            return fit(*args, **given) if mirror is None else mirror.both(fit, args[0], args[1:], given)

        return call

    return decorate
