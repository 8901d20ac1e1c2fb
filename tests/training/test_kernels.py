"""Modules of ops that are kept, and which of them go."""

from __future__ import annotations

import numpy as np
import pytest

from renorm import training
from renorm.core.lru import Latest
from renorm.training import kernels


def test_the_module_that_was_not_called_for_longest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_modules", Latest("a kernel", 2))
    arrays = [np.ones((2, 3, n)) for n in (1, 2, 3)]
    training.moments(arrays[0])
    (first,) = kernels._modules.all()
    for x in (arrays[1], arrays[0], arrays[2]):
        training.moments(x)
    assert len(kernels._modules) == 2
    assert first in kernels._modules.all()
