"""Networks of pytorchcv with random weights and small images.

pip install pytorchcv
"""

# the package is installed for this alone
# pyright: reportMissingImports=false

from __future__ import annotations

from benchmarks.coverage.network import Built, Given, Row, Tensors

CLASS, SEGMENT = "image classification", "segmentation"
STREET = {"in_size": (64, 64)}

ROWS: tuple[Row, ...] = (
    Row("preresnet10", CLASS),
    Row("ibn_resnet50", CLASS),
    Row("cbam_resnet18", CLASS),
    Row("igcv3_w1", CLASS),
    Row("menet108_8x1_g3", CLASS),
    Row("proxylessnas_cpu", CLASS),
    Row("resnesta18", CLASS),
    Row("diaresnet10", CLASS),
    Row("mobilenet_wd4", CLASS, forms=("static QDQ", "static QOperator")),
    Row("unet_cityscapes", SEGMENT, STREET),
    Row("bisenet_resnet18_celebamaskhq", SEGMENT, STREET),
    Row("pspnet_resnetd50b_voc", SEGMENT, STREET),
    Row("alphapose_fastseresnet101b_coco", "human pose", {"in_size": (64, 64)}),
    Row("simplepose_resnet18_coco", "human pose", {"in_size": (64, 64)}),
    Row("centernet_resnet18_voc", "detection", {"in_size": (64, 64)}),
    Row("lwopenpose2d_mobilenet_cmupan_coco", "human pose", {"in_size": (64, 64)}),
)


def build(row: Row) -> Built:
    """Return the network of a row."""
    from pytorchcv.model_provider import get_model

    net = get_model(row.name, pretrained=False, **row.options)
    size = row.options.get("in_size", (224, 224))  # the last pool of the others has a kernel of that size
    return Built(Tensors(net), (Given("image", ("batch", 3, *size)),))
