"""Overloads that multiply rows by the matrix of the group that they are of, as layers of experts do."""

from __future__ import annotations

from typing import Any

from renorm import ops
from renorm.core.errors import UnsupportedOp
from renorm.frontends.torch.call import Call, Given
from renorm.frontends.torch.overloads.table import reads
from renorm.graph.ir import Value
from renorm.ops.shared.grouped_rows import grouped_product


@reads("_grouped_mm", "transformers.grouped_mm_fallback.default")
def _grouped_mm(
    c: Call, x: Value, w: Value, offs: Given = None, bias: Given = None, out_dtype: Any = None, **_: Any
) -> Any:
    """x[s] w[g] for the group g of row s; offs: where the rows of each group end."""
    if offs is None:
        return ops.matmul(x, w)
    if (x.rank, w.rank) != (2, 3) or bias is not None:
        raise UnsupportedOp(f"grouped products of rank {x.rank} and {w.rank}, or with a bias")
    return grouped_product(x, w, c.cast(offs, "int64"), c.integers)
