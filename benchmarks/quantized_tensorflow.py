"""Writes networks as quantized TensorFlow Lite files by TensorFlow's converter, with random weights; needs TensorFlow,
which has an environment of its own (scripts/tensorflow):

    build/tensorflow/bin/python -m benchmarks.quantized_tensorflow FOLDER [NAME ...]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np
import tensorflow as tf  # pyright: ignore[reportMissingImports]
from tensorflow.python.framework.convert_to_constants import (  # pyright: ignore[reportMissingImports]
    convert_variables_to_constants_v2 as frozen,
)

from benchmarks import quantized_keras, quantized_keras_dense

keras: Any = tf.keras
layers: Any = keras.layers
KINDS = ("int8", "int16x8", "dynamic")
SETS: Any = tf.lite.OpsSet


def unit(x: Any, channels: int, kernel: Any, stride: int = 1, depthwise: bool = False, act: bool = True) -> Any:
    """Convolution, batch norm, activation."""
    if depthwise:
        x = layers.DepthwiseConv2D(kernel, stride, "same", use_bias=False)(x)
    else:
        x = layers.Conv2D(channels, kernel, stride, "same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    return layers.ReLU()(x) if act else x


def ds_cnn() -> Any:
    x = given = layers.Input((49, 10, 1))
    x = unit(x, 64, (10, 4), 2)
    for _ in range(4):
        x = unit(unit(x, 64, 3, depthwise=True), 64, 1)
    return keras.Model(given, layers.Dense(12)(layers.Flatten()(layers.GlobalAveragePooling2D(keepdims=True)(x))))


def resnet8() -> Any:
    x = given = layers.Input((32, 32, 3))
    x = unit(x, 16, 3)
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        beside = x if stride == 1 else unit(x, channels, 1, stride, act=False)
        x = layers.ReLU()(layers.Add()([unit(unit(x, channels, 3, stride), channels, 3, act=False), beside]))
    return keras.Model(given, layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(x)))


def autoencoder() -> Any:
    x = given = layers.Input((640,))
    for width in (128, 128, 8, 128, 128):
        x = layers.ReLU()(layers.BatchNormalization()(layers.Dense(width)(x)))
    return keras.Model(given, layers.Dense(640)(x))


def unet() -> Any:
    x = given = layers.Input((36, 52, 3))
    skips = list[Any]()
    for channels in (8, 16):
        skips.append(x := unit(x, channels, 3))
        x = layers.MaxPool2D()(x)
    x = unit(x, 32, 3)
    for channels, skip in zip((16, 8), skips[::-1]):
        x = layers.Concatenate()([layers.Conv2DTranspose(channels, 2, 2, "same")(x), skip])
        x = unit(x, channels, 3)
    return keras.Model(given, layers.Conv2D(2, 1)(x))


def application(name: str, side: int = 96, **options: Any) -> Callable[[], Any]:
    """A network of keras.applications without weights of training."""
    return lambda: getattr(keras.applications, name)(
        weights=None, input_shape=(side, side, 3), classes=100, classifier_activation=None, **options
    )


NETWORKS: dict[str, Callable[[], Any]] = {
    "ds_cnn": ds_cnn,
    "resnet8": resnet8,
    "autoencoder": autoencoder,
    "unet": unet,
    "mobilenet_v2_224": application("MobileNetV2", 224),  # these are measured, beside ONNX files
    "resnet50_224": application("ResNet50", 224),
    "mobilenet_v1": application("MobileNet", alpha=0.25),
    "mobilenet_v2": application("MobileNetV2", alpha=0.35),
    "mobilenet_v3": application("MobileNetV3Small", minimalistic=False, include_preprocessing=False),
    "resnet50": application("ResNet50", 64),
    "efficientnet_b0": application("EfficientNetB0", 64),
    "densenet121": application("DenseNet121", 64),
    "nasnet_mobile": application("NASNetMobile", 64),
    "mobilenet_v3_large": application("MobileNetV3Large", 64, minimalistic=False, include_preprocessing=False),
    "xception": application("Xception", 71),
    "inception_v3": application("InceptionV3", 75),
    "resnet50_v2": application("ResNet50V2", 64),
    "efficientnet_v2_b0": application("EfficientNetV2B0", 64, include_preprocessing=False),
    **quantized_keras.NETWORKS,
    **quantized_keras_dense.NETWORKS,
}
ALL = ("ds_cnn", "resnet8", "autoencoder", "unet", "mobilenet_v1", "mobilenet_v3", "efficientnet_b0", "densenet121")
"""Those that are written in all kinds; others in int8."""


def converted(model: Any, kind: str) -> bytes:
    """Return a model of Keras as a file. kind: int8, int16x8 (activations of 16 bits), or dynamic (weights of 8 bits,
    ranges of data as they come)."""
    rng = np.random.default_rng(5)
    shape = model.input_shape[1:]
    for layer in model.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.momentum = 0.2  # statistics of what passes here, not those of no data
    for _ in range(3):
        model(rng.standard_normal((4, *shape)).astype(np.float32), training=True)
    call: Any = tf.function(
        lambda x: model(x, training=False), input_signature=[tf.TensorSpec((1, *shape), tf.float32)]
    )
    converter: Any = tf.lite.TFLiteConverter.from_concrete_functions([frozen(call.get_concrete_function())])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]

    def drawn() -> Iterator[list[Any]]:
        for _ in range(4):
            yield [rng.standard_normal((1, *shape)).astype(np.float32)]

    if kind != "dynamic":
        wide = kind == "int16x8"
        sets = SETS.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8 if wide else SETS.TFLITE_BUILTINS_INT8
        converter.representative_dataset = drawn
        converter.target_spec.supported_ops = [sets]
        converter.inference_input_type = converter.inference_output_type = tf.int16 if wide else tf.int8
    return converter.convert()


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:] or [*NETWORKS]
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        keras.utils.set_random_seed(0)
        for kind in KINDS if name in ALL else KINDS[:1]:
            file = folder / f"{name}.{kind}.tflite"
            if file.exists():
                continue
            try:
                file.write_bytes(converted(NETWORKS[name](), kind))
            except Exception as error:  # what the converter cannot do it says in types of its own
                print(f"{file.name}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
                continue
            print(file, flush=True)


if __name__ == "__main__":
    main()
