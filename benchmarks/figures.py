"""The figures of results that the page and its plots show."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import exp, fsum, log
from typing import Any

LABELS = {
    "renorm": "renorm",
    "renorm_compiling": "renorm, compiling in the process",
    "ort": "ONNX Runtime",
    "openvino": "OpenVINO",
    "mnn": "MNN",
    "ncnn": "ncnn",
    "inductor": "PyTorch inductor",
    "torch": "PyTorch eager",
    "renorm_bfloat16": "renorm, bfloat16",
    "openvino_default": "OpenVINO, its own precision",
}
OURS = ("renorm", "renorm_compiling")
LESS_PRECISE = ("renorm_bfloat16", "openvino_default")  # shown, and held against each other alone
STEPS = "step, norms of torch", "step, norms of renorm"  # older files of results have a third one
Network = dict[str, Any]


def milliseconds(network: Network, runtime: str) -> float | None:
    """The median; None where the runtime was not measured."""
    ms = network["runtimes"].get(runtime, {}).get("ms")
    return ms["median"] if ms else None


def mebibytes(network: Network, runtime: str) -> float | None:
    """The most memory its process held."""
    found = network["runtimes"].get(runtime, {}).get("peak_bytes")
    return found / 2**20 if found else None


def to_best(network: Network, measure: Any, own: str = "renorm") -> float | None:
    """renorm's figure relative to the least of the others'."""
    ours = measure(network, own)
    apart = (*OURS, *LESS_PRECISE)
    others = [v for r in network["runtimes"] if r not in apart and (v := measure(network, r)) is not None]
    return ours / min(others) if ours and others else None


def to_its_own_precision(network: Network) -> float | None:
    """Milliseconds of renorm in bfloat16 relative to those of OpenVINO in the precision that it takes by itself."""
    ours, theirs = (milliseconds(network, r) for r in LESS_PRECISE)
    return ours / theirs if ours and theirs else None


def geometric_mean(values: list[float]) -> float:
    # fsum, here and below: sum rounds otherwise since Python 3.12, and the page must not depend on who writes it
    return exp(fsum(map(log, values)) / len(values))


def error(network: Network, own: str = "renorm") -> float | None:
    """How far renorm's outputs are from the reference's."""
    return network["runtimes"].get(own, {}).get("error")


def limit_us(kernel: dict[str, Any], limits: dict[str, float]) -> float:
    """The least microseconds that a kernel's work takes at the machine's limits."""
    return max(kernel["flops"] / limits["flops"], kernel["bytes"] / limits["bytes"]) * 1e6


@dataclass(frozen=True)
class Behind:
    """A layer in which another runtime is faster. kernel: the slowest of renorm's, launches: how many there are. us:
    microseconds of renorm and of each other. flops, bytes: of all kernels; nominal: flops of the direct algorithm."""

    kernel: str
    launches: int
    us: dict[str, float]
    flops: int
    bytes: int
    nominal: bool

    @property
    def lost(self) -> float:
        """Microseconds to the fastest."""
        return self.us["renorm"] - min(self.us.values())


def behind(network: Network) -> list[Behind]:
    """The layers in which another runtime is faster, in their order."""
    found = list[Behind]()
    for i, others in enumerate(network["layers"]["layers"]):
        own = [k for k in network["layers"]["kernels"] if k["layer"] == i]
        flops, moved = (sum(k[work] for k in own) for work in ("flops", "bytes"))
        slowest = max(own, key=lambda k: k["us"])["kernel"]
        us: dict[str, float] = {"renorm": fsum(k["us"] for k in own)} | others
        found.append(Behind(slowest, len(own), us, flops, moved, any(k["is_nominal"] for k in own)))
    return [layer for layer in found if layer.lost > 0]


def kinds(kernels: list[dict[str, Any]]) -> list[tuple[str, int, float, int, int, bool]]:
    """(kind, launches, microseconds, flops, bytes, whether flops are nominal) of kernels that fuse the same ops,
    slowest first."""
    spent, count, flops, moved = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    nominal = set[str]()
    for k in kernels:
        name, number = k["kernel"].rsplit("_", 1) if k["kernel"].count("_") else (k["kernel"], "")
        kind = name if number.isdecimal() else k["kernel"]
        spent[kind] += k["us"]
        count[kind] += 1
        flops[kind] += k["flops"]
        moved[kind] += k["bytes"]
        if k["is_nominal"]:
            nominal.add(kind)
    return [(kind, count[kind], us, flops[kind], moved[kind], kind in nominal) for kind, us in spent.most_common()]
