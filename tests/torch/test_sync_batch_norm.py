"""SyncBatchNorm over ranks that are threads of this process: results, and what is refused on one rank."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn

import renorm.torch as ours
from renorm import training
from renorm.errors import StatisticsWarning, SynchronizationError
from renorm.torch import modules

Work = Callable[[int], Any]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Work], list[Any]]:
    """Runs `work(rank)` on n ranks, whose layers meet; what it returns or raises on each."""
    here = threading.local()
    monkeypatch.setattr(modules, "world", lambda group: here.comm)

    def run(n: int, work: Work) -> list[Any]:
        def one(comm: training.Communicator) -> Any:
            here.comm = comm
            try:
                return work(comm.rank)
            except Exception as error:
                return error

        return training.Threads(n, timeout=20).run(one)

    return run


def network() -> Any:
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
    return ours.SyncBatchNorm.convert_sync_batchnorm(layers.double())


def state(model: Any) -> dict[str, Any]:
    return {name: t.clone() for name, t in model.state_dict().items()}


def same(model: Any, before: dict[str, Any]) -> bool:
    return all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


REFUSED = {
    "channels": lambda layer: layer(torch.zeros(2, 5, 3, 3, dtype=torch.float64)),
    "rank": lambda layer: layer(torch.zeros(4, dtype=torch.float64)),
    "dtype": lambda layer: layer(torch.zeros(2, 4, 3, 3, dtype=torch.int64)),
    "no tensor": lambda layer: layer(None),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_one_rank_refuses_is_told_on_all(what: str, ranks: Any) -> None:
    def work(rank: int) -> Any:
        model = network()
        before = state(model)
        try:
            if rank == 1:
                REFUSED[what](model[1])
            return model(torch.randn(2, 3, 5, 5, dtype=torch.float64))
        finally:
            assert same(model, before)

    errors = ranks(3, work)
    assert not isinstance(errors[1], SynchronizationError)
    for error in (errors[0], errors[2]):
        assert isinstance(error, SynchronizationError)
        assert error.headline.startswith("rank 1 failed")
        assert f"rank 1: {type(errors[1]).__name__}: {str(errors[1]).splitlines()[0]}" in str(error)


def test_what_one_rank_refuses_backward_is_told_on_all(ranks: Any) -> None:
    def work(rank: int) -> Any:
        y = network()(torch.randn(2, 3, 5, 5, dtype=torch.float64))
        y.sum().backward(retain_graph=rank == 1)
        y.sum().backward()  # on rank 0 what was saved is gone

    errors = ranks(2, work)
    assert "second time" in str(errors[0])
    assert "rank 0: RuntimeError: Trying to backward through the graph a second time" in str(errors[1])


@pytest.mark.parametrize("order", [(1, 4), (4, 1)])
def test_layers_in_another_order_are_named(order: tuple[int, int], ranks: Any) -> None:
    """Both layers have as many channels, and all else alike: only their names tell them apart."""

    def work(rank: int) -> Any:
        model = network()
        x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
        return [model[k](x) for k in (order if rank else order[::-1])]

    first, second = ranks(2, work)
    assert str(first) == str(second)
    assert "ranks met at different layers" in str(first)
    assert "'1: batch_norm forward" in str(first)
    assert "'4: batch_norm forward" in str(first)


def test_one_value_in_all_ranks_is_refused_in_words_of_ranks(ranks: Any) -> None:
    def work(rank: int) -> Any:
        return ours.SyncBatchNorm(3)(torch.zeros(int(rank == 0), 3))

    for error in ranks(3, work):
        assert "the batch of all 3 ranks has one value per channel" in str(error)


def test_instance_norm_reports_too() -> None:
    model = nn.Sequential(nn.InstanceNorm1d(2, track_running_stats=True))
    ours.replace_norms(model)
    x = torch.randn(3, 2, 8)
    x[:, 1] *= 1e30
    with pytest.warns(StatisticsWarning, match=r"^0: running_var of channel 1 is beyond float32"):
        assert model(x).isfinite().all()


def test_communicators_stand_for_process_groups() -> None:
    """Ranks of renorm.training, without torch.distributed."""
    x = torch.randn(4, 3, 6)

    def work(comm: training.Communicator) -> Any:
        return ours.SyncBatchNorm(3, process_group=comm)(x[3:] if comm.rank else x[:3])

    y = torch.cat(training.Threads(2, timeout=20).run(work))
    torch.testing.assert_close(y, nn.BatchNorm1d(3)(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_running_variance_that_overflows_is_reported_by_the_layers_name(dtype: Any) -> None:
    model = nn.Sequential(nn.Identity(), nn.BatchNorm1d(2)).to(dtype)
    ours.replace_norms(model)
    x = torch.tensor([[1.0, 2.0], [-1.0, 4.0], [2.0, 0.5]])
    x[:, 1] *= {torch.float32: 1e30, torch.float16: 1e4}[dtype]
    with pytest.warns(StatisticsWarning, match=rf"^1: running_var of channel 1 is beyond {str(dtype)[6:]}"):
        y = model(x.to(dtype))
    assert y.isfinite().all()
    assert np.isinf(model.state_dict()["1.running_var"].numpy()).tolist() == [False, True]


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_again_meets_again(reentrant: bool, ranks: Any) -> None:
    """Checkpoints run a forward pass twice, and may leave the second one before its end. Running statistics follow
    both, as those of torch do."""
    from torch.utils.checkpoint import checkpoint

    x = torch.randn(6, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    parts = [slice(0, 1), slice(1, 6)]

    def trained(model: Any, x: Any) -> Any:
        leaf = x.clone().requires_grad_()
        (checkpoint(model, leaf, use_reentrant=reentrant) ** 3).sum().backward()
        return leaf.grad, [p.grad for p in model.parameters()], model.state_dict()

    whole = network()
    ours.restore(whole)
    synchronized: list[Any] = [m for m in whole.modules() if type(m) is nn.SyncBatchNorm]
    for m in synchronized:  # which torch has on no CPU
        m.__class__ = nn.BatchNorm2d
    expected = trained(whole, x)
    models = [network(), network()]  # by the one generator of torch: not in threads
    found = ranks(2, lambda rank: trained(models[rank], x[parts[rank]]))
    torch.testing.assert_close(torch.cat([dx for dx, _, _ in found]), expected[0])
    torch.testing.assert_close([a + b for a, b in zip(*(g for _, g, _ in found), strict=True)], expected[1])
    for _, _, state in found:
        torch.testing.assert_close(dict(state), dict(expected[2]))


def test_a_step_is_two_exchanges_for_each_layer(ranks: Any) -> None:
    def work(rank: int) -> Any:
        model = network()
        comm: Any = modules.world(None)
        before = comm._exchanges
        model(torch.randn(1 + rank, 3, 5, 5, dtype=torch.float64)).sum().backward()
        with torch.no_grad():
            model(torch.randn(1, 3, 5, 5, dtype=torch.float64))
        model.eval()
        model(torch.randn(rank, 3, 5, 5, dtype=torch.float64))
        return comm._exchanges - before

    assert ranks(2, work) == [2 + 2 + 2 + 0] * 2


@pytest.mark.parametrize("training", [True, False])
def test_without_parameters_it_takes_any_number_of_channels(training: bool) -> None:
    """As torch's batch norms; of a lazy one nobody ever says how many there are."""
    theirs = nn.BatchNorm1d(0, affine=False, track_running_stats=False).train(training)
    mine = ours.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(0, affine=False, track_running_stats=False))
    x = torch.arange(24.0).reshape(2, 4, 3).sin()
    torch.testing.assert_close(mine.train(training)(x), theirs(x))
