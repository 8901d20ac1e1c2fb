"""An operator of the formats beside the op of a graph that means the same: one entry for both directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from renorm.frontends.orders import First
from renorm.frontends.tflite.tensors import Tensor
from renorm.graph.ir import Value

if TYPE_CHECKING:
    from renorm.frontends.tflite.call import OperatorCall
    from renorm.frontends.tflite.emission import Emission

One = Value | First | Tensor
Result = One | Sequence[One]
Reader = Callable[["OperatorCall"], Result]
Writer = Callable[["Emission"], None]

ALL = None  # operands


@dataclass(frozen=True)
class Operator:
    """kind: the name of its code, "" where an op is written as several operators. op: the op that means the same, or is
    written so; "" where it is read as several. read, write: None for what goes the other way only. picks: operands
    whose elements, or zeros, results are, or means of these. fuses: the operator may compute an activation of its
    result. has_cell: an activation that it names is its cell's, and not of its result. is_complex: it reads complex
    numbers, too."""

    kind: str
    op: str = ""
    read: Reader | None = None
    write: Writer | None = None
    picks: Sequence[int] | None = ()
    fuses: bool = False
    has_cell: bool = False
    is_complex: bool = False
