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

from renorm.core.host import host_cache_bytes, host_cpu
from renorm.core.target import Target

# CPUs that begin half as many products and loads of 64 bytes per cycle as of 32 bytes, by LLVM's name and by Linux's
_HALVES, _HALVES_HERE = frozenset({"znver4"}), ("AuthenticAMD", "25")
# CPUs that begin products of pairs of bfloat16 as often as multiply-adds, which are half as many products: by LLVM's
# name, and by vendor, or vendor, family and model, as Linux tells it. Zen 4 was measured (twice as fast as float32:
# github.com/iree-org/iree/pull/15089); Cooper Lake and Zen 5 are taken to be alike. Others that have such instructions
# (Sapphire Rapids: 0.60 ns against 0.149) take four times as long for one.
_PAIRS, _PAIRS_HERE = frozenset({"cooperlake", "znver4", "znver5"}), ("AuthenticAMD", ("GenuineIntel", "6", "85"))
_LATENCY_OF_PAIRS = 6.5  # cycles of such a product, as below
_LATENCY = 4.5  # cycles of a multiply-add; half of one more than makers say: schedulers are not perfect
_ISSUE = 4.0  # instructions that begin per cycle in a loop that LLVM has ordered; machines say 4 to 8
# Bytes per cycle that one core reads from beginning to end of the second and third cache; Zen 5: 33 and 23
_RATES = 32.0, 16.0
_MEMORY = 8.0  # the same of memory, where weights are asked for ahead; Zen 5: 8 to 10 for one core, 6 for each of two
_LATE = 0.1  # the part of the time for bytes that come while something is computed, for which that waits all the same
_FEWEST = 10  # rows that a matrix instruction takes the time of at least
_START = 16  # cycles of a step of a tile besides, which hold against many small tiles
# Of the last cache, what one core has at most. A virtual machine tells of one that others fill as well: of 480 MB that
# Linux told, 32 MB that were read again and again came at 29 GB/s, 64 MB at 16, which is memory's rate
_KEPT = 32 << 20
FILL = 0.75  # of a cache that is left for what shall stay: something passes through it meanwhile


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
    """What multiplies matrices: rows x depth by depth x columns, added to rows x columns. side: registers of a tile
    along each of its sides.

    Times are of AMX, Sapphire Rapids: a product takes a cycle per row, a load a cycle per row that comes from the
    second-level cache.
    """

    rows: int = 16
    columns: int = 16
    depth: int = 32
    side: int = 2

    def registers(self, height: int, length: int) -> list[int]:
        """Return the rows of each register of a tile of `length` pixels in each of `height` rows."""
        if height > 1:
            return [length] * height
        count = -(-length // self.rows)
        return [-(-(length - i) // count) for i in range(count)]

    def step(self, registers: Sequence[int], across: int) -> float:
        """Return the cycles of one product of a tile. across: registers along the columns."""
        products = across * sum(max(_FEWEST, rows) for rows in registers)
        return max(products, sum(registers) + across * self.rows) + _START


@dataclass(frozen=True)
class Machine:
    """A core. vector_bytes, registers: of vector registers. products, loads: of vectors, that begin per cycle; issue:
    of all instructions. latency: cycles of a multiply-add. caches: from the nearest on; memory: what is behind.
    matrix: for bfloat16; pairs: whether vectors of pairs of it are multiplied twice as fast as float32."""

    vector_bytes: int
    registers: int
    products: float
    loads: float
    issue: float
    latency: float
    caches: tuple[Level, ...]
    memory: Level
    matrix: MatrixUnit | None = None
    pairs: bool = False

    @staticmethod
    def of(target: Target) -> Machine:
        """Return the machine that code for a CPU target is made for."""
        return _of(target)

    def home(self, nbytes: float) -> Level:
        """Return the nearest level in which so many bytes stay while they are read again and again."""
        return next((level for level in self.caches if nbytes <= FILL * level.nbytes), self.memory)

    def of_pairs(self) -> Machine:
        """Return the machine as it is for products of pairs."""
        return replace(self, latency=_LATENCY_OF_PAIRS)

    def step(self, r: int, n: int, weights: float = 0.0) -> float:
        """Return the cycles of r*n products. weights: bytes that all steps of a sum read of n vectors, which are read
        again for the next tile."""
        p, level = r * n, self.home(weights)
        busy = max(p / self.products, (r + n) / self.loads, (p + r + n) / self.issue, self.latency)
        return busy if level is self.caches[0] else max(busy, n * self.vector_bytes / self.caches[1].rate)

    def slowness(self, r: int, n: int, weights: float = 0.0) -> float:
        """`step` over what r*n products take at least."""
        return self.step(r, n, weights) * self.products / (r * n)

    def keeps(self, nbytes: float) -> bool:
        """Return whether so many bytes are in the last cache still when a network is run again."""
        return nbytes <= FILL * min(self.caches[-1].nbytes, _KEPT)


@cache
def _of(target: Target) -> Machine:
    width = target.vector_bytes
    lines = host_cpu().splitlines() if target.is_host else []
    facts = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    kind = facts.get("vendor_id"), facts.get("cpu family"), facts.get("model")
    is_halved = target.cpu in _HALVES or kind[:2] == _HALVES_HERE
    gains = target.cpu in _PAIRS or kind[0] in _PAIRS_HERE or kind in _PAIRS_HERE
    pairs = gains and target.has_pairs and not target.has_tiles
    begun = 1.0 if is_halved and width == 64 else 2.0
    here = host_cache_bytes if target.is_host else (lambda level: 0)  # by level
    sizes = here(1) or 32 << 10, target.cache_bytes, here(3) or 2 << 20
    caches = tuple(Level(nbytes, rate) for nbytes, rate in zip(sizes, (inf, *_RATES), strict=True))
    matrix = MatrixUnit() if target.has_tiles else None
    return Machine(
        width, target.vector_registers, begun, begun, _ISSUE, _LATENCY, caches, Level(inf, _MEMORY), matrix, pairs
    )
