"""Operators by the names of their codes: each function takes a Call and gives its results.

A file here holds operators of one kind. What an operator means is stated where the formats leave it to their
implementation.
"""

from renorm.frontends.tflite.call import Reader
from renorm.frontends.tflite.operators import arithmetic, moving, products, reducing, windows

OPERATORS: dict[str, Reader] = {
    **arithmetic.OPERATORS,
    **moving.OPERATORS,
    **products.OPERATORS,
    **reducing.OPERATORS,
    **windows.OPERATORS,
}
