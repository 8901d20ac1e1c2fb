"""Layers beside torch's in float64: results, gradients, running statistics, over shapes, memory formats and modes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.torch.pairs import agree, close, pair
from torch.fx.experimental.proxy_tensor import make_fx

import renorm.torch as ours
from renorm.torch.batch import normalize_batch
from renorm.torch.batch_kernels import Settings
from renorm.torch.modules import OURS

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def data(*shape: int, dtype: Any = torch.float32, seed: int = 0, last: bool = False) -> Any:
    x = (2.0 + 3.0 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)
    return x.to(memory_format=FORMATS[len(shape)]) if last else x


@settings(max_examples=5, deadline=None)
@given(
    shape=st.tuples(st.integers(2, 5), st.integers(1, 9), *[st.integers(1, 6)] * 3),
    rank=st.integers(2, 5),
    last=st.booleans(),
    affine=st.booleans(),
    tracked=st.booleans(),
    momentum=st.sampled_from([0.1, 0.7, None]),
    is_wide=st.booleans(),
    seed=st.integers(0, 99),
)
def test_batch_norm(
    shape: Any, rank: int, last: bool, affine: bool, tracked: bool, momentum: Any, is_wide: bool, seed: int
) -> None:
    dtype = torch.float64 if is_wide else torch.float32
    kind = f"BatchNorm{max(1, rank - 2)}d"
    options = {"momentum": momentum, "affine": affine, "track_running_stats": tracked, "dtype": dtype}
    theirs, mine = pair(kind, shape[1], **options)
    x = data(*shape[:rank], dtype=dtype, seed=seed, last=last and rank > 3)
    agree(theirs, mine, x, steps=3)
    close(mine(x), theirs.double()(x.double()).to(dtype), torch.float32)


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("shape", [(3, 6), (2, 5, 7), (2, 6, 4, 5), (2, 4, 3, 2, 5)], ids=str)
def test_batch_norm_with_running_statistics(shape: Any, last: bool) -> None:
    """In eval mode the running statistics are constants for the gradient."""
    theirs, mine = pair(f"BatchNorm{max(1, len(shape) - 2)}d", shape[1])
    for m in (theirs, mine):
        m.running_mean.copy_(torch.arange(shape[1]))
        m.running_var.copy_(torch.arange(shape[1]) + 0.5)
        m.eval()
    agree(theirs, mine, data(*shape, last=last and len(shape) > 3))


@settings(max_examples=5, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(2, 5), *[st.integers(1, 5)] * 2),
    rank=st.integers(3, 5),
    last=st.booleans(),
    affine=st.booleans(),
    tracked=st.booleans(),
    seed=st.integers(0, 99),
)
def test_instance_norm(shape: Any, rank: int, last: bool, affine: bool, tracked: bool, seed: int) -> None:
    theirs, mine = pair(f"InstanceNorm{rank - 2}d", shape[1], affine=affine, track_running_stats=tracked)
    x = data(*shape[:rank], seed=seed, last=last and rank > 3)
    agree(theirs, mine, x)
    theirs.load_state_dict(mine.state_dict())
    for m in (theirs, mine):
        m.eval()
    agree(theirs, mine, x)


def test_instance_norm_of_one_sample() -> None:
    theirs, mine = pair("InstanceNorm2d", 3, affine=True)
    agree(theirs, mine, data(3, 4, 5))


@settings(max_examples=5, deadline=None)
@given(
    batch=st.integers(1, 70),
    groups=st.integers(1, 4),
    width=st.integers(1, 4),
    size=st.lists(st.integers(1, 5), max_size=3),
    last=st.booleans(),
    affine=st.booleans(),
)
def test_group_norm(batch: int, groups: int, width: int, size: Any, last: bool, affine: bool) -> None:
    shape = (batch, groups * width, *size)
    x = data(*shape, last=last and len(shape) > 3)
    if x[0, :width].numel() == 1:
        return
    agree(*pair("GroupNorm", groups, groups * width, affine=affine), x)


@settings(max_examples=5, deadline=None)
@given(
    outer=st.lists(st.integers(1, 9), max_size=2),
    inner=st.lists(st.integers(2, 20), min_size=1, max_size=2),
    affine=st.booleans(),
    bias=st.booleans(),
)
def test_layer_norm(outer: Any, inner: Any, affine: bool, bias: bool) -> None:
    agree(*pair("LayerNorm", inner, elementwise_affine=affine, bias=bias), data(*outer, *inner))


@settings(max_examples=5, deadline=None)
@given(
    outer=st.lists(st.integers(1, 9), max_size=2),
    inner=st.lists(st.integers(1, 20), min_size=1, max_size=2),
    affine=st.booleans(),
    epsilon=st.sampled_from([None, 0.1]),
    is_wide=st.booleans(),
)
def test_rms_norm(outer: Any, inner: Any, affine: bool, epsilon: Any, is_wide: bool) -> None:
    dtype = torch.float64 if is_wide else torch.float32
    theirs, mine = pair("RMSNorm", inner, eps=epsilon, elementwise_affine=affine, dtype=dtype)
    if epsilon is None:
        theirs.eps = torch.finfo(dtype).eps  # the oracle computes in float64
    agree(theirs, mine, data(*outer, *inner, dtype=dtype) - 2)


def test_rms_norm_of_small_numbers() -> None:
    """Where epsilon counts: without one it is that of the dtype in which torch computes."""
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        theirs, mine = pair("RMSNorm", 8, dtype=dtype)
        x = 3e-4 * data(5, 8, dtype=dtype)
        torch.testing.assert_close(mine(x), theirs(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("parameters", ["narrow", "float32"])
@pytest.mark.parametrize(
    ("kind", "args", "shape"),
    [
        ("BatchNorm2d", (5,), (3, 5, 4, 7)),
        ("InstanceNorm1d", (5,), (2, 5, 33)),
        ("GroupNorm", (2, 6), (2, 6, 9)),
        ("LayerNorm", (40,), (6, 40)),
        ("RMSNorm", (40, 1e-6), (6, 40)),
    ],
)
def test_narrow_floats(dtype: Any, parameters: str, kind: str, args: Any, shape: Any) -> None:
    theirs, mine = pair(kind, *args, dtype=dtype if parameters == "narrow" else torch.float32)
    agree(theirs, mine, data(*shape, dtype=dtype), steps=1)


@pytest.mark.parametrize(
    ("kind", "args", "shape"),
    [
        ("BatchNorm1d", (3,), (4, 3)),
        ("BatchNorm2d", (3,), (2, 3, 2, 3)),
        ("InstanceNorm2d", (3,), (2, 3, 2, 3)),
        ("GroupNorm", (2, 4), (2, 4, 3)),
        ("LayerNorm", (5,), (3, 5)),
        ("RMSNorm", (5,), (3, 5)),
    ],
)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_gradients_are_those_of_the_function(kind: str, args: Any, shape: Any, mode: str) -> None:
    layer = getattr(ours, kind)(*args, dtype=torch.float64)
    getattr(layer, mode)()
    layer.track_running_stats = mode == "eval" and kind.startswith("Batch")  # a function has no state
    x = data(*shape, dtype=torch.float64).requires_grad_()
    parameters = list(layer.parameters())
    assert torch.autograd.gradcheck(
        lambda x, *p: torch.func.functional_call(layer, dict(zip(("weight", "bias"), p)), (x,)), (x, *parameters)
    )


@pytest.mark.parametrize("frozen", ["x", "weight", "bias", "all"])
@pytest.mark.parametrize(
    ("kind", "args", "shape"),
    [("BatchNorm1d", (3,), (5, 3)), ("GroupNorm", (1, 3), (2, 3, 4)), ("LayerNorm", (4,), (2, 4))],
)
def test_only_what_is_asked_for_has_a_gradient(frozen: str, kind: str, args: Any, shape: Any) -> None:
    _, layer = pair(kind, *args)
    x = data(*shape).requires_grad_(frozen not in ("x", "all"))
    for name, p in layer.named_parameters():
        p.requires_grad_(frozen not in (name, "all"))
    y = layer(x)
    assert y.requires_grad == (frozen != "all")
    if frozen == "all":
        return
    y.sum().backward()
    for name, t in {"x": x, **dict(layer.named_parameters())}.items():
        assert (t.grad is None) == (name == frozen)


@pytest.mark.parametrize("loss", [torch.square, lambda y: y * torch.arange(12.0).reshape(3, 4)], ids=["y^2", "linear"])
def test_a_second_derivative_over_a_mask_is_refused(loss: Any) -> None:
    """Also where another term has one, so that autograd alone would say nothing; a first one with a graph is right."""
    x = data(3, 4).requires_grad_()
    settings = Settings(1e-5, uses_batch=True, mask=np.ones(3, bool))
    y = normalize_batch(x, None, None, None, None, settings)
    (dx,) = torch.autograd.grad(loss(y).sum(), x, create_graph=True)
    expected = torch.nn.functional.batch_norm(x, None, None, training=True)
    torch.testing.assert_close(dx, torch.autograd.grad(loss(expected).sum(), x)[0], atol=1e-5, rtol=1e-5)
    penalty = dx.square().sum() + x.square().sum()
    with pytest.raises(RuntimeError, match="a second derivative"):
        torch.autograd.grad(penalty, x, retain_graph=True)
    with pytest.raises(RuntimeError, match="a second derivative"):
        penalty.backward()


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    ("kind", "args", "shape"),
    [
        ("BatchNorm1d", (3,), (4, 3)),
        ("BatchNorm2d", (3,), (2, 3, 2, 3)),
        ("InstanceNorm2d", (3,), (2, 3, 2, 3)),
        ("GroupNorm", (2, 4), (2, 4, 3)),
        ("LayerNorm", ((3, 5),), (2, 3, 5)),
        ("RMSNorm", ((3, 5),), (2, 3, 5)),
    ],
)
def test_gradients_have_gradients(kind: str, args: Any, shape: Any, affine: bool, mode: str) -> None:
    """A penalty on the norm of a gradient; weight is computed from the same tensor as x, which changes no partial."""
    settings = {"elementwise_affine" if kind in ("LayerNorm", "RMSNorm") else "affine": affine}
    results = []
    x = data(*shape, dtype=torch.float64).requires_grad_()
    for layer in pair(kind, *args, dtype=torch.float64, **settings):
        getattr(layer, mode)()
        given = {n: p * x.sum() for n, p in layer.named_parameters()}
        y = torch.func.functional_call(layer, given, (x,))
        operands = [x, *layer.parameters()]
        first = torch.autograd.grad((y**3).sum(), operands, create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), operands)
        results.append([*first, *second])
    for theirs, mine in zip(*results, strict=True):
        close(mine, theirs, torch.float64)


@pytest.mark.parametrize("kind", sorted(c.__name__ for c in OURS))
def test_a_layer_is_one_of_torchs(kind: str) -> None:
    args = (2, 4) if kind == "GroupNorm" else (4,)
    theirs, mine = pair(kind, *args)
    assert isinstance(mine, type(theirs)) or kind == "SyncBatchNorm"  # which torch's DDP lets on no CPU
    assert repr(mine) == repr(theirs)
    assert list(mine.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(mine.state_dict())
    mine.load_state_dict(theirs.state_dict())


@pytest.mark.parametrize(
    ("kind", "args", "shape"),
    [
        ("BatchNorm1d", (3,), (1, 3)),
        ("BatchNorm1d", (3,), (2, 4)),
        ("BatchNorm2d", (3,), (2, 3)),
        ("InstanceNorm1d", (3,), (2, 3, 1)),
        ("GroupNorm", (3, 3), (1, 3)),
        ("GroupNorm", (3, 3), (2, 4)),
        ("LayerNorm", (3,), (2, 4)),
        ("RMSNorm", (3,), (2, 4)),
    ],
)
def test_torchs_errors(kind: str, args: Any, shape: Any) -> None:
    theirs, mine = pair(kind, *args)
    with pytest.raises(Exception) as error:  # noqa: PT011
        theirs(torch.zeros(shape))
    with pytest.raises(type(error.value)) as own:
        mine(torch.zeros(shape))
    assert str(own.value) == str(error.value)


def test_other_dtypes_and_devices_are_torchs() -> None:
    """float64 parameters for float32 data are an error of torch's; tensors without memory have shapes only."""
    layer = ours.BatchNorm1d(3, device="meta")
    assert layer(torch.zeros(4, 3, device="meta")).shape == (4, 3)
    layer = ours.LayerNorm(3, dtype=torch.float64)
    with pytest.raises(RuntimeError):
        layer(torch.zeros(4, 3))


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's, where tangents come
@pytest.mark.parametrize(
    ("kind", "args", "shape"),
    [("BatchNorm2d", (6,), (4, 6, 5, 3)), ("LayerNorm", (3,), (4, 3)), ("GroupNorm", (2, 6), (4, 6, 5))],
)
def test_transforms_and_tangents_are_torchs(kind: str, args: Any, shape: Any) -> None:
    """torch.func and forward mode see the calls, or their derivatives would be wrong."""
    from torch.autograd import forward_ad

    x, dx = data(*shape, dtype=torch.float64), data(*shape, dtype=torch.float64, seed=1)
    found = list[Any]()
    for layer in pair(kind, *args, dtype=torch.float64):
        layer.requires_grad_(False).eval()
        gradient = torch.func.grad(lambda x, layer=layer: layer(x).pow(3).sum())(x)
        each = torch.func.vmap(layer)(torch.stack([x, dx]))
        with forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, dx))).tangent
        assert tangent is not None
        found.append((gradient, each, tangent))
    for theirs, mine in zip(*found, strict=True):
        close(mine, theirs, torch.float64)


