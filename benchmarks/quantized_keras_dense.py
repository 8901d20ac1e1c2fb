"""Networks of public definitions in Keras whose results are images, boxes, or rows along time, that
benchmarks.quantized_tensorflow writes as quantized files. Needs TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.quantized_keras import classified, encoder, image, joined, keras, layers, unit


def dncnn() -> Any:
    """Noise is subtracted."""
    x = given = image(40, 1)
    x = layers.Conv2D(32, 3, padding="same", activation="relu")(x)
    for _ in range(6):
        x = unit(x, 32)
    return keras.Model(given, layers.Subtract()([given, layers.Conv2D(1, 3, padding="same")(x)]))


def fsrcnn() -> Any:
    x = given = image(24, 1)
    for channels, kernel in ((56, 5), (12, 1), (12, 3), (12, 3), (56, 1)):
        x = layers.PReLU("random_uniform", shared_axes=(1, 2))(layers.Conv2D(channels, kernel, padding="same")(x))
    return keras.Model(given, layers.Conv2DTranspose(1, 9, 3, "same")(x))


def pixels(x: Any, by: int) -> Any:
    """Channels become pixels, `by` in each direction."""
    _, high, wide, channels = x.shape
    x = layers.Permute((1, 3, 2, 4))(layers.Reshape((high, wide, by, by * (channels // by**2)))(x))
    return layers.Reshape((high * by, wide * by, channels // by**2))(x)


def espcn() -> Any:
    x = given = image(24, 1)
    for channels, kernel in ((64, 5), (32, 3)):
        x = layers.Conv2D(channels, kernel, padding="same", activation="tanh")(x)
    x = layers.Conv2D(9, 3, padding="same")(x)
    return keras.Model(given, pixels(x, 3))


def edsr() -> Any:
    x = given = image(20)
    x = first = layers.Conv2D(32, 3, padding="same")(x)
    for _ in range(4):
        y = layers.Conv2D(32, 3, padding="same", activation="relu")(x)
        x = layers.Add()([x, layers.Rescaling(0.1)(layers.Conv2D(32, 3, padding="same")(y))])
    x = layers.Conv2D(12, 3, padding="same")(layers.Add()([x, first]))
    return keras.Model(given, pixels(x, 2))


def conv_autoencoder() -> Any:
    x = given = image(32)
    for channels in (16, 32, 48):
        x = unit(x, channels, 3, 2)
    for channels in (32, 16):
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2DTranspose(channels, 3, 2, "same")(x)))
    return keras.Model(given, layers.Conv2DTranspose(3, 3, 2, "same", activation="sigmoid")(x))


def resized(x: Any, like: Any, how: str = "bilinear") -> Any:
    return layers.Resizing(like.shape[1], like.shape[2], how)(x)


def doubled(x: Any) -> Any:
    return layers.Resizing(2 * x.shape[1], 2 * x.shape[2], "nearest")(x)


def deeplab_head() -> Any:
    given = image(48, width=64)
    x = unit(unit(given, 16, 3, 2), 32, 3, 2)
    mean = unit(layers.GlobalAveragePooling2D(keepdims=True)(x), 16, 1)
    x = joined(*(unit(x, 16, 3, dilation_rate=d) for d in (1, 3, 6)), resized(mean, x))
    return keras.Model(given, resized(layers.Conv2D(5, 1)(unit(x, 32, 1)), given))


def pspnet_head() -> Any:
    given = image(48)
    x = unit(unit(given, 16, 3, 2), 32, 3, 2)
    means = (unit(layers.AveragePooling2D(12 // n)(x), 8, 1) for n in (1, 2, 3, 6))
    x = unit(joined(x, *(resized(mean, x) for mean in means)), 32)
    return keras.Model(given, resized(layers.Conv2D(4, 1)(x), given))


def fast_scnn() -> Any:
    def separable(x: Any, channels: int, stride: int) -> Any:
        return unit(unit(x, 0, 3, stride), channels, 1)

    given = image(64, width=96)
    x = shallow = separable(separable(unit(given, 16, 3, 2), 24, 2), 32, 2)
    for channels, stride in ((32, 2), (48, 1), (48, 1)):
        y = unit(unit(unit(x, x.shape[-1] * 4, 1), 0, 3, stride), channels, 1, act=None)
        x = layers.Add()([x, y]) if stride == 1 and x.shape[-1] == channels else y
    high = unit(unit(resized(x, shallow), 0, 3), 48, 1, act=None)
    x = layers.ReLU()(layers.Add()([high, unit(shallow, 48, 1, act=None)]))
    return keras.Model(given, resized(layers.Conv2D(6, 1)(separable(x, 48, 1)), given))


def fpn_detector() -> Any:
    """RetinaNet's pyramid and heads: from each image scores and boxes, which are joined."""
    given = image(64, width=96)
    images = [unit(unit(given, 16, 3, 2), 24, 3, 2)]
    for channels in (32, 48):
        images.append(unit(images[-1], channels, 3, 2))
    pyramid = [layers.Conv2D(32, 1)(images[-1])]
    for x in images[-2::-1]:
        pyramid.append(layers.Add()([layers.Conv2D(32, 1)(x), doubled(pyramid[-1])]))
    pyramid = [layers.Conv2D(32, 3, padding="same")(x) for x in pyramid]
    found = list[Any]()
    for each, act in ((5, "sigmoid"), (4, None)):
        first = layers.Conv2D(32, 3, padding="same", activation="relu")
        last = layers.Conv2D(3 * each, 3, padding="same", activation=act)
        parts = [layers.Reshape((-1, each))(last(first(x))) for x in pyramid]
        found.append(layers.Concatenate(1)(parts))
    return keras.Model(given, found)


