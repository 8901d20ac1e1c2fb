"""Ways of running a kernel on arrays; every test that takes `run` is done with each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.codegen.native import run_native

from renorm.tir import interpret
from renorm.tir.nodes import Kernel

Run = Callable[[Kernel, Sequence[np.ndarray[Any, Any]]], None]


@pytest.fixture
def run() -> Run:
    """Interprets a kernel on one array per parameter, writing into those that it stores to."""
    return interpret.run


@pytest.fixture(params=["loops", "native"], scope="session")
def run_on_cpu(request: pytest.FixtureRequest) -> Run:
    """The same, and as machine code on three threads: for kernels without GPU axes."""
    if request.param == "loops":
        return interpret.run
    return partial(run_native, threads=3)
