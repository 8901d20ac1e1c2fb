"""TorchGroup beside groups of backends that carry nothing between CPUs, as nccl does; in one process."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.testing._internal.distributed import fake_pg  # noqa: F401  # registers the backend "fake"

from renorm import training
from renorm.errors import SynchronizationError


@pytest.fixture
def start() -> Iterator[Callable[[int], None]]:
    """Makes this process rank 0 of torch.distributed over a backend whose collectives do nothing."""

    def begin(size: int) -> None:
        dist.init_process_group("fake", store=HashStore(), rank=0, world_size=size)

    yield begin
    if dist.is_initialized():
        dist.destroy_process_group()


def test_statistics_do_not_go_through_the_groups_backend(start: Any) -> None:
    start(1)
    comm = training.TorchGroup()
    assert np.array_equal(comm.gather("a", np.arange(3.0)), [[0, 1, 2]])
    again, group = training.TorchGroup(dist.group.WORLD), weakref.ref(dist.group.WORLD)
    assert len(again.gather("b", np.zeros(2))) == 1
    dist.destroy_process_group()
    gc.collect()
    assert group() is None, "a communicator does not keep its group"


def test_a_rank_that_makes_no_communicator_is_named(start: Any) -> None:
    start(3)
    with pytest.raises(SynchronizationError, match="ranks 1 and 2 did not come to the making of TorchGroup"):
        training.TorchGroup(timeout=0.2)


def test_a_torch_without_gloo_is_refused(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start(1)
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    with pytest.raises(SynchronizationError, match=r"(?s)no gloo.*training.Mpi"):
        training.TorchGroup()


def test_without_torch_distributed() -> None:
    with pytest.raises(SynchronizationError, match="no process group yet"):
        training.TorchGroup()
