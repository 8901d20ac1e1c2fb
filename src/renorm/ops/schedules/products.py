"""Questions that schedules and ops ask of sums of products: how vectors lie, what is summed, how large a tile is."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from renorm import te
from renorm.core.dims import is_static
from renorm.core.machine import Machine
from renorm.core.target import Target
from renorm.expr.nodes import Load, Var
from renorm.expr.rewrite import loads
from renorm.ops.schedules import structure, tiles
from renorm.ops.schedules.tiles import Tile, choose_tile
from renorm.te.tensor import source_of
from renorm.topi import layout

_FEW_ROWS = 64  # of a matrix, the last tile of which is a part of it to speak of: measured on Zen 4, AVX-512
ROUNDS = 16  # of a sum without blocks that are a loop of their own
SCHEDULES = ("convolution", "transposed_convolution", "gemm")  # that know instructions on bfloat16, as ops name them
MAIN_TAGS = frozenset({"conv", "conv_transpose", "matmul"})


def fills_vectors(channels: int, groups: int, lanes: int) -> bool:
    """Return whether vectors run over channels of the result; where these do not fill them, vectors run over pixels."""
    per_group = channels // groups
    return per_group >= lanes // 2 if groups == 1 else per_group % lanes == 0


def vector_lanes(channels: int, groups: int, lanes: int) -> int:
    """Return how many channels of a result in blocks one vector holds: half of a block where groups are not whole
    blocks but whole halves. CPUs begin two vectors of 32 bytes per cycle, so that nothing is lost."""
    is_half = groups > 1 and lanes == 2 * tiles.HALF and channels // groups % lanes == tiles.HALF
    return tiles.HALF if is_half else lanes


def blocks_summed(main: te.Tensor) -> list[int]:
    """For each reduce axis the size of the blocks in which memory holds what is read along it; 1 without blocks."""
    found = [1] * len(main.op.reduce_axis)
    for load in structure.reads(main):
        form = layout.form_of(source_of(load))
        for axis, lanes in form.blocks() if form else ():
            for i, k in enumerate(main.op.reduce_axis):
                if structure.coefficient(load.indices[axis], k.var) == 1:
                    # groups may begin within a block
                    found[i] = lanes if groups_of(main) == 1 else gcd(lanes, k.extent)
    return found


def sum_loops(s: te.Schedule, stage: te.Tensor, blocks: Sequence[int]) -> list[te.IterVar]:
    """The loops of a sum: blocks outside, in the order of the axes, then what is inside of a block. A sum over one axis
    without blocks is cut, too: weights are asked for once in several rounds."""
    outer, inner = list[te.IterVar](), list[te.IterVar]()
    for axis, lanes in zip(list(s[stage].op.reduce_axis), blocks, strict=True):
        if len(blocks) == 1 and lanes == 1 and is_static([axis.extent]) and axis.extent % ROUNDS == 0:
            lanes = ROUNDS
        if lanes == 1:
            outer.append(axis)
            continue
        block, inside = s[stage].split(axis, factor=lanes)
        outer.append(block)
        inner.append(inside)
    return [*outer, *inner]


def groups_of(main: te.Tensor) -> int:
    """Return how many parts of the channels are summed by themselves."""
    return int(main.op.attrs.get("groups", 1))


def is_pointwise(main: te.Tensor) -> bool:
    """Return whether every pixel of a plane is made of the pixel at its own place alone."""
    window = main.op.reduce_axis[1:]
    is_alone = main.op.tag == "conv" and all(a.extent == 1 for a in window)
    return is_alone and len(window) > 1 and set(main.op.attrs["strides"]) == {1}


def chooses_weights(main: te.Tensor) -> bool:
    """Return whether data say which of several weights an element is a sum over."""
    return any(loads(i) for x in structure.stored_reads(main) for i in x.indices)


def shares_columns(main: te.Tensor) -> bool:
    """Return whether few rows of each of several matrices are multiplied by the same columns."""
    *lead, row, column = [a.var for a in main.op.axis]
    if not lead or main.shape[-2] > _FEW_ROWS or prod(main.shape[:-2]) == 1:
        return False
    columns = [x for x in structure.stored_reads(main) if any(structure.depends_on(i, column) for i in x.indices)]
    return not any(structure.depends_on(i, a) for x in columns for i in x.indices for a in (*lead, row))


def is_of_rows(main: te.Tensor, lanes: int) -> bool:
    """Return whether memory holds both operands of a matrix product along what is summed over: each element is a sum
    over two rows, of vectors."""
    if main.op.tag != "matmul" or main.op.reduce_axis[0].extent < lanes:
        return False
    k = main.op.reduce_axis[0].var
    reads = [x for x in structure.stored_reads(main) if any(structure.depends_on(i, k) for i in x.indices)]
    return len(reads) > 1 and all(_lies_along(x, k) for x in reads)


def _lies_along(load: Load, k: Var) -> bool:
    """Return whether neighbours along k lie side by side in memory."""
    axis = max(a for a, i in enumerate(load.indices) if structure.depends_on(i, k))
    others = any(structure.depends_on(i, k) for i in load.indices[:axis])
    return (
        structure.coefficient(load.indices[axis], k) == 1
        and not others
        and prod(source_of(load).shape[axis + 1 :]) == 1
    )


def register_tile(
    shape: Sequence[int], groups: int, depth: int, lanes: int, machine: Machine, is_ragged: bool = False
) -> Tile:
    """The tile of registers of a result [N, C, *S] in blocks of channels, whose sums have `depth` terms. is_ragged:
    whether the last vectors may be fewer."""
    width = vector_lanes(shape[1], groups, lanes)
    most, vectors = None if width == lanes else tiles.MANY, -(-shape[1] // groups // width)
    return choose_tile(shape[-1], vectors, machine, depth=depth, most=most, is_ragged=is_ragged, is_cut=True)[0]


def shares_pixels(main: te.Tensor, target: Target, nbytes: int = 4) -> bool:
    """Return whether threads share pixels of a convolution rather than channels: where all weights stay in the cache of
    a core and are fewer than the data. A core then reads what it wrote itself, and everything else once: what another
    core has written comes as slowly as memory does where cores have no cache in common. nbytes: of a weight."""
    if main.op.tag != "conv" or groups_of(main) > 1 or not is_static((*main.shape[1:], *_read_shape(main))):
        return False
    weights = structure.terms(main) * main.shape[1]
    data = prod(main.shape[1:]) + prod(_read_shape(main))
    return weights < data and nbytes * weights <= target.cache_bytes // 2


def _read_shape(main: te.Tensor) -> tuple[int, ...]:
    """The shape of the data of one image that a convolution reads, without padding."""
    depth, strides = main.op.reduce_axis[0].extent, main.op.attrs["strides"]
    return (depth, *(e * s for e, s in zip(main.shape[2:], (prod(strides),) if len(main.shape) == 3 else strides)))


def depth(tail: te.Tensor) -> int:
    """Terms of the sum for one element."""
    for t in structure.stages([tail]):
        if t.op.tag in MAIN_TAGS and isinstance(t.op, te.ComputeOp):
            return structure.terms(t)
    return 1