@pytest.mark.parametrize("momentum", [-0.5, 1.5])
def test_any_momentum_that_torch_takes(momentum: float) -> None:
    agree(*pair("BatchNorm1d", 3, momentum=momentum), data(5, 3))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_refused_batch_changes_nothing(momentum: Any) -> None:
    layer = ours.BatchNorm1d(3, momentum=momentum)
    layer(data(5, 3))
    before = {name: t.clone() for name, t in layer.state_dict().items()}
    for x in (data(1, 3), data(5, 2), torch.zeros(5, 3, dtype=torch.int64)):
        with pytest.raises(Exception):  # noqa: B017, PT011
            layer(x)
    for name, t in layer.state_dict().items():
        assert torch.equal(t, before[name]), name


@pytest.mark.filterwarnings("ignore:input's size at dim=1:UserWarning")
def test_running_statistics_of_other_channels_are_refused() -> None:
    """As by torch; one channel would broadcast."""
    for channels in (1, 4):
        layer = ours.InstanceNorm1d(3, track_running_stats=True)
        with pytest.raises(RuntimeError, match="running_mean should contain"):
            layer(data(2, channels, 5))
        assert torch.equal(layer.running_mean, torch.zeros(3))


def test_dy_in_any_order_of_memory() -> None:
    theirs, mine = pair("BatchNorm2d", 3)
    for m in (theirs, mine):
        x = data(2, 3, 4, 5).requires_grad_()
        (m(x).permute(0, 2, 3, 1).contiguous() * torch.arange(3.0)).sum().backward()
        m(x).sum().backward()
        m.grads = [x.grad, m.weight.grad, m.bias.grad]
    for a, b in zip(mine.grads, theirs.grads):
        close(a, b, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["BatchNorm2d", "GroupNorm"])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_operations_in_place_may_follow(kind: str, dtype: Any, last: bool) -> None:
    theirs, mine = pair(kind, *((3,) if kind == "BatchNorm2d" else (1, 3)), dtype=dtype)
    found = list[Any]()
    for m in (mine, theirs):
        x = data(2, 3, 4, 5, dtype=dtype, last=last).requires_grad_()
        m(x).relu_().sum().backward()
        found.append(x.grad)
    close(found[0], found[1], dtype)


