"""Detectors as their papers define them, narrow, with boxes decoded and non-maximum suppression in the network."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BOXES, CLASSES = 3, 4


def _conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1))


def _suppressed(boxes: Tensor, scores: Tensor, most: float = 0.5) -> Tensor:
    """Return indices of boxes, by torchvision's operator: NonMaxSuppression in the file."""
    return torch.ops.torchvision.nms(boxes, scores, most)


class YoloV3(nn.Module):
    """Redmon and Farhadi 2018: two scales, anchors, sigmoids of centers, exponents of sides; boxes suppressed."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.stem = nn.Sequential(_conv(3, width), _conv(width, 2 * width, 3, 2), _conv(2 * width, 4 * width, 3, 2))
        self.deep, self.narrow = _conv(4 * width, 4 * width, 3, 2), _conv(4 * width, 2 * width, 1)
        self.join = _conv(6 * width, 4 * width)
        self.heads = nn.ModuleList(nn.Conv2d(4 * width, BOXES * (5 + CLASSES), 1) for _ in range(2))
        self.register_buffer(
            "anchors", torch.tensor([[[10.0, 13], [16, 30], [33, 23]], [[30.0, 61], [62, 45], [59, 40]]])
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fine = self.stem(x)
        deep = self.deep(fine)
        fine = self.join(torch.cat((F.interpolate(self.narrow(deep), scale_factor=2), fine), 1))
        found = [self.decoded(head(y), i, s) for i, (head, y, s) in enumerate(zip(self.heads, (fine, deep), (4, 8)))]
        boxes, scores = (torch.cat(parts, 1)[0] for parts in zip(*found))
        best, label = scores.max(1)
        kept = _suppressed(boxes, best)[:20]
        return boxes[kept], best[kept], label[kept]

    def decoded(self, y: Tensor, level: int, stride: int) -> tuple[Tensor, Tensor]:
        batch, _, height, width = y.shape
        y = y.view(batch, BOXES, 5 + CLASSES, height, width).permute(0, 1, 3, 4, 2)
        rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        centers = (y[..., :2].sigmoid() + torch.stack((columns, rows), -1)) * stride
        sides = y[..., 2:4].clamp(max=4).exp() * self.get_buffer("anchors")[level][None, :, None, None]
        boxes = torch.cat((centers - sides / 2, centers + sides / 2), -1)
        scores = y[..., 4:5].sigmoid() * y[..., 5:].sigmoid()
        return boxes.reshape(batch, -1, 4), scores.reshape(batch, -1, CLASSES)


class YoloV8(nn.Module):
    """A head without anchors, as in the family from 2023: sides as expected values of a distribution."""

    def __init__(self, width: int = 8, bins: int = 8):
        super().__init__()
        self.bins = bins
        silu = nn.SiLU()
        self.stem = nn.Sequential(
            *(nn.Sequential(_conv(a, b, 3, 2)[:2], silu) for a, b in ((3, width), (width, 2 * width)))
        )
        self.split, self.mix = _conv(2 * width, 2 * width, 1), _conv(width, width)
        self.join = _conv(3 * width, 2 * width, 1)
        self.sides, self.kinds = nn.Conv2d(2 * width, 4 * bins, 1), nn.Conv2d(2 * width, CLASSES, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.split(self.stem(x))
        a, b = y.chunk(2, 1)
        y = self.join(torch.cat((a, b, b + self.mix(b)), 1))
        height, width = y.shape[2:]
        sides = self.sides(y).view(y.shape[0], 4, self.bins, -1).softmax(2)
        sides = (sides * torch.arange(self.bins, dtype=sides.dtype)[:, None]).sum(2)
        rows, columns = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
        centers = torch.stack((columns.flatten(), rows.flatten()))
        boxes = torch.cat((centers - sides[:, :2], centers + sides[:, 2:]), 1) * 4
        return boxes, self.kinds(y).flatten(2).sigmoid()


class Ssd(nn.Module):
    """Liu and others 2016: default boxes on two maps, each class suppressed on its own, the best of all kept."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.first = nn.Sequential(_conv(3, width, 3, 2), _conv(width, 2 * width, 3, 2))
        self.second = _conv(2 * width, 2 * width, 3, 2)
        self.places = nn.ModuleList(nn.Conv2d(2 * width, 2 * 4, 3, padding=1) for _ in range(2))
        self.kinds = nn.ModuleList(nn.Conv2d(2 * width, 2 * (1 + CLASSES), 3, padding=1) for _ in range(2))
        sizes = [(16, 4), (8, 8)]
        self.register_buffer("defaults", torch.cat([_defaults(n, s) for n, s in sizes]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first = self.first(x)
        maps = (first, self.second(first))
        moved = torch.cat([p(m).permute(0, 2, 3, 1).reshape(-1, 4) for p, m in zip(self.places, maps)])
        scores = torch.cat(
            [k(m).permute(0, 2, 3, 1).reshape(-1, 1 + CLASSES) for k, m in zip(self.kinds, maps)]
        ).softmax(1)
        usual = self.get_buffer("defaults")
        centers = usual[:, :2] + 0.1 * moved[:, :2] * usual[:, 2:]
        sides = usual[:, 2:] * (0.2 * moved[:, 2:]).exp()
        boxes = torch.cat((centers - sides / 2, centers + sides / 2), 1)
        found = list[tuple[Tensor, Tensor, Tensor]]()
        for kind in range(1, 1 + CLASSES):
            likely = torch.where(scores[:, kind] > 0.15)[0]
            kept = likely[_suppressed(boxes[likely], scores[likely, kind], 0.45)]
            found.append((boxes[kept], scores[kept, kind], torch.full_like(kept, kind)))
        all_boxes, all_scores, labels = (torch.cat(parts) for parts in zip(*found))
        best = all_scores.argsort(descending=True)[:20]
        return all_boxes[best], all_scores[best], labels[best]


def _defaults(cells: int, stride: int) -> Tensor:
    at = (torch.arange(cells) + 0.5) * stride
    rows, columns = torch.meshgrid(at, at, indexing="ij")
    centers = torch.stack((columns, rows), -1).reshape(-1, 1, 2).expand(-1, 2, -1)
    sides = torch.tensor([[2.0, 2.0], [3.0, 1.5]]).expand(len(centers), -1, -1) * stride
    return torch.cat((centers, sides), -1).reshape(-1, 4)


class CenterNet(nn.Module):
    """Zhou and others 2019: peaks of a map of scores, found by a pool, and the best of them."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.body = nn.Sequential(_conv(3, width, 3, 2), _conv(width, 2 * width, 3, 2), _conv(2 * width, 2 * width))
        self.heat, self.sides = nn.Conv2d(2 * width, CLASSES, 1), nn.Conv2d(2 * width, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.body(x)
        heat = self.heat(y).sigmoid()
        heat = heat * (F.max_pool2d(heat, 3, 1, 1) == heat)
        scores, at = heat.flatten(1).topk(10)
        pixels = at % (y.shape[2] * y.shape[3])
        sides = self.sides(y).flatten(2).gather(2, pixels[:, None].expand(-1, 2, -1))
        return scores, sides


class RoiPooled(nn.Module):
    """Girshick 2015: given regions, pooled from a map of features, and two heads."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.body = nn.Sequential(_conv(3, width, 3, 2), _conv(width, width, 3, 2))
        self.dense = nn.Linear(width * 16, 24)
        self.kinds, self.sides = nn.Linear(24, CLASSES), nn.Linear(24, 4 * CLASSES)

    def forward(self, x: Tensor, regions: Tensor) -> tuple[Tensor, Tensor]:
        rois = torch.cat(
            (torch.zeros_like(regions[:, :1]), torch.cat((regions[:, :2], regions[:, :2] + 20), 1) * 1.0), 1
        )
        pooled = torch.ops.torchvision.roi_align(self.body(x), rois, 0.25, 4, 4, 2, False)
        y = F.relu(self.dense(pooled.flatten(1)))
        return self.kinds(y).softmax(1), self.sides(y)
