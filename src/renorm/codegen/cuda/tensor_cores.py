"""Tensorized loops that the lanes of a warp run together, on tensor cores.

    for (i, 0, 2) for (j, 0, 2) for (k, 0, s*n)      tensorized, in each thread (t, g) of 4 x 8*m, and of more along z
      c[i, j] += wide(a[i, k]) * wide(b[j, k])       c of the thread alone; a the same for all t, b for all g

is, for each warp, a product of 16 rows g + 8i by 8 columns 2t + j, and each of n instructions mma adds s terms to it,
16 of float16 or bfloat16 and 8 of tf32: 32 bytes. It gives every lane the sums that the loops give it (up to the order
of the terms), but wants factors from it that other lanes multiply, too: of a, rows g and g + 8, of b column g, and of
the terms its own quarter. Which terms are whose is free, so that a lane takes s*n/4 neighbours, in as few accesses as
there can be.

Source: NVIDIA's PTX ISA, matrix fragments for mma.m16n8k16 and m16n8k8, of .tf32 and, for sm_75, .f16.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from renorm.core.dtypes import itemsize
from renorm.core.gpu import COLUMN_LANES, ROW_LANES, STEP, facts
from renorm.expr.nodes import Binary, Cast, Expr, Load, Var, const
from renorm.expr.rewrite import depends_on, same, substitute
from renorm.expr.simplify import simplify
from renorm.tir.nodes import Buffer, For, Store, constant

_DEFINITION = (
    "static __device__ __forceinline__ void {name}(float& c0, float& c1, float& c2, float& c3, "
    "unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {{ {body} }}"
)
_SUMS = '"+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)'
_WHOLE = (
    'asm volatile("mma.sync.aligned.m16n8k{terms}.row.col.f32.{t}.{t}.f32 '
    '{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};" '
    ': {sums} : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));'
)
_HALF = (
    'asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.{t}.{t}.f32 '
    '{{%0, %1, %2, %3}}, {{%4, %5}}, {{%6}}, {{%0, %1, %2, %3}};" : {sums} : "r"({a}), "r"({b}), "r"({c}));'
)
_PTX = {"float16": "f16", "bfloat16": "bf16", "tf32": "tf32"}


@dataclass(frozen=True)
class Factor:
    """Hold what a lane reads of a factor. first: index of its first term, once for each of its rows or columns; term:
    the variable of `first` that counts the lane's terms."""

    buffer: Buffer
    first: tuple[Expr, ...]
    term: Var


@dataclass(frozen=True)
class Product:
    """sums: indices of c for (0, 0), (0, 1), (1, 0), (1, 1). terms: of a lane."""

    sums: tuple[Expr, ...]
    held: Buffer
    rows: Factor
    columns: Factor
    terms: int

    @property
    def dtype(self) -> str:
        return self.rows.buffer.dtype


def product(
    loop: For,
    threads: Mapping[str, Sequence[Var]],
    extents: Mapping[str, int],
    varying: Iterable[Var],
    arch: str,
) -> Product | None:
    """Return what lanes of a warp do for tensorized loops; None where no instruction does it. threads: the variables of
    each thread axis; extents: of the axes; varying: variables that are not the same in all threads for another
    reason."""
    loops: list[For] = [loop]
    while isinstance(body := loops[-1].body, For) and body.kind == "tensorized":
        loops.append(body)
    if len(loops) != 3 or not isinstance(body, Store) or any(constant(x.start) != 0 for x in loops):
        return None
    i, j, k = (x.var for x in loops)
    rows, columns, terms = (constant(x.extent) for x in loops)
    is_cut = rows == columns == 2
    is_warp = extents.get("threadIdx.x") == COLUMN_LANES and extents.get("threadIdx.y", 0) % ROW_LANES == 0
    found = _factors(body)
    if not is_cut or not is_warp or found is None or not extents.get("threadIdx.y"):
        return None
    xs, ys = threads["threadIdx.x"], threads["threadIdx.y"]
    if not xs or not ys:  # axes of other loops of the launch
        return None
    if any(depends_on(found[0].indices[0], v) for v in (i, *ys)):
        found = found[::-1]
    b, a = found
    if not terms or terms % step(a.dtype):
        return None
    if not _reads(b, (i, *ys, *varying)) or not _reads(a, (j, *xs, *varying)) or a.dtype not in facts(arch).narrow:
        return None
    own, term, count = ys[0] % ROW_LANES, Var(k.name, k.dtype), terms // COLUMN_LANES
    of_lane = {k: xs[0] * count + term}

    def at(index: Expr, places: Mapping[Var, Expr]) -> Expr:
        return simplify(substitute(index, places))

    def factor(load: Load, lanes: Sequence[Mapping[Var, Expr]]) -> Factor:
        assert isinstance(load.source, Buffer)
        return Factor(load.source, tuple(at(load.indices[0], {**of_lane, **places}) for places in lanes), term)

    halves = [const(n, i.dtype) for n in (0, 1)]
    sums = tuple(at(body.index, {i: m, j: n}) for m in halves for n in halves)
    of_rows = factor(a, [{i: m} for m in halves])
    column: dict[Var, Any] = {**dict.fromkeys(xs, own // 2), j: own % 2}
    of_column = factor(b, [column])
    return Product(sums, body.buffer, of_rows, of_column, count)


def step(dtype: str) -> int:
    """Return how many terms of a dtype an instruction adds."""
    return STEP // itemsize(dtype)


def definition(dtype: str, arch: str) -> tuple[str, str]:
    """Return the name of the device function that adds `step` terms, and its text."""
    name, kind = f"renorm_mma_{dtype}", {"t": _PTX[dtype], "sums": _SUMS}
    if facts(arch).step < STEP:
        halves = (("a0", "a1", "b0"), ("a2", "a3", "b1"))
        body = " ".join(_HALF.format(a=a, b=b, c=c, **kind) for a, b, c in halves)
    else:
        body = _WHOLE.format(terms=step(dtype), **kind)
    return name, _DEFINITION.format(name=name, body=body)


def _factors(store: Store) -> tuple[Load, Load] | None:
    """Return what is read of both factors, where a store is c = c + wide(a) * wide(b), all of them whole; else None."""
    match store.value:
        case Binary(op="+", a=Load() as c, b=Binary(op="*", a=Cast(a=Load() as a), b=Cast(a=Load() as b))):
            pass
        case Binary(op="+", a=Binary(op="*", a=Cast(a=Load() as a), b=Cast(a=Load() as b)), b=Load() as c):
            pass
        case _:
            return None
    is_own = c.source is store.buffer and store.buffer.scope == "local" and same(c.indices[0], store.index)
    is_whole = store.predicate is None and all(x.predicate is None for x in (a, b, c))
    is_held = store.buffer.dtype == "float32" and a.dtype == b.dtype and a.dtype in _PTX
    return (a, b) if is_own and is_whole and is_held else None


def _reads(load: Load, others: Sequence[Var]) -> bool:
    """Return whether all lanes that differ in these variables alone read the same, of memory that they share."""
    assert isinstance(load.source, Buffer)
    is_seen = load.source.is_shared or load.source.scope == "global"
    return is_seen and not any(depends_on(load.indices[0], v) for v in others)