def test_views_that_are_not_contiguous() -> None:
    theirs, mine = pair("BatchNorm2d", 3)
    x = data(4, 6, 5, 7)[::2, ::2, :, 1:]
    close(mine(x), theirs(x), torch.float32)
    theirs, mine = pair("LayerNorm", (5,))
    x = data(3, 5, 4).transpose(1, 2)
    close(mine(x), theirs(x), torch.float32)


def test_threads_are_those_of_torch() -> None:
    from renorm.training import kernels

    before = torch.get_num_threads()
    _, layer = pair("LayerNorm", (48,))
    x = data(300, 48)
    try:
        found = list[Any]()
        for n in (1, 2):
            torch.set_num_threads(n)
            found.append(layer(x))
            assert next(reversed(kernels._modules.all())).threads == n
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def test_torch_compile_takes_torchs_function() -> None:
    """So there is no break in the graph."""
    layer = ours.BatchNorm1d(3)
    seen = list[Any]()

    def backend(graph: Any, _: Any) -> Any:
        seen.append(graph)
        return graph.forward

    x = data(4, 3)
    y = torch.compile(layer, backend=backend, fullgraph=True)(x)
    close(y, torch.nn.BatchNorm1d(3)(x), torch.float32)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("kind", "args", "shape"),
    [
        ("BatchNorm2d", (4,), (2, 4, 3, 3)),
        ("InstanceNorm2d", (4,), (2, 4, 3, 3)),
        ("LayerNorm", (3,), (2, 4, 3)),
        ("GroupNorm", (2, 4), (2, 4, 3)),
    ],
)
def test_torch_fx_takes_a_layer_for_one_node(kind: str, args: Any, shape: Any) -> None:
    layer = torch.nn.Sequential(getattr(ours, kind)(*args), torch.nn.ReLU())
    traced = torch.fx.symbolic_trace(layer)
    assert [n.op for n in traced.graph.nodes] == ["placeholder", "call_module", "call_module", "output"]
    x = data(*shape)
    torch.testing.assert_close(traced(x), layer(x), rtol=0, atol=0)


