"""Tensorized loops over accumulators in registers to instructions that multiply pairs of bfloat16 (AVX512_BF16).

    zero       C[j] = 0                                       a register is cleared
    product    C[j] += A[p] * B[j, p]                         vdpbf16ps, j of 4, 8 or 16, p of 2

C is any buffer that no matrix unit holds; of scope register, it stays in one. In A and B, p runs over neighbours, and
in B j over pairs of them; either may be 0, beyond a last row or vector. A pair of A is a number of 32 bits in all
lanes, which all vectors that it is multiplied with share.

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
        shared, own = found if self._is(found[0], loops, (0, 1)) and self._is(found[1], loops, (2, 1)) else found[::-1]
        if not (self._is(shared, loops, (0, 1)) and self._is(own, loops, (2, 1))):
            return None
        both, lanes = self._held(shared, loops, 2), count(loops[0])
        a = self._f.splat(self._f.pure(f"bitcast {both.typed} to i32", I32, both), lanes)
        b = self._held(own, loops, 2 * lanes)
        c = self._x.memory.load(*self._sums(loops, store), None)
        t = vector("bfloat", 2 * lanes)
        pairs = [self._f.pure(f"bitcast {x.typed} to {t}", t, x) for x in (a, b)]
        name = f"@llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
        return self._f.pure(f"call {c.type} {name}({c.typed}, {pairs[0].typed}, {pairs[1].typed})", c.type, c, *pairs)

    def _is(self, e: Expr, loops: Sequence[For], moves: tuple[int, int]) -> bool:
        """Return whether a factor moves so far with each of two loops, and is there for all of their rounds or for
        none; or is 0, beyond the last row or vector."""
        if not isinstance(e, Load):
            return is_zero(e)
        variables, condition = [loop.var for loop in loops], e.predicate
        slopes = slopes_of(e.indices[0], loops)
        is_even = condition is None or not any(depends_on(condition, v) for v in variables)
        return is_even and slopes is not None and tuple(slopes[v] for v in variables) == moves

    def _held(self, e: Expr, loops: Sequence[For], lanes: int) -> Value:
        """Return so many neighbours from where all loops begin; 0 for a factor that is not there."""
        if not isinstance(e, Load):
            return constant(vector("i16", lanes), 0)
        assert isinstance(e.source, Buffer)  # loads of tensors are gone with lowering
        condition = None if e.predicate is None else self._x.value(e.predicate)
        return self._x.memory.held(self._x.memory.places[e.source], first(e.indices[0], loops), lanes, condition)
