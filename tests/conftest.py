"""What tests of several rooms ask for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.shared_files import export_zoo

Zoo = Callable[[str, int], Path]


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    """(name, batch) -> one of the benchmark's networks as an ONNX file, exported once for all processes of
    pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "zoo"
    folder.mkdir(exist_ok=True)
    return lambda name, batch: export_zoo(name, folder, batch)
