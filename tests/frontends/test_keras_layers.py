"""Layers of Keras, read and compiled, against Keras itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frontends.keras_models import WARNINGS, agrees, keras, trained

import renorm
from renorm.frontends.keras.layers import TABLE

pytestmark = WARNINGS
L, K = keras.layers, keras.ops
IMAGE, ROWS, VECTOR = (9, 13, 6), (7, 6), (6,)
Case = tuple[Any, Callable[..., Any]]  # shapes of inputs, and what is called with them


def image(*layers: Any) -> Case:
    return IMAGE, lambda x: _chain(x, layers)


def rows(*layers: Any) -> Case:
    return ROWS, lambda x: _chain(x, layers)


def vector(*layers: Any) -> Case:
    return VECTOR, lambda x: _chain(x, layers)


def _chain(x: Any, layers: Any) -> Any:
    for layer in layers:
        x = layer(x)
    return x


def pair(make: Callable[..., Any], *shapes: Any) -> Case:
    return list(shapes or (IMAGE, IMAGE)), make


FIRST = {"data_format": "channels_first"}
CASES: dict[str, Callable[[], Case]] = {
    # convolutions
    "conv2d": lambda: image(L.Conv2D(5, 3)),
    "conv2d same": lambda: image(L.Conv2D(5, (3, 4), strides=(2, 3), padding="same", activation="relu")),
    "conv2d dilated": lambda: image(L.Conv2D(4, 3, dilation_rate=(2, 3), padding="same", use_bias=False)),
    "conv2d groups": lambda: image(L.Conv2D(8, 3, groups=2)),
    "conv2d softmax": lambda: image(L.Conv2D(4, 1, activation="softmax")),
    "conv2d first": lambda: ((6, 9, 13), lambda x: L.Conv2D(5, 3, strides=2, padding="same", **FIRST)(x)),
    "conv1d": lambda: rows(L.Conv1D(5, 3, strides=2, padding="same")),
    "conv1d causal": lambda: rows(L.Conv1D(5, 3, dilation_rate=2, padding="causal")),
    "conv3d": lambda: ((5, 6, 7, 3), lambda x: L.Conv3D(4, (2, 3, 2), strides=(1, 2, 1), padding="same")(x)),
    "depthwise": lambda: image(L.DepthwiseConv2D(3, depth_multiplier=2, padding="same", strides=2)),
    "depthwise1d": lambda: rows(L.DepthwiseConv1D(3, activation="gelu")),
    "depthwise first": lambda: ((6, 9, 13), lambda x: L.DepthwiseConv2D((3, 2), depth_multiplier=3, **FIRST)(x)),
    "separable": lambda: image(L.SeparableConv2D(5, 3, depth_multiplier=2, padding="same", activation="relu")),
    "separable1d": lambda: rows(L.SeparableConv1D(5, 2, strides=2)),
    "transposed valid": lambda: image(L.Conv2DTranspose(4, (3, 2), strides=(2, 3))),
    "transposed same": lambda: image(L.Conv2DTranspose(4, (3, 4), strides=2, padding="same", activation="tanh")),
    "transposed same odd": lambda: image(L.Conv2DTranspose(4, (5, 2), strides=(3, 2), padding="same")),
    "transposed extra": lambda: image(L.Conv2DTranspose(4, 3, strides=2, padding="same", output_padding=1)),
    "transposed valid extra": lambda: image(L.Conv2DTranspose(4, 3, strides=(2, 3), output_padding=(1, 2))),
    "transposed small": lambda: image(L.Conv2DTranspose(4, 2, strides=3)),
    "transposed dilated": lambda: image(L.Conv2DTranspose(4, 3, dilation_rate=2, padding="same")),
    "transposed1d": lambda: rows(L.Conv1DTranspose(4, 3, strides=2, padding="same")),
    "transposed3d": lambda: ((3, 4, 5, 2), lambda x: L.Conv3DTranspose(3, 3, strides=2, padding="same")(x)),
    "transposed first": lambda: ((6, 9, 13), lambda x: L.Conv2DTranspose(4, 3, strides=2, **FIRST)(x)),
    # dense
    "dense": lambda: vector(L.Dense(5, activation="sigmoid")),
    "dense rows": lambda: rows(L.Dense(5)),
    "dense image": lambda: image(L.Conv2D(4, 3), L.Dense(5, activation="gelu"), L.Conv2D(3, 1)),
    "dense plain image": lambda: image(L.Dense(5, use_bias=False)),
    "einsum": lambda: rows(L.EinsumDense("abc,cd->abd", output_shape=(None, 5), bias_axes="d")),
    "einsum heads": lambda: rows(L.EinsumDense("abc,cde->abde", output_shape=(None, 3, 4), bias_axes="de")),
    "einsum steps": lambda: rows(L.EinsumDense("abc,bd->adc", output_shape=(5, 6))),
    "einsum bias": lambda: rows(L.EinsumDense("...x,xy->...y", output_shape=5, bias_axes="y", activation="relu")),
    "embedding": lambda: (("int32", (7,)), lambda x: L.Embedding(11, 6)(x)),
    # norms
    "batch norm": lambda: image(L.Conv2D(5, 3, use_bias=False), L.BatchNormalization(epsilon=0.01)),
    "batch norm alone": lambda: image(L.BatchNormalization(center=False)),
    "batch norm first": lambda: image(L.BatchNormalization(axis=1, scale=False)),
    "batch norm second": lambda: image(L.BatchNormalization(axis=2)),
    "batch norm vector": lambda: vector(L.Dense(7), L.BatchNormalization()),
    "batch norm rows": lambda: rows(L.BatchNormalization()),
    "layer norm": lambda: image(L.Conv2D(5, 3), L.LayerNormalization()),
    "layer norm rows": lambda: rows(L.LayerNormalization(epsilon=0.1, center=False)),
    "layer norm axes": lambda: image(L.LayerNormalization(axis=[1, 2, 3])),
    "layer norm first": lambda: image(L.LayerNormalization(axis=[1, 3], scale=False)),
    "group norm": lambda: image(L.GroupNormalization(3)),
    "group norm first": lambda: ((6, 9, 13), lambda x: L.GroupNormalization(2, axis=1, epsilon=0.1)(x)),
    "instance norm": lambda: image(L.GroupNormalization(-1, center=False)),
    "rms norm": lambda: rows(L.RMSNormalization(epsilon=0.01)),
    "rms norm image": lambda: image(L.Conv2D(5, 3), L.RMSNormalization()),
    "unit norm": lambda: image(L.Conv2D(5, 3), L.UnitNormalization()),
    "unit norm axes": lambda: image(L.UnitNormalization(axis=[1, 2])),
    "spectral norm": lambda: image(L.SpectralNormalization(L.Conv2D(5, 3))),
    "normalization": lambda: image(L.Normalization(), L.Conv2D(4, 3)),
    "normalization given": lambda: image(L.Normalization(mean=[1, 2, 3, 4, 5, 6], variance=[1, 2, 3, 4, 5, 6])),
    "normalization one": lambda: image(L.Normalization(axis=None, mean=0.3, variance=2.0)),
    "normalization axes": lambda: rows(L.Normalization(axis=(1, 2))),
    "normalization inverse": lambda: rows(L.Normalization(invert=True)),
    # pools
    "max pool": lambda: image(L.MaxPooling2D((2, 3))),
    "max pool same": lambda: image(L.MaxPooling2D(3, strides=2, padding="same")),
    "average pool": lambda: image(L.AveragePooling2D(3, strides=(1, 2))),
    "average pool same": lambda: image(L.AveragePooling2D(3, strides=1, padding="same")),
    "max pool1d": lambda: rows(L.MaxPooling1D(2)),
    "average pool3d": lambda: ((4, 5, 6, 2), lambda x: L.AveragePooling3D(2)(x)),
    "max pool first": lambda: ((6, 9, 13), lambda x: L.MaxPooling2D(2, **FIRST)(x)),
    "global average": lambda: image(L.GlobalAveragePooling2D(), L.Dense(3)),
    "global max": lambda: image(L.GlobalMaxPooling2D(keepdims=True), L.Conv2D(3, 1)),
    "global average1d": lambda: rows(L.GlobalAveragePooling1D()),
    "global average first": lambda: ((6, 9, 13), lambda x: L.GlobalAveragePooling2D(keepdims=True, **FIRST)(x)),
    "global max3d": lambda: ((4, 5, 6, 2), lambda x: L.GlobalMaxPooling3D()(x)),
    # activations
    "relu": lambda: image(L.ReLU(max_value=0.8, negative_slope=0.2, threshold=0.1)),
    "relu most": lambda: image(L.ReLU(6.0)),
    "leaky relu": lambda: image(L.Conv2D(4, 3), L.LeakyReLU(0.1)),
    "elu": lambda: vector(L.ELU(0.7)),
    "prelu": lambda: image(L.PReLU()),
    "prelu shared": lambda: image(L.Conv2D(4, 3), L.PReLU(shared_axes=[1, 2])),
    "softmax": lambda: image(L.Conv2D(4, 3), L.Softmax()),
    "softmax axis": lambda: image(L.Softmax(axis=1)),
    "softmax axes": lambda: image(L.Softmax(axis=[2, 3])),
    # merging
    "add": lambda: pair(lambda a, b: L.Add()([L.Conv2D(6, 1)(a), b])),
    "add three": lambda: pair(lambda a, b: L.Add()([a, b, a])),
    "add ranks": lambda: pair(lambda a, b: L.Multiply()([a, b]), IMAGE, (6,)),
    "add ranks behind": lambda: pair(lambda a, b: L.Add()([a, b]), IMAGE, (13, 6)),
    "subtract": lambda: pair(lambda a, b: L.Subtract()([a, L.Conv2D(6, 1)(b)])),
    "multiply": lambda: pair(lambda a, b: L.Multiply()([a, L.GlobalAveragePooling2D(keepdims=True)(b)])),
    "average": lambda: pair(lambda a, b: L.Average()([a, b, b])),
    "maximum": lambda: pair(lambda a, b: L.Maximum()([a, b])),
    "minimum": lambda: pair(lambda a, b: L.Minimum()([L.Conv2D(6, 1)(a), b])),
    "concatenate": lambda: pair(lambda a, b: L.Concatenate()([L.Conv2D(3, 1)(a), b])),
    "concatenate axis": lambda: pair(lambda a, b: L.Concatenate(axis=1)([L.Conv2D(6, 1)(a), b])),
    "dot": lambda: pair(lambda a, b: L.Dot(axes=(2, 2))([a, b]), (7, 6), (4, 6)),
    "dot vectors": lambda: pair(lambda a, b: L.Dot(axes=1, normalize=True)([a, b]), (6,), (6,)),
    # moving
    "reshape": lambda: image(L.Conv2D(4, 1), L.Reshape((13, -1))),
    "reshape to image": lambda: vector(L.Reshape((1, 1, 6)), L.Conv2D(3, 1)),
    "squeeze and excite": lambda: image(
        L.Conv2D(4, 3), L.GlobalAveragePooling2D(), L.Reshape((1, 1, 4)), L.Conv2D(3, 1), L.Flatten()
    ),
    "flatten": lambda: image(L.Conv2D(4, 3), L.Flatten(), L.Dense(3)),
    "flatten first": lambda: ((6, 9, 13), lambda x: L.Flatten(**FIRST)(L.Conv2D(4, 3, **FIRST)(x))),
    "permute": lambda: image(L.Permute((3, 1, 2))),
    "repeat vector": lambda: vector(L.RepeatVector(4)),
    "zero padding": lambda: image(L.ZeroPadding2D(((1, 2), (0, 3)))),
    "zero padding one": lambda: image(L.ZeroPadding2D(2), L.Conv2D(3, 3)),
    "zero padding1d": lambda: rows(L.ZeroPadding1D((2, 1))),
    "zero padding first": lambda: ((6, 9, 13), lambda x: L.ZeroPadding2D((1, 2), **FIRST)(x)),
    "zero padding3d": lambda: ((4, 5, 6, 2), lambda x: L.ZeroPadding3D(1)(x)),
    "cropping": lambda: image(L.Cropping2D(((1, 2), (0, 3)))),
    "cropping1d": lambda: rows(L.Cropping1D(2)),
    "cropping3d": lambda: ((4, 5, 6, 2), lambda x: L.Cropping3D((1, 2, 1))(x)),
    "center crop": lambda: image(L.CenterCrop(4, 6)),
    # resizing
    "up sampling": lambda: image(L.UpSampling2D((2, 3))),
    "up sampling bilinear": lambda: image(L.Conv2D(4, 3), L.UpSampling2D(2, interpolation="bilinear")),
    "up sampling1d": lambda: rows(L.UpSampling1D(3)),
    "up sampling3d": lambda: ((2, 3, 4, 2), lambda x: L.UpSampling3D(2)(x)),
    "up sampling first": lambda: ((6, 4, 5), lambda x: L.UpSampling2D(2, **FIRST)(x)),
    "resizing": lambda: image(L.Resizing(5, 17)),
    "resizing nearest": lambda: image(L.Resizing(4, 21, interpolation="nearest")),
    "resizing smooth": lambda: image(L.Resizing(4, 5, antialias=True)),
    "rescaling": lambda: (("uint8", IMAGE), lambda x: L.Rescaling(1 / 127.5, offset=-1)(x)),
    "rescaling channels": lambda: image(L.Rescaling([1, 2, 3, 4, 5, 6], offset=[0.1] * 6), L.Conv2D(3, 2)),
    # transparent
    "dropout": lambda: image(L.Dropout(0.5), L.SpatialDropout2D(0.2), L.GaussianNoise(0.3), L.Conv2D(3, 3)),
    "augmenting": lambda: image(L.RandomFlip(), L.RandomRotation(0.1), L.RandomZoom(0.1), L.Conv2D(3, 3)),
    "identity": lambda: vector(L.Identity(), L.ActivityRegularization(0.1)),
    # attention
    "attention": lambda: pair(lambda q, v: L.Attention()([q, v]), (7, 6), (4, 6)),
    "attention scaled": lambda: pair(lambda q, v: L.Attention(use_scale=True)([q, v, v]), (7, 6), (7, 6)),
    "attention causal": lambda: pair(lambda q, v: L.Attention()([q, v], use_causal_mask=True), (7, 6), (7, 6)),
    "attention concat": lambda: pair(
        lambda q, v: L.Attention(score_mode="concat", use_scale=True)([q, v]), (7, 6), (4, 6)
    ),
    "additive attention": lambda: pair(lambda q, v: L.AdditiveAttention()([q, v]), (7, 6), (4, 6)),
    "heads": lambda: pair(lambda q, v: L.MultiHeadAttention(3, 4, value_dim=5)(q, v), (7, 6), (4, 6)),
    "heads key": lambda: pair(lambda q, v: L.MultiHeadAttention(2, 3, use_bias=False)(q, v, key=q), (7, 6), (7, 6)),
    "heads causal": lambda: rows(lambda x: L.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)),
    "heads output": lambda: rows(lambda x: L.MultiHeadAttention(2, 3, output_shape=5)(x, x)),
    "heads mask": lambda: (
        [ROWS, ("bool", (7, 7))],
        lambda x, m: L.MultiHeadAttention(2, 3)(x, x, attention_mask=m),
    ),
    "group query": lambda: rows(lambda x: L.GroupQueryAttention(4, 6, 3)(x, x)),
    # recurrent
    "simple rnn": lambda: rows(L.SimpleRNN(5)),
    "simple rnn backwards": lambda: rows(L.SimpleRNN(5, return_sequences=True, go_backwards=True, use_bias=False)),
    "lstm": lambda: rows(L.LSTM(5)),
    "lstm sequences": lambda: rows(L.LSTM(5, return_sequences=True, recurrent_activation="hard_sigmoid"), L.Dense(3)),
    "lstm state": lambda: rows(L.LSTM(4, return_state=True, return_sequences=True)),
    "lstm initial": lambda: (
        [ROWS, (5,), (5,)],
        lambda x, h, s: L.LSTM(5)(x, initial_state=[h, s]),
    ),
    "gru": lambda: rows(L.GRU(5)),
    "gru before": lambda: rows(L.GRU(5, reset_after=False, return_sequences=True)),
    "gru plain": lambda: rows(L.GRU(5, use_bias=False, return_state=True)),
    "bidirectional": lambda: rows(L.Bidirectional(L.LSTM(5, return_sequences=True))),
    "bidirectional sum": lambda: rows(L.Bidirectional(L.GRU(5), merge_mode="sum")),
    "bidirectional apart": lambda: rows(
        L.Bidirectional(L.SimpleRNN(3, return_sequences=True), merge_mode=None)
    ),
    "bidirectional layers": lambda: rows(
        L.Bidirectional(L.LSTM(4), backward_layer=L.LSTM(4, activation="relu", go_backwards=True))
    ),
    "cells": lambda: rows(L.RNN([L.LSTMCell(4), L.GRUCell(3)], return_sequences=True)),
    "time distributed": lambda: ((3, 9, 8, 2), lambda x: L.TimeDistributed(L.Conv2D(4, 3))(x)),
    "time distributed dense": lambda: rows(L.TimeDistributed(L.Dense(4, activation="relu"))),
    # masks
    "masked product": lambda: (
        [("int32", (7,)), (7, 6)],
        lambda a, b: L.Multiply()([L.Embedding(9, 6, mask_zero=True)(a), b]),
    ),
    "product of masked": lambda: (
        [("int32", (7,)), ("int32", (7,))],
        lambda a, b: L.LSTM(3)(L.Multiply()([L.Embedding(9, 6, mask_zero=True)(x) for x in (a, b)])),
    ),
    "sum of masked": lambda: (
        [("int32", (7,)), ("int32", (7,))],
        lambda a, b: L.LSTM(3)(L.Add()([L.Embedding(9, 6, mask_zero=True)(x) for x in (a, b)])),
    ),
    "masked side by side": lambda: (
        ("int32", (7,)),
        lambda x: (lambda e: L.LSTM(3)(L.Concatenate()([e, L.LayerNormalization()(e)])))(
            L.Embedding(9, 6, mask_zero=True)(x)
        ),
    ),
    # names that are those of ops
    "called softmax": lambda: vector(L.Dense(3, activation="softmax", name="softmax")),
    "called relu": lambda: rows(L.Conv1D(5, 3, activation="relu", name="relu")),
    "called attention": lambda: rows(lambda x: L.MultiHeadAttention(2, 3, name="attention")(x, x)),
    "moveaxis of one": lambda: rows(lambda x: K.moveaxis(x, 1, -1)),
    "masked lstm": lambda: (("int32", (7,)), lambda x: L.LSTM(5)(L.Embedding(9, 6, mask_zero=True)(x))),
    "masked gru": lambda: (
        ("int32", (7,)),
        lambda x: L.GRU(5, return_sequences=True)(L.Dropout(0.1)(L.Embedding(9, 6, mask_zero=True)(x))),
    ),
    "masked bidirectional": lambda: (
        ("int32", (7,)),
        lambda x: L.Bidirectional(L.LSTM(5, return_sequences=True))(L.Embedding(9, 6, mask_zero=True)(x)),
    ),
    "masked average": lambda: (
        ("int32", (7,)),
        lambda x: L.GlobalAveragePooling1D()(L.Dense(4)(L.Embedding(9, 6, mask_zero=True)(x))),
    ),
    "masked attention": lambda: (
        [("int32", (7,)), ("int32", (5,))],
        lambda a, b: L.Attention()([e(x) for e, x in ((L.Embedding(9, 6, mask_zero=True), y) for y in (a, b))]),
    ),
    "masked heads": lambda: (("int32", (7,)), lambda x: _self_attention(L.Embedding(9, 6, mask_zero=True)(x))),
    "masked with states": lambda: (
        [("int32", (7,)), (5,)],
        lambda x, h: _with_states(L.Embedding(9, 6, mask_zero=True)(x), h),
    ),
    "masking": lambda: (
        ("int32", (7, 6)),
        lambda x: L.SimpleRNN(4)(L.Masking(3.0)(L.Rescaling(1.0)(x))),
    ),
    # operations
    "operators": lambda: pair(lambda a, b: (a + b) * 2.0 - a / (K.abs(b) + 1.0), ROWS, ROWS),
    "numbers and bytes": lambda: (("uint8", (7, 6)), lambda x: [x / 255, x * 0.5 - 1, x - 1, K.where(x > 3, x, -0.5)]),
    "bytes": lambda: (("uint8", (7, 6)), lambda x: [K.mean(x, 1), K.sum(x, 1), K.std(x), K.logsumexp(x, -1), K.exp(x)]),
    "bytes and others": lambda: (
        [("uint8", ROWS), ("int8", ROWS), ("float16", ROWS), ("bool", ROWS)],
        lambda a, b, x, m: [a - b, a * x, x + m, K.logical_and(a, x), K.concatenate([b, a, m]), L.Add()([a, b, x])],
    ),
    "operations": lambda: rows(lambda x: K.sqrt(K.exp(x)) + K.mean(x, axis=-1, keepdims=True) + K.sum(x)),
    "activations": lambda: rows(lambda x: K.relu(x) + K.gelu(x) + K.silu(x) + K.softmax(x) + K.sigmoid(x)),
    "moved": lambda: rows(lambda x: K.transpose(K.reshape(x, (-1, 7, 2, 3)), (0, 2, 1, 3))),
    "items": lambda: image(lambda x: x[:, 2:7:2, -4:, 1:]),
    "items gone": lambda: image(lambda x: x[:, -1, ..., 0]),
    "stacked": lambda: pair(lambda a, b: K.stack([K.maximum(a, b), a], axis=1), ROWS, ROWS),
    "products": lambda: pair(lambda a, b: K.matmul(a, K.transpose(b, (0, 2, 1))), (7, 6), (5, 6)),
    "einsum operation": lambda: pair(lambda a, b: K.einsum("bij,bkj->bik", a, b), (7, 6), (5, 6)),
    "choices": lambda: pair(lambda a, b: K.where(a > b, a, K.clip(b, -0.5, 0.5)), ROWS, ROWS),
    "axes moved": lambda: image(lambda x: K.swapaxes(K.moveaxis(x, [1, 3], [3, 2]), 1, -1)),
    "parts": lambda: rows(lambda x: K.concatenate(K.split(x, 3, axis=-1)[::-1] + K.split(x, [1, 4], axis=2), axis=-1)),
    "flipped": lambda: rows(lambda x: K.flip(x, axis=1) + K.normalize(x, axis=-1)),
    "taken": lambda: rows(lambda x: K.take(x, [2, 0, 5], axis=2)),
    "tiled": lambda: rows(lambda x: K.tile(x, (1, 2, 3)) + K.repeat(K.repeat(x, 2, axis=1), 3, axis=2)),
    "padded": lambda: rows(lambda x: K.pad(x, ((0, 0), (1, 2), (0, 3)), constant_values=0.5)),
    "one hot": lambda: (("int32", (7,)), lambda x: K.one_hot(x - 2, 9) * 2.0),
    "curves": lambda: rows(lambda x: K.log1p(K.square(x)) + K.expm1(x) + K.std(x, -1, True)),
    "extremes": lambda: rows(lambda x: [K.argmax(x, axis=-1), K.max(x, axis=(1, 2)), K.var(x, axis=1), K.any(x > 0.5)]),
    "joined": lambda: pair(lambda a, b: K.concatenate([a, K.expand_dims(b, 1)], axis=1), (7, 6), (6,)),
}  # fmt: skip


def _with_states(x: Any, h: Any) -> list[Any]:
    """Layers that are told states by name, or behind the sequence, and a mask."""
    y = L.GRU(5, return_sequences=True)(x, h)
    told = L.SimpleRNN(5)(x, initial_state=h, mask=K.greater(x[:, :, 0], 0.0))
    return [y, told, L.SimpleRNN(5)(y), L.LSTM(5)(x, [h, h]), L.Bidirectional(L.GRU(5))(x, initial_state=[h, h])]


def _self_attention(x: Any) -> Any:
    return L.MultiHeadAttention(2, 3)(x, x)


def model_of(case: Case) -> Any:
    given, make = case
    specs = given if isinstance(given, list) else [given]
    inputs = list[Any]()
    for spec in specs:
        dtype, shape = spec if isinstance(spec[0], str) else ("float32", spec)
        inputs.append(keras.Input(shape, dtype=dtype))
    keras.utils.set_random_seed(3)
    return trained(keras.Model(inputs, make(*inputs)))


@pytest.mark.parametrize("name", CASES)
def test_layers_agree_with_keras(name: str, tmp_path: Path) -> None:
    model = model_of(CASES[name]())
    path = tmp_path / "model.keras"
    model.save(path)
    agrees(model, path)


UNREAD = ("sparsemax", "threshold")
ACTIVATIONS = sorted({f.__name__ for f in keras.src.activations.ALL_OBJECTS} - {*UNREAD})


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_agree_with_keras(name: str) -> None:
    """As an activation of an image with channels first, and as a layer of its own."""
    more = [] if name == "exponential" else [L.Activation(name)]  # of exponentials there are no numbers left
    agrees(model_of(image(L.Conv2D(4, 3, activation=name), *more)), sizes=(2,))


def test_layers_as_activations(tmp_path: Path) -> None:
    model = model_of(rows(L.Dense(4, activation=L.LeakyReLU(0.1)), L.Dense(3, activation=L.ReLU(0.5))))
    model.save(tmp_path / "model.keras")
    agrees(model, tmp_path / "model.keras", sizes=(2,))


def test_layers_that_the_page_names_are_read() -> None:
    text = (Path(__file__).parents[2] / "docs" / "keras.md").read_text()
    table = text[text.index("| family | layers |") :].split("\n\n")[0]
    for name in re.findall(r"`(\w+)`", table.replace("`keras.activations`", "")):
        assert any(kind.startswith(name) for kind in TABLE) or name in ("2D", *UNREAD), name


@pytest.mark.parametrize("kind", [L.Attention, L.AdditiveAttention])
def test_attention_in_float16(kind: Any) -> None:
    """Where no key counts, all values do alike: what is taken from scores must be a number."""
    ids = keras.Input((5,), dtype="int32")
    rows = L.Embedding(9, 4, mask_zero=True, dtype="float16")(ids)
    model = trained(keras.Model(ids, kind(dtype="float16")([rows, rows])))
    m = renorm.compile(model)
    given = np.array([[0, 3, 0, 7, 8], [0, 0, 0, 0, 0]], np.int32)
    wanted = keras.ops.convert_to_numpy(model(given, training=False))
    assert np.isfinite(wanted).all()
    np.testing.assert_allclose(m.run(given)[0], wanted, rtol=0, atol=4e-3 * float(np.abs(wanted).max()))