def ssd_head() -> Any:
    given = image()
    first = unit(unit(unit(given, 16, 3, 2), 0, 3, 2), 32, 1)
    second = unit(unit(first, 0, 3, 2), 48, 1)
    found = list[Any]()
    for each, act in ((4, "linear"), (7, "softmax")):
        heads = (layers.Conv2D(3 * each, 1)(unit(x, 0, 3)) for x in (first, second))
        found.append(layers.Activation(act)(layers.Concatenate(1)([layers.Reshape((-1, each))(h) for h in heads])))
    return keras.Model(given, found)


def yolo_tiny() -> Any:
    given = image()

    def leaky(x: Any, channels: int, kernel: int = 3) -> Any:
        return layers.LeakyReLU(0.1)(unit(x, channels, kernel, act=None))

    x, seen = given, list[Any]()
    for channels in (8, 16, 32, 64):
        seen.append(x := leaky(x, channels))
        x = layers.MaxPool2D()(x)
    x = leaky(leaky(x, 128), 64, 1)
    small = layers.Conv2D(3 * 11, 1)(leaky(x, 96))
    x = joined(doubled(leaky(x, 32, 1)), seen[-1])
    return keras.Model(given, [small, layers.Conv2D(3 * 11, 1)(leaky(x, 64))])


def hourglass() -> Any:
    """Heat maps of joints: images halved and doubled again, with sums across."""
    given = image()
    x, across = unit(given, 24, 7, 2), list[Any]()
    for _ in range(3):
        across.append(unit(x, 24))
        x = unit(layers.MaxPool2D()(x), 24)
    for beside in across[::-1]:
        x = layers.Add()([doubled(unit(x, 24)), beside])
    return keras.Model(given, layers.Conv2D(16, 1)(unit(x, 24, 1)))


def tc_resnet8() -> Any:
    """Convolutions along time: coefficients are channels."""
    given = layers.Input((101, 1, 40))
    x = layers.Conv2D(16, (3, 1), padding="same", use_bias=False)(given)
    for channels in (24, 32, 48):
        y = unit(unit(x, channels, (9, 1), (2, 1)), channels, (9, 1), act=None)
        x = layers.ReLU()(layers.Add()([y, unit(x, channels, 1, (2, 1))]))
    return keras.Model(given, classified(x, 12))


def text_line() -> Any:
    """A line of text: convolutions, attention along it, scores of each place."""
    given = image(32, 1, 96)
    x = given
    for channels, pool in ((16, (2, 2)), (32, (2, 2)), (48, (2, 1)), (64, (2, 1))):
        x = layers.MaxPool2D(pool)(unit(x, channels))
    x = layers.Reshape((24, 128))(layers.Permute((2, 1, 3))(x))
    return keras.Model(given, layers.Dense(37, activation="softmax")(encoder(layers.Dense(64)(x), 1, 4, "relu")))


def wave_encoder() -> Any:
    """wav2vec's convolutions of a wave."""
    given = x = layers.Input((1600, 1))
    for channels, kernel, stride in ((32, 10, 5), (32, 3, 2), (48, 3, 2), (48, 2, 2)):
        x = layers.Conv1D(channels, kernel, stride, activation="gelu")(x)
    return keras.Model(given, layers.Dense(29)(layers.LayerNormalization()(x)))


def whisper_encoder() -> Any:
    given = layers.Input((64, 40))
    x = layers.Conv1D(48, 3, padding="same", activation="gelu")(given)
    x = layers.Conv1D(48, 3, 2, "same", activation="gelu")(x)
    return keras.Model(given, layers.LayerNormalization()(encoder(x, 2, 4)))


def lstm() -> Any:
    given = layers.Input((20, 13))
    x = layers.Conv1D(24, 5, padding="same", activation="relu")(given)
    return keras.Model(given, layers.Dense(11)(layers.LSTM(20, return_sequences=True, unroll=True)(x)))


NETWORKS: dict[str, Callable[[], Any]] = {
    "dncnn": dncnn,
    "fsrcnn": fsrcnn,
    "espcn": espcn,
    "edsr": edsr,
    "conv_autoencoder": conv_autoencoder,
    "deeplab_head": deeplab_head,
    "pspnet_head": pspnet_head,
    "fast_scnn": fast_scnn,
    "fpn_detector": fpn_detector,
    "ssd_head": ssd_head,
    "yolo_tiny": yolo_tiny,
    "hourglass": hourglass,
    "tc_resnet8": tc_resnet8,
    "text_line": text_line,
    "wave_encoder": wave_encoder,
    "whisper_encoder": whisper_encoder,
    "lstm": lstm,
}
