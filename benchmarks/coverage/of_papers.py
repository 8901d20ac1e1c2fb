"""Networks that are written here as papers define them: super-resolution, detection, text, speech, and others."""

from __future__ import annotations

from typing import Any

from benchmarks.coverage import papers_detection, papers_images, papers_sequences
from benchmarks.coverage.network import Built, Given, Row

SIZE = ("batch", "height", "width")
INT8 = ("static QDQ", "static QOperator")

ROWS: tuple[Row, ...] = (
    Row("Srcnn", "super-resolution", opens=SIZE, forms=INT8),
    Row("fsrcnn", "super-resolution", opens=SIZE),
    Row("espcn", "super-resolution", opens=SIZE, exporter="dynamo", forms=INT8),
    Row("Edsr", "super-resolution", opens=SIZE, forms=("static QDQ",)),
    Row("Rdn", "super-resolution", opens=SIZE, exporter="dynamo"),
    Row("Srgan", "super-resolution", opens=SIZE),
    Row("DnCnn", "restoration", opens=SIZE),
    Row("Unet", "segmentation", forms=INT8),
    Row("Unet", "segmentation", {"bilinear": True}, "dynamo"),
    Row("Enet", "segmentation"),
    Row("CycleGan", "image generation", opens=SIZE),
    Row("StyleGan", "image generation", opens=()),
    Row("dcgan", "image generation", exporter="dynamo"),
    Row("YoloV3", "detection, NMS inside", opens=(), forms=("static QDQ",)),
    Row("YoloV8", "detection", exporter="dynamo", forms=("static QDQ",)),
    Row("Ssd", "detection, NMS inside", opens=()),
    Row("CenterNet", "detection"),
    Row("RoiPooled", "detection", opens=()),
    Row("Crnn", "text in images, CTC head", forms=("dynamic int8",)),
    Row("DeepSpeech2", "speech, CTC head", opens=("batch", "time")),
    Row("DeepSpeech2", "speech, CTC head", {"kind": "LSTM"}, "dynamo", (), ("dynamic int8",)),
    Row("TacotronEncoder", "speech synthesis", opens=("batch", "sequence")),
    Row("WaveNet", "speech synthesis", opens=("batch", "time"), exporter="dynamo"),
    Row("Conformer", "speech, CTC head", opens=("batch",), forms=("dynamic int8", "static QDQ")),
    Row("LstmLanguage", "text decoder with its state", opens=("batch", "sequence"), forms=("dynamic int8",)),
    Row("Attended", "translation", opens=("batch", "sequence", "target")),
    Row("KeywordSpotter", "keywords in speech", forms=INT8),
    Row("Tcn", "time series", opens=("batch", "time")),
    Row("PointNet", "points", exporter="dynamo"),
    Row("Dlrm", "recommendation", exporter="dynamo", forms=("dynamic int8",)),
)

GIVEN: dict[str, tuple[Given, ...]] = {
    **dict.fromkeys(("Srcnn", "fsrcnn", "espcn", "DnCnn"), (Given("image", ("batch", 1, *SIZE[1:]), "uniform"),)),
    **dict.fromkeys(("Unet", "Enet", "YoloV8", "CenterNet"), (Given("image", ("batch", 3, 48, 40)),)),
    **dict.fromkeys(("YoloV3", "Ssd"), (Given("image", (1, 3, 64, 64)),)),
    "RoiPooled": (Given("image", (1, 3, 48, 64)), Given("regions", (5, 2), "uniform")),
    "StyleGan": (Given("z", (2, 16)), Given("coarse", (2, 1, 4, 4)), Given("fine", (2, 1, 8, 8))),
    "dcgan": (Given("z", ("batch", 20, 1, 1)),),
    "Crnn": (Given("image", ("batch", 1, 32, 64)),),
    "DeepSpeech2": (Given("spectrogram", ("batch", 40, "time")),),
    "TacotronEncoder": (Given("letters", ("batch", "sequence"), "tokens", 40),),
    "WaveNet": (Given("wave", ("batch", 1, "time")),),
    "Conformer": (Given("spectrogram", ("batch", 20, 60)),),
    "LstmLanguage": (
        Given("words", ("batch", "sequence"), "tokens"), Given("hidden", (2, "batch", 16)),
        Given("cell", (2, "batch", 16)),
    ),
    "Attended": (Given("words", ("batch", "sequence"), "tokens"), Given("said", ("batch", "target"), "tokens")),
    "KeywordSpotter": (Given("features", ("batch", 1, 49, 10)),),
    "Tcn": (Given("series", ("batch", 3, "time")),),
    "PointNet": (Given("points", ("batch", 3, 50)),),
    "Dlrm": (Given("numbers", ("batch", 5)), Given("kinds", ("batch", 4), "tokens")),
}  # fmt: skip
IMAGE = (Given("image", ("batch", 3, "height", "width"), "uniform"),)


def build(row: Row) -> Built:
    """Return the network of a row."""
    of: dict[str, Any] = {**vars(papers_images), **vars(papers_detection), **vars(papers_sequences)}
    return Built(of[row.name](**row.options), GIVEN.get(row.name, IMAGE))
