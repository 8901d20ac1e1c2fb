"""Random networks of torch whose norms renorm replaces: whatever torch does with them, it gets what it got before."""

from __future__ import annotations

import copy
import io
import os
import pickle
import random
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from tests.stress._children import in_child
from tests.stress.attack import attack
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import renorm.torch
from renorm.driver.cache import SWITCH
from renorm.training.background import BACKGROUND

# of the largest value: some layers one after the other, each of which rounds and divides by what may be small
TOLERANCE = {torch.float64: 1e-9, torch.float32: 3e-4, torch.float16: 6e-2, torch.bfloat16: 0.4}
DTYPES = (torch.float32,) * 5 + (torch.float64, torch.bfloat16, torch.float16)
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
LAZY = (nn.LazyBatchNorm1d, nn.LazyBatchNorm1d, nn.LazyBatchNorm2d, nn.LazyBatchNorm3d)


class Residual(nn.Module):
    """x + inner(x)"""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class OwnNorm(nn.LayerNorm):
    """A subclass that computes something else."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Squares(nn.Module):
    """A parametrization."""

    def forward(self, w: Tensor) -> Tensor:
        return w * w + 0.5


class Case(NamedTuple):
    """model: with torch's layers; x: a batch for it, of which the first axis may have any extent."""

    model: nn.Module
    x: Tensor


def _norm(rng: random.Random, shape: Sequence[int]) -> nn.Module:
    axes, channels = len(shape) - 2, shape[1]
    eps, affine = rng.choice((1e-5, 1e-5, 1e-3, 0.1)), rng.random() < 0.8
    momentum: Any = rng.choice((0.1, 0.1, None, 0.5, 1.0, 0.0))
    tracks, last = rng.random() < 0.8, [*shape[rng.randint(1, len(shape) - 1) :]]
    kinds: list[Callable[[], nn.Module]] = [
        lambda: BATCH_NORMS[axes](channels, eps, momentum, affine, tracks),
        lambda: BATCH_NORMS[axes](channels, eps, momentum, affine, tracks),
        lambda: LAZY[axes](eps, momentum, affine, tracks),
        lambda: nn.GroupNorm(
            rng.choice([g for g in range(1, channels + 1) if channels % g == 0]), channels, eps, affine
        ),
        lambda: nn.LayerNorm(last, eps, affine, bias=rng.random() < 0.7),
        lambda: nn.RMSNorm(last, rng.choice((None, eps)), affine),
        lambda: OwnNorm(last, eps, affine),
    ]
    if axes:
        kinds += [lambda: INSTANCE_NORMS[axes - 1](channels, eps, momentum or 0.1, affine, tracks)] * 2
    made = rng.choice(kinds)()
    if rng.random() < 0.08 and type(getattr(made, "weight", None)) is nn.Parameter:
        parametrize.register_parametrization(made, "weight", Squares())
    return made


def _layer(rng: random.Random, shape: Sequence[int], depth: int) -> nn.Module:
    axes, channels = len(shape) - 2, shape[1]
    if depth and rng.random() < 0.25:
        return Residual(_chain(rng, shape, depth - 1))
    if rng.random() < 0.6:
        return _norm(rng, shape)
    if axes and rng.random() < 0.5:
        return CONVS[axes - 1](channels, channels, 3, padding=1, bias=rng.random() < 0.5)
    return rng.choice((nn.ReLU(), nn.ReLU(inplace=True), nn.Linear(shape[-1], shape[-1]), nn.Identity(), nn.Tanh()))


def _chain(rng: random.Random, shape: Sequence[int], depth: int) -> nn.Module:
    return nn.Sequential(*[_layer(rng, shape, depth) for _ in range(rng.randint(1, 3))])


def _case(rng: random.Random, may_be_lazy: bool) -> Case:
    """Few extents, so that kernels are compiled for few shapes. may_be_lazy: some layers may be without parameters."""
    shape = [rng.choice((1, 2, 3, 3)), rng.choice((2, 4)), *([5, 4, 3][: rng.randint(0, 3)])]
    torch.manual_seed(rng.randrange(1 << 30))
    model, x = nn.Sequential(nn.Tanh(), _chain(rng, shape, 2), _norm(rng, shape)), torch.randn(shape) * 2 + 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if rng.random() < 0.9 or not may_be_lazy:
            with suppress(ValueError):
                model.eval()(x)  # lazy ones get their parameters
    for p in model.parameters():
        if not is_lazy(p):
            nn.init.normal_(p, 0.5, 1)
    model.train(rng.random() < 0.7)
    for m in model.modules():
        if rng.random() < 0.1:
            m.train(not m.training)
        if rng.random() < 0.1 and not any(map(is_lazy, m.parameters())):
            m.requires_grad_(False)
    dtype = rng.choice(DTYPES)
    return Case(model.to(dtype), x.to(dtype if rng.random() < 0.95 else rng.choice(DTYPES)))


