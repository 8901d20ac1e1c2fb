"""Tests of layers ask what torch does with them, not how kernels are made: each kernel is compiled once."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def kernels_are_kept(kept_code: None) -> None:
    """For all tests here."""


@pytest.fixture(autouse=True)
def kernels_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what is tested is not torch."""
    monkeypatch.setattr("renorm.torch.kernels._is_background_on", False)
