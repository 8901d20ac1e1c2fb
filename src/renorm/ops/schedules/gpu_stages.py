"""What schedules of products on GPUs have in common: finding the product, and its stages and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from renorm import te
from renorm.core.dims import is_static
from renorm.core.gpu import MOST_BLOCKS
from renorm.expr.nodes import Expr, all_of, const
from renorm.ops.schedules import attention_axes, structure
from renorm.ops.schedules.gpu_contraction import BATCH, COLUMNS, ROWS, Contraction, contraction
from renorm.ops.schedules.products import MAIN_TAGS
from renorm.te.tensor import ComputeOp, source_of

LEAST_WORK = 1 << 14  # products below which nothing is gained by tiles
LEAST_ROWS, LEAST_TERMS = 8, 16  # of one group of several, below which each thread computes an element
VECTOR = 4  # elements of 4 bytes that a thread reads or writes as one
TAGS = frozenset({*MAIN_TAGS, "implicit_gemm"})


def find(outs: Sequence[te.Tensor]) -> list[tuple[te.Tensor, Contraction]]:
    """Return the stages that are large products, with their forms: one, or the phases of a transposed convolution; none
    where one of them is no product of matrices."""
    if not is_static(e for t in outs for e in t.shape) or any(0 in t.shape for t in outs):
        return []
    mains = [t for t in structure.stages(outs) if t.op.tag in TAGS and structure.is_reduction(t)]
    found = [(main, form) for main in mains if (form := contraction(main)) is not None and _is_worth(main, form)]
    is_one_kind = len({t.op.tag for t in mains}) == 1 and (len(mains) == 1 or mains[0].op.tag == "conv_transpose")
    return found if is_one_kind and len(found) == len(mains) else []


def _is_worth(main: te.Tensor, product: Contraction) -> bool:
    """Return whether a product is large enough, and that of each group."""
    groups = int(main.op.attrs.get("groups", 1))
    return structure.work(main) >= LEAST_WORK and not is_too_narrow(groups, product.extent(ROWS), product.depth)


def is_too_narrow(groups: int, rows: int, terms: int) -> bool:
    """Return whether a product of several groups is computed element by element, as its groups have too few rows, or
    sums too few terms."""
    return groups > 1 and (rows < LEAST_ROWS or terms < LEAST_TERMS)


def where(inside: Sequence[Expr], value: Expr) -> Expr:
    """Return `value` where all of the conditions hold, if there are any; else zero."""
    return te.if_then_else(all_of(*inside), value, const(0, value.dtype)) if inside else value


def is_alike(t: te.Tensor, main: te.Tensor) -> bool:
    """Return whether each element of `t` is made of the one of `main` at its own place."""
    if t.shape != main.shape:
        return False
    own = [a.var for a in t.op.axis]
    reads = structure.reached(t, lambda u: structure.is_reduction(u))
    mine = [x for x in reads if x.source is main]
    others = [x for x in reads if x.source is not main and structure.is_reduction(source_of(x))]
    return (
        bool(mine)
        and not others
        and all(all(i is v or e == 1 for i, v, e in zip(x.indices, own, t.shape, strict=True)) for x in mine)
    )


@dataclass
class Product:
    """The schedule of one product. product: what `main` is."""

    s: te.Schedule
    main: te.Tensor
    product: Contraction

    def insert(self, name: str, shape: Sequence[int], element: Callable[..., Any]) -> te.Tensor:
        """Return a new stage before `main`."""
        t = te.compute(tuple(shape), element, name=f"{self.main.name}.{name}")
        assert isinstance(t.op, ComputeOp)
        self.s.insert(self.s.stages.index(self.s[self.main]), t.op)
        return t

    def redefine(self, element: Callable[[Expr, Expr, Expr], Expr]) -> None:
        """Makes `main` a function of its matrix, row and column."""
        stage = self.s[self.main]
        old = stage.computed("redefine")
        indices = [a.var for a in old.axis]
        b, m, p = (self.product.number(role, indices) for role in (BATCH, ROWS, COLUMNS))
        stage.op = old.with_body(element(b, m, p))
        stage.leaf_iter_vars = [*stage.op.axis, *stage.op.reduce_axis]

    def loops(self, out: te.Tensor) -> list[list[te.IterVar]]:
        """Return the loops of a result that run over matrices, rows and columns."""
        found: dict[str, list[te.IterVar]] = {BATCH: [], ROWS: [], COLUMNS: []}
        digits = list(self.product.digits)
        axes = attention_axes.of(self.s, out, self.main) or list(self.s[out].op.axis)
        for mine, own in zip(self.main.op.axis, axes, strict=True):
            here = [d for d in digits if d.axis is mine]
            loop = own
            for d in reversed(here[1:]):
                loop, inner = self.s[out].split(loop, factor=d.extent)
                found[d.role].append(inner)
            found[here[0].role].append(loop)
        return list(found.values())

    def joined(self, out: te.Tensor) -> list[te.IterVar]:
        """Return the loops of a result over matrices, rows and columns, one each, in this order; those of one round
        stay outside."""
        groups = self.loops(out)
        single = [a for g in groups for a in g if a.extent == 1]
        groups = [[a for a in g if a.extent > 1] for g in groups]
        self.s[out].reorder(*single, *(a for g in groups for a in g))
        loops = [self.s[out].fuse(*g) for g in groups]
        self.s[out].reorder(*single, *loops)  # the loop of a group without any was made inside all others
        return loops

    def bind_blocks(self, t: te.Tensor, *axes: te.IterVar) -> te.IterVar:
        """Spreads up to three neighbouring loops over a grid, the last one along x; all of them along x where those
        before it are too long. Gives the loop along x."""
        if any(a.extent > MOST_BLOCKS for a in axes[:-1]):
            axes = (self.s[t].fuse(*axes),)
        for axis, name in zip(reversed(axes), ("blockIdx.x", "blockIdx.y", "blockIdx.z"), strict=False):
            self.s[t].bind(axis, te.thread_axis(name))
        return axes[-1]
