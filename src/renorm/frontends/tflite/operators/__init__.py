"""Operators, one file for each kind of them: how they are read, and how ops of a graph are written as them.

What an operator means is stated where the formats leave it to their implementation.
"""

from renorm.frontends.tflite.operators import (
    arithmetic,
    control,
    detection,
    indexing,
    moving,
    products,
    recurrent,
    reducing,
    signal,
    stablehlo,
    transposed,
    windows,
)

_ALL = [
    *arithmetic.OPERATORS,
    *control.OPERATORS,
    *detection.OPERATORS,
    *indexing.OPERATORS,
    *moving.OPERATORS,
    *products.OPERATORS,
    *recurrent.OPERATORS,
    *reducing.OPERATORS,
    *signal.OPERATORS,
    *stablehlo.OPERATORS,
    *transposed.OPERATORS,
    *windows.OPERATORS,
]

READ = {o.kind: o for o in _ALL if o.read is not None}
"""Operators that files may hold, by the names of their codes."""

WRITTEN = {o.op: o for o in _ALL if o.write is not None}
"""Operators that ops are written as, by the names of the ops."""
