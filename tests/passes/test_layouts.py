"""Which values lie in blocks of channels: regions between convolutions, on the targets that have vectors."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.random_numbers import RNG

import renorm
from renorm import ops, te
from renorm.graph import interpret
from renorm.graph.ir import Graph, Value
from renorm.graph.layout import Accepts, Layout
from renorm.graph.op import ELEMENTWISE, INJECTIVE
from renorm.graph.verify import verify
from renorm.ops import schedules
from renorm.ops.global_pool import GlobalAveragePool
from renorm.ops.schedules import structure
from renorm.passes import pipeline
from renorm.targets import find

AVX512, AVX2 = "llvm -mcpu=skylake-avx512", "llvm -mcpu=haswell"
ONES = np.ones


def conv(x: Value, channels: int, k: int = 1, **attributes: Any) -> Any:
    per_group = int(str(x.shape[1])) // attributes.get("group", 1)
    return ops.conv(x, ONES((channels, per_group, k, k), np.float32), pads=[k // 2] * 4, **attributes)


def blocked(
    build: Callable[[Value], Any], shape: tuple[int, ...] = (1, 3, 8, 9), target: str = AVX512, level: int = 3
) -> list[str]:
    """Ops whose results lie in blocks, in order, of a network over one input."""
    g = Graph()
    made = build(g.input("x", "float32", shape))
    g.outputs = list(made) if isinstance(made, Sequence) else [made]
    lanes = find(target).lanes(4)
    g, _ = pipeline.optimize(g, level=level, target=find(target))
    verify(g)
    found = [(n.op.name, v.layout) for n in g.nodes for v in n.outputs if v.layout]
    assert all(layout == Layout(1, lanes) for _, layout in found)
    return [name for name, _ in found]


def test_what_goes_from_convolution_to_convolution() -> None:
    assert blocked(lambda x: conv(conv(conv(x, 16), 32), 48)) == ["conv", "conv"]


def test_only_at_level_3_and_on_cpus() -> None:
    def chain(x: Value) -> Any:
        return conv(conv(x, 16), 48)

    assert blocked(chain) == ["conv"]
    assert blocked(chain, level=2) == []
    assert blocked(chain, target="cuda -arch=sm_90") == []


def test_blocks_are_as_wide_as_vectors() -> None:
    def chain(x: Value) -> Any:
        return conv(conv(x, 24), 48)

    assert blocked(chain, target=AVX512) == []
    assert blocked(chain, target=AVX2) == ["conv"]


def test_a_region_lies_alike() -> None:
    def residual(x: Value, between: int) -> Any:
        a = conv(x, 32)
        b = ops.relu(ops.add(a, conv(conv(a, between), 32)))
        return conv(b, 8)

    assert blocked(lambda x: residual(x, 16)) == ["conv", "conv", "relu"]
    assert blocked(lambda x: residual(x, 20)) == ["conv", "relu"]  # what lies between convolutions has no say


def test_one_that_cannot_keeps_its_region_out() -> None:
    def joined(x: Value, others: int) -> Any:
        a = ops.sigmoid(conv(x, 32))
        b = ops.concat([a, conv(x, others)], axis=1)
        return conv(conv(b, 16), 8)

    assert blocked(lambda x: joined(x, 16)) == ["sigmoid", "conv", "concat", "conv"]
    assert blocked(lambda x: joined(x, 17)) == ["conv"]


def test_inputs_and_outputs_are_row_major() -> None:
    assert blocked(lambda x: conv(ops.relu(x), 16), (1, 16, 5, 5)) == []
    assert blocked(lambda x: ops.softmax(conv(x, 16)), (1, 16, 5, 5)) == []

    def read_outside(x: Value) -> Any:
        a = conv(x, 16)
        return [conv(a, 32), a]

    assert blocked(read_outside) == []


@pytest.mark.parametrize(
    ("op", "taken"),
    [
        (lambda x: ops.max_pool(x, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), True),
        (lambda x: ops.average_pool(x, kernel_shape=(2, 2)), True),
        (lambda x: ops.resize(x, None, np.array([1, 1, 2, 2], np.float32), None), True),
        (lambda x: ops.pad(x, np.array([0, 0, 1, 0, 0, 0, 2, 1]), None, None, mode="edge"), True),
        (lambda x: ops.instance_norm(x, ONES(32, np.float32), ONES(32, np.float32)), True),
        (lambda x: conv(x, 32, 3, group=32), True),
        (lambda x: ops.slice(x, np.array([16]), np.array([32]), np.array([1])), True),
        (lambda x: ops.slice(x, np.array([8]), np.array([24]), np.array([1])), False),
        (lambda x: ops.concat(list(ops.split(x, None, axis=1, num_outputs=2)), axis=1), True),
        (lambda x: ops.reduce_max(x, axes=(1,)), False),
        (lambda x: ops.transpose(x, perm=(0, 1, 3, 2)), True),
        (lambda x: ops.reshape(x, np.array([1, 32, 9, 8])), True),
        (lambda x: ops.reshape(x, np.array([1, 16, 16, 9])), False),
        (lambda x: ops.transpose(x, perm=(0, 2, 1, 3)), False),
        (lambda x: conv(x, 32, 3, group=2), True),  # groups are whole vectors
        (lambda x: conv(x, 32, 3, group=8), True),  # vectors are whole groups
        (lambda x: conv(x, 64, 3, group=8), False),
        (lambda x: ops.add(x, ops.softmax(x, axis=1)), False),
    ],
)
def test_ops_between_convolutions(op: Callable[[Value], Any], taken: bool) -> None:
    found = blocked(lambda x: conv(op(conv(x, 32)), 8))
    assert found[:1] == (["conv"] if taken else [])
    assert len(found) > 1 or not taken  # the result of the op too


def test_rows_of_channels_become_blocks() -> None:
    """Both ways: channels that lie side by side in a row do so in a block."""

    def network(x: Value) -> Any:
        image = ops.reshape(ops.transpose(x, perm=(0, 2, 1)), np.array([1, 32, 5, 7]))
        image = conv(image, 32, 3, group=32)
        return ops.gelu(ops.transpose(ops.reshape(image, np.array([1, 32, 35])), perm=(0, 2, 1)))

    found = blocked(network, (1, 35, 32))
    assert found[-1] == "conv"
    assert {*found} <= {"conv", "transpose", "reshape"}
    assert len(found) > 1


def test_means_of_planes_end_a_region() -> None:
    def squeezed(x: Value) -> Any:
        a = conv(x, 32)
        gate = ops.sigmoid(conv(ops.relu(conv(ops.global_average_pool(a), 16)), 32))
        return conv(ops.mul(a, gate), 8)

    assert blocked(squeezed) == ["conv", "mul"]
    assert blocked(lambda x: ops.flatten(ops.global_average_pool(conv(x, 32)))) == ["conv"]
    assert blocked(lambda x: ops.reduce_mean(conv(x, 32), axes=(2, 3), keepdims=False)) == ["conv"]


def test_an_op_with_a_schedule_of_the_user_stays_row_major() -> None:
    def chain(x: Value) -> Any:
        return conv(ops.abs(conv(conv(x, 16), 16)), 8)

    assert blocked(chain) == ["conv", "abs"]
    renorm.override("conv", target="llvm", schedule=schedules.convolution)
    try:
        assert blocked(chain) == []
    finally:
        renorm.override("conv", target="llvm")


def test_verified_passes_keep_layouts() -> None:
    g = Graph()
    g.outputs = [conv(conv(g.input("x", "float32", (1, 3, 4, 4)), 16), 8)]
    g, report = pipeline.optimize(g, target=find(AVX512), verify=True)
    assert g.nodes[0].output.layout == Layout(1, 16)
    assert not report.refusals


class Turned(renorm.OpDef):
    """y[n, c, ...] = x[n, C - 1 - c, ...], by a schedule that knows results of four axes only"""

    signature = "x: T[N, C, H, W] -> y: T[N, C, H, W]"
    types = {"T": ("float32",)}
    fusion = INJECTIVE

    def compute(self, x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda n, c, h, w: x[n, x.shape[1] - 1 - c, h, w], name="turned")

    def schedule(self, s: te.Schedule, outs: Sequence[te.Tensor], target: Any) -> None:
        for stage in structure.stages(outs)[:-1]:
            s[stage].compute_inline()
        n, c, _, _ = s[outs[0]].op.axis
        s[outs[0]].parallel(s[outs[0]].fuse(n, c))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x[:, ::-1]


class Cubed(Turned):
    """y = x^3"""

    fusion = ELEMENTWISE

    def compute(self, x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: x[i] * x[i] * x[i], name="cubed")

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x**3


class Pooled(GlobalAveragePool):
    """The mean of each plane, by a schedule that sums what is row-major."""

    def schedule(self, s: te.Schedule, outs: Sequence[te.Tensor], target: Any) -> None:
        pass


class CubedInBlocks(Cubed):
    """y = x^3, by a schedule that says that it takes blocks"""

    def in_blocks(self, node: Any, index: int | None, lanes: int) -> Accepts:
        return Accepts.ALIKE

    def schedule(self, s: te.Schedule, outs: Sequence[te.Tensor], target: Any) -> None:
        schedules.injective(s, outs, target)


@pytest.mark.parametrize(
    ("op", "found"),
    [
        (lambda a: Cubed()(a), ["conv"]),
        (lambda a: ops.mul(a, Turned()(ops.global_max_pool(a))), ["conv"]),  # scheduled by that of the user
        (lambda a: Pooled()(a), ["conv"]),
        (lambda a: CubedInBlocks()(a), ["conv", "cubed_in_blocks", "conv"]),
    ],
)
def test_a_schedule_from_outside_is_given_blocks_where_its_op_says_so(
    op: Callable[[Value], Any], found: list[str]
) -> None:
    def network(x: Value) -> Any:
        a = conv(x, 16)
        return ops.add(conv(op(a), 8), conv(conv(a, 16), 8))

    assert blocked(network) == found
    g = Graph()
    g.outputs = [network(g.input("x", "float32", (2, 3, 5, 7)))]
    x = RNG.standard_normal((2, 3, 5, 7)).astype(np.float32)
    np.testing.assert_allclose(renorm.compile(g).run(x)[0], interpret.run(g, {"x": x})[0], rtol=1e-4, atol=1e-4)
