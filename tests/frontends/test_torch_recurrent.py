"""Recurrent layers of PyTorch, whole, as torch.export has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

import renorm
from renorm.errors import UnsupportedOp

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
LAYERS = [
    ("LSTM", {"num_layers": 2}),
    ("LSTM", {"bias": False, "dropout": 0.5, "num_layers": 2}),
    ("GRU", {"num_layers": 2}),
    ("RNN", {"nonlinearity": "relu"}),
]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("name", "options"), LAYERS, ids=str)
def test_layers(name: str, options: dict[str, Any], bidirectional: bool, batch_first: bool) -> None:
    """With states that are given, on batches of any size."""
    torch.manual_seed(0)
    given = {**options, "bidirectional": bidirectional, "batch_first": batch_first}
    layer = getattr(torch.nn, name)(5, 7, **given).eval()
    states = options.get("num_layers", 1) * (1 + bidirectional)

    def drawn(batch: int) -> tuple[Any, Any]:
        x = torch.randn(*((batch, 3) if batch_first else (3, batch)), 5)
        h, c = (torch.randn(states, batch, 7) for _ in range(2))
        return x, (h, c) if name == "LSTM" else h

    n, s = torch.export.Dim("n", min=2, max=64), 0 if batch_first else 1
    of_states: Any = ({1: n}, {1: n}) if name == "LSTM" else {1: n}
    program = torch.export.export(layer, drawn(4), dynamic_shapes=({s: n}, of_states))
    module = renorm.compile(program)
    for batch in (4, 9):
        x, hx = drawn(batch)
        y, last = layer(x, hx)
        wanted = [y, *(last if name == "LSTM" else [last])]
        found = module.run(*(t.numpy() for t in (x, *(hx if name == "LSTM" else [hx]))))
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-5, atol=1e-5)


def test_projected_states_are_read_step_by_step() -> None:
    """As PyTorch decomposes them: no op of renorm's projects its states."""
    module, x = torch.nn.LSTM(5, 7, proj_size=3).eval(), torch.randn(4, 2, 5)
    y, (h, c) = module(x)
    for found, wanted in zip(renorm.compile(module, args=(x,)).run(x), (y, h, c), strict=True):
        np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_dropout_in_training_is_refused() -> None:
    program = torch.export.export(torch.nn.GRU(5, 7, 2, dropout=0.5).train(), (torch.randn(2, 1, 5),))
    with pytest.raises(UnsupportedOp, match="drops elements between its layers"):
        renorm.compile(program)
