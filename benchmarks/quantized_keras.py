"""Networks of public definitions in Keras, a part of their channels and layers, that benchmarks.quantized_tensorflow
writes as quantized files: those that classify, and what all are made of. Needs TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf  # pyright: ignore[reportMissingImports]

keras: Any = tf.keras
layers: Any = keras.layers


def unit(x: Any, channels: int, kernel: Any = 3, stride: Any = 1, *, act: Any = "relu", **options: Any) -> Any:
    """Convolution, batch norm, activation; of each channel for itself, where `channels` is 0."""
    if channels:
        x = layers.Conv2D(channels, kernel, stride, "same", use_bias=False, **options)(x)
    else:
        x = layers.DepthwiseConv2D(kernel, stride, "same", use_bias=False, **options)(x)
    x = layers.BatchNormalization()(x)
    return layers.Activation(act)(x) if act else x


def classified(x: Any, classes: int = 100) -> Any:
    return layers.Dense(classes)(layers.GlobalAveragePooling2D()(x))


def excited(x: Any, squeezed: int, gate: Any = "sigmoid") -> Any:
    """Squeeze and excite."""
    y = layers.GlobalAveragePooling2D(keepdims=True)(x)
    y = layers.Conv2D(squeezed, 1, activation="relu")(y)
    return layers.Multiply()([x, layers.Conv2D(x.shape[-1], 1, activation=gate)(y)])


def image(side: int = 64, channels: int = 3, width: int = 0) -> Any:
    return layers.Input((side, width or side, channels))


def joined(*branches: Any) -> Any:
    return layers.Concatenate()([*branches])


def lenet() -> Any:
    x = given = image(28, 1)
    for channels in (6, 16):
        x = layers.AveragePooling2D(2)(layers.Conv2D(channels, 5, padding="same", activation="tanh")(x))
    x = layers.Flatten()(x)
    for width in (120, 84):
        x = layers.Dense(width, activation="tanh")(x)
    return keras.Model(given, layers.Dense(10, activation="softmax")(x))


def alexnet() -> Any:
    x = given = image(67)
    x = layers.Conv2D(64, 11, 4, activation="relu")(x)
    x = layers.MaxPool2D(3, 2)(x)
    x = layers.MaxPool2D(3, 2)(layers.Conv2D(96, 5, padding="same", activation="relu")(x))
    for channels in (128, 96, 96):
        x = layers.Conv2D(channels, 3, padding="same", activation="relu")(x)
    x = layers.Flatten()(x)
    return keras.Model(given, layers.Dense(100)(layers.Dense(256, activation="relu")(x)))


def vgg11() -> Any:
    x = given = image(48)
    for channels, count in ((32, 1), (64, 1), (96, 2), (128, 2), (128, 2)):
        for _ in range(count):
            x = unit(x, channels)
        x = layers.MaxPool2D()(x)
    return keras.Model(given, layers.Dense(100)(layers.Dense(256, activation="relu")(layers.Flatten()(x))))


def residual(
    given: Any, widths: Sequence[int], *, deep: bool = False, groups: int = 1, excites: bool = False, stem: int = 7
) -> Any:
    """ResNet: blocks of two convolutions, or of three where it is deep; ResNeXt where these have groups."""
    x = unit(given, widths[0], stem, 2)
    x = layers.MaxPool2D(3, 2, "same")(x)
    for number, width in enumerate(widths):
        for stride in (1 if number == 0 else 2, 1):
            out, y = width * (2 if deep else 1), x
            for channels, kernel, step, count in (
                ((width, 1, 1, 1), (width, 3, stride, groups), (out, 1, 1, 1))
                if deep
                else ((width, 3, stride, 1), (width, 3, 1, 1))
            ):
                last = (channels, kernel, step) == (out, 1, 1) if deep else step == 1 and y is not x
                y = unit(y, channels, kernel, step, act=None if last else "relu", groups=count)
            y = excited(y, out // 4) if excites else y
            if stride > 1 or x.shape[-1] != out:
                x = unit(x, out, 1, stride, act=None)
            x = layers.ReLU()(layers.Add()([x, y]))
    return keras.Model(given, classified(x))


def squeezenet() -> Any:
    x = given = image()
    x = layers.Conv2D(64, 3, 2, activation="relu")(x)
    for number, (squeezed, wide) in enumerate(((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (64, 256))):
        if number in (0, 2, 4):
            x = layers.MaxPool2D(3, 2)(x)
        x = layers.Conv2D(squeezed, 1, activation="relu")(x)
        x = joined(*(layers.Conv2D(wide, k, padding="same", activation="relu")(x) for k in (1, 3)))
    return keras.Model(given, layers.GlobalAveragePooling2D()(layers.Conv2D(100, 1, activation="relu")(x)))


def inverted(
    given: Any, rows: Sequence[tuple[int, int, int, int]], *, act: Any = "relu", excites: bool = False, stem: int = 16
) -> Any:
    """MnasNet and what came after it: expansion, depthwise convolution of a kernel, projection."""
    x = unit(given, stem, 3, 2, act=act)
    for wide, kernel, out, stride in rows:
        y = unit(x, x.shape[-1] * wide, 1, act=act) if wide > 1 else x
        y = unit(y, 0, kernel, stride, act=act)
        y = excited(y, max(8, x.shape[-1] // 4)) if excites else y
        y = unit(y, out, 1, act=None)
        x = layers.Add()([x, y]) if stride == 1 and x.shape[-1] == out else y
    return keras.Model(given, classified(unit(x, 192, 1, act=act)))


MOBILE = ((1, 3, 16, 1), (6, 3, 24, 2), (3, 5, 40, 2), (3, 5, 40, 1), (6, 3, 80, 2), (6, 3, 96, 1), (6, 5, 96, 1))


def ghostnet() -> Any:
    """Half of the channels of a convolution are depthwise convolutions of the other half."""

    def ghost(x: Any, channels: int, act: Any = "relu") -> Any:
        first = unit(x, channels // 2, 1, act=act)
        return joined(first, unit(first, 0, 3, act=act))

    x = given = image()
    x = unit(x, 16, 3, 2)
    for wide, out, stride, excites in ((16, 16, 1, 0), (48, 24, 2, 0), (72, 24, 1, 1), (72, 40, 2, 1), (120, 40, 1, 1)):
        y = ghost(x, wide)
        y = unit(y, 0, 3, stride, act=None) if stride > 1 else y
        y = ghost(excited(y, wide // 4, "hard_sigmoid") if excites else y, out, None)
        beside = x if stride == 1 and x.shape[-1] == out else unit(unit(x, 0, 3, stride, act=None), out, 1, act=None)
        x = layers.Add()([y, beside])
    return keras.Model(given, classified(x))


def shufflenet_v2() -> Any:
    def shuffled(x: Any) -> Any:
        _, high, wide, channels = x.shape
        x = layers.Permute((1, 2, 4, 3))(layers.Reshape((high, wide, 2, channels // 2))(x))
        return layers.Reshape((high, wide, channels))(x)

    x = given = image()
    x = layers.MaxPool2D(3, 2, "same")(unit(x, 24, 3, 2))
    for width, count in ((48, 2), (96, 3)):
        for stride in (2, *(1,) * (count - 1)):
            half = width // 2
            first, second = (x, x) if stride > 1 else (x[..., :half], x[..., half:])
            second = unit(unit(unit(second, half, 1), 0, 3, stride, act=None), half, 1)
            first = unit(unit(first, 0, 3, stride, act=None), half, 1) if stride > 1 else first
            x = shuffled(joined(first, second))
    return keras.Model(given, classified(unit(x, 128, 1)))


def googlenet() -> Any:
    x = given = image()
    x = layers.MaxPool2D(3, 2, "same")(unit(x, 32, 7, 2))
    x = layers.MaxPool2D(3, 2, "same")(unit(unit(x, 32, 1), 64))
    for a, b, c, d in ((32, 48, 16, 16), (48, 64, 32, 32), (64, 96, 16, 24)):
        pooled = unit(layers.MaxPool2D(3, 1, "same")(x), d, 1)
        x = joined(unit(x, a, 1), unit(unit(x, b // 2, 1), b), unit(unit(x, c // 2, 1), c), pooled)
    return keras.Model(given, classified(x))


def convnext() -> Any:
    x = given = image()
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Conv2D(32, 4, 4)(x))
    for width in (32, 64):
        if width > 32:
            x = layers.Conv2D(width, 2, 2)(layers.LayerNormalization(epsilon=1e-6)(x))
        for _ in range(2):
            y = layers.LayerNormalization(epsilon=1e-6)(layers.DepthwiseConv2D(7, padding="same")(x))
            x = layers.Add()([x, layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(y))])
    return keras.Model(given, classified(x))


def mlp_mixer() -> Any:
    x = given = image(48)
    x = layers.Reshape((36, 64))(layers.Conv2D(64, 8, 8)(x))
    for _ in range(3):
        y = layers.Permute((2, 1))(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Permute((2, 1))(layers.Dense(36)(layers.Dense(48, activation="gelu")(y)))])
        x = layers.Add()([x, layers.Dense(64)(layers.Dense(128, activation="gelu")(layers.LayerNormalization()(x)))])
    return keras.Model(given, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def encoder(x: Any, depth: int, heads: int, act: str = "gelu") -> Any:
    """Layers of a transformer, with norms before."""
    width = x.shape[-1]
    for _ in range(depth):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(heads, width // heads)(y, y)])
        y = layers.Dense(2 * width, activation=act)(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(width)(y)])
    return x


def vit() -> Any:
    x = given = image(48)
    x = encoder(layers.Reshape((36, 48))(layers.Conv2D(48, 8, 8)(x)), 2, 3)
    return keras.Model(given, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


NETWORKS: dict[str, Callable[[], Any]] = {
    "lenet": lenet,
    "alexnet": alexnet,
    "vgg11": vgg11,
    "resnet18": lambda: residual(image(), (32, 48, 64, 96)),
    "resnext": lambda: residual(image(), (32, 64, 96), deep=True, groups=8),
    "se_resnet": lambda: residual(image(), (32, 64, 96), deep=True, excites=True),
    "squeezenet": squeezenet,
    "mnasnet": lambda: inverted(image(), MOBILE),
    "efficientnet_lite": lambda: inverted(image(), MOBILE, act="relu6"),
    "efficientnet_se": lambda: inverted(image(), MOBILE, act="silu", excites=True),
    "regnet_y": lambda: residual(image(), (24, 56, 88), deep=True, groups=4, excites=True, stem=3),
    "ghostnet": ghostnet,
    "shufflenet_v2": shufflenet_v2,
    "googlenet": googlenet,
    "convnext": convnext,
    "mlp_mixer": mlp_mixer,
    "vit": vit,
}
