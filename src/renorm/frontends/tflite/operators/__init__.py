"""Operators, one file for each kind of them: how they are read, and how ops of a graph are written as them.

READERS by the names of operator codes: each takes a Call and gives its results. WRITERS by the names of ops: each takes
an Emission and adds operators. FUSING: ops whose operators take an activation. What an operator means is stated where
the formats leave it to their implementation.
"""

from renorm.frontends.tflite.call import Reader
from renorm.frontends.tflite.emission import Writer
from renorm.frontends.tflite.operators import arithmetic, moving, products, reducing, windows

READERS: dict[str, Reader] = {
    **arithmetic.READERS,
    **moving.READERS,
    **products.READERS,
    **reducing.READERS,
    **windows.READERS,
}

WRITERS: dict[str, Writer] = {
    **arithmetic.WRITERS,
    **moving.WRITERS,
    **products.WRITERS,
    **reducing.WRITERS,
    **windows.WRITERS,
}

FUSING = frozenset((*arithmetic.FUSING, *products.FUSING, *windows.FUSING))
