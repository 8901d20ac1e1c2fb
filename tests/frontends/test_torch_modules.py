"""PyTorch's own samples of its modules (module_db): read as programs, and compiled with their gradients, against
PyTorch. What is not read, and why, is in torch_modules.txt: a line too many fails, as one that is missing does."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("expecttest", reason="expecttest is not installed, which PyTorch's samples import")
import torch
from tests.exhaustive import one_of
from tests.frontends.torch_samples import Program, difference, outcome, reasons, spread

with warnings.catch_warnings(), patch.object(torch.backends, "disable_global_flags"):
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_modules import module_db

NOT_READ = reasons(Path(__file__).parent / "torch_modules.txt")
BROKEN = ("nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d")  # samples that PyTorch 2.13 itself refuses
MODULES = {info.name.removeprefix("nn."): info for info in module_db if info.name not in BROKEN}
FEW, MANY = 4, 40  # samples that the gate exports and compiles, of a module and of one of which some are not read
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def samples(name: str, training: bool) -> Iterator[tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]]:
    """Yield modules of a class, with arguments; those of layers that are lazy have had their first call."""
    info: Any = MODULES[name]
    torch.manual_seed(0)
    given = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=training)
    for sample in given:
        made, call = sample.constructor_input, sample.forward_input
        if call is None:
            continue
        module = info.module_cls(*made.args, **made.kwargs).train(training)
        module(*call.args, **call.kwargs)
        yield module, call.args, call.kwargs


def refusals(name: str, most: int | None = None) -> list[str]:
    """Return why samples of a module, so many at most, are not read, or what differs; nothing for those that are."""
    programs = [Program(module, args, kwargs) for module, args, kwargs in samples(name, training=False)]
    assert programs, "there is no sample"
    return [said for p in spread(programs, most or len(programs)) if (said := outcome(p))]


def test_every_line_is_of_a_module_and_has_a_reason() -> None:
    assert [n for n, why in NOT_READ.items() if n not in MODULES or not why] == []


@pytest.mark.parametrize("name", sorted(MODULES))
def test_module(name: str) -> None:
    if name in NOT_READ:
        said = refusals(name, MANY)
        assert said, "it is read now: take its line out"
        assert [s for s in said if "differ" in s] == []
    else:
        assert refusals(name, FEW) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(MODULES))
def test_each_sample_of_a_module(name: str) -> None:
    said = refusals(name)
    assert [s for s in said if "differ" in s] == []
    assert not said or name in NOT_READ


@pytest.mark.slow
@pytest.mark.parametrize("name", one_of(2, sorted(n for n in MODULES if "Norm" in n)))
def test_compiled_training(name: str) -> None:
    """Results and gradients, of whatever is read and of what stays PyTorch's."""
    for module, args, kwargs in samples(name, training=True):
        torch.compiler.reset()
        results = list[list[torch.Tensor]]()
        held = {k: v.clone() for k, v in module.state_dict().items()}
        for run in (module, torch.compile(module, backend="renorm")):
            module.load_state_dict(held)
            module.zero_grad()
            own = [a.detach().clone().requires_grad_(a.is_floating_point()) if _is_tensor(a) else a for a in args]
            y = run(*own, **kwargs)
            (y.float() * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum().backward()
            grads = [p.grad for p in (*module.parameters(), *filter(_is_tensor, own)) if p.grad is not None]
            results.append([y.detach(), *(g.clone() for g in grads), *(b.clone() for b in module.buffers())])
        for eager, found in zip(*results, strict=True):
            assert not difference(found.numpy(), eager, 1e-4)


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)
