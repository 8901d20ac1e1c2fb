"""Demands of GPU axes on loops: bound stages, sizes of blocks, and barriers that all threads reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from renorm.core.gpu import MOST_BLOCKS, GpuFacts
from renorm.expr.nodes import Expr, Load, Var
from renorm.expr.rewrite import walk as walk_expr
from renorm.tir.nodes import (
    BLOCK_AXES,
    PRIVATE,
    THREAD_AXES,
    Allocate,
    Barrier,
    Buffer,
    For,
    If,
    Kernel,
    Let,
    Produce,
    Seq,
    Stmt,
    Store,
    children,
    constant,
    walk,
)

MOST_THREADS = 1024  # of a block, on every NVIDIA GPU since Fermi
MOST_DEEP = 64  # of them along threadIdx.z
_BLOCKS = {"blockIdx.x": 2**31 - 1, "blockIdx.y": MOST_BLOCKS, "blockIdx.z": MOST_BLOCKS}
AXES = BLOCK_AXES + THREAD_AXES


def root_stages(s: Stmt, name: str = "") -> Iterator[tuple[str, Stmt]]:
    """(name of the stage, its loops) of every nest at the root, allocations and lets around it left out."""
    match s:
        case Seq(stmts=stmts):
            for x in stmts:
                yield from root_stages(x, name)
        case Allocate(body=body) | Let(body=body):
            yield from root_stages(body, name)
        case Produce():
            yield from root_stages(s.body, s.name)
        case _:
            yield name, s


def gpu_problems(kernel: Kernel, facts: GpuFacts) -> Iterator[str]:
    """Yield what keeps a kernel from running on a GPU of which these are the facts."""
    for name, nest in root_stages(kernel.body):
        unbound = list(dict.fromkeys(s.buffer.name for s in _unbound_stores(nest)))
        if unbound:
            stage = name or unbound[0]
            yield (
                f"stage {stage} is bound to no thread: on a GPU its loop "
                f"{_outermost(nest)} would run on the host, which cannot touch {', '.join(unbound)}; "
                f"bind an axis of {stage} to blockIdx.x or threadIdx.x, or compute it inside a stage that is bound"
            )
        yield from _launch_problems(name or "the kernel", nest, facts)
    bound_at = {id(s.buffer) for region in _regions(kernel.body) for s in walk(region) if isinstance(s, Allocate)}
    for s in walk(kernel.body):
        if isinstance(s, Allocate) and (s.buffer.scope == "global") == (id(s.buffer) in bound_at):
            place = "inside" if s.buffer.scope == "global" else "outside"
            yield f"{s.buffer.name} has scope {s.buffer.scope}, but it is allocated {place} the blocks and threads"


def _unbound_stores(s: Stmt) -> Iterator[Store]:
    if isinstance(s, Store):
        yield s
    elif not (isinstance(s, For) and s.kind in AXES):
        for c in children(s):
            yield from _unbound_stores(c)


def _outermost(s: Stmt) -> str:
    return next((f"over {x.var.name}" for x in walk(s) if isinstance(x, For)), "nest")


def _regions(s: Stmt) -> Iterator[For]:
    """Outermost loops over GPU axes: what one launch runs."""
    if isinstance(s, For) and s.kind in AXES:
        yield s
    else:
        for c in children(s):
            yield from _regions(c)


def launch_extents(region: Stmt) -> dict[str, int]:
    """Blocks and threads along each axis that a region asks for: the largest extent of the loops of that kind."""
    extents: dict[str, int] = {}
    for s in walk(region):
        if isinstance(s, For) and s.kind in AXES:
            extents[s.kind] = max(extents.get(s.kind, 1), constant(s.extent) or 1)
    return extents


def shared_places(region: Stmt) -> tuple[dict[Buffer, int], int]:
    """Return where the shared arrays of a launch lie, each at a multiple of 16 bytes, and how many bytes they take."""
    arrays = [s.buffer for s in walk(region) if isinstance(s, Allocate) and s.buffer.is_shared]
    places, end = dict[Buffer, int](), 0
    for b in arrays:
        places[b] = end
        end += -(-(b.nbytes or 0) // 16) * 16  # of open size is none: the bounds of threads are numbers
    return places, end


def _launch_problems(name: str, nest: Stmt, facts: GpuFacts) -> Iterator[str]:
    for region in _regions(nest):
        for s in walk(region):
            if isinstance(s, For) and s.kind in AXES and constant(s.extent) is None:
                yield f"stage {name}: the extent of {s.kind} is not a constant: {s.extent}"
        extents = launch_extents(region)
        threads = 1
        for axis in THREAD_AXES:
            threads *= extents.get(axis, 1)
        if threads > MOST_THREADS:
            shown = " * ".join(str(extents[a]) for a in THREAD_AXES if a in extents)
            yield f"stage {name}: a block of {shown} = {threads} threads; a GPU runs at most {MOST_THREADS}"
        if extents.get("threadIdx.z", 1) > MOST_DEEP:
            yield f"stage {name}: {extents['threadIdx.z']} threads along threadIdx.z; a block has at most {MOST_DEEP}"
        for axis in BLOCK_AXES:
            if extents.get(axis, 1) > _BLOCKS[axis]:
                yield f"stage {name}: {extents[axis]} blocks along {axis}; a GPU runs at most {_BLOCKS[axis]}"
        places, total = shared_places(region)
        if total > facts.shared:
            sizes = ", ".join(f"{b.name} {b.nbytes}" for b in places)
            yield f"stage {name}: {total} bytes of shared memory ({sizes}); a block has {facts.shared}"
        yield from _nested_axes(name, region, {})


def _nested_axes(name: str, s: Stmt, around: dict[str, int | None]) -> Iterator[str]:
    if isinstance(s, For) and s.kind in AXES:
        mine = constant(s.extent)
        if s.kind in around and around[s.kind] != mine:
            yield f"stage {name}: {s.kind} has extent {around[s.kind]} outside and {mine} inside; they must be equal"
        around = {**around, s.kind: mine}
    for c in children(s):
        yield from _nested_axes(name, c, around)


# ---- barriers


@dataclass(frozen=True)
class _Where:
    """A place in a region. varying: variables that differ between threads. divergent: why some threads miss it."""

    extents: dict[str, int]
    varying: frozenset[Var] = frozenset()
    divergent: str = ""

    def varies(self, e: Expr) -> bool:
        """Return whether threads of one block may see different values."""
        return any(
            (isinstance(x, Var) and x in self.varying)
            or (isinstance(x, Load) and isinstance(x.source, Buffer) and x.source.scope in PRIVATE)
            for x in walk_expr(e)
        )


def barrier_problems(body: Stmt) -> Iterator[str]:
    """Barriers that some threads of a block may not reach."""
    for region in _regions(body):
        yield from _divergence(region, _Where(launch_extents(region)))


def _divergence(s: Stmt, at: _Where) -> Iterator[str]:
    match s:
        case Barrier():
            if at.divergent:
                yield f"barrier({s.scope}) is not reached by all threads of a block: it stands {at.divergent}"
        case For():
            inner = at
            if s.kind in THREAD_AXES:
                inner = replace(inner, varying=inner.varying | {s.var})
                if (constant(s.extent) or 0) < at.extents[s.kind]:
                    threads = f"{s.extent} of {at.extents[s.kind]} threads along {s.kind}"
                    inner = replace(inner, divergent=f"in a loop of {threads}")
            elif at.varies(s.start) or at.varies(s.extent):
                inner = replace(
                    inner,
                    varying=inner.varying | {s.var},
                    divergent=f"in the loop over {s.var.name}, whose rounds differ between threads",
                )
            yield from _divergence(s.body, inner)
        case If():
            differs = f"under the condition {s.condition}, which differs between threads"
            inner = replace(at, divergent=differs) if at.varies(s.condition) else at
            for c in children(s):
                yield from _divergence(c, inner)
        case Let():
            inner = replace(at, varying=at.varying | {s.var}) if at.varies(s.value) else at
            yield from _divergence(s.body, inner)
        case _:
            for c in children(s):
                yield from _divergence(c, at)
