"""Sizes and trip counts of a kernel as extents (core.dims), which the runtime computes."""

from __future__ import annotations

from renorm.core import dtypes
from renorm.core.dims import Dim, Sym
from renorm.expr.bounds import Intervals
from renorm.expr.extents import as_dim
from renorm.expr.nodes import Expr, OpenVar
from renorm.tir.nodes import Buffer, Kernel


class OpenSizes:
    """Expressions of a kernel's open extents as Dims. names: of the extents that are given, by their order, so that
    kernels of equal structure have equal sizes."""

    def __init__(self, kernel: Kernel):
        self._kernel = kernel
        self.names = tuple(f"e{i}" for i in range(len(kernel.given)))
        self._dims: dict[OpenVar, Dim] = {v: Sym(name) for v, name in zip(kernel.given, self.names)}
        for v in kernel.extents:
            if v.definition is not None:
                self._dims[v] = self(v.definition)

    def __call__(self, e: int | Expr) -> Dim:
        return as_dim(e, self._dims.__getitem__)

    def positive(self) -> tuple[Dim, ...]:
        """Return what loops take to be 1 at least: given extents, and others that are so of some of these only."""
        intervals, found = Intervals(), list[Dim]()
        for v in self._kernel.extents:
            if v.low == 1 and (v.definition is None or intervals.span(v.definition)[0] < 1):
                found.append(self._dims[v])
        return tuple(found)

    def nbytes(self, buffer: Buffer) -> Dim:
        """The bytes of a buffer."""
        return self(buffer.size) * dtypes.itemsize(buffer.dtype)
