"""Large results take the memory that earlier ones left, unless somebody has it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from renorm.runtime import pool
from renorm.torch import caching_allocator

N = caching_allocator.FROM // 4


def fresh(n: int = N) -> Any:
    return caching_allocator.empty((n,), (1,), torch.float32)


@pytest.fixture(autouse=True)
def nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching_allocator, "_memory", caching_allocator._CachingAllocator())


def test_memory_is_used_again() -> None:
    first = fresh()
    address, storage = first.data_ptr(), first.untyped_storage()._cdata
    del first
    second = fresh()
    assert second.data_ptr() == address
    assert second.untyped_storage()._cdata != storage  # whoever knew the other storage knows nothing of this one
    assert not second._is_view()
    assert second.add_(1).data_ptr() == address
    assert second.untyped_storage().resizable()
    assert second.resize_(2 * N).shape == (2 * N,)


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "view": lambda y: y.view(2, -1),
    "detached": lambda y: y.detach(),
    "slice": lambda y: y[-1:],
    "array": lambda y: y.numpy(),
    "storage": lambda y: y.untyped_storage(),
    "old storage": lambda y: y.storage(),
    "dlpack": lambda y: torch.utils.dlpack.to_dlpack(y),
    "graph": lambda y: y * torch.ones(1, requires_grad=True),
}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("holder", HOLDERS)
def test_what_somebody_has_is_not(holder: str) -> None:
    y = fresh().fill_(7)
    kept = HOLDERS[holder](y)
    address = y.data_ptr()
    del y
    gc.collect()
    other = fresh()
    assert other.data_ptr() != address
    other.zero_()
    if holder in ("view", "detached", "array", "slice"):
        assert float(kept.reshape(-1)[0]) == 7
    elif holder == "graph":
        (g,) = torch.autograd.grad(kept.sum(), kept.grad_fn.next_functions[1][0].variable)
        assert float(g) == 7 * N


@pytest.mark.parametrize("change", ["shared", "smaller", "larger", "empty"])
def test_what_is_no_more_what_it_was_is_not(change: str) -> None:
    y = fresh()
    if change == "shared":
        y.share_memory_()
    else:
        y.untyped_storage().resize_({"smaller": 8, "larger": 8 * N, "empty": 0}[change])
    del y
    again = fresh()
    assert not again.is_shared()
    assert again.untyped_storage().nbytes() == 4 * N
    again.zero_()


def test_what_is_idle_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = caching_allocator._memory
    for n in (N, 2 * N, 3 * N):
        fresh(n)
    assert len(memory._held) == 3
    monkeypatch.setattr(pool.RESULTS, "most", 4 * 3 * N)
    memory._sweep(memory._swept + 0.1)
    assert [h.nbytes for h in memory._held] == [4 * 3 * N]
    memory._sweep(memory._swept + 2 * pool.AGE)
    assert not memory._held


def test_threads_share_no_memory() -> None:
    wrong = list[int]()

    def draw(k: int) -> None:
        for _ in range(50):
            y = fresh().fill_(k)
            if not (y == k).all():
                wrong.append(k)

    threads = [threading.Thread(target=draw, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
