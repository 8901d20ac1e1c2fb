"""Random networks of torch that are trained through torch.compile(backend="renorm")."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from tests.stress.attack import attack
from torch import Tensor, nn

from renorm.torch import recomputation, training_graphs

ACTIVATIONS = (F.relu, F.gelu, F.silu, torch.tanh, torch.sigmoid, F.hardswish, F.elu, F.leaky_relu, F.mish, F.softplus)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
LEAST = 4  # values of a slice: gradients of two cancel to what eps leaves of them

Shape = tuple[int, ...]


class Step(NamedTuple):
    """One result made of the last one, x, and of those that were kept, the oldest first. run: of both."""

    text: str
    run: Callable[[Tensor, list[Tensor]], Tensor]
    shape: Shape


class Network(nn.Module):
    """Steps one after the other. Axis 0 is the batch only until axes are permuted: norms take axis 1 as channels."""

    def __init__(self, rng: random.Random, shape: Shape):
        super().__init__()
        self.layers, self.steps, self.kept = nn.ModuleList(), list[Step](), list[Shape]()
        count = rng.randint(4, 12)
        while len(self.steps) < count:
            if step := rng.choice(KINDS)(self, rng, shape):
                self.steps.append(step)
                shape = step.shape

    def layer(self, made: nn.Module, shape: Shape) -> Step:
        self.layers.append(made)
        return Step(repr(made), lambda x, _: made(x), shape)

    def forward(self, x: Tensor) -> Tensor:
        kept = list[Tensor]()
        for step in self.steps:
            x = step.run(x, kept)
        return x


def _activation(n: Network, rng: random.Random, s: Shape) -> Step:
    f = rng.choice(ACTIVATIONS)
    return Step(f.__name__, lambda x, _: f(x), s)


def _square(n: Network, rng: random.Random, s: Shape) -> Step:
    return Step("x * x / 2 + x", lambda x, _: x * x * 0.5 + x, s)


def _batch_norm(n: Network, rng: random.Random, s: Shape) -> Step | None:
    if len(s) < 2 or s[0] * prod(s[2:]) < LEAST:
        return None
    momentum, affine, tracks = rng.choice((0.1, None)), rng.random() < 0.8, rng.random() < 0.8
    return n.layer(BATCH_NORMS[len(s) - 2](s[1], momentum=momentum, affine=affine, track_running_stats=tracks), s)


def _instance_norm(n: Network, rng: random.Random, s: Shape) -> Step | None:
    if len(s) < 3 or prod(s[2:]) < LEAST:
        return None
    affine, tracks = rng.random() < 0.6, rng.random() < 0.3
    return n.layer(INSTANCE_NORMS[len(s) - 3](s[1], affine=affine, track_running_stats=tracks), s)


def _group_norm(n: Network, rng: random.Random, s: Shape) -> Step | None:
    channels = s[1] if len(s) > 1 else 0
    groups = [g for g in range(1, channels + 1) if channels % g == 0 and channels // g * prod(s[2:]) >= LEAST]
    return n.layer(nn.GroupNorm(rng.choice(groups), channels, affine=rng.random() < 0.8), s) if groups else None


def _layer_norm(n: Network, rng: random.Random, s: Shape) -> Step | None:
    axes, affine, has_bias = rng.randint(1, min(2, len(s))), rng.random() < 0.8, rng.random() < 0.7
    if prod(s[-axes:]) < LEAST:
        return None
    return n.layer(nn.LayerNorm([*s[-axes:]], elementwise_affine=affine, bias=has_bias), s)


def _rms_norm(n: Network, rng: random.Random, s: Shape) -> Step:
    return n.layer(nn.RMSNorm(s[-1], eps=1e-5), s)


def _less_mean(n: Network, rng: random.Random, s: Shape) -> Step:
    axis = rng.randrange(len(s))
    return Step(f"less its mean over {axis}", lambda x, _: x - x.mean(axis, keepdim=True), s)


def _gate(n: Network, rng: random.Random, s: Shape) -> Step:
    axis = rng.randrange(len(s))
    return Step(f"gate of the mean over {axis}", lambda x, _: x * torch.sigmoid(x.mean(axis, keepdim=True)), s)


def _linear(n: Network, rng: random.Random, s: Shape) -> Step:
    width = rng.choice((3, 6, 8))
    return n.layer(nn.Linear(s[-1], width), (*s[:-1], width))


def _convolution(n: Network, rng: random.Random, s: Shape) -> Step | None:
    if len(s) not in (3, 4):
        return None
    channels, has_bias = rng.choice((4, 6)), rng.random() < 0.5
    kind = nn.Conv1d if len(s) == 3 else nn.Conv2d
    return n.layer(kind(s[1], channels, 3, padding=1, bias=has_bias), (s[0], channels, *s[2:]))


def _permuted(n: Network, rng: random.Random, s: Shape) -> Step:
    axes = rng.sample(range(len(s)), len(s))
    return Step(f"permute {axes}", lambda x, _: x.permute(axes), tuple(s[a] for a in axes))


def _flat(n: Network, rng: random.Random, s: Shape) -> Step | None:
    if len(s) < 3:
        return None
    a = rng.randrange(len(s) - 1)
    return Step(f"flatten {a}", lambda x, _: x.flatten(a, a + 1), (*s[:a], s[a] * s[a + 1], *s[a + 2 :]))


def _split(n: Network, rng: random.Random, s: Shape) -> Step | None:
    a = rng.randrange(len(s))
    parts = [p for p in range(2, s[a]) if s[a] % p == 0] if len(s) < 5 else []
    if not parts:
        return None
    p = rng.choice(parts)
    return Step(f"unflatten {a} by {p}", lambda x, _: x.unflatten(a, (p, -1)), (*s[:a], p, s[a] // p, *s[a + 1 :]))


def _concatenated(n: Network, rng: random.Random, s: Shape) -> Step | None:
    a = rng.randrange(len(s))
    if s[a] > 12:
        return None
    return Step(f"cat at {a}", lambda x, _: torch.cat([x, x.relu() * 2], a), (*s[:a], 2 * s[a], *s[a + 1 :]))


def _halves(n: Network, rng: random.Random, s: Shape) -> Step | None:
    a = rng.randrange(len(s))
    if s[a] < 4:
        return None
    h, shape = s[a] // 2, (*s[:a], s[a] // 2, *s[a + 1 :])
    return Step(f"sum of halves of {a}", lambda x, _: x.narrow(a, 0, h) + x.narrow(a, s[a] - h, h), shape)


def _keep(n: Network, rng: random.Random, s: Shape) -> Step:
    def run(x: Tensor, kept: list[Tensor]) -> Tensor:
        kept.append(x)
        return x

    n.kept.append(s)
    return Step("keep", run, s)


def _residual(n: Network, rng: random.Random, s: Shape) -> Step | None:
    """Adds what was kept, its axes permuted where only that makes it fit."""
    fitting = [k for k, t in enumerate(n.kept) if sorted(t) == sorted(s)]
    if not fitting:
        return None
    k = rng.choice(fitting)
    axes = list[int]()
    for extent in s:
        axes.append(next(a for a, e in enumerate(n.kept[k]) if e == extent and a not in axes))
    return Step(f"add {k}, permuted {axes}", lambda x, kept: x + kept[k].permute(axes), s)


NORMS = (_batch_norm, _batch_norm, _layer_norm, _group_norm, _rms_norm, _instance_norm)
OTHERS = (_square, _less_mean, _gate, _linear, _convolution, _flat, _split, _concatenated, _halves)
KINDS = (*NORMS, *OTHERS, _activation, _activation, _permuted, _permuted, _keep, _keep, _residual, _residual)


def _drawn(seed: int, dtype: torch.dtype) -> tuple[Network, Tensor]:
    """A network in training and a batch for it, the same numbers in every dtype."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    shape = (rng.choice((2, 3, 4)), *(rng.choice((4, 5, 6, 8)) for _ in range(rng.randint(1, 3))))
    x = torch.randn(shape)
    if len(shape) == 4 and rng.random() < 0.3:
        x = x.contiguous(memory_format=torch.channels_last)
    return Network(rng, shape).train().to(dtype), x.to(dtype)