Result = list[Any]


def _step(m: nn.Module, x: Tensor, forward: Any = None) -> Result:
    """All that a step of training makes."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    m.zero_grad()
    y = (forward or m)(x)
    y.backward(torch.sin(torch.arange(y.numel(), dtype=torch.float64)).reshape(y.shape).to(y.dtype))
    return [y, x.grad, *(p.grad for p in m.parameters())]


def _autocast(m: nn.Module, x: Tensor) -> Result:
    with torch.autocast("cpu", torch.bfloat16):
        return [t.bfloat16() if isinstance(t, Tensor) else t for t in _step(m, x)]


def _quietly(m: nn.Module, x: Tensor) -> Result:
    with torch.no_grad():
        y = m(x)
    with torch.inference_mode():
        return [y, m(x).clone()]


def _twice(m: nn.Module, x: Tensor) -> Result:
    x = x.detach().clone().requires_grad_()
    (first,) = torch.autograd.grad(m(x).pow(3).sum(), x, create_graph=True)
    return [first, *torch.autograd.grad(first.pow(2).sum(), x, allow_unused=True)]


def _in_batches(m: nn.Module, x: Tensor) -> Result:
    x = x.detach().clone().requires_grad_()
    y = m(x)
    dy = torch.stack([torch.ones_like(y), y.detach()])
    return list(torch.autograd.grad(y, [x], dy, is_grads_batched=True, retain_graph=True))


def _samples(m: nn.Module, x: Tensor) -> Result:
    weights = {name: p.detach() for name, p in m.named_parameters()}

    def loss(weights: Any, sample: Tensor) -> Tensor:
        return functional_call(m, weights, (sample[None],)).pow(2).sum()

    m.eval()  # torch refuses what changes buffers
    found: Any = vmap(grad(loss), (None, 0))(weights, x)
    return list(found.values())


def _tangents(m: nn.Module, x: Tensor) -> Result:
    return list(jvp(m.eval(), (x,), (torch.cos(x),)))


def _traced(m: nn.Module, x: Tensor, mode: Any) -> Result:
    def gradient(x: Tensor) -> Tensor:
        return torch.autograd.grad(m(x).pow(2).sum(), x)[0]

    found = Result()
    for f in (m, gradient):
        graph = make_fx(f, tracing_mode=mode, _allow_non_fake_inputs=True)(x.detach().requires_grad_())
        found.append(graph((2 * x + 1).detach().requires_grad_()))
    return found


def _compiled(m: nn.Module, x: Tensor, backend: str) -> Result:
    torch._dynamo.reset()
    return _step(m, x, torch.compile(m, backend=backend))


class Seen(TorchDispatchMode):
    """Counts operations."""

    norms = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.norms += "norm" in str(func)
        return func(*args, **(kwargs or {}))


def _watched(m: nn.Module, x: Tensor) -> Result:
    with Seen() as mode:
        found = _step(m, x)
    return [*found, mode.norms]


def _loaded(m: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(m, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def _restored(m: nn.Module) -> nn.Module:
    fresh = copy.deepcopy(m)
    for t in (*fresh.parameters(), *fresh.buffers()):
        t.detach().zero_()
    fresh.load_state_dict(m.state_dict())
    return fresh


def _back(m: nn.Module) -> nn.Module:
    renorm.torch.restore(m)
    return m


def _edited(m: nn.Module, x: Tensor) -> Result:
    """What torch notices of tensors that change between forward and backward."""
    x = x.detach().clone().requires_grad_()
    y = m(x * 1)
    with torch.no_grad():
        for p in m.parameters():
            p.add_(1)
    y.sum().backward()
    return [y, x.grad]


def _hooked(m: nn.Module, x: Tensor) -> Result:
    seen = list[int]()
    for each in m.modules():
        each.register_forward_hook(lambda *_: seen.append(1))
        each.register_full_backward_hook(lambda *_: seen.append(2))
    return [*_step(m, x), *seen]


def _functional(m: nn.Module, x: Tensor) -> Result:
    other = {name: (p.detach() * 2).requires_grad_() for name, p in m.named_parameters()}
    y = functional_call(m, other, (x,))
    return [y, *torch.autograd.grad(y.pow(2).sum(), list(other.values()), allow_unused=True)] if other else [y]


def _deterministic(m: nn.Module, x: Tensor) -> Result:
    try:
        torch.use_deterministic_algorithms(True)
        with torch.autograd.detect_anomaly(check_nan=False):
            return _step(m, x)
    finally:
        torch.use_deterministic_algorithms(False)


def _packed(m: nn.Module, x: Tensor) -> Result:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        return _step(m, x)


def _elsewhere(m: nn.Module, x: Tensor) -> Result:
    try:
        torch.set_default_device("meta")
        torch.set_default_dtype(torch.float64)
        return _quietly(m, x)
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


MODES: dict[str, Callable[[nn.Module, Tensor], Result]] = {
    "a step": _step,
    "two steps": lambda m, x: _step(m, x) + _step(m, x * x),
    "autocast": _autocast,
    "no gradients": _quietly,
    "second derivatives": _twice,
    "gradients in batches": _in_batches,
    "gradients of samples": _samples,
    "tangents": _tangents,
    "make_fx": partial(_traced, mode="real"),
    "make_fx fake": partial(_traced, mode="fake"),
    "torch.compile": partial(_compiled, backend="eager"),
    "torch.compile aot": partial(_compiled, backend="aot_eager"),
    "a dispatch mode": _watched,
    "a copy": lambda m, x: _step(copy.deepcopy(m), x) + _step(m, x),
    "pickle": lambda m, x: _step(pickle.loads(pickle.dumps(m)), x),
    "a file": lambda m, x: _step(_loaded(m), x),
    "state_dict": lambda m, x: _step(_restored(m), x),
    "restore": lambda m, x: _step(_back(m), x),
    "checkpoint": lambda m, x: _step(m, x, lambda z: checkpoint(m, z * 1, use_reentrant=False)),
    "no batch": lambda m, x: _step(m, x[:0]),
    "one sample": lambda m, x: _step(m, x[:1]),
    "another shape": lambda m, x: _step(m, x[..., :-1]),
    "fewer axes": lambda m, x: _step(m, x[0]),
    "strides": lambda m, x: _step(m, torch.stack([x, x], -1)[..., 0]) + _step(m, x.mT.contiguous().mT),
    "expanded": lambda m, x: [m(x[:1].expand(x.shape))],
    "channels last": lambda m, x: _step(m, x.movedim(1, -1).contiguous().movedim(-1, 1)),
    "no gradient of x": lambda m, x: [m(x), m(x).requires_grad],
    "parameters change": _edited,
    "make_fx symbolic": partial(_traced, mode="symbolic"),
    "in place on results": lambda m, x: _step(m, x, lambda z: m(z).mul_(2).relu_()),
    "hooks": _hooked,
    "other parameters": _functional,
    "a jacobian": lambda m, x: [torch.func.jacrev(m.eval())(x[:1])],
    "vectorized": lambda m, x: [vmap(lambda z: m.eval()(z))(torch.stack([x, 2 * x]))],
    "torch.export": lambda m, x: [torch.export.export(m.eval(), (x,)).module()(2 * x)],
    "deterministic": _deterministic,
    "saved elsewhere": _packed,
    "a default device": _elsewhere,
}
# in a transform torch itself may crash where they get their parameters
MAY_BE_LAZY = {"a step", "two steps", "autocast", "no gradients", "restore", "hooks", "in place on results"}


def _outcome(mode: Callable[[nn.Module, Tensor], Result], m: nn.Module, x: Tensor) -> Result | Exception:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = mode(m, x.clone(memory_format=torch.preserve_format))
        except Exception as error:
            return error
    return [*found, *(b for b in m.buffers() if not is_lazy(b))]


def _compare(found: Any, expected: Any, *exact: Any) -> None:
    """exact: what torch gives in float64, and of an x that is rounded otherwise: what it is off may be seen tenfold."""
    if isinstance(expected, Exception):
        assert isinstance(found, type(expected)), (found, expected)
        return
    assert not isinstance(found, Exception), found
    assert len(found) == len(expected)
    for k, (a, b) in enumerate(zip(found, expected)):
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
            assert type(a) is type(b), (k, a, b)
            assert a == b, (k, a, b)
            continue
        said = f"result {k}: {a.dtype}{list(a.shape)}"
        assert (a.shape, a.dtype, a.requires_grad) == (b.shape, b.dtype, b.requires_grad), (said, b.dtype, b.shape)
        if not a.is_floating_point():
            assert torch.equal(a, b), said
        elif a.numel():
            p, q, *others = (_finite(t) for t in (a, b, *(e[k] for e in exact if not isinstance(e, Exception))))
            assert torch.equal(a.isfinite(), b.isfinite()), (said, a, b)
            largest = max(1.0, q.abs().max().item())
            bound = TOLERANCE[a.dtype] * largest
            bound += 10 * sum((q - other).abs().max().item() for other in others if other.shape == q.shape)
            off = (p - q).abs().max().item()
            assert off <= bound, f"{said}: off by {off:g} of {largest:g}, at most {bound:g}"


def _finite(t: Tensor) -> Tensor:
    return t.detach().double().nan_to_num(0, 0, 0)


@attack(limit_s=120, in_gate=4)
def modes(seed: int) -> None:
    """A network whose norms are replaced gives what it gave: results, gradients, running statistics, errors."""
    rng = random.Random(-1 - seed)
    torch.set_num_threads(rng.choice((1, 2)))
    renorm.torch.set_background(False)
    name = rng.choice(list(MODES))
    # lazy ones cannot be copied
    (theirs, x), (ours, _), *others = (_case(random.Random(seed), name in MAY_BE_LAZY) for _ in range(4))
    rows = renorm.torch.replace_norms(ours)
    if rng.random() < 0.1:
        renorm.torch.SyncBatchNorm.convert_sync_batchnorm(ours)
    expected = _outcome(MODES[name], theirs, x)
    found = _outcome(MODES[name], ours, x)
    wide, off = x.double(), torch.randn(x.shape, dtype=torch.float64) * torch.finfo(x.dtype).eps
    given = (others[0].model.double(), wide), (others[1].model, (wide * (1 + 4 * off)).to(x.dtype))
    exact = [_outcome(MODES[name], *each) for each in given]
    try:
        _compare(found, expected, *exact)
    except AssertionError as error:
        raise AssertionError(f"{name}, {x.dtype}{list(x.shape)}: {error}\n{rows}\n{theirs}") from (
            found if isinstance(found, Exception) else None
        )


def _plain(rng: random.Random) -> nn.Module:
    """A layer whose calls in several threads do not disturb each other."""
    made: nn.Module = rng.choice(
        (
            nn.GroupNorm(2, 4),
            nn.LayerNorm(6),
            nn.RMSNorm(6),
            nn.InstanceNorm1d(4, affine=True),
            nn.BatchNorm1d(4).eval(),
        )
    )
    for p in made.parameters():
        nn.init.normal_(p, 0.5, 1)
    return made


def _called(theirs: nn.Module, ours: nn.Module, rng: random.Random) -> None:
    x = torch.randn(rng.randint(1, 3), 4, 6, generator=torch.Generator().manual_seed(rng.randrange(1 << 30)))
    if rng.random() < 0.3 or not torch.is_grad_enabled():
        with torch.no_grad():
            _compare([ours(x)], [theirs(x)])
        return
    found, expected = [x.clone().requires_grad_() for _ in range(2)]
    for m, t in ((ours, found), (theirs, expected)):
        y = m(t)
        y.backward(torch.cos(y.detach()))
    _compare([found.grad], [expected.grad])


@attack(limit_s=120, in_gate=1)
def background(seed: int) -> None:
    """While kernels are compiled in the background threads call their layers in other shapes, replace and delete them,
    the process forks, and the one that compiles may die: all results are right."""
    rng = random.Random(seed)
    os.environ[SWITCH] = "0"  # so that compiling takes its time
    renorm.torch.set_background(True)
    torch.set_num_threads(rng.choice((1, 2)))
    layers, stop, errors = list[tuple[nn.Module, nn.Module]](), threading.Event(), list[BaseException]()

    def fresh() -> tuple[nn.Module, nn.Module]:
        theirs = _plain(rng)
        ours = copy.deepcopy(theirs)
        assert all(r.was != r.now for r in renorm.torch.replace_norms(ours))
        return theirs, ours

    def work(own: random.Random) -> None:
        try:
            while not stop.is_set():
                _called(*own.choice(layers), own)
                if own.random() < 0.05:
                    layers[own.randrange(len(layers))] = fresh()
        except BaseException as error:
            errors.append(error)

    def in_the_child(seed: int) -> None:
        own = random.Random(seed)
        torch.set_num_threads(1)  # torch has no others there
        with torch.no_grad():  # nor a backward pass
            for _ in range(10):
                _called(*own.choice(layers), own)

    layers += [fresh() for _ in range(4)]
    threads = [threading.Thread(target=work, args=(random.Random(rng.random()),), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            time.sleep(rng.random() * 0.2)
            what = rng.random()
            if what < 0.5:
                in_child(partial(in_the_child, rng.randrange(1 << 30)), 60)
            elif what < 0.6 and (process := BACKGROUND._process) is not None:
                process.kill()
            else:
                renorm.torch.wait(0.3 * rng.random())
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors, errors
    assert renorm.torch.wait(60)
    for pair in layers:
        _called(*pair, rng)
