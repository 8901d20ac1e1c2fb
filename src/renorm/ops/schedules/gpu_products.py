"""GPU: matrix products and convolutions, with what stands after them elementwise: one launch, or two.

A convolution is a product of its weights and of what its windows hold (gpu_contraction); these columns are made in
shared memory, and nowhere else. How a product is computed:

    few rows, or few columns             a block for some of the others, its threads share the terms (gpu_few)
    widened from 16 bits, or tf32        by the warps of a block, on tensor cores (gpu_warps)
    else                                 by the threads of a block, each a box of sums (gpu_sums)
"""

from __future__ import annotations

from collections.abc import Sequence

from renorm import te
from renorm.core.dtypes import itemsize
from renorm.core.gpu import GpuFacts, facts
from renorm.core.target import Target
from renorm.ops.schedules import cuda, gpu_few, gpu_warps, nesting, structure
from renorm.ops.schedules.gpu_contraction import BATCH, COLUMNS, ROWS, Contraction
from renorm.ops.schedules.gpu_stages import VECTOR, find, is_alike
from renorm.ops.schedules.gpu_sums import Sums
from renorm.ops.schedules.gpu_tiles import COPY, COPY_VECTOR, COPY_WINDOW, DEPTHS, choose, choose_of_warps
from renorm.ops.schedules.gpu_warps import Warps


def schedule(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """One launch for a product and all that is elementwise after it, or two; launches of one thread per element where
    that is not what the stages are."""
    products = find(outs)
    if not products:
        cuda.schedule(s, outs, target)
        return
    mains = [main for main, _ in products]
    nesting.inline(s, outs, keep=mains)
    is_one = len(outs) == len(mains) == 1 and (outs[0] is mains[0] or is_alike(outs[0], mains[0]))
    for main, product in products:
        place(s, main, product, outs[0] if is_one else main, facts(target.arch))
    for t in structure.stages(outs):  # what reads the sums at other places, or several times
        if not is_one and t not in mains and (structure.is_reduction(t) or t in outs):
            sums = s.cache_write(t, "local") if structure.is_reduction(t) else None
            thread = cuda.bind(s, t)
            if sums is not None:
                s[sums].compute_at(s[t], thread)


def place(s: te.Schedule, main: te.Tensor, product: Contraction, out: te.Tensor, gpu: GpuFacts) -> None:
    """Schedules the launches of one product: of `main`, and of `out`, which is made of it element by element or is
    itself."""
    if gpu_few.takes(product):
        gpu_few.Few(s, main, product, gpu).schedule(out)
        return
    batch, rows, columns = (product.extent(role) for role in (BATCH, ROWS, COLUMNS))
    narrow = product.narrow()
    if narrow is not None and Warps.takes(narrow, gpu):
        size = itemsize(narrow.rows.dtype)
        terms = gpu_warps.VECTOR // size
        copies = _copying(narrow, ROWS, terms), _copying(narrow, COLUMNS, terms)
        Warps(s, main, narrow, choose_of_warps(batch, rows, columns, product.depth, gpu, size, copies)).schedule(out)
        return
    run = product.summed[-1].extent if product.padded(COLUMNS) is not None else 0
    copies = _copying(product, ROWS), _copying(product, COLUMNS)
    tile = choose(batch, rows, columns, product.depth, gpu, itemsize(main.dtype), run, copies)
    Sums(s, main, product, tile).schedule(out)


def _copying(product: Contraction, role: str, of_terms: int = 0) -> float:
    """Return the cycles that it takes to copy an element of a factor to shared memory. of_terms: how many terms are
    copied as one; 0: rows or columns are."""
    if product.is_plain(role):
        is_vector = product.run(role) % (of_terms or VECTOR) == 0 and product.runs_along_terms(role) is bool(of_terms)
        return COPY_VECTOR if is_vector else COPY
    is_at_one_tap = product.padded(role) is not None and product.summed[-1].extent % DEPTHS[0] == 0
    return COPY if is_at_one_tap else COPY_WINDOW
