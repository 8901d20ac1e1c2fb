"""The vocabulary of random chains: a step adds nodes to a network and says what a map per channel can do there.

A step is (kind, what is said of it); `STEPS[kind](net, v, **said)` gives the next value and its links. What does not
fit the value that it meets raises Inapplicable. Extents and channels are read off the value, so that a step stays
meaningful where others are taken away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tests.passes.folding.network import Inapplicable, Network, around, conv, conv_transpose
from tests.passes.folding.verdict import Link, Map
from torch.nn import functional as F

Step = Callable[..., "tuple[str, list[Link]]"]
STEPS: dict[str, Step] = {}


def step(f: Step) -> Step:
    STEPS[f.__name__] = f
    return f


def spatial(net: Network, v: str) -> int:
    """The number of spatial axes, of which there has to be one."""
    rank = len(net.shape(v)) - 2
    if rank < 1:
        raise Inapplicable("no spatial axes")
    return rank


def matrix(net: Network, v: str) -> list[int]:
    if len(net.shape(v)) != 2:
        raise Inapplicable("not a matrix")
    return net.shape(v)


# --- linear ops -------------------------------------------------------------------------------------------------------


def groups(c: int, kind: str) -> int:
    """How many groups c channels are cut into: one, as many as there are, or a number between."""
    between = [g for g in range(2, c) if c % g == 0]
    if kind == "some" and not between:
        raise Inapplicable(f"no number of groups between 1 and {c}")
    return {"one": 1, "each": c, "some": between[0] if between else 0}[kind]


def window(said: dict[str, Any], rank: int, group: int, same: Sequence[int] | None = None) -> dict[str, Any]:
    """The attributes of a windowed op, cut to the rank."""
    pads = said["pads"]
    return {
        "group": group,
        "strides": said["strides"][:rank],
        "dilations": said["dilations"][:rank],
        "pads": [*pads[:rank], *pads[3 : 3 + rank]] if same is None else list(same),
    }


def weights(net: Network, shape: Sequence[int], m: int, said: dict[str, Any]) -> tuple[list[str], Any, Any]:
    """Weight and bias as operands, and their numbers. how: a constant, or an input of the network."""
    w = net.rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape) / max(1, m)))
    named = [
        net.input(net.free("weight"), shape, is_fixed=True) if said["how"] == "input" else net.constant("weight", w)
    ]
    if said["bias"]:
        named.append(net.constant("bias", net.rng.standard_normal(m)))
    return named, net.values[named[0]], net.values[named[1]] if said["bias"] else None


def shares(net: Network, v: str, op: str, operands: list[str], means: Callable[[torch.Tensor], torch.Tensor], **a: Any):
    """Another node with the same weight, which is not normalized."""
    z = net.input(net.free("z"), net.shape(v))
    net.also(net.apply(op, [z, operands[0]], means(net.values[z]), **a))


def linear(said: dict[str, Any], is_padded: bool, net: Network, name: str) -> Link:
    front = "takes" if not (is_padded and net.dynamic == "all") else "beside"
    if said["how"] == "input":
        return Link(name)
    return Link(name, "takes", front, image=1)  # of a padding that it has, or joins


@step
def convolve(net: Network, v: str, **said: Any) -> tuple[str, list[Link]]:
    x, rank = net.values[v], spatial(net, v)
    c = x.shape[1]
    group = groups(c, said["groups"])
    m = said["m"] * group
    kernel = said["kernel"][:rank]
    a = window(said, rank, group)
    written: dict[str, Any] = dict(a)
    if said["auto_pad"]:
        if net.dynamic == "all":
            raise Inapplicable("auto_pad over extents that are not known")
        written |= {"auto_pad": said["auto_pad"], "pads": None}
        a["pads"] = same(x.shape[2:], kernel, a, said["auto_pad"])
    operands, w, b = weights(net, (m, c // group, *kernel), m, said)
    y = net.apply("Conv", [v, *operands], conv(x, w, b, a), kernel_shape=kernel, **written)
    if said["how"] == "shared":
        shares(net, v, "Conv", operands, lambda t: conv(t, w, None, a), **written)
    return y, [linear(said, any(a["pads"]), net, "conv" if not said["auto_pad"] else "conv with auto_pad")]


def same(extents: Sequence[int], kernel: Sequence[int], a: dict[str, Any], which: str) -> list[int]:
    """The pads that auto_pad means."""
    before, after = [], []
    for e, k, s, d in zip(extents, kernel, a["strides"], a["dilations"]):
        total = max(0, (-(-e // s) - 1) * s + d * (k - 1) + 1 - e)
        less, more = total // 2, total - total // 2
        before.append(less if which == "SAME_UPPER" else more)
        after.append(more if which == "SAME_UPPER" else less)
    return [*before, *after]


@step
def transposed(net: Network, v: str, **said: Any) -> tuple[str, list[Link]]:
    x, rank = net.values[v], spatial(net, v)
    c = x.shape[1]
    group = groups(c, said["groups"])
    m = said["m"] * group
    a = window(said, rank, group)
    # ONNX: below the stride or the dilation; that is what a peer may not know
    a["output_padding"] = [min(o, max(s, d) - 1) for o, s, d in zip(said["extra"], a["strides"], a["dilations"])]
    operands, w, b = weights(net, (c, m // group, *said["kernel"][:rank]), m, said)
    y = net.apply("ConvTranspose", [v, *operands], conv_transpose(x, w, b, a), **a)
    if said["how"] == "shared":
        shares(net, v, "ConvTranspose", operands, lambda t: conv_transpose(t, w, None, a), **a)
    return y, [linear(said, True, net, "conv_transpose")]


@step
def gemm(net: Network, v: str, **said: Any) -> tuple[str, list[Link]]:
    rows, depth = matrix(net, v)
    m, turned = said["m"], said["transA"]
    if turned:
        if net.dynamic:
            raise Inapplicable("a batch that is summed over has to be known")
        rows, depth = depth, rows
    w = net.rng.standard_normal((m, depth) if said["transB"] else (depth, m)) / np.sqrt(depth)
    how = said["how"]
    b = net.input(net.free("weight"), w.shape, is_fixed=True) if how == "input" else net.constant("weight", w)
    operands, alpha, beta = [v, b], said["alpha"], said["beta"]
    x, right = net.values[v], net.values[b]
    y = alpha * ((x.T if turned else x) @ (right.T if said["transB"] else right))
    form = {"": None, "row": (m,), "matrix": (1, m), "column": (rows, 1), "scalar": (1,), "full": (rows, m)}[said["c"]]
    if form is not None:
        if net.dynamic and said["c"] in ("column", "full"):
            raise Inapplicable("a C for a batch of unknown size")
        operands.append(net.constant("c", net.rng.standard_normal(form)))
        y = y + beta * net.values[operands[-1]]
    elif net.opset < 11:
        operands.append(net.constant("c", np.zeros(1)))
    flags: dict[str, Any] = {"transA": int(turned), "transB": int(said["transB"])}
    made = net.apply("Gemm", operands, y, alpha=alpha, beta=beta, **flags)
    if how == "shared":
        net.also(net.apply("MatMul", [net.constant("rows", net.rng.standard_normal((2, w.shape[0]))), b],
                           net.values[net.initializers[-1].name] @ right))  # fmt: skip
    if how == "input":
        return made, [Link("gemm")]
    return made, [Link("gemm", "takes", "blocks" if turned else "takes")]


@step
def matmul(net: Network, v: str, **said: Any) -> tuple[str, list[Link]]:
    """x @ W along the last axis, or W @ x along the second to last one."""
    x = net.values[v]
    left, m = said["left"], said["m"]
    if net.dynamic == "all" or x.ndim > 4 or (left and x.ndim != 3):
        raise Inapplicable("no matrix product of that")
    depth = x.shape[-2 if left else -1]
    w = net.rng.standard_normal((m, depth) if left else (depth, m)) / np.sqrt(depth)
    how = said["how"]
    b = net.input(net.free("weight"), w.shape, is_fixed=True) if how == "input" else net.constant("weight", w)
    right = net.values[b]
    y = net.apply("MatMul", [b, v] if left else [v, b], right @ x if left else x @ right)
    if how == "input":
        return y, [Link("matmul")]
    axis = 1 if left or x.ndim == 2 else -1
    return y, [Link("matmul", "takes", "takes", axis, image=1, remainder=1)]


# --- norms ------------------------------------------------------------------------------------------------------------

SCALES = ("any", "positive", "negative", "zeros", "ones", "denormal")


def factors(net: Network, c: int, kind: str) -> np.ndarray:
    k = net.rng.uniform(0.3, 2, c) * net.rng.choice([-1, 1], c)
    if kind == "zeros":
        k[net.rng.integers(c)] = 0
    if kind == "denormal":
        k[net.rng.integers(c)] = 1e-4 if net.dtype == "float16" else 1e-40
    if kind == "ones":
        k[:] = 1
    return {"positive": np.abs(k), "negative": -np.abs(k)}.get(kind, k)


@step
def norm(net: Network, v: str, form: str, spread: str, scale: str, shifts: bool, axis: int, **said: Any):
    """A scale and a shift per channel in one of the forms that exporters write. spread: how constants have the rank;
    shares: constants are those of an earlier norm, where that has the same shapes."""
    net.is_sharing = said.get("shares", False)
    x = net.values[v]
    if x.ndim < 2:
        raise Inapplicable("no channels")
    if x.ndim == 2:
        axis = 1
    at = axis % x.ndim
    c = x.shape[at]
    if at != 1 and (form in ("batch_norm", "channels_last", "stored") or net.dynamic == "all"):
        raise Inapplicable(f"{form} is along axis 1")
    shape = [c, *[1] * (x.ndim - 1 - at)]
    if spread == "full":
        shape = [1] * at + shape
    k, shift = factors(net, c, scale), net.rng.standard_normal(c) * shifts
    if spread == "scalar" and form != "batch_norm":
        k, shift, shape = k[:1], shift[:1], [[], [1], [1] * x.ndim][int(net.rng.integers(3))]
    if form == "batch_norm":
        y, k, shift = batch_norm(net, v, k, shift, said["epsilon"])
    else:
        y, k, shift = FORMS[form](net, v, k, shift, shape)
    link_axis = -1 if at != 1 and at == x.ndim - 1 else 1
    found = Map(np.broadcast_to(k, c), np.broadcast_to(shift, c), link_axis)
    return y, [Link(form, "carries", "carries", link_axis, found)]


def batch_norm(net: Network, v: str, k: np.ndarray, shift: np.ndarray, epsilon: float, times: int = 1) -> Any:
    """times: how often channels come one after the other, with the same numbers."""
    c, x = len(k), net.values[v]
    wide = "float32" if net.dtype == "float16" and net.opset >= 15 and net.rng.integers(2) else ""
    var = net.rng.uniform(0.3, 2, c)
    if epsilon < 1e-8:
        var[net.rng.integers(c)] = 1e-9
        k = k * np.sqrt(var.min())
    mean = net.rng.standard_normal(c) * (1 if shift.any() else 0)
    kind = f"{'tiny_' * (epsilon < 1e-8)}{times}_"  # names of constants that norms may share
    given = zip(("scale", "bias", "mean", "var"), (k, shift, mean, var))
    names = [net.parameter(f"{kind}{n}", np.tile(a, times), wide) for n, a in given]
    scale, bias, mean_, var_ = (net.values[n] for n in names)
    k_, rows = scale / torch.sqrt(var_ + epsilon), (-1, *[1] * (x.ndim - 2))
    s_ = bias - mean_ * k_
    y = (x - mean_.reshape(rows)) * k_.reshape(rows) + bias.reshape(rows)
    old: dict[str, Any] = {"is_test": 1} if net.opset < 7 else {}
    made = net.apply("BatchNormalization", [v, *names], y, "norm", epsilon=epsilon, **old)
    return made, k_.numpy(), s_.numpy()


def arithmetic(net: Network, op: str, v: str, c: np.ndarray, shape: list[int], turned: bool = False) -> Any:
    """v op c, or c op v."""
    name = net.parameter(f"{op.lower()}.c", c.reshape(shape))
    x, held = net.values[v], net.values[name]
    f = {"Mul": torch.mul, "Add": torch.add, "Sub": torch.sub, "Div": torch.div}[op]
    made = net.apply(op, [name, v] if turned else [v, name], f(held, x) if turned else f(x, held), "norm")
    return made, held.numpy().reshape(-1)


def mul_add(net: Network, v: str, k: np.ndarray, shift: np.ndarray, shape: list[int]) -> Any:
    turned = bool(net.rng.integers(2))
    v, k = arithmetic(net, "Mul", v, k, shape, turned)
    v, shift = arithmetic(net, "Add", v, shift, shape, not turned)
    return v, k, shift


def add_mul(net: Network, v: str, k: np.ndarray, shift: np.ndarray, shape: list[int]) -> Any:
    v, shift = arithmetic(net, "Add", v, shift, shape)
    v, k = arithmetic(net, "Mul", v, k, shape)
    return v, k, shift * k


def sub_div(net: Network, v: str, k: np.ndarray, shift: np.ndarray, shape: list[int]) -> Any:
    if not (np.abs(k) > 1e-3).all():
        raise Inapplicable("division by zero")
    v, shift = arithmetic(net, "Sub", v, shift, shape)
    v, k = arithmetic(net, "Div", v, k, shape)
    return v, 1 / k, -shift / k


def mul(net: Network, v: str, k: np.ndarray, shift: np.ndarray, shape: list[int]) -> Any:
    v, k = arithmetic(net, "Mul", v, k, shape, bool(net.rng.integers(2)))
    return v, k, 0 * k


def sub_from(net: Network, v: str, k: np.ndarray, shift: np.ndarray, shape: list[int]) -> Any:
    v, shift = arithmetic(net, "Sub", v, shift, shape, turned=True)
    return v, -np.ones_like(shift), shift


def channels_last(net: Network, v: str, k: np.ndarray, shift: np.ndarray, shape: list[int]) -> Any:
    """Between two transposes, of constants without axes behind them."""
    rank = net.values[v].ndim
    there, back = [0, *range(2, rank), 1], [0, rank - 1, *range(1, rank - 1)]
    v = net.apply("Transpose", [v], net.values[v].permute(there), perm=there)
    v, k = arithmetic(net, "Mul", v, k, [k.size])
    v, shift = arithmetic(net, "Add", v, shift, [shift.size])
    return net.apply("Transpose", [v], net.values[v].permute(back), perm=back), k, shift


def stored(net: Network, v: str, k: np.ndarray, shift: np.ndarray, shape: list[int]) -> Any:
    """An instance norm with stored statistics: a batch norm of samples and channels in one axis."""
    x = net.values[v]
    n, c, *spatial = x.shape
    if net.dynamic or x.ndim < 3 or len(k) != c:
        raise Inapplicable("samples of known number, and factors of all channels")
    v = net.apply("Reshape", [v, net.constant("to", np.array([1, n * c, *spatial]))], x.reshape(1, n * c, *spatial))
    v, k, shift = batch_norm(net, v, k, shift, 1e-3, times=n)
    y = net.values[v].reshape(n, c, *spatial)
    return net.apply("Reshape", [v, net.constant("to", np.array([n, c, *spatial]))], y), k[:c], shift[:c]


FORMS = {
    "mul_add": mul_add, "add_mul": add_mul, "sub_div": sub_div, "mul": mul, "sub_from": sub_from,
    "channels_last": channels_last, "stored": stored,
}  # fmt: skip


@step
def training(net: Network, v: str) -> tuple[str, list[Link]]:
    """Batch norm with the statistics of the batch; nothing may fold it."""
    if net.opset < 14:
        raise Inapplicable("the number of outputs says it there")
    x = net.values[v]
    axes = [a for a in range(x.ndim) if a != 1]
    if x.ndim < 2 or x.numel() // x.shape[1] < 4:
        raise Inapplicable("too few numbers for statistics")
    c = x.shape[1]
    k, b, unused, var = (net.constant("stat", net.rng.uniform(0.5, 1.5, c)) for _ in range(4))
    rows = (-1, *[1] * (x.ndim - 2))
    y = (x - x.mean(axes, keepdim=True)) / torch.sqrt(x.var(axes, keepdim=True, correction=0) + 1e-3)
    y = y * net.values[k].reshape(rows) + net.values[b].reshape(rows)
    made = net.apply("BatchNormalization", [v, k, b, unused, var], y, "training", training_mode=1, epsilon=1e-3)
    return made, [Link("training", "takes", scales=1, adds=1)]


@step
def instance(net: Network, v: str) -> tuple[str, list[Link]]:
    """Instance norm by the statistics of what it reads; its own scale and bias take a norm behind it."""
    x = net.values[v]
    axes = list(range(2, 2 + spatial(net, v)))
    if np.prod(x.shape[2:]) < 4:
        raise Inapplicable("too few numbers for statistics")
    k, b = (net.constant("stat", net.rng.uniform(0.5, 1.5, x.shape[1])) for _ in range(2))
    rows = (-1, *[1] * (x.ndim - 2))
    y = (x - x.mean(axes, keepdim=True)) / torch.sqrt(x.var(axes, keepdim=True, correction=0) + 1e-3)
    y = y * net.values[k].reshape(rows) + net.values[b].reshape(rows)
    return net.apply("InstanceNormalization", [v, k, b], y, "instance", epsilon=1e-3), [Link("instance", "takes")]


# --- between ----------------------------------------------------------------------------------------------------------


@step
def activation(net: Network, v: str, which: str) -> tuple[str, list[Link]]:
    x = net.values[v]
    f = {"Relu": torch.relu, "LeakyRelu": lambda t: F.leaky_relu(t, 0.125), "Sigmoid": torch.sigmoid}[which]
    said: dict[str, Any] = {"alpha": 0.125} if which == "LeakyRelu" else {}
    does = "blocks" if which == "Sigmoid" else "scaled"
    return net.apply(which, [v], f(x), **said), [Link(which, does, does, None)]


@step
def identity(net: Network, v: str) -> tuple[str, list[Link]]:
    return net.apply("Identity", [v], net.values[v]), [Link("identity", "carries", "carries", None)]


@step
def output(net: Network, v: str) -> tuple[str, list[Link]]:
    """What stands there is an output of the graph, too."""
    net.also(v)
    return v, [Link("output")]


@step
def reader(net: Network, v: str) -> tuple[str, list[Link]]:
    """A second reader."""
    net.also(net.apply("Tanh", [v], torch.tanh(net.values[v])))
    return v, [Link("reader")]


@step
def twice(net: Network, v: str) -> tuple[str, list[Link]]:
    """A second reader that takes a map from the front, as the step behind it has to."""
    rank = spatial(net, v)
    one = {"group": 1, "strides": [1] * rank, "dilations": [1] * rank, "pads": [0] * 2 * rank}
    w = net.constant("weight", net.rng.standard_normal((2, net.shape(v)[1], *[1] * rank)))
    net.also(net.apply("Conv", [v, w], conv(net.values[v], net.values[w], None, one)))
    return v, [Link("twice", front="carries")]


@step
def crop(net: Network, v: str, channels: bool, start: int, stride: int) -> tuple[str, list[Link]]:
    """Slice of channels, or of all spatial axes."""
    x = net.values[v]
    axes = [1] if channels else list(range(2, x.ndim))
    if not axes or any(x.shape[a] < start + 2 for a in axes):
        raise Inapplicable("too few elements")
    if stride != 1 and net.opset < 10:
        raise Inapplicable("Slice had no steps")
    if net.dynamic == "all" and not channels:
        raise Inapplicable("bounds are written for known extents")
    at = tuple(slice(start, None, stride) if a in axes else slice(None) for a in range(x.ndim))
    bounds = [[start] * len(axes), [x.shape[a] for a in axes], axes, [stride] * len(axes)]
    if net.opset < 10:
        y = net.apply("Slice", [v], x[at], starts=bounds[0], ends=bounds[1], axes=axes)
    else:
        y = net.apply("Slice", [v, *(net.constant("bounds", np.array(b)) for b in bounds)], x[at])
    return y, [Link("slice", "carries", "carries")]


@step
def pad(net: Network, v: str, mode: str, pads: list[int], value: float) -> tuple[str, list[Link]]:
    x, rank = net.values[v], spatial(net, v)
    own = [*pads[:rank], *pads[3 : 3 + rank]]
    if any(p >= e for p, e in zip([*own[:rank], *own[rank:]], [*x.shape[2:]] * 2)):
        raise Inapplicable("reflection needs as many elements")
    flat, torchs = around(own, rank), {"edge": "replicate"}.get(mode, mode)
    if mode == "constant":
        value = float(np.asarray(value, net.dtype))
        y = F.pad(x, flat, value=value)
    else:
        y = F.pad(x, flat, mode=torchs)
    whole = [0, 0, *own[:rank], 0, 0, *own[rank:]]
    if net.opset < 11:
        made = net.apply("Pad", [v], y, pads=whole, mode=mode, value=value if mode == "constant" else None)
    else:
        extra = [net.constant("value", np.asarray(value))] if mode == "constant" and value else []
        made = net.apply("Pad", [v, net.constant("pads", np.array(whole)), *extra], y, mode=mode)
    if mode != "constant":
        return made, [Link("pad", "carries", "carries")]
    if value:  # in front of a convolution it becomes padding, and an image that is added
        return made, [Link("pad", "fills", adds=1)]
    return made, [Link("pad of zeros", "beside", "beside" if net.dynamic == "all" else "joins")]


@step
def swap(net: Network, v: str) -> tuple[str, list[Link]]:
    """Transpose of the spatial axes."""
    rank = spatial(net, v)
    perm = [0, 1, *reversed(range(2, 2 + rank))]
    y = net.apply("Transpose", [v], net.values[v].permute(perm), perm=perm)
    return y, [Link("transpose", "carries", "carries")]


@step
def merge(net: Network, v: str) -> tuple[str, list[Link]]:
    """Reshape of all spatial axes to one."""
    x = net.values[v]
    if spatial(net, v) < 2 or net.dynamic == "all":
        raise Inapplicable("nothing to merge")
    to = net.constant("to", np.array([0, x.shape[1], -1]))
    return net.apply("Reshape", [v, to], x.flatten(2)), [Link("reshape", "carries", "carries")]


@step
def flatten(net: Network, v: str) -> tuple[str, list[Link]]:
    """To a matrix. A norm behind it has a factor per element; one in front of it has not."""
    x = net.values[v]
    if net.dynamic == "all" or x.ndim < 3:
        raise Inapplicable("how long rows are is not known")
    y = net.apply("Flatten", [v], x.flatten(1))
    return y, [Link("flatten", "carries" if np.prod(x.shape[2:]) == 1 else "blocks", "carries")]


@step
def upsample(net: Network, v: str) -> tuple[str, list[Link]]:
    """Resize to twice the extents, each element twice."""
    x, rank = net.values[v], spatial(net, v)
    if net.opset < 10 or x.numel() > 2000:
        raise Inapplicable("Upsample was another op, or results would be large")
    y = x
    for a in range(2, x.ndim):
        y = y.repeat_interleave(2, a)
    scales = net.constant("scales", np.array([1.0, 1.0, *[2.0] * rank]), "float32")
    if net.opset == 10:
        return net.apply("Resize", [v, scales], y, mode="nearest"), [Link("resize", "carries", "carries")]
    said = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    roi = net.constant("roi", np.zeros(0)) if net.opset < 13 else ""
    return net.apply("Resize", [v, roi, scales], y, **said), [Link("resize", "carries", "carries")]


@step
def pool(net: Network, v: str, which: str, padded: bool) -> tuple[str, list[Link]]:
    x, rank = net.values[v], spatial(net, v)
    if which == "GlobalAveragePool":
        y = x.mean(list(range(2, x.ndim)), keepdim=True)
        return net.apply(which, [v], y), [Link(which, "carries", "carries")]
    if which == "ReduceMean":
        axes = list(range(2, x.ndim))
        y = x.mean(axes, keepdim=padded)
        old = net.opset < 18
        more = [] if old else [net.constant("axes", np.array(axes))]
        made = net.apply(which, [v, *more], y, axes=axes if old else None, keepdims=int(padded))
        return made, [Link(which, "carries", "carries")]
    if any(e < 2 for e in x.shape[2:]):
        raise Inapplicable("the window does not fit")
    if which == "MaxPool":
        f = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
        y = f(x, 2, 2, int(padded))
        made = net.apply(which, [v], y, kernel_shape=[2] * rank, strides=[2] * rank, pads=[int(padded)] * 2 * rank)
        return made, [Link(which, "rising", "rising")]
    f = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    counted = which == "counted"
    y = f(x, 2, 1, int(padded), count_include_pad=counted)
    said: dict[str, Any] = {"kernel_shape": [2] * rank, "pads": [int(padded)] * 2 * rank}
    made = net.apply("AveragePool", [v], y, count_include_pad=int(counted), **said)
    does = "beside" if counted and padded else "carries"
    return made, [Link(which, does, does)]


@step
def join(net: Network, v: str, other: str, axis: int, first: bool) -> tuple[str, list[Link]]:
    """Concat with a convolution of a new input, with a constant, or with something that takes no map."""
    x = net.values[v]
    if axis >= x.ndim or spatial(net, v) < 1 or net.dynamic == "all":
        raise Inapplicable("no such axis, or extents that are not known")
    if net.dynamic and other == "constant":
        raise Inapplicable("a constant has a batch of known size")
    shape = list(x.shape)
    shape[axis] = 1 + int(net.rng.integers(3))
    z = branch(net, shape, other)
    parts = [v, z] if first else [z, v]
    made = net.apply("Concat", parts, torch.cat([net.values[p] for p in parts], axis), axis=axis)
    front = "carries" if axis == 1 else "blocks"  # other rows have no such map
    return made, [Link("concat", "blocks" if other == "activation" else "carries", front)]


def branch(net: Network, shape: Sequence[int], kind: str) -> str:
    """A value of a shape that comes from another input, or is a constant."""
    if kind == "constant":
        return net.constant("other", net.rng.standard_normal(shape))
    z = net.input(net.free("z"), [shape[0], 2, *shape[2:]])
    rank = len(shape) - 2
    w = net.constant("weight", net.rng.standard_normal((shape[1], 2, *[1] * rank)))
    one = {"group": 1, "strides": [1] * rank, "dilations": [1] * rank, "pads": [0] * 2 * rank}
    z = net.apply("Conv", [z, w], conv(net.values[z], net.values[w], None, one))
    return net.apply("Tanh", [z], torch.tanh(net.values[z])) if kind == "activation" else z


@step
def plus(net: Network, v: str, other: str, op: str) -> tuple[str, list[Link]]:
    """Add or Sub of another branch of the same shape, or Sum of two."""
    if spatial(net, v) < 1 or net.dynamic == "all" or (net.dynamic and other == "constant"):
        raise Inapplicable("a constant has a batch of known size")
    others = [branch(net, net.shape(v), other) for _ in range(2 if op == "Sum" else 1)]
    x, (y, *more) = net.values[v], (net.values[z] for z in others)
    made = net.apply(op, [v, *others], sum(more, x - y if op == "Sub" else x + y))
    return made, [Link("sum", "blocks" if other == "activation" else "carries", adds=len(others))]
