"""What inference takes to be so of open extents: that two are equal, that one is not larger, or a multiple.

A network with inputs [N, 3] and [M, 3] that adds both has N == M, or no result; a table of 512 rows of which it reads
the first L has L <= 512. Whoever infers a shape says what it takes to be so (`dims.take`), where numbers would be
compared; `noted` collects. A call must be held against that before anything runs, and within a call it is a fact.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, lcm

from renorm.core.dims import (
    TAKEN,
    Dim,
    Factor,
    Sizes,
    Sym,
    Symbol,
    bounds,
    linear,
    maximum,
    product_of,
    substitute,
    symbols_of,
    terms,
)
from renorm.core.spans import decided

_LONGEST_PERIOD = 4096  # of remainders that are tried one by one


@dataclass(frozen=True)
class Condition:
    """left == right, or left <= right."""

    left: Dim
    relation: str
    right: Dim

    @property
    def symbols(self) -> set[Symbol]:
        """Return the symbols that it is of."""
        return symbols_of(self.left) | symbols_of(self.right)

    def holds(self, sizes: Sizes) -> bool | None:
        """Return whether it holds where symbols are these numbers, as nothing does with a quotient by 0; None where
        they leave it open."""
        try:
            return self.replaced(sizes).decided()
        except ZeroDivisionError:
            return False

    def replaced(self, sizes: Sizes) -> Condition:
        """Return the condition with symbols replaced."""
        return Condition(substitute(self.left, sizes), self.relation, substitute(self.right, sizes))

    def decided(self) -> bool | None:
        """Return whether it holds for all values of its symbols, or for none; None otherwise."""
        return decided(self.relation, bounds(self.left - self.right))

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


@contextmanager
def noted() -> Generator[list[Condition]]:
    """Collect what is taken to be so inside the block."""
    found, taken = list[Condition](), list[tuple[Dim, str, Dim]]()
    token = TAKEN.set(taken)
    try:
        yield found
    finally:
        TAKEN.reset(token)
        found += (c for c in dict.fromkeys(Condition(*t) for t in taken) if c.decided() is not True)


def settled(conditions: Iterable[Condition], symbols: Sequence[Symbol]) -> tuple[dict[Symbol, Dim], list[Condition]]:
    """Return what symbols are where conditions hold, in terms of symbols that may have any value in their ranges, and
    the conditions that this does not make certain. symbols: those that come first are the last to be replaced.

        m == n, s == 5              m is n, s is 5
        4*(s//4) == s               s is 4*s, of another s
        s//3 == 4                   s is in 12..14
        2 <= s//2, (s + 1)//2 <= 60    s is in 4..120
        min(1, s) <= 0                 s is 0
        m + min(8, n) <= 0             m and n are 0
    """
    found: dict[Symbol, Dim] = {s: Sym(s) for s in symbols}
    waiting = _uncertain(conditions)
    while True:
        step = next((step for c in waiting for step in _steps(c, symbols)), None)
        if step is None:
            return {s: d for s, d in found.items() if not _is_same(s, d)}, waiting
        symbol, value = step
        in_range = (Condition(symbol.least, "<=", value), Condition(value, "<=", _most(symbol, value)))
        found = {s: substitute(d, dict([step])) for s, d in found.items()}
        waiting = _uncertain((*(c.replaced(dict([step])) for c in waiting), *in_range))


def _uncertain(conditions: Iterable[Condition]) -> list[Condition]:
    """Return what conditions say that is not so in any case."""
    return [c for c in dict.fromkeys(part for c in conditions for part in _parts(c)) if c.decided() is not True]


def _parts(c: Condition) -> Iterator[Condition]:
    """Yield what a condition says, as conditions: min(a, b) <= c is b <= c where a never is; where nothing is negative,
    a + b <= 0 is a <= 0 and b <= 0."""
    found = terms(c.left - c.right) if c.relation == "<=" else []
    if (
        found
        and (len(found) > 1 or found[0][1] > 1)
        and all(product and k > 0 and bounds(Sym.of({product: 1}))[0] >= 0 for product, k in found)
    ):
        for product, _ in found:
            yield from _parts(Condition(Sym.of({product: 1}), "<=", 0))
        return
    ((product, k), *others) = terms(c.left) or [((), 0)]
    if c.relation == "<=" and not others and k == 1 and len(product) == 1 and not isinstance(product[0], Symbol):
        op, a, b = product[0]
        chosen = (y for x, y in ((a, b), (b, a)) if op == "min" and bounds(x - c.right)[0] > 0)
        if (one := next(chosen, None)) is not None:
            yield from _parts(Condition(one, "<=", c.right))
            return
    yield c


def _is_same(symbol: Symbol, value: Dim) -> bool:
    return value == Sym(symbol) and all((s.least, s.most) == (symbol.least, symbol.most) for s in symbols_of(value))


def _most(symbol: Symbol, value: Dim) -> Dim:
    return value if symbol.most == inf else int(symbol.most)


def _steps(c: Condition, symbols: Sequence[Symbol]) -> Iterator[tuple[Symbol, Dim]]:
    """Yield what a condition says that a symbol is, the simplest first."""
    if c.decided() is False:
        return
    difference = c.left - c.right
    among = [s for s in symbols if s in symbols_of(difference)]
    if c.relation == "==":
        yield from _solutions(difference, among)
    if len(among) == 1:
        held = next(s for s in symbols_of(difference) if s == among[0])  # with the range that it has by now
        steps = [_narrowed(difference, held)]
        if c.relation == "==":
            steps = [_progression(c, held), *steps, _narrowed(-difference, held)]
        yield from (step for step in steps if step is not None)


def _solutions(difference: Dim, symbols: Sequence[Symbol]) -> Iterator[tuple[Symbol, Dim]]:
    """Yield a symbol, and what it is where a sum in which it stands once is 0: a number before anything else."""
    products = terms(difference)
    if (one := linear(difference)) is not None and one[0] in symbols and not one[2]:
        yield one[0], 0
        return
    if (factor := next((s for s in symbols if all(s in product for product, _ in products)), None)) is not None:
        if len(products) > 1:  # which says else only that one of several is 0
            quotient = difference // Sym(factor)  # exact; of what is empty nothing is said
            yield from _solutions(quotient, symbols)
        return
    found = list[tuple[bool, int, int, Symbol, Dim]]()
    for product, k in products:
        if len(product) != 1 or product[0] not in symbols or not isinstance(product[0], Symbol):
            continue  # one that the caller does not know of follows from nothing
        rest = difference - k * Sym(product[0])
        if product[0] in symbols_of(rest) or any(n % k for _, n in terms(rest)):
            continue
        value = -rest // k if k > 0 else rest // -k
        if bounds(value)[1] >= 0:
            place = -symbols.index(product[0])
            found.append((not isinstance(value, int), len(symbols_of(value)), place, product[0], value))
    for *_, symbol, value in sorted(found, key=lambda f: f[:3]):
        yield symbol, value


def _progression(c: Condition, symbol: Symbol) -> tuple[Symbol, Dim] | None:
    """Return a symbol as p*s + r where an equation of it alone holds for these numbers, and for no others."""
    period = lcm(*_divisors(c.left - c.right))
    if not 1 < period <= _LONGEST_PERIOD:
        return None
    holds = [c.replaced({symbol: period * Sym(Symbol(symbol)) + r}).decided() for r in range(period)]
    rests = [r for r, held in enumerate(holds) if held is not False]
    if not rests or not all(holds[r] for r in rests):
        return None
    step = period // len(rests)
    first = rests[0]
    if step == 1 or period % len(rests) or rests != list(range(first, period, step)):
        return None
    least = max(0, -(-(symbol.least - first) // step))
    most = inf if symbol.most == inf else (symbol.most - first) // step
    return symbol, step * Sym(Symbol(symbol, least, most)) + first


def _divisors(extent: Dim) -> Iterator[int]:
    """Yield the numbers by which an extent, and what stands in it, is divided."""
    for product, _ in terms(extent):
        for atom in product:
            if not isinstance(atom, Symbol):
                if atom[0] in ("//", "%") and isinstance(atom[2], int):
                    yield atom[2]
                yield from _divisors(atom[1])
                yield from _divisors(atom[2])


def _narrowed(difference: Dim, symbol: Symbol) -> tuple[Symbol, Dim] | None:
    """Return a symbol between narrower ends, where k*s + c, or k*((a*s + b)//d) + c, is not positive."""
    products = [(product, k) for product, k in terms(difference) if product]
    constant = terms(difference)[-1][1] if len(terms(difference)) > len(products) else 0
    if len(products) != 1 or len(products[0][0]) != 1:
        return None
    ((atom,), k) = products[0]
    limit = -constant // k if k > 0 else -(constant // k)  # the atom is at most, or at least, that
    scale, offset = 1, 0
    if not isinstance(atom, Symbol):
        op, x, divisor = atom
        inner = linear(x)
        if op != "//" or inner is None or not isinstance(divisor, int) or inner[1] < 0 or divisor <= 0:
            return None
        scale, offset = inner[1:]
        limit = limit * divisor + (divisor - 1 if k > 0 else 0)
    least, most = symbol.least, symbol.most
    if k > 0:
        most = min(most, (limit - offset) // scale)
    else:
        least = max(least, -(-(limit - offset) // scale))
    if (least, most) == (symbol.least, symbol.most) or most < least:
        return None
    return symbol, int(most) if least == most else Sym(Symbol(symbol, int(least), most))


def quotient(conditions: Iterable[Condition], symbols: Iterable[Symbol]) -> tuple[Symbol, Dim] | None:
    """Return one of these symbols, and what it is wherever an equation between products holds, which this does not make
    certain; None where there is none.

    a*b == 12*n      a is (12*n)//b
    """
    symbols = list(symbols)
    for c in conditions:
        difference = c.left - c.right
        for product, k in terms(difference) if c.relation == "==" else ():
            for symbol in symbols:
                if product.count(symbol) != 1:
                    continue
                others = list(product)
                others.remove(symbol)
                divisor = Sym.of({product_of(others): abs(k)}) if others else abs(k)
                rest = difference - k * Sym.of({product: 1})
                if symbol not in symbols_of(rest) | symbols_of(divisor):
                    return symbol, (-rest if k > 0 else rest) // divisor
    return None


@dataclass(frozen=True)
class Sum:
    """A symbol that is never below an extent, as a sum: whole == least + rest."""

    whole: Symbol
    least: Dim
    rest: Symbol

    @property
    def value(self) -> Dim:
        """Return what the whole is."""
        return self.least + Sym(self.rest)


def parted(conditions: Iterable[Condition], symbols: Sequence[Symbol]) -> tuple[Sum, list[Condition]] | None:
    """Return a symbol as a sum by which conditions hold that say what it is at least, and these conditions; None where
    there is none.

    b <= n              n is b + n.rest
    a <= n, b <= n      n is max(a, b) + n.rest
    """
    found: dict[Symbol, list[tuple[Dim, Condition]]] = {}
    for c in conditions:
        difference = c.right - c.left
        for product, k in terms(difference) if c.relation == "<=" else ():
            if k == 1 and len(product) == 1 and isinstance(product[0], Symbol) and product[0] in symbols:
                least = Sym(product[0]) - difference
                if not isinstance(least, int) and _is_sum(least):
                    found.setdefault(product[0], []).append((least, c))
    for whole, told in found.items():
        least = told[0][0]
        for d, _ in told[1:]:
            least = maximum(least, d)
        if whole not in symbols_of(least):
            return Sum(whole, least, Symbol(f"{whole}.rest")), [c for _, c in told]
    return None


def bounded_sums(conditions: Iterable[Condition]) -> list[Sum]:
    """Return sums of symbols that are at most a number, as a symbol with that range. b + 2*a <= 8: at most 8 is
    b.sum, of which b is what is above 2*a."""
    found = list[Sum]()
    for c in conditions:
        extent, most = c.left - c.right, 0
        for product, k in terms(extent):
            most = most if product else -k
        extent = extent + most
        if c.relation != "<=" or most < 0 or not _is_sum(extent):
            continue
        rest = next((p[0] for p, k in terms(extent) if k == 1 and len(p) == 1 and isinstance(p[0], Symbol)), None)
        if rest is not None and rest not in symbols_of(extent - Sym(rest)) and extent != Sym(rest):
            found.append(Sum(Symbol(f"{rest}.sum", 0, most), extent - Sym(rest), rest))
    return found


def _is_sum(extent: Dim) -> bool:
    """Return whether an extent is a sum of products of symbols, of which none is taken away."""
    return all(k > 0 and all(isinstance(a, Symbol) for a in product) for product, k in terms(extent))


def equal_factors(conditions: Iterable[Condition]) -> dict[Factor, Dim]:
    """Return what quotients of symbols are where conditions hold, in terms of coarser ones.

    2*(s//4) == s//2    s//2 is 2*(s//4)
    """
    found: dict[Factor, Dim] = {}
    for c in conditions:
        difference = substitute(c.left - c.right, found) if c.relation == "==" else 0
        candidates: list[tuple[int, Factor, Dim]] = []
        for product, k in terms(difference):
            if len(product) != 1 or isinstance(product[0], Symbol):
                continue
            op, _, divisor = product[0]
            rest = difference - k * Sym.of({product: 1})
            if op == "//" and isinstance(divisor, int) and not any(n % k for _, n in terms(rest)):
                candidates.append((divisor, product[0], -rest // k if k > 0 else rest // -k))
        if candidates:
            _, factor, value = min(candidates, key=lambda f: f[0])
            found = {**{f: substitute(d, {factor: value}) for f, d in found.items()}, factor: value}
    return found
