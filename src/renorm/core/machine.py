"""What a core does per cycle, and how fast bytes come to it: the one model that weighs loops, tiles and algorithms.

Times are cycles of one core. A step of an inner kernel, in which r numbers are spread and n vectors of weights are
loaded for r*n products of vectors, takes as long as what is busiest, or as a sum that waits for itself:

    step = max(r*n / products, (r + n) / loads, (r*n + r + n) / issue, latency, n vectors / rate of their cache)

Bytes that come from farther away arrive while something is computed, as far as that takes as long: `Level.wait`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf

from renorm.core.dots import PAIRS, QUADS, WORDS, Dot
from renorm.core.host import host_cache_bytes, host_cpu
from renorm.core.target import Target

_LATENCY = 4.5  # cycles of a multiply-add; half of one more than makers say: schedulers are not perfect
_ISSUE = 4.0  # instructions that begin per cycle in a loop that LLVM has ordered; machines say 4 to 8
_LATE = 0.1  # the part of the time for bytes that come while something is computed, for which that waits all the same
FEWEST = 10  # rows that a matrix instruction takes the time of at least
_START = 16  # cycles of a step of a tile besides, which hold against many small tiles
# Of the last cache, what one core has at most. A virtual machine tells of one that others fill as well: of 480 MB that
# Linux told, 32 MB that were read again and again came at 29 GB/s, 64 MB at 16, which is memory's rate
_KEPT = 32 << 20
LINE = 64  # bytes that caches hand on together
FILL = 0.75  # of a cache that is left for what shall stay: something passes through it meanwhile


@dataclass(frozen=True)
class Core:
    """Hold what is measured of a kind of cores. halves: whether it begins half as many products and loads of 64 bytes
    per cycle as of 32 bytes. pairs: whether products of pairs of bfloat16 begin as often as multiply-adds, that is half
    as many products. rates: bytes per cycle that it reads from beginning to end of the second and third cache; memory:
    the same, where weights are asked for ahead. hidden: of a product of 32 and of 64 bytes, what a load costs that is
    hidden; weight: times as much that one of a vector of weights costs, from beyond the first cache, of 32 and of 64
    bytes. reads_beside_stores: whether lines that are asked for come while others are stored past the caches."""

    halves: bool = False
    pairs: bool = False
    rates: tuple[float, float] = (32.0, 16.0)
    memory: float = 8.0
    hidden: tuple[float, float] = (0.05, 0.05)
    weight: tuple[float, float] = (2.0, 2.0)
    reads_beside_stores: bool = False


_OTHER = Core()  # Zen 2, Zen 3 and whatever is not named: they have no vectors of 64 bytes
# Zen 5: 38 to 60 bytes, 28 (less beside another core), memory 8 to 11, 6 for each of two. Pairs were measured on Zen 4
# (twice as fast as float32: github.com/iree-org/iree/pull/15089); Zen 5 and Cooper Lake are taken to be alike.
_ZEN4, _ZEN5 = Core(halves=True, pairs=True), Core(pairs=True, rates=(45.0, 16.0))
# Sapphire Rapids: 50 bytes, 8.5 and 4.5. Loads hold back products of 64 bytes, though they begin on other ports. Cycles
# of a round of r x n products, operands in the first cache, and of weights in the second: 4 x 4 9.3, 10.4 (not 8);
# 6 x 4 13.2, 14.2 (12); 14 x 2 16.3, 16.5 (14); 28 x 1 17.5, 18.6 (14). Of 32 bytes, 6 x 2 takes 6.0 (6). Pointwise
# convolutions of 96 to 120 channels, of 32 bytes, alone and beside a busy neighbour, Emerald Rapids, parts of the time
# with 6 x 2: 4 x 3 1.00, 0.98; 12 x 1 1.00, 1.09; 3 x 3 1.03, 1.05; 2 x 5 1.07, 1.11; 2 x 4 1.07, 1.07. A product of
# pairs takes four times as long as a multiply-add (0.60 ns, 0.149).
_HASWELL = Core(hidden=(0.2, 0.05))
_XEON = Core(rates=(50.0, 8.5), memory=4.5, hidden=(0.2, 0.26), weight=(2.0, 3.0), reads_beside_stores=True)
_COOPER_LAKE = replace(_XEON, pairs=True)
# by LLVM's name, and by vendor, or vendor, family and model, as Linux tells it
_CORES = {
    **dict.fromkeys(("haswell", "broadwell", "skylake", "alderlake"), _HASWELL),
    **dict.fromkeys(("skylake-avx512", "cascadelake", "icelake-server", "sapphirerapids", "graniterapids"), _XEON),
    "cooperlake": _COOPER_LAKE,
    "znver4": _ZEN4,
    "znver5": _ZEN5,
}
_CORES_HERE: dict[tuple[str, ...], Core] = {
    ("GenuineIntel", "6", "85"): _COOPER_LAKE,
    ("GenuineIntel",): _XEON,
    ("AuthenticAMD", "25"): _ZEN4,
    ("AuthenticAMD",): _ZEN5,
}


@dataclass(frozen=True)
class Level:
    """A cache, or memory. nbytes: what one core has of it. rate: bytes per cycle that a core reads."""

    nbytes: float
    rate: float

    def wait(self, nbytes: float, meanwhile: float = 0.0) -> float:
        """Return the cycles for which a core waits for so many bytes, which are read one after the other. meanwhile:
        cycles of what it computes while they come."""
        cycles = nbytes / self.rate
        return max(0.0, cycles - meanwhile) + _LATE * min(cycles, meanwhile)


@dataclass(frozen=True)
class MatrixUnit:
    """Describe what multiplies matrices: rows x depth by depth x columns, added to rows x columns of 32 bits. side:
    registers of a tile along each of its sides; dots: the sums that an element of such a product is made of.

    Times are of AMX, Sapphire Rapids: a product takes a cycle per row, a load a cycle per row that comes from the
    second-level cache.
    """

    rows: int = 16
    columns: int = 16
    side: int = 2
    dots: tuple[Dot, ...] = (PAIRS, QUADS)

    def depth(self, dot: Dot) -> int:
        """Return how many terms one product sums: a row of a register is as many neighbours as columns."""
        return self.columns * dot.count

    def registers(self, height: int, length: int) -> list[int]:
        """Return the rows of each register of a tile of `length` pixels in each of `height` rows."""
        if height > 1:
            return [length] * height
        count = -(-length // self.rows)
        return [-(-(length - i) // count) for i in range(count)]

    def step(self, registers: Sequence[int], across: int) -> float:
        """Return the cycles of one product of a tile. across: registers along the columns."""
        products = across * sum(max(FEWEST, rows) for rows in registers)
        return max(products, sum(registers) + across * self.rows) + _START


@dataclass(frozen=True)
class Machine:
    """A core. vector_bytes, registers: of vector registers. products, loads: of vectors, that begin per cycle; issue:
    of all instructions. latency: cycles of a multiply-add. caches: from the nearest on; memory: what is behind.
    matrix: a unit for products of matrices; dots: instructions on neighbours that begin as often as multiply-adds, and
    so pay."""

    core: Core
    vector_bytes: int
    registers: int
    products: float
    loads: float
    issue: float
    latency: float
    caches: tuple[Level, ...]
    memory: Level
    matrix: MatrixUnit | None = None
    dots: tuple[Dot, ...] = ()

    @staticmethod
    def of(target: Target) -> Machine:
        """Return the machine that code for a CPU target is made for."""
        return _of(target)

    def home(self, nbytes: float) -> Level:
        """Return the nearest level in which so many bytes stay while they are read again and again."""
        return next((level for level in self.caches if nbytes <= FILL * level.nbytes), self.memory)

    def summing(self, dot: Dot) -> Machine:
        """Return the machine as it is for products by an instruction on neighbours."""
        return replace(self, latency=dot.latency)

    def accumulators(self, n: int) -> int:
        """Return how many sums may stay in registers beside n vectors of weights: one register is left for a number
        that is spread, more where several vectors use it, since LLVM loads numbers ahead."""
        return min(self.registers - n - 1, self.registers if n == 1 else self.registers * 13 // 16)

    def step(self, r: int, n: int, weights: float = 0.0) -> float:
        """Return the cycles of r*n products. weights: bytes that all steps of a sum read of n vectors, which are read
        again for the next tile."""
        p, level = r * n, self.home(weights)
        busy = max(p / self.products, (r + n) / self.loads, (p + r + n) / self.issue, self.latency)
        return busy if level is self.caches[0] else max(busy, n * self.vector_bytes / self.caches[1].rate)

    def slowness(self, r: int, n: int, weights: float = 0.0) -> float:
        """`step` over what r*n products take at least."""
        return self.step(r, n, weights) * self.products / (r * n)

    def hidden(self, r: int, n: int) -> float:
        """Return what a product costs for the loads of a step that is not longer for them."""
        return self.loaded * (r + self.core.weight[self._is_wide] * n) / (r * n)

    @property
    def loaded(self) -> float:
        """Return what a load costs that is hidden, as a part of a product of vectors of this width."""
        return self.core.hidden[self._is_wide]

    @property
    def _is_wide(self) -> bool:
        return self.vector_bytes == LINE

    def keeps(self, nbytes: float) -> bool:
        """Return whether so many bytes are in the last cache still when a network is run again."""
        return nbytes <= FILL * min(self.caches[-1].nbytes, _KEPT)


@cache
def _of(target: Target) -> Machine:
    width, core = target.vector_bytes, _core(target)
    begun = 1.0 if core.halves and width == 64 else 2.0
    here = host_cache_bytes if target.is_host else (lambda level: 0)  # by level
    sizes = here(1) or 32 << 10, target.cache_bytes, here(3) or 2 << 20
    caches = tuple(Level(nbytes, rate) for nbytes, rate in zip(sizes, (inf, *core.rates), strict=True))
    pairs = core.pairs and target.has_dot(PAIRS) and not target.has_tiles
    return Machine(
        core,
        width,
        target.vector_registers,
        begun,
        begun,
        _ISSUE,
        _LATENCY,
        caches,
        Level(inf, core.memory),
        MatrixUnit() if target.has_tiles else None,
        (*[PAIRS] * pairs, *(dot for dot in (QUADS, WORDS) if target.has_dot(dot))),
    )


def _core(target: Target) -> Core:
    if not target.is_host:
        return _CORES.get(target.cpu, _OTHER)
    lines = (line.partition(":") for line in host_cpu().splitlines())
    facts = {key.strip(): value.strip() for key, _, value in lines}
    kind = tuple(facts.get(key, "") for key in ("vendor_id", "cpu family", "model"))
    return next((_CORES_HERE[kind[:n]] for n in (3, 2, 1) if kind[:n] in _CORES_HERE), _OTHER)