def _step(n: Network, x: Tensor, forward: Callable[[Tensor], Tensor]) -> list[Tensor | None]:
    """The result, the gradients of x and of the parameters, and the buffers after a step."""
    x = x.clone().requires_grad_()
    y = forward(x)
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).sin().reshape(y.shape)
    (y * weights.to(y.dtype)).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in n.parameters()), *n.buffers()]


def _strides(t: Tensor) -> list[int]:
    """Those that say where elements lie."""
    return [stride for stride, extent in zip(t.stride(), t.shape, strict=True) if extent > 1]


def _compare(found: Sequence[Tensor | None], eager: Sequence[Tensor | None], exact: Sequence[Tensor | None]) -> None:
    """eager: in float32, whose distance to `exact`, in float64, says how far rounding goes in this network."""
    for k, (a, b, c) in enumerate(zip(found, eager, exact, strict=True)):
        assert (a is None) == (b is None), (k, a, b)
        if a is None or b is None or c is None:
            continue
        assert (a.shape, a.dtype) == (b.shape, b.dtype), k
        if not a.is_floating_point():
            assert torch.equal(a, b), (k, a, b)
            continue
        largest = c.abs().max().item() + 1e-6
        off, theirs = ((t.double() - c).abs().max().item() / largest for t in (a, b))
        assert off <= 8 * theirs + 2e-4, (
            f"result {k}, {list(a.shape)}: off by {off:.2g} of the largest, eager {theirs:.2g}"
        )
    assert found[0] is not None
    assert eager[0] is not None
    assert _strides(found[0]) == _strides(eager[0]), (found[0].stride(), eager[0].stride())


def _attempt(seed: int, is_open: bool | None, least: int | None) -> None:
    eager, exact = (_step(n, x, n) for n, x in (_drawn(seed, torch.float32), _drawn(seed, torch.float64)))
    n, x = _drawn(seed, torch.float32)
    torch.set_num_threads(1)
    torch._dynamo.reset()
    with patch.object(recomputation, "LEAST", least or recomputation.LEAST), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with patch.object(training_graphs, "LEAST", least or training_graphs.LEAST):
            try:
                _compare(_step(n, x, torch.compile(n, backend="renorm", dynamic=is_open)), eager, exact)
            except Exception as error:
                steps = "\n".join(f"{step.text} -> {list(step.shape)}" for step in n.steps)
                raise AssertionError(f"x is {list(x.shape)}\n{steps}\n{error}") from error


@attack(limit_s=300, in_gate=1)
def small_parts(seed: int) -> None:
    """Parts of any size are renorm's: values, gradients, buffers and strides of a step are those of eager PyTorch."""
    _attempt(seed, None, 1)


@attack(limit_s=300, in_gate=1)
def open_extents(seed: int) -> None:
    """With dynamic=True, too, a step is that of eager PyTorch."""
    _attempt(seed, True, 1)
