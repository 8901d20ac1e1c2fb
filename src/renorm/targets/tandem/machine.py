"""How large Tandem is, and how long its instructions take."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from renorm.runtime.report import WorkRecord
from renorm.targets.tandem.instructions import Conv, Instruction, LoadP, LoadW, LoadX, Norm, Program, Scan, Store

INPUT = 32_768  # elements of 16 bits
WEIGHTS = 32_768
SUMS = 16_384  # of 48 bits; the output buffer has as many elements of 32 bits
CHANNELS = 512  # parameters of so many
PRODUCTS = 1 << 17  # of which a sum of 48 bits cannot overflow

ARRAY = 16  # the convolution engine multiplies so many channels of the input by so many of the result in each cycle
LANES = 16  # results of the per-channel engine in each cycle
BUS = 16  # bytes from or to memory in each cycle


@dataclass(frozen=True)
class Cost:
    """Of a launch: cycles of each engine, and bytes to and from memory. Engines work at the same time, on other parts
    of their buffers, so that a launch takes as long as its slowest engine at least."""

    products: int = 0
    bytes: int = 0
    convolution: int = 0
    per_channel: int = 0
    transfer: int = 0

    @property
    def cycles(self) -> int:
        return max(self.convolution, self.per_channel, self.transfer)

    @property
    def bound(self) -> str:
        """The engine that the launch waits for, or memory."""
        engines = {"the convolution engine": self.convolution, "the per-channel engine": self.per_channel}
        return max({**engines, "memory": self.transfer}.items(), key=lambda e: e[1])[0]

    @property
    def work(self) -> WorkRecord:
        return WorkRecord(2 * self.products, self.bytes)

    def __str__(self) -> str:
        used = self.products / (ARRAY * ARRAY * self.convolution) if self.convolution else 0.0
        return (
            f"{self.products} products, {self.bytes} bytes; at least {self.cycles} cycles, bound by {self.bound}"
            f" (convolution {self.convolution}, {used:.0%} of its array; per channel {self.per_channel};"
            f" memory {self.transfer})"
        )


def cost(program: Program) -> Cost:
    """Return the cost of a program, instruction by instruction."""
    weights, costs = LoadW((0, 0), (0, 0)), list[Cost]()
    for i in program.instructions:
        weights = i if isinstance(i, LoadW) else weights
        costs.append(_cost(i, program, weights))
    return Cost(
        *(
            sum(values)
            for values in zip(*((c.products, c.bytes, c.convolution, c.per_channel, c.transfer) for c in costs))
        )
    )


def _cost(i: Instruction, program: Program, weights: LoadW) -> Cost:
    window = program.weights[2] * program.weights[3]
    channels = weights.m[1] - weights.m[0]
    match i:
        case Scan():
            return _moved(4 * prod(program.input))
        case LoadW():
            return _moved(2 * channels * (i.c[1] - i.c[0]) * window)
        case LoadP():
            return _moved(8 * (i.m[1] - i.m[0]))
        case LoadX():
            held = [min(end, extent) - max(begin, 0) for (begin, end), extent in zip((i.h, i.w), program.input[2:])]
            return _moved(4 * (i.c[1] - i.c[0]) * prod(max(0, h) for h in held))
        case Conv():
            summed, points = weights.c[1] - weights.c[0], i.rows * i.columns
            steps = i.groups * ceil(channels / i.groups / ARRAY) * ceil(summed / ARRAY) * window * points
            return Cost(products=channels * summed * window * points, convolution=steps)
        case Norm():
            return Cost()  # counted with what it is stored as
        case Store():
            size = prod(end - begin for begin, end in (i.m, i.h, i.w))
            return _moved(4 * size, ceil(size / LANES))


def _moved(nbytes: int, per_channel: int = 0) -> Cost:
    return Cost(bytes=nbytes, transfer=ceil(nbytes / BUS), per_channel=per_channel)
