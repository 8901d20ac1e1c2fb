"""Tensorized loops over accumulators in registers to instructions that sum products of neighbours (`core.dots`).

    zero       C[j] = 0                                       a register is cleared
    product    C[j] += A[p] * B[j, p]                         j of 4, 8, 16; p of 2 (vdpbf16ps, vpmaddwd), 4 (vpdpbusd)
    taps       C[j] += A[p, j] * B[j, p]                      the same, of numbers that are turned before

C is any buffer that no matrix unit holds; of scope register, it stays in one. In A and B, p runs over neighbours, and
in B j over groups of them; either may be 0, beyond a last row or vector. A group of A is a number of 32 bits in all
lanes, which all vectors that it is multiplied with share. Where it moves with j, too, rows of j numbers follow each
other, and a shuffle turns them.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VDPBF16PS and VPDPBUSD.
"""

from __future__ import annotations

from collections.abc import Sequence

from renorm.codegen.llvm.expressions import Expressions
from renorm.codegen.llvm.memory import Storage
from renorm.codegen.llvm.nests import count, factors_of, first, is_zero, nest, slopes_of
from renorm.codegen.llvm.ssa import I32, Function, Value, constant, vector
from renorm.codegen.llvm.types import register_type
from renorm.core.dots import PAIRS, QUADS, WORDS, Dot
from renorm.expr.nodes import Expr, Load, Ramp, as_expr
from renorm.expr.rewrite import depends_on, same
from renorm.tir.nodes import Buffer, For, Store

LANES = (4, 8, 16)  # of 32 bits in a register
_ELEMENTS = {PAIRS: "bfloat", QUADS: "i8", WORDS: "i16"}  # of what LLVM's operands are vectors
_SUMS = {PAIRS: "avx512bf16.dpbf16ps", QUADS: "avx512.vpdpbusd"}
_PRODUCTS = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}  # of WORDS, by lanes; sums are added


def _stays(store: Store) -> bool:
    """Return whether a store is C[i] = C[i]: what is left of products of integers with 0, which stands for what is
    beyond a last row or vector."""
    e = store.value
    return isinstance(e, Load) and e.source is store.buffer and same(e.indices[0], store.index)


class Dots:
    """Emits tensorized loops into one function. dots: the instructions that there are."""

    def __init__(self, function: Function, x: Expressions, dots: Sequence[Dot]):
        self._f, self._x, self._dots = function, x, dots

    def emit(self, s: For) -> bool:
        """Emits tensorized loops; returns whether there is an instruction for them."""
        self._x.renew()
        loops, store = nest(s)
        lanes = count(loops[0])
        slopes = None if store is None else slopes_of(store.index, loops)
        if store is None or slopes is None or slopes[loops[0].var] != 1 or lanes not in LANES:
            return False
        if _stays(store):
            return True
        is_start = len(loops) == 1 and is_zero(store.value)
        if is_start and self._dots and store.buffer.dtype in {dot.sums for dot in self._dots}:
            value = constant(register_type(store.buffer.dtype, lanes), 0)
        else:
            value = next((v for dot in self._dots if (v := self._product(loops, store, dot)) is not None), None)
        if value is not None:
            self._x.memory.store(*self._sums(loops, store), value, None)
        return value is not None

    def _sums(self, loops: Sequence[For], store: Store) -> tuple[Storage, Expr]:
        """Return where sums lie in memory."""
        index = Ramp(first(store.index, loops), as_expr(1), count(loops[0]))
        return self._x.memory.places[store.buffer], index

    def _product(self, loops: Sequence[For], store: Store, dot: Dot) -> Value | None:
        """The sums with products added to each; None where loops say something else."""
        found = factors_of(store, dot)
        if found is None or len(loops) != 2 or count(loops[1]) != dot.count:
            return None
        either = (found, found[::-1]) if dot.data == dot.weight else (found,)
        lanes = count(loops[0])
        moves = (0, 1), (1, lanes)  # of data: spread, and turned
        forms = ((x, m) for x in either for m in moves if self._is(x[0], loops, m))
        sides, move = next((f for f in forms if self._is(f[0][1], loops, (dot.count, 1))), (None, None))
        if sides is None:
            return None
        if move == moves[0]:
            shared = self._held(sides[0], loops, dot.count, dot)
            a = self._f.splat(self._f.pure(f"bitcast {shared.typed} to i32", I32, shared), lanes)
        else:
            rows = self._held(sides[0], loops, dot.count * lanes, dot)
            a = self._f.shuffle(rows, [p * lanes + j for j in range(lanes) for p in range(dot.count)])
        b = self._held(sides[1], loops, dot.count * lanes, dot)
        c = self._x.memory.load(*self._sums(loops, store), None)
        t = vector(_ELEMENTS[dot], dot.count * lanes)
        a, b = (x if x.type == t else self._f.pure(f"bitcast {x.typed} to {t}", t, x) for x in (a, b))
        if dot not in _SUMS:
            product = f"call {c.type} @llvm.x86.{_PRODUCTS[lanes]}({a.typed}, {b.typed})"
            return self._f.op("add", c, self._f.pure(product, c.type, a, b))
        call = f"call {c.type} @llvm.x86.{_SUMS[dot]}.{32 * lanes}({c.typed}, {a.typed}, {b.typed})"
        return self._f.pure(call, c.type, c, a, b)

    def _is(self, e: Expr, loops: Sequence[For], moves: tuple[int, int]) -> bool:
        """Return whether a factor moves so far with each of two loops, and is there for all of their rounds or for
        none; or is 0, beyond the last row or vector."""
        if not isinstance(e, Load):
            return is_zero(e)
        variables, condition = [loop.var for loop in loops], e.predicate
        slopes = slopes_of(e.indices[0], loops)
        is_even = condition is None or not any(depends_on(condition, v) for v in variables)
        return is_even and slopes is not None and tuple(slopes[v] for v in variables) == moves

    def _held(self, e: Expr, loops: Sequence[For], lanes: int, dot: Dot) -> Value:
        """Return so many neighbours from where all loops begin; 0 for a factor that is not there."""
        if not isinstance(e, Load):
            return constant(vector(f"i{32 // dot.count}", lanes), 0)
        assert isinstance(e.source, Buffer)  # loads of tensors are gone with lowering
        condition = None if e.predicate is None else self._x.value(e.predicate)
        return self._x.memory.held(self._x.memory.places[e.source], first(e.indices[0], loops), lanes, condition)
