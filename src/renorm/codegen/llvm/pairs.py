"""Tensorized loops over accumulators in registers to instructions that multiply pairs of bfloat16 (AVX512_BF16).

    zero       C[j] = 0                                       a register is cleared
    product    C[j] += A[p] * B[j, p]                         vdpbf16ps, j of 4, 8 or 16, p of 2

C is any buffer that no matrix unit holds; of scope register, it stays in one. In A and B, p runs over neighbours, and
in B j over pairs of them. A pair of A is a number of 32 bits in all lanes, which all vectors that it is multiplied with
share.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VDPBF16PS.
"""

from __future__ import annotations

from collections.abc import Sequence

from renorm.codegen.llvm.expressions import Expressions
from renorm.codegen.llvm.memory import Storage
from renorm.codegen.llvm.nests import count, factors_of, first, is_zero, nest, slopes_of
from renorm.codegen.llvm.ssa import I32, Function, Value, constant, vector
from renorm.expr.nodes import Expr, Load, Ramp, as_expr
from renorm.expr.rewrite import depends_on
from renorm.tir.nodes import Buffer, For, Store

LANES = (4, 8, 16)  # of float32 in a register


class Pairs:
    """Emits tensorized loops into one function."""

    def __init__(self, function: Function, x: Expressions):
        self._f, self._x = function, x

    def emit(self, s: For) -> bool:
        """Emits tensorized loops; returns whether there is an instruction for them."""
        self._x.renew()
        loops, store = nest(s)
        lanes = count(loops[0])
        slopes = None if store is None else slopes_of(store.index, loops)
        if store is None or slopes is None or slopes[loops[0].var] != 1 or lanes not in LANES:
            return False
        is_start = len(loops) == 1 and is_zero(store.value)
        value = constant(vector("float", lanes), 0) if is_start else self._product(loops, store)
        if value is not None:
            self._x.memory.store(*self._sums(loops, store), value, None)
        return value is not None

    def _sums(self, loops: Sequence[For], store: Store) -> tuple[Storage, Expr]:
        """Return where sums lie in memory."""
        index = Ramp(first(store.index, loops), as_expr(1), count(loops[0]))
        return self._x.memory.places[store.buffer], index

    def _product(self, loops: Sequence[For], store: Store) -> Value | None:
        """The sums with a product added to each; None where loops say something else."""
        found = factors_of(store)
        if found is None or len(loops) != 2 or count(loops[1]) != 2:
            return None
        shared, own = found if self._moves(found[0], loops) == (0, 1) or is_zero(found[0]) else found[::-1]
        (lane, pair), lanes = (x.var for x in loops), count(loops[0])
        if not isinstance(own, Load) or own.predicate is not None or self._moves(own, loops) != (2, 1):
            return None
        if is_zero(shared):  # of a row beyond the last
            a = constant(vector("i32", lanes), 0)
        elif isinstance(shared, Load) and self._moves(shared, loops) == (0, 1):
            condition = shared.predicate
            if condition is not None and (depends_on(condition, lane) or depends_on(condition, pair)):
                return None
            both = self._held(shared, loops, 2, None if condition is None else self._x.value(condition))
            a = self._f.splat(self._f.pure(f"bitcast {both.typed} to i32", I32, both), lanes)
        else:
            return None
        b = self._held(own, loops, 2 * lanes)
        c = self._x.memory.load(*self._sums(loops, store), None)
        t = vector("bfloat", 2 * lanes)
        pairs = [self._f.pure(f"bitcast {x.typed} to {t}", t, x) for x in (a, b)]
        name = f"@llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
        return self._f.pure(f"call {c.type} {name}({c.typed}, {pairs[0].typed}, {pairs[1].typed})", c.type, c, *pairs)

    def _moves(self, e: Expr, loops: Sequence[For]) -> tuple[int, int] | None:
        """Return how far what is read moves with each of two loops; None where it is not read, or not evenly."""
        slopes = slopes_of(e.indices[0], loops) if isinstance(e, Load) else None
        return (slopes[loops[0].var], slopes[loops[1].var]) if slopes else None

    def _held(self, e: Load, loops: Sequence[For], lanes: int, condition: Value | None = None) -> Value:
        assert isinstance(e.source, Buffer)  # loads of tensors are gone with lowering
        return self._x.memory.held(self._x.memory.places[e.source], first(e.indices[0], loops), lanes, condition)
