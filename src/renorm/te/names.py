"""All public names of te, which the package gives when one of them is first used."""

from __future__ import annotations

from renorm.expr.nodes import const
from renorm.te import define, intrin, math, tag
from renorm.te.define import *  # noqa: F403 - its __all__
from renorm.te.given_loops import ExternOp, extern
from renorm.te.lower import lower
from renorm.te.math import *  # noqa: F403 - its __all__
from renorm.te.open import size_var, specialize, var
from renorm.te.schedule import Schedule, create_schedule
from renorm.te.stage import Stage
from renorm.te.tensor import (
    ComputeOp,
    IterVar,
    Operation,
    PlaceholderOp,
    Range,
    Tensor,
    broadcast,
    broadcast_shape,
    elementwise,
)

__all__ = [
    "ComputeOp", "ExternOp", "IterVar", "Operation", "PlaceholderOp", "Range", "Schedule", "Stage", "Tensor",
    "broadcast", "broadcast_shape", "const", "create_schedule", "elementwise", "extern", "intrin", "lower", "size_var",
    "specialize", "tag", "var",
]  # fmt: skip
__all__ += define.__all__
__all__ += math.__all__
