"""Loops of PyTorch that data end, and those over axes of open extent, against eager PyTorch: step by step, the host
runs rounds, and compiled pieces all else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_slices
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import renorm
from renorm.driver.hosted import HostedModule
from renorm.driver.module import CompiledModule
from renorm.errors import UnsupportedOp

AUTO = torch.export.Dim.AUTO
OPEN = {"x": ({0: AUTO},)}


class Of(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        torch.manual_seed(0)
        self.function, self.layer, self.norm = function, torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)
        self.cell = torch.nn.GRUCell(4, 4)
        assert self.norm.running_mean is not None
        self.norm.running_mean.uniform_(-1, 1)

    def forward(self, *x: Any) -> Any:
        return self.function(self, *x)


def drawn(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))) * scale


def agree(
    function: Callable[..., Any], calls: Sequence[torch.Tensor], dynamic: Any = None, path: Path | None = None
) -> Any:
    """Return a module that is compiled for the first call, held to eager for all; its artifact as well."""
    module = Of(function).eval()
    with torch.no_grad():
        program = torch.export.export(module, (calls[0],), dynamic_shapes=dynamic, strict=False)
        made = renorm.compile(program)
        for x in calls:
            wanted = module(x)
            for y, expected in zip(made.run(x), wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
                assert y.shape == tuple(expected.shape)
                np.testing.assert_allclose(y, expected.numpy(), rtol=1e-4, atol=1e-5)
    if path is not None:
        made.save(path)
        for y, again in zip(made.run(calls[-1]), renorm.load(path).run(calls[-1]), strict=True):
            np.testing.assert_array_equal(y, again)
    return made


def zero() -> torch.Tensor:
    return torch.zeros((), dtype=torch.int64)


def _until(m: Any, x: torch.Tensor) -> Any:
    y = x * 2

    def body(i: torch.Tensor, h: torch.Tensor) -> Any:
        return i + 1, m.norm(m.layer(h)).relu() * 3 + y

    i, h = while_loop(lambda i, h: (i < 9) & (h.abs().max() < 50), body, (zero(), y))
    return h * i, i, y.sum()


def _nested(m: Any, x: torch.Tensor) -> Any:
    def body(i: torch.Tensor, h: torch.Tensor) -> Any:
        inner = while_loop(lambda j, g: j < i, lambda j, g: (j + 1, torch.tanh(m.layer(g))), (torch.zeros_like(i), h))
        return i + 1, inner[1] + inner[0]

    return while_loop(lambda i, h: i < 3, body, (zero(), x))[1]


def _branches(m: Any, x: torch.Tensor) -> Any:
    def body(i: torch.Tensor, h: torch.Tensor) -> Any:
        return i + 1, torch.cond(h.sum() > 1, lambda h: m.layer(h), lambda h: h + 1, (h,))

    return while_loop(lambda i, h: i < 4, body, (zero(), x))[1].softmax(-1)


def _one_after_another(m: Any, x: torch.Tensor) -> Any:
    first = while_loop(lambda i, h: h.max() < 10, lambda i, h: (i + 1, h + 1), (zero(), x))[1]
    return while_loop(lambda i, h: i < 2, lambda i, h: (i + 1, m.layer(h)), (zero(), first.relu()))[1] + x


def _of_parts(m: Any, x: torch.Tensor) -> Any:
    """Read results of one call in front of the loop and behind it."""
    values, places = x.topk(2, 1)
    n, h = while_loop(lambda n, h: h.sum() < 50, lambda n, h: (n + 1, h + values.abs().sum()), (zero(), x.abs()))
    return h, places, values + n


def _roots(m: Any, x: torch.Tensor) -> Any:
    """Newton's steps, until they are short."""

    def body(y: torch.Tensor, step: torch.Tensor) -> Any:
        z = 0.5 * (y + x.abs() / y)
        return z, (z - y).abs().max()

    return while_loop(lambda y, step: step > 1e-6, body, (torch.ones_like(x), x.new_tensor(1.0)))[0]


