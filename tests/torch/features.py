"""What torch does with a layer, one function for each row of the table in docs/training-torch.md.

A feature is given a layer and x, and gives tensors that are those of torch's layer, and errors as text.
"""

from __future__ import annotations

import copy
import functools
import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrize, prune
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

Tensor = Any
Layer = Any
Feature = Callable[[Layer, Tensor], list[Any]]
FEATURES: dict[str, Feature] = {}


def feature(name: str) -> Callable[[Feature], Feature]:
    def declare(function: Feature) -> Feature:
        assert name not in FEATURES
        FEATURES[name] = function
        return function

    return declare


def step(layer: Layer, x: Tensor, forward: Any = None) -> list[Tensor]:
    """All that a step of training makes."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    layer.zero_grad()
    y = (layer if forward is None else forward)(x)
    y.backward(torch.sin(torch.arange(y.numel(), dtype=torch.float64, device="cpu")).reshape(y.shape).to(y.dtype))
    return [y.detach(), x.grad, *[p.grad for p in layer.parameters()], *layer.buffers()]


FEATURES["a step of training"] = step
FEATURES["`eval()`"] = lambda m, x: step(m.eval(), x)
FEATURES["`channels_last`"] = lambda m, x: step(m, x.to(memory_format=torch.channels_last))
FEATURES["views: strided, expanded"] = lambda m, x: [
    *step(m, torch.stack([x, x], -1)[..., 0]),
    *step(m, x[:1].expand(x.shape)),
]
FEATURES["views that negate or conjugate"] = lambda m, x: [m(torch._neg_view(x)), m(torch.complex(x, x).conj().imag)]  # pyright: ignore[reportPrivateImportUsage]
FEATURES["`float16`, `bfloat16`"] = lambda m, x: step(m.bfloat16(), x.bfloat16())
FEATURES["`copy.deepcopy`, `pickle`, `torch.save`"] = lambda m, x: [
    *step(copy.deepcopy(m), x),
    *step(pickle.loads(pickle.dumps(m)), x),
    *step(_loaded(m), x),
]
FEATURES["`load_state_dict(assign=True)`, `to_empty`"] = lambda m, x: step(_assigned(m), x)
FEATURES["`share_memory()`"] = lambda m, x: step(m.share_memory(), x.share_memory_())
FEATURES["`nn.DataParallel`"] = lambda m, x: step(m, x, nn.DataParallel(m))
FEATURES["`checkpoint`, reentrant or not"] = lambda m, x: [
    *step(m, x, lambda z: checkpoint(m, z * 1, use_reentrant=True)),
    *step(m, x, lambda z: checkpoint(m, z * 1, use_reentrant=False)),
]
FEATURES["`nn.utils.parametrize`, `prune`"] = lambda m, x: step(_parametrized(m), x)
FEATURES["`make_fx`, in every mode"] = lambda m, x: _traced(m, x)
FEATURES["`torch.func`: `grad`, `vmap`, `jvp`, `jacrev`"] = lambda m, x: _transformed(m.eval(), x)
FEATURES["`jacobian(vectorize=True)`, `is_grads_batched`"] = lambda m, x: _in_batches(m, x)
FEATURES["`torch.compile(fullgraph=True)`"] = lambda m, x: _compiled(m, x)
FEATURES["sizes that depend on data in `torch.compile`"] = lambda m, x: _compiled_open(m, x)
FEATURES["`torch.export`"] = lambda m, x: [torch.export.export(m.eval(), (x,)).module()(2 * x)]
FEATURES["`torch.jit.trace`"] = lambda m, x: [torch.jit.trace(m.eval(), x, check_trace=False)(2 * x)]  # pyright: ignore[reportCallIssue]
FEATURES["tensors of other devices, dtypes and layouts"] = lambda m, x: _elsewhere(m, x)
FEATURES["an epsilon that is negative, infinite or no number"] = lambda m, x: _any_epsilon(m, 5 * x)
FEATURES["subclasses of `Tensor` and `Parameter`, `DTensor`"] = lambda m, x: _subclassed(m, x)


@feature("`no_grad`, `inference_mode`")
def _(m: Layer, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        y = m(x)
    with torch.inference_mode():
        z = m(x)
    return [y, z.clone(), *m.buffers()]


@feature("`autocast`")
def _(m: Layer, x: Tensor) -> list[Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        return [*step(m, x), *step(m, x.bfloat16())]


@feature("another default device or dtype")
def _(m: Layer, x: Tensor) -> list[Tensor]:
    narrow, found = copy.deepcopy(m).bfloat16(), list[Tensor]()
    try:
        torch.set_default_device("meta")
        torch.set_default_dtype(torch.float64)
        found += [*step(m, x), *step(narrow, x.bfloat16())]
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    return found


@feature("hooks of modules and tensors")
def _(m: Layer, x: Tensor) -> list[Tensor]:
    seen = list[float]()
    m.register_forward_hook(lambda *_: seen.append(1))
    m.register_full_backward_hook(lambda *_: seen.append(2))
    found = step(m, x, lambda z: _doubling(m(z)))
    return [*found, torch.tensor(seen)]


@feature("saved tensor hooks (`save_on_cpu`)")
def _(m: Layer, x: Tensor) -> list[Tensor]:
    packed = list[int]()

    def pack(t: Tensor) -> Tensor:
        packed.append(t.numel())
        return t.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        found = step(m, x)
    assert x.numel() in packed
    return found


@feature("what was saved is modified in place")
def _(m: Layer, x: Tensor) -> list[Tensor]:
    z = x.clone().requires_grad_() * 1
    y = m(z)
    with torch.no_grad():
        z.add_(1)
    try:
        y.sum().backward()
    except RuntimeError as error:
        return [torch.tensor("modified by an inplace operation" in str(error))]
    return []


@feature("operations in place on results")
def _(m: Layer, x: Tensor) -> list[Tensor]:
    return step(m, x, lambda z: m(z).mul_(2).relu_())


@feature("`resize_` of results and of storages")
def _(m: Layer, x: Tensor) -> list[Tensor]:
    x.requires_grad_()
    y = m(x)
    y.backward(dy := torch.ones_like(y))
    tensors = [x, y, dy, x.grad, *m.parameters(), *[p.grad for p in m.parameters()], *m.buffers()]
    large = m.eval()(torch.ones(1 << 21 // x[0].numel() + 1, *x.shape[1:])).detach()
    large.resize_(3)
    return [y.detach().resize_(7)[:3], torch.tensor([t.untyped_storage().resizable() for t in (*tensors, large)])]


@feature("anomaly mode, the profiler, deterministic algorithms")
def _(m: Layer, x: Tensor) -> list[Tensor]:
    try:
        torch.use_deterministic_algorithms(True)
        with torch.autograd.detect_anomaly(), torch.profiler.profile():
            return step(m, x)
    finally:
        torch.use_deterministic_algorithms(False)


@feature("parameters that are no leaves, or frozen")
def _(m: Layer, x: Tensor) -> list[Tensor]:
    w = torch.arange(1.0, 1 + m.weight.numel()).reshape(m.weight.shape).requires_grad_()
    y = torch.func.functional_call(m, {"weight": w * 3}, (x,))
    return list(torch.autograd.grad(y.pow(2).sum(), w)) + step(m.requires_grad_(False), x)[:2]


@feature("`AveragedModel`, `update_bn`")
def _(m: Layer, x: Tensor) -> list[Tensor]:
    mean = AveragedModel(nn.Sequential(m))
    mean.update_parameters(nn.Sequential(m))
    update_bn([x, 2 * x, x + 1], mean)
    return [mean.eval()(x), *mean.buffers()]


@feature("`retain_graph`, gradient edges")
def _(m: Layer, x: Tensor) -> list[Tensor]:
    x.requires_grad_()
    y = m(x)
    y.pow(2).sum().backward(retain_graph=True)
    edge = torch.autograd.graph.get_gradient_edge(y)
    return [x.grad, *torch.autograd.grad(edge, x, torch.ones_like(y))]


@feature("gradients of gradients")
def _(m: Layer, x: Tensor) -> list[Tensor]:
    x.requires_grad_()
    y = m(x)
    (first,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
    return [first.detach(), *torch.autograd.grad(first.pow(2).sum(), x)]


@feature("`TorchDispatchMode`, `FlopCounterMode`")
def _(m: Layer, x: Tensor) -> list[Tensor]:
    seen = _Seen()
    with seen, FlopCounterMode(display=False):
        found = step(m, x)
    return [*found, torch.tensor(sum("norm" in name for name in seen.names))]


@feature("a mode round the backward pass alone")
def _(m: Layer, x: Tensor) -> list[Tensor]:
    x.requires_grad_()
    y, seen = m(x), _Seen()
    with seen:
        y.sum().backward()
    return [x.grad, torch.tensor(any("norm" in name for name in seen.names))]


@feature("`TorchFunctionMode`")
def _(m: Layer, x: Tensor) -> list[Tensor]:
    class Mode(TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += "norm" in getattr(func, "__name__", "")
            return func(*args, **(kwargs or {}))

    with Mode() as mode:
        found = step(m, x)
    return [*found, torch.tensor(mode.seen)]


@feature("`FakeTensorMode`, the device `meta`")
def _(m: Layer, x: Tensor) -> list[Tensor]:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = [m(mode.from_tensor(x)), m(x)]
    assert all(type(y).__name__ == "FakeTensor" for y in fake)
    y = copy.deepcopy(m).to("meta")(x.to("meta"))
    assert y.is_meta
    return [torch.zeros(t.shape) for t in (*fake, y)]


@feature("selective `checkpoint`")
def _(m: Layer, x: Tensor) -> list[Tensor]:
    def policy(*_: Any, **__: Any) -> Any:
        return CheckpointPolicy.PREFER_RECOMPUTE

    made = functools.partial(create_selective_checkpoint_contexts, policy)
    found = step(m, x, lambda z: checkpoint(m, z * 1, use_reentrant=False, context_fn=made))
    return [t for t in found if t.is_floating_point()]  # torch counts the batch twice


@feature("forward mode (`forward_ad`)")
def _(m: Layer, x: Tensor) -> list[Tensor]:
    with forward_ad.dual_level():
        return list(forward_ad.unpack_dual(m.eval()(forward_ad.make_dual(x, x * x))))


@feature("`torch.fx.symbolic_trace`")
def _(m: Layer, x: Tensor) -> list[Tensor]:
    traced = torch.fx.symbolic_trace(nn.Sequential(m, nn.ReLU()))
    assert [n.op for n in traced.graph.nodes] == ["placeholder", "call_module", "call_module", "output"]
    return step(m, x, traced)


class _Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names = list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def _doubling(y: Tensor) -> Tensor:
    y.register_hook(lambda g: g * 2)
    return y


def _loaded(m: Layer) -> Layer:
    file = io.BytesIO()
    torch.save(m, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def _assigned(m: Layer) -> Layer:
    made = copy.deepcopy(m).to("meta").to_empty(device="cpu")
    made.load_state_dict(m.state_dict(), assign=True)
    return made


def _parametrized(m: Layer) -> Layer:
    class Exp(nn.Module):
        def forward(self, w: Tensor) -> Tensor:
            return w.exp()

    parametrize.register_parametrization(m, "weight", Exp())
    if getattr(m, "bias", None) is not None:
        prune.l1_unstructured(m, "bias", amount=2)
        return m
    return m


def _traced(m: Layer, x: Tensor) -> list[Tensor]:
    state, found = dict(m.state_dict()), list[Tensor]()

    def call(x: Tensor, state: Any) -> Tensor:
        return torch.func.functional_call(m, state, (x,))

    def gradient(x: Tensor, state: Any) -> Tensor:
        return torch.autograd.grad(call(x, state).pow(2).sum(), x)[0]

    for mode in ("real", "fake", "symbolic"):
        for traced in (call, gradient):
            graph = make_fx(traced, tracing_mode=mode)(x.detach().requires_grad_(), state)
            found.append(graph((2 * x + 1).detach().requires_grad_(), state))
    return [*found, make_fx(call, pre_dispatch=True)(x, state)(2 * x + 1, state)]


def _transformed(m: Layer, x: Tensor) -> list[Tensor]:
    weights = {name: p.detach() for name, p in m.named_parameters()}

    def loss(weights: Any, sample: Tensor) -> Tensor:
        return torch.func.functional_call(m, weights, (sample[None],)).pow(2).sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, x)
    return [*per_sample.values(), *torch.func.jvp(m, (x,), (x * x,)), torch.func.jacrev(m)(x[:1])]


def _in_batches(m: Layer, x: Tensor) -> list[Tensor]:
    x.requires_grad_()
    y = m(x)
    dy = torch.stack([torch.ones_like(y), y.detach()])
    found = [*torch.autograd.grad(y, [x, *m.parameters()], dy, is_grads_batched=True, retain_graph=True)]
    found.append(torch.func.vmap(lambda v: torch.autograd.grad(y, x, v, retain_graph=True)[0])(dy))
    for strategy in ("reverse-mode", "forward-mode"):
        found.append(torch.autograd.functional.jacobian(m, x[:2].detach(), vectorize=True, strategy=strategy))
    return found


def _compiled(m: Layer, x: Tensor) -> list[Tensor]:
    torch._dynamo.reset()
    return step(m, x, torch.compile(m, backend="aot_eager", fullgraph=True))


def _compiled_open(m: Layer, x: Tensor) -> list[Tensor | str]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        chosen = torch.compile(lambda x, k: m(x[k.nonzero().squeeze(1)]), backend="aot_eager", fullgraph=True)
        return [_result(lambda: chosen(x, torch.ones(x.shape[0], dtype=torch.bool)))]


def _result(call: Callable[[], Tensor]) -> Tensor | str:
    """Or what kind of error of torch's: its class and words."""
    try:
        y = call()
        return y.to_dense() if y.layout is torch.sparse_coo else y
    except (RuntimeError, ValueError) as error:  # what torch raises of dtypes and epsilons, compared word for word
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def _elsewhere(m: Layer, x: Tensor) -> list[Tensor | str]:
    plain = [x.int(), x > 0, x + 0j, x.to_sparse(), x.to(torch.float8_e4m3fn)]
    return [_result(lambda given=given: m(given)) for given in (*plain, torch._efficientzerotensor(x.shape))]  # pyright: ignore[reportPrivateImportUsage]


def _any_epsilon(m: Layer, x: Tensor) -> list[Tensor | str]:
    found = list[Tensor | str]()
    for m.eps in (-1e-3, float("inf"), float("nan")):
        found += [_result(lambda: m.train()(x)), _result(lambda: m.eval()(x))]
    return found


def _subclassed(m: Layer, x: Tensor) -> list[Tensor]:
    class Own(torch.Tensor):
        pass

    class Weight(nn.Parameter):
        pass

    y, pair = m(x.as_subclass(Own)), m(TwoTensor(x, x.clone()))
    assert type(y) is Own
    m.weight = Weight(m.weight.detach())
    return [y.as_subclass(torch.Tensor), pair.a, pair.b, *step(m, x)]
