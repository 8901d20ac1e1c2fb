"""Random networks: what tests of passes and of whole compilations draw from."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from renorm import ops
from renorm.core.dims import static
from renorm.graph.ir import Graph, Value

ACTIVATIONS = [
    "relu", "sigmoid", "neg", "identity", "dropout", "swish", "gelu", "hard_swish", "leaky_relu", "elu", "softplus",
    "tanh", "erf", "abs",
]  # fmt: skip


class Builder:
    """Draws a network over values of rank 4 and 2, with shape chains, shared values and several outputs."""

    def __init__(self, draw: st.DrawFn, dtype: str):
        self.draw, self.dtype, self.rng = draw, dtype, np.random.default_rng(draw(st.integers(0, 10**6)))
        self.g = Graph("random")
        n, c, h = draw(st.integers(1, 2)), draw(st.integers(1, 4)), draw(st.integers(3, 5))
        self.images = [self.g.input("x", dtype, (n, c, h, h + 1))]
        self.rows: list[Value] = []

    def normal(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(self.dtype)

    def scalar(self, number: float) -> Any:
        return np.asarray(number, self.dtype)

    def image(self) -> Value:
        return self.draw(st.sampled_from(self.images[-4:]))

    def row(self) -> Value:
        if not self.rows:
            self.rows.append(ops.flatten(ops.global_average_pool(self.image())))
        return self.draw(st.sampled_from(self.rows[-3:]))

    def number(self, *choices: int) -> int:
        return self.draw(st.sampled_from(choices))

    def parameters(self, c: int) -> list[np.ndarray]:
        return [self.normal(c), self.normal(c), self.normal(c), self.rng.uniform(0.1, 2, c).astype(self.dtype)]

    def conv(self) -> None:
        x = self.image()
        c = int(str(x.shape[1]))
        group = c if self.number(0, 1) else 1
        out = group * self.number(1, 2)
        k = self.number(1, 3)
        bias = self.normal(out) if self.number(0, 1) else None
        pads = [k // 2] * 4
        self.images.append(ops.conv(x, self.normal(out, c // group, k, k), bias, group=group, pads=pads))

    def conv_transpose(self) -> None:
        x = self.image()
        c = int(str(x.shape[1]))
        if int(str(x.shape[2])) < 8:
            self.images.append(ops.conv_transpose(x, self.normal(c, 2, 2, 2), strides=(self.number(1, 2),) * 2))

    def batch_norm(self) -> None:
        x = self.image()
        self.images.append(ops.batch_norm(x, *self.parameters(int(str(x.shape[1])))))

    def other_norm(self) -> None:
        x = self.image()
        c = int(str(x.shape[1]))
        if self.number(0, 1):
            self.images.append(ops.instance_norm(x, self.normal(c), self.normal(c)))
        else:
            self.images.append(ops.group_norm(x, self.normal(c), self.normal(c), num_groups=c))

    def activation(self) -> None:
        x = self.image()
        kind = self.draw(st.sampled_from(ACTIVATIONS))
        self.images.append(ops.mul(x, ops.sigmoid(x)) if kind == "swish" else getattr(ops, kind)(x))

    def clip(self) -> None:
        self.images.append(ops.clip(self.image(), self.scalar(-1), self.scalar(2) if self.number(0, 1) else None))

    def per_channel(self) -> None:
        x = self.image()
        c = self.normal(int(str(x.shape[1])), 1, 1)
        op = self.draw(st.sampled_from(["add", "mul", "sub", "div"]))
        left = op in ("add", "mul", "sub") and self.number(0, 1)
        self.images.append(getattr(ops, op)(*((c, x) if left else (x, c + np.sign(c)))))

    def binary(self) -> None:
        x = self.image()
        same = [v for v in self.images if v.shape == x.shape]
        self.images.append(
            getattr(ops, self.draw(st.sampled_from(["add", "mul"])))(x, self.draw(st.sampled_from(same)))
        )

    def gate(self) -> None:
        """Squeeze and excitation: one number per channel, from all of the image."""
        x = self.image()
        c = int(str(x.shape[1]))
        gate = ops.sigmoid(ops.matmul(ops.reduce_mean(x, axes=(2, 3), keepdims=False), self.normal(c, c)))
        self.images.append(ops.mul(x, ops.unsqueeze(ops.unsqueeze(gate, axes=(2,)), axes=(3,))))

    def pool(self) -> None:
        x = self.image()
        if all(int(str(d)) >= 2 for d in x.shape[2:]):
            self.images.append(ops.max_pool(x, kernel_shape=(2, 2), strides=(self.number(1, 2),) * 2))

    def halves(self) -> None:
        x = self.image()
        c = int(str(x.shape[1]))
        if c >= 2:
            a, b = ops.split(x, np.array([c // 2, c - c // 2]), axis=1)
            b = ops.batch_norm(b, *self.parameters(c - c // 2))
            self.images.append(ops.concat([ops.relu(a), b], axis=1))

    def chain(self) -> None:
        """The shape that exporters write for x.view(x.shape[0], x.shape[1], -1, x.shape[3])."""
        x = self.image()
        parts = [ops.unsqueeze(ops.gather(ops.shape(x), np.array(i), axis=0), axes=(0,)) for i in (0, 1, 3)]
        shape = ops.concat([parts[0], parts[1], np.array([-1]), parts[2]], axis=0)
        self.images.append(ops.reshape(x, shape))

    def turn(self) -> None:
        x = ops.transpose(self.image(), perm=(0, 1, 3, 2))
        self.images.append(ops.transpose(x, perm=(0, 1, 3, 2)) if self.number(0, 1) else x)

    def pad(self) -> None:
        pads = np.array([0, 0, 0, self.number(0, 1), 0, 0, 0, self.number(-1, 1)])
        if int(str((x := self.image()).shape[3])) > 2:
            self.images.append(ops.pad(x, pads))

    def slice(self) -> None:
        x = self.image()
        step = self.number(1, -1)
        bounds = (0, 10**6) if step == 1 else (10**6, -(10**6))
        self.images.append(ops.slice(x, *(np.array([n]) for n in (*bounds, 2, step))))

    def constants(self) -> None:
        """Work that folds: a chain over constants alone."""
        x = self.image()
        c = ops.transpose(ops.exp(self.g.constant(self.normal(1, int(str(x.shape[1]))))))
        self.images.append(ops.add(x, ops.unsqueeze(c, axes=(2,))))

    def product(self) -> None:
        x = self.row()
        k, n = int(str(x.shape[1])), self.number(1, 3)
        way = self.number(0, 1, 2, 3)
        w = self.normal(k, n)
        if way == 0:
            y = ops.gemm(x, w.T, self.normal(n), transB=True, alpha=self.number(1, 2), beta=self.number(0, 1))
        else:
            weight = ops.transpose(self.g.constant(w.T), perm=(1, 0)) if way == 1 else w
            y = ops.matmul(x, weight)
            y = ops.add(y, self.normal(n)) if way == 2 else y
        if self.number(0, 1):
            y = ops.batch_norm(y, *self.parameters(n))
        self.rows.append(ops.relu(y) if self.number(0, 1) else y)

    def average(self) -> None:
        x = self.image()
        if all(int(str(d)) >= 2 for d in x.shape[2:]):
            pads = (self.number(0, 1),) * 4
            counts = bool(self.number(0, 1))
            self.images.append(ops.average_pool(x, kernel_shape=(2, 2), pads=pads, count_include_pad=counts))

    def larger(self) -> None:
        x = self.image()
        if int(str(x.shape[2])) < 8:
            mode = self.draw(st.sampled_from(["nearest", "linear"]))
            self.images.append(ops.resize(x, None, np.array([1, 1, 2, 2], np.float32), None, mode=mode))

    def layer_norm(self) -> None:
        x = self.image()
        last = int(str(x.shape[3]))
        self.images.append(ops.layer_norm(x, self.normal(last), self.normal(last), axis=-1))

    def choice(self) -> None:
        x = self.image()
        other = self.draw(st.sampled_from([v for v in self.images if v.shape == x.shape]))
        self.images.append(ops.where(ops.greater(x, self.scalar(0.25)), x, other))

    def centred(self) -> None:
        """Something like a norm, spelled out by an exporter."""
        x = self.image()
        axes = self.draw(st.sampled_from([(1,), (2, 3), (1, 2, 3), (3,)]))
        distance = ops.sub(x, ops.reduce_mean(x, axes=axes))
        largest = ops.reduce_max(ops.abs(distance), axes=axes)
        self.images.append(ops.div(distance, ops.add(largest, self.scalar(0.5))))

    def shuffled(self) -> None:
        """Channels in another order, as ShuffleNet has them."""
        x = self.image()
        n, c, h, w = (int(str(d)) for d in x.shape)
        if c % 2 == 0:
            y = ops.transpose(ops.reshape(x, np.array([n, 2, c // 2, h, w])), perm=(0, 2, 1, 3, 4))
            self.images.append(ops.reshape(y, np.array([n, c, h, w])))

    def picked(self) -> None:
        x = self.image()
        indices = self.rng.integers(0, int(str(x.shape[1])), 2)
        self.images.append(ops.gather(x, indices, axis=1))

    def attention(self) -> None:
        """Products of more than two axes, and a softmax between them."""
        x = self.image()
        weights = ops.softmax(ops.mul(ops.matmul(x, ops.transpose(x, perm=(0, 1, 3, 2))), self.scalar(0.3)), axis=-1)
        self.images.append(ops.matmul(weights, x))

    def softmax(self) -> None:
        self.rows.append(ops.softmax(ops.mul(self.row(), self.scalar(0.5)), axis=1))


DRAWS = ("normal", "scalar", "image", "row", "number", "parameters")
STEPS = [n for n, f in vars(Builder).items() if callable(f) and n[0] != "_" and n not in DRAWS]


@st.composite
def networks(draw: st.DrawFn, dtype: str = "float64") -> tuple[Graph, list[np.ndarray]]:
    """A graph and inputs for it."""
    b = Builder(draw, dtype)
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=9)):
        getattr(b, step)()
    values = [*b.images[1:], *b.rows]
    outputs = draw(st.lists(st.sampled_from(values), max_size=2, unique_by=id)) if values else []
    last = values[-1] if values else ops.relu(b.images[0])
    b.g.outputs = list(dict.fromkeys([*outputs, last]))
    return b.g, [np.random.default_rng(1).standard_normal(static(b.images[0].shape)).astype(dtype)]