LOOPS = {f.__name__.strip("_"): f for f in (_until, _nested, _branches, _one_after_another, _of_parts, _roots)}


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("name", LOOPS)
def test_data_end_loops(name: str, is_open: bool, tmp_path: Path) -> None:
    calls = [drawn(n, 4, scale=k) for n, k in (((3, 1), (5, 9), (2, 0.1)) if is_open else ((3, 1), (3, 9), (3, 0.1)))]
    assert isinstance(agree(LOOPS[name], calls, OPEN if is_open else None, tmp_path / "loop.renorm"), HostedModule)


def test_norms_of_a_body_fold() -> None:
    (norm,) = agree(_until, [drawn(3, 4)]).report.norms
    assert norm.fate == "folded"


def test_complex_numbers_are_carried() -> None:
    def turned(m: Any, x: torch.Tensor) -> Any:
        z = torch.complex(x, x)
        return while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z * z * 0.5 + 1j), (zero(), z))[1].abs()

    agree(turned, [drawn(3, 4)])
    module = Of(
        lambda m, z: (while_loop(lambda i, z: z.abs().max() < 9, lambda i, z: (i + 1, z * 2j), (zero(), z)), None)
    )
    z = torch.complex(drawn(3, 4), drawn(3, 4))
    i, y = renorm.compile(module, args=(z,)).run(torch.view_as_real(z))
    count, wanted = module(z)[0]
    assert i == count
    np.testing.assert_allclose(y, torch.view_as_real(wanted).numpy(), rtol=1e-5, atol=1e-5)


def _each(m: Any, x: torch.Tensor) -> Any:
    return map_slices(cast("Any", lambda a: m.norm(m.layer(a)).relu()), x)


def _recurrent(m: Any, x: torch.Tensor) -> Any:
    def step(h: torch.Tensor, a: torch.Tensor) -> Any:
        made = m.cell(a, h)
        return made, made.clone()

    return scan(step, torch.zeros(2, 4), x, dim=0)


def _backward(m: Any, x: torch.Tensor) -> Any:
    return scan(lambda h, a: (h * 0.5 + a, (h - a).clone()), torch.zeros(2, 4), x, dim=0, reverse=True)


@pytest.mark.parametrize("function", [_each, _recurrent, _backward])
def test_over_an_open_axis(function: Callable[..., Any], tmp_path: Path) -> None:
    made = agree(function, [drawn(n, 2, 4) for n in (3, 9, 2)], OPEN, tmp_path / "scan.renorm")
    assert isinstance(made, HostedModule)


def test_more_rounds_than_a_graph_holds() -> None:
    assert isinstance(agree(_recurrent, [drawn(9000, 2, 4)]), HostedModule)


def test_what_torch_takes_apart_is_one_program() -> None:
    def prefixes(m: Any, x: torch.Tensor) -> Any:
        pairs = associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (x, x + 1), 1, combine_mode="generic")
        return pairs[1]

    assert isinstance(agree(prefixes, [drawn(3, 6)]), CompiledModule)
    assert isinstance(agree(lambda m, x: torch.vmap(lambda a: m.layer(a) * a.sum())(x), [drawn(3, 4)]), CompiledModule)


def test_what_cannot_be_a_step_is_named() -> None:
    def counted(m: Any, x: torch.Tensor) -> Any:
        return while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, h * 2), (0, x))[1]

    with pytest.raises(UnsupportedOp, match="while_loop is given 0, which is no tensor"):
        agree(counted, [drawn(3, 4)])

    class Updating(Of):
        def __init__(self) -> None:
            super().__init__(_roots)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, *x: Any) -> Any:
            self.calls += 1
            return super().forward(*x)

    with pytest.raises(UnsupportedOp, match="updates buffers beside loops that are steps: while_loop"):
        renorm.compile(Updating(), args=(drawn(3, 4),))

    for inside in (False, True):  # which the loop is not to blame for

        def unread(m: Any, x: torch.Tensor, inside: bool = inside) -> Any:
            if not inside:
                return torch.special.i0(_roots(m, x))
            return while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, torch.special.i0(h)), (zero(), x))[1]

        with pytest.raises(UnsupportedOp, match="special_i0"):
            agree(unread, [drawn(3, 4)])
