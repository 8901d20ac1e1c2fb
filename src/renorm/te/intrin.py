"""Scalar functions where articles of TVM 0.4 to 0.6 look for them: tvm.intrin.power, tvm.intrin.sqrt."""

from renorm.te.math import *  # noqa: F403 - all of its __all__
from renorm.te.math import __all__ as __all__
