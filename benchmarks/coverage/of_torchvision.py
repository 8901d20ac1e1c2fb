"""Networks of torchvision with their own definitions, random weights and small images; detectors with NMS inside.

pip install torchvision
"""

# the package is installed for this alone
# pyright: reportMissingImports=false

from __future__ import annotations

import torch

from benchmarks.coverage.network import Built, Given, Row, Tensors

INT8 = ("static QDQ", "static QOperator")
CLASS, SEGMENT, DETECT, VIDEO = "image classification", "segmentation", "detection, NMS inside", "video"


def _detector(name: str, size: int = 96, **options: int) -> Row:
    small = {"min_size": size, "max_size": size} if "ssd" not in name else {}
    few = {"detections_per_img": 20, "topk_candidates": 40} if "rcnn" not in name else {"box_detections_per_img": 20}
    few |= (
        {"rpn_pre_nms_top_n_test": 60, "rpn_post_nms_top_n_test": 30, "box_score_thresh": 0.0}
        if "rcnn" in name
        else {"score_thresh": 0.0}
    )
    return Row(name, DETECT, {"num_classes": 4, **small, **few, **options}, opens=())


ROWS: tuple[Row, ...] = (
    Row("alexnet", CLASS, {"num_classes": 20}, "dynamo"),
    Row("vgg11_bn", CLASS, {"num_classes": 20}, "dynamo"),
    Row("resnet18", CLASS, exporter="script", forms=(*INT8, "dynamic int8")),
    Row("resnet50", CLASS, exporter="dynamo", forms=("static QDQ",)),
    Row("resnext50_32x4d", CLASS),
    Row("densenet121", CLASS),
    Row("googlenet", CLASS, {"init_weights": False, "aux_logits": False}),
    Row("inception_v3", CLASS, {"init_weights": False, "aux_logits": False}),
    Row("squeezenet1_1", CLASS, forms=INT8),
    Row("mobilenet_v2", CLASS, forms=INT8),
    Row("mobilenet_v3_small", CLASS, exporter="dynamo", forms=("static QDQ",)),
    Row("mnasnet0_5", CLASS),
    Row("shufflenet_v2_x0_5", CLASS, forms=("static QDQ",)),
    Row("efficientnet_b0", CLASS, forms=("static QDQ",)),
    Row("regnet_y_400mf", CLASS),
    Row("convnext_tiny", CLASS),
    Row("swin_t", CLASS, exporter="dynamo"),
    Row("swin_v2_t", CLASS),
    Row("maxvit_t", CLASS, {"input_size": (64, 64)}),
    Row("vit_b_16", CLASS, {"image_size": 64}),
    Row("fcn_resnet50", SEGMENT, exporter="script", opens=("batch", "height", "width")),
    Row("deeplabv3_mobilenet_v3_large", SEGMENT, forms=("static QDQ",)),
    Row("deeplabv3_resnet50", SEGMENT),
    Row("lraspp_mobilenet_v3_large", SEGMENT, forms=("static QDQ",)),
    _detector("ssdlite320_mobilenet_v3_large", 320),
    _detector("ssd300_vgg16", 300),
    _detector("retinanet_resnet50_fpn"),
    _detector("fcos_resnet50_fpn"),
    _detector("fasterrcnn_mobilenet_v3_large_320_fpn"),
    _detector("fasterrcnn_resnet50_fpn"),
    _detector("maskrcnn_resnet50_fpn"),
    _detector("keypointrcnn_resnet50_fpn", num_classes=2, num_keypoints=5),
    Row("r3d_18", VIDEO),
    Row("mc3_18", VIDEO),
    Row("r2plus1d_18", VIDEO),
    Row("raft_small", "optical flow", opens=()),
)


def build(row: Row) -> Built:
    """Return the network of a row."""
    from torchvision.models import get_model

    backbone = {"weights_backbone": None} if row.task in (SEGMENT, DETECT) else {}
    net = get_model(row.name, weights=None, **backbone, **row.options)
    size = 96 if "inception" in row.name else 64
    match row.task:
        case "detection, NMS inside":
            size = {"ssd300_vgg16": 300, "ssdlite320_mobilenet_v3_large": 320}.get(row.name, 96)
            return Built(_Detector(net), (Given("image", (3, size, size), "uniform"),))
        case "optical flow":
            frames = (Given(n, (1, 3, 128, 128), "uniform") for n in ("before", "after"))
            return Built(Tensors(net, options={"num_flow_updates": 2}), tuple(frames))
        case "video":
            return Built(net, (Given("clip", ("batch", 3, 6, 32, 32)),))
        case _:
            pass
    shape = ("height", "width") if "height" in row.opens else (size, size)
    return Built(Tensors(net), (Given("image", ("batch", 3, *shape)),))


class _Detector(torch.nn.Module):
    """A detector of one image: boxes, labels, scores, masks or keypoints."""

    def __init__(self, net: torch.nn.Module):
        super().__init__()
        self.net = net

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.net([image])[0].values())
