"""CPU: weights that are not known before, packed for the products that follow in the same kernel.

    w [O, K]  ->  panels [O / v, K, v]      v rows of w give the vectors of a panel

Each vector picks one element out of each of v rows. A run of terms is taken at once, so that the lines of memory of
these rows are used up while they are in the first cache.
"""

from __future__ import annotations

from math import prod

from renorm import te
from renorm.core.dims import is_static, static
from renorm.core.dtypes import itemsize
from renorm.core.target import Target
from renorm.expr.nodes import Load
from renorm.graph.held import held_weight_dtype
from renorm.graph.ir import Node
from renorm.ops.schedules import nesting, products, structure
from renorm.te.tensor import source_of
from renorm.topi import layout

# Rows that lie so many bytes apart, or a multiple of that, have their lines in the same places of a first cache: 4 of
# them stay there beside what is written, 16 do not.
ALIASED = 2048
TOGETHER = 4
RUN = 16  # terms, of 4 bytes a line of memory

# Rows of a matrix product for which those of a transposed weight are not packed: each element is a sum over two rows
# (`products.is_of_rows`). Zen 4, two threads, 256 to 3,072 columns and terms: 4 rows took 0.6 to 0.8 of the time of
# packing, 8 rows 0.9 to 1.3, 12 rows 1.1 to 1.2.
FEW_ROWS = 8


def takes(node: Node, index: int, target: Target) -> bool:
    """Return whether the kernel of a node packs operand `index`: a weight that is no constant, where vectors are of
    channels that do not lie side by side, which each product would pick one by one."""
    w, op = node.inputs[index], node.op
    if w is None or w.is_constant or w.layout or target.is_gpu or op.scheduled_as not in products.SCHEDULES:
        return False
    axis = op.channel_axis(index, node.operand_types())
    if axis is None or axis == w.rank - 1 or not is_static(w.shape) or 0 in w.shape or held_weight_dtype(node, index):
        return False
    rows = 0 if op.values.get("transA") or op.scheduled_as != "gemm" else node.output.shape[0]
    if isinstance(rows, int) and 0 < rows <= FEW_ROWS:
        return False
    groups = int(op.values.get("group", 1))
    channels = static(w.shape)[axis] * (groups if axis else 1)  # of a transposed convolution w has those of one group
    return products.fills_vectors(channels, groups, target.lanes(itemsize(w.dtype)))


def place(s: te.Schedule, main: te.Tensor, tail: te.Tensor, loop: te.IterVar, width: int) -> bool:
    """Pack for each round of a loop of `tail` over `width` channels what `main` reads in it, and return whether that
    was done: a core multiplies with what it has packed itself, and no memory holds the whole weight twice."""
    found = [t for t in structure.stages([main]) if t.op.tag == layout.PACKED]
    if not found or any(width % panels.shape[-1] for panels in found):  # parts of panels would be packed twice
        return False
    for panels in found:
        s[panels].compute_at(s[tail], loop)
    return True


def schedule(s: te.Schedule, panels: te.Tensor) -> None:
    """A nest for what `layout.packed` made, before all that reads it. Threads share panels, and where rows fill all of
    them runs, too: a last one that they do not fill is a version of what stands in the loop that they share."""
    panel, *around, term, lane = list(s[panels].op.axis)
    is_whole = isinstance(structure.body(panels), Load)
    together = TOGETHER if _apart(panels) % ALIASED == 0 else lane.extent
    run, term = s[panels].split(term, factor=min(RUN, term.extent))
    part, lane = s[panels].split(lane, factor=together)
    s[panels].reorder(panel, *around, run, part, term, lane)
    s[panels].vectorize(lane)
    if s[panels].attach is None:
        nesting.share(s, panels, [panel, *around, run] if is_whole else [panel], prod(panels.shape))


def _apart(panels: te.Tensor) -> int:
    """Return how many bytes lie between elements of a vector in the weight."""
    (load,) = structure.reads(panels)
    lane, w = panels.op.axis[-1].var, source_of(load)
    axis = next(a for a, i in enumerate(load.indices) if structure.depends_on(i, lane))
    return prod(w.shape[axis + 1 :]) * itemsize(w.dtype)