def test_group_norm_in_channels_last_of_what_wants_no_gradient() -> None:
    """torch 2.13 crashes there, in the backward pass."""
    theirs, mine = pair("GroupNorm", 1, 3)
    x = data(5, 3, 2, 3, 1)
    mine(x.to(memory_format=torch.channels_last_3d)).square().sum().backward()
    theirs(x).square().sum().backward()
    close(mine.weight.grad, theirs.weight.grad, torch.float32)
    close(mine.bias.grad, theirs.bias.grad, torch.float32)


def test_a_layer_norm_of_no_axes_is_refused() -> None:
    with pytest.raises(RuntimeError, match="at least 1-dimensional"):
        ours.LayerNorm([])(data(2, 3))


# in training torch keeps running statistics too, which no gradient needs
@pytest.mark.parametrize(("mode", "what"), [("train", "parameters"), ("eval", "parameters"), ("eval", "buffers")])
@pytest.mark.parametrize(
    ("kind", "args", "settings"),
    [
        ("BatchNorm1d", (3,), {}),
        ("InstanceNorm1d", (3,), {"affine": True, "track_running_stats": True}),
        ("GroupNorm", (3, 3), {}),
        ("LayerNorm", (5,), {}),
        ("RMSNorm", (5,), {}),
    ],
)
def test_what_changes_before_the_backward_pass_is_noticed_where_torch_does(
    kind: str, args: Any, settings: Any, mode: str, what: str
) -> None:
    def gradient(layer: Any) -> Any:
        """None where it is noticed."""
        getattr(layer, mode)()
        y = layer(x := data(4, 3, 5).requires_grad_())
        with torch.no_grad():
            for t in getattr(layer, what)():
                t.add_(1)
        try:
            y.pow(2).sum().backward()
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            return None
        return x.grad

    expected, found = map(gradient, pair(kind, *args, **settings))
    assert (found is None) == (expected is None)
    if expected is not None:
        close(found, expected, torch.float32)


def test_a_share_that_depends_on_the_batches_before_is_no_constant_of_a_trace() -> None:
    for layer in pair("BatchNorm1d", 3, momentum=None):
        with pytest.raises(RuntimeError, match="value out of a tracing tensor"):
            make_fx(layer)(data(4, 3))


def test_layers_are_there_without_what_compiles_models() -> None:
    """Dynamo takes three seconds to load, and 90 MB."""
    program = (
        "import sys, torch, renorm.torch as ours; m = torch.nn.BatchNorm2d(3); ours.replace_norms(m)"
        "; ours.BatchNorm2d(3)(torch.ones(2, 3, 4, 4, requires_grad=True)).sum().backward()"
        "; assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
