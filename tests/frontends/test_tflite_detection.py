"""Suppression of boxes, and what stands behind detectors in TensorFlow Lite files, against LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.tflite_files import File, litert

import renorm
from renorm.errors import InvalidModel
from renorm.frontends.tflite.flexbuffer import numbers

flexbuffers: Any = pytest.importorskip("flatbuffers.flexbuffers", reason="flatbuffers is not installed")

DETECTOR = {
    "max_detections": 5, "max_classes_per_detection": 1, "detections_per_class": 4, "use_regular_nms": False,
    "nms_score_threshold": 0.3, "nms_iou_threshold": 0.5, "num_classes": 3, "y_scale": 10.0, "x_scale": 10.0,
    "h_scale": 5.0, "w_scale": 5.0,
}  # fmt: skip


def packed(options: dict[str, Any]) -> bytes:
    builder = flexbuffers.Builder()
    with builder.Map():
        for key, value in options.items():
            {bool: builder.Bool, int: builder.Int, float: builder.Float, str: builder.String}[type(value)](key, value)
    return bytes(builder.Finish())


def test_numbers_of_a_map() -> None:
    stated = {"a": 1, "b": -300, "c": 2.5, "d": True, "word": "x", "e": 1 << 40, "f": 0.1}
    found = numbers(packed(stated))
    assert found == {k: v for k, v in stated.items() if k != "word"}
    assert numbers(b"") == {}


def test_damaged_maps() -> None:
    whole = packed({"a": 1, "b": -300, "c": 2.5, "e": 1 << 40})
    rng = np.random.default_rng(1)
    for _ in range(3000):
        raw = bytearray(whole)
        for _ in range(rng.integers(1, 4)):
            raw[rng.integers(len(raw))] = rng.integers(256)
        try:
            numbers(bytes(raw[: rng.integers(1, len(raw) + 1)] if rng.random() < 0.3 else raw))
        except InvalidModel:
            continue


def detector(background: int, **more: Any) -> tuple[bytes, list[Any]]:
    said, rng, n = DETECTOR | more, np.random.default_rng(5), 40
    file, classes = File(), int(said["num_classes"]) + background
    for name, shape in (("boxes", (1, n, 4)), ("scores", (1, n, classes))):
        file.tensor(name, shape)
    anchors = np.concatenate([rng.uniform(0.2, 0.8, (n, 2)), rng.uniform(0.1, 0.4, (n, 2))], 1).astype(np.float32)
    file.constant("anchors", anchors)
    outs = [file.tensor(name, ()) for name in ("b", "c", "s", "n")]
    file.operator("TFLite_Detection_PostProcess", ["boxes", "scores", "anchors"], outs, custom=packed(said))
    xs = [rng.standard_normal((1, n, 4)).astype(np.float32), rng.uniform(0, 1, (1, n, classes)).astype(np.float32)]
    return file.written(["boxes", "scores"], outs), xs


@pytest.mark.parametrize("background", [0, 1])
@pytest.mark.parametrize(
    "more",
    [
        {}, {"max_classes_per_detection": 2, "max_detections": 7}, {"nms_score_threshold": 0.97},
        {"use_regular_nms": True}, {"use_regular_nms": True, "max_detections": 20},
        {"use_regular_nms": True, "nms_score_threshold": 0.9, "nms_iou_threshold": 0.1},
    ],
    ids=str,
)  # fmt: skip
def test_what_stands_behind_a_detector(background: int, more: dict[str, Any]) -> None:
    content, xs = detector(background, **more)
    *found, count = renorm.compile(content).run(*xs)
    *expected, number = litert(content, *xs)
    np.testing.assert_array_equal(count, number)
    there = int(count[0]) * (DETECTOR | more)["max_classes_per_detection"]
    for y, e in zip(found, expected, strict=True):
        assert y.shape == e.shape
        np.testing.assert_allclose(y[:, :there], e[:, :there], rtol=1e-5, atol=1e-5)  # LiteRT leaves the rest undefined
        assert not y[:, there:].any()


@pytest.mark.parametrize("version", ["V4", "V5"])
@pytest.mark.parametrize(("most", "overlap", "least"), [(5, 0.5, 0.2), (30, 0.3, 0.0), (3, 1.0, 0.99), (4, 0.05, 0.1)])
def test_suppression(version: str, most: int, overlap: float, least: float) -> None:
    file, rng, n = File(), np.random.default_rng(6), 20
    file.tensor("boxes", (n, 4))
    file.tensor("scores", (n,))
    file.constant("most", np.asarray(most, np.int32))
    for name, value in (("overlap", overlap), ("least", least), ("sigma", 0.0)):
        file.constant(name, np.asarray(value, np.float32))
    kinds = {"V4": ("int32", "int32"), "V5": ("int32", "float32", "int32")}[version]
    outs = [file.tensor(f"y{k}", (), dtype) for k, dtype in enumerate(kinds)]
    names = ["boxes", "scores", "most", "overlap", "least", *(["sigma"] if version == "V5" else [])]
    kind = {"V4": "NON_MAX_SUPPRESSION_V4", "V5": "NON_MAX_SUPPRESSION_V5"}[version]
    file.operator(kind, names, outs, f"NonMaxSuppression{version}Options")
    content = file.written(["boxes", "scores"], outs)
    at = rng.uniform(0, 1, (n, 2))
    boxes = np.concatenate([at, at + rng.uniform(0.1, 0.6, (n, 2))], 1).astype(np.float32)
    scores = rng.uniform(0, 1, n).astype(np.float32)
    for y, e in zip(renorm.compile(content).run(boxes, scores), litert(content, boxes, scores), strict=True):
        assert (y.dtype, y.shape) == (e.dtype, e.shape)
        np.testing.assert_array_equal(y, e)
