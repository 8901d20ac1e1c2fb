"""Networks of timm with random weights, small images, and depth and width cut where their constructors take that.

pip install timm
"""

# the package is installed for this alone
# pyright: reportMissingImports=false

from __future__ import annotations

from benchmarks.coverage.network import Built, Given, Row

CLASS = "image classification"
SMALL_VIT = {"embed_dim": 32, "depth": 2, "num_heads": 4, "img_size": 64}

ROWS: tuple[Row, ...] = (
    Row("resnet26d", CLASS, {"layers": (1, 1, 1, 1)}),
    Row("resnetv2_50", CLASS, {"layers": (1, 1, 1, 1), "channels": (32, 48, 64, 96)}),
    Row("seresnet50", CLASS, {"layers": (1, 1, 1, 1)}, "dynamo"),
    Row("ecaresnet26t", CLASS, {"layers": (1, 1, 1, 1)}),
    Row("res2net50_26w_4s", CLASS, {"layers": (1, 1, 1, 1)}),
    Row("dla34", CLASS),
    Row("hrnet_w18_small", CLASS),
    Row("ghostnet_100", CLASS),
    Row("mixnet_s", CLASS),
    Row("mobilenetv4_conv_small", CLASS, forms=("static QDQ",)),
    Row("tf_efficientnet_lite0", CLASS, forms=("static QDQ", "static QOperator")),
    Row("rexnet_100", CLASS, exporter="dynamo"),
    Row("nfnet_l0", CLASS),
    Row("cspdarknet53", CLASS),
    Row("repvgg_a0", CLASS, forms=("static QDQ",)),
    Row("mobileone_s0", CLASS),
    Row("deit_tiny_patch16_224", CLASS, {**SMALL_VIT}, forms=("static QDQ",)),
    Row("cait_xxs24_224", CLASS, {**SMALL_VIT}),
    Row("xcit_nano_12_p16_224", CLASS, {"depth": 2, "img_size": 64}),
    Row("beit_base_patch16_224", CLASS, {**SMALL_VIT}, "dynamo"),
    Row("mixer_s32_224", CLASS, {"img_size": 64}),
    Row("gmlp_s16_224", CLASS, {"img_size": 64}),
    Row("poolformer_s12", CLASS),
    Row("convmixer_768_32", CLASS),
    Row("levit_128s", CLASS),
    Row("twins_svt_small", CLASS, {"img_size": 64, "depths": (1, 1, 2, 1)}),
    Row("edgenext_xx_small", CLASS),
    Row("efficientformer_l1", CLASS),
    Row("fastvit_t8", CLASS),
    Row("mobilevitv2_050", CLASS),
    Row("davit_tiny", CLASS, {"depths": (1, 1, 2, 1)}),
    Row("focalnet_tiny_srf", CLASS),
    Row("eva02_tiny_patch14_224", CLASS, {"embed_dim": 32, "depth": 2, "num_heads": 4, "img_size": 56}, "dynamo"),
    Row("hiera_tiny_224", CLASS, {"stages": (1, 1, 2, 1)}),
)

OWN = ("levit_128s", "efficientformer_l1", "hiera_tiny_224")  # sizes that cannot be other ones


def build(row: Row) -> Built:
    """Return the network of a row."""
    import timm

    net = timm.create_model(row.name, pretrained=False, num_classes=20, **row.options)
    size = 224 if row.name in OWN else int(row.options.get("img_size", 64))
    return Built(net, (Given("image", ("batch", 3, size, size)),))
