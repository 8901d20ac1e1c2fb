"""Faults in the norms of a model that can be read: found at import, recorded in the graph.

Each check looks at one norm and says what it found with the figures, and what to do. Results that are not numbers are
warned of; what is likely a mistake of whoever trained or converted the network waits for `renorm doctor` and
`report.diagnoses`. A network that was trained well gets none: dead channels here and there, say, are no finding.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.core.dtypes import unit_roundoff
from renorm.core.lazy import cached_property
from renorm.graph.channels import cancellation
from renorm.graph.ir import Graph, Node, Value

Array = np.ndarray[Any, Any]

KEY = "diagnoses"  # in Graph.metadata: a tuple of Diagnosis
ASSUMPTIONS = "assumptions"  # in Graph.metadata: a tuple of sentences, of what a file leaves open and how it was read

DEAD = 1e-6  # |scale| at or below which a channel is its bias, next to results of about 1
MANY_DEAD = 0.5  # share of channels; training with weight decay leaves some dead ones in healthy networks
HUGE_SCALE = 1e3  # of results whose standard deviation it is
HUGE_FACTOR = 1e6  # of |scale| / sqrt(var + epsilon): float32 has seven digits
MANY_SMALL = 0.9  # share of channels whose variance is at or below epsilon
LARGE_EPSILON = 0.1  # frameworks have 1e-3 to 1e-6
LOW_MOMENTUM = 0.5  # in ONNX's sense, where the default is 0.9
ROUNDING = 1e-4  # of the largest result: what all of renorm may cost


@dataclass(frozen=True)
class Diagnosis:
    """node: its name; kind: what findings are grouped by; problem: a sentence with the figures; fix: what to do about
    it; is_grave: whether results are no numbers, or not those of training, whatever the data."""

    node: str
    kind: str
    problem: str
    fix: str
    is_grave: bool = False

    def __str__(self) -> str:
        return f"node {self.node!r}: {self.problem}\n  do: {self.fix}"


def diagnose(graph: Graph) -> tuple[Diagnosis, ...]:
    """Look at the constants and attributes of all norms, note in the graph what they find, and warn of what is
    grave."""
    stated = [_Stated(n) for n in graph.nodes if n.op.is_normalization]
    found = tuple(d for s in stated for check in _CHECKS for d in check(s))
    if found:
        graph.metadata[KEY] = found
    grave = [d for d in found if d.is_grave]
    if grave:
        shown = "\n".join(str(d) for d in grave[:8]) + ("" if len(grave) <= 8 else f"\n... and {len(grave) - 8} more")
        warnings.warn(f"{graph.name}: {shown}", RuntimeWarning, stacklevel=4)
    return found


class _Stated:
    """A norm with what its file states. parameters: constant operands by name."""

    def __init__(self, node: Node):
        self.node = node
        named = zip(node.op.parsed.operands[1:], node.operands[1:])
        self.parameters = {p.name: v for p, v in named if isinstance(v, Value) and v.is_constant}
        self.epsilon = float(node.op.values.get("epsilon") or 0.0)
        self.is_training = node.op.name == "batch_norm_training" or bool(node.op.values.get("training_mode", False))

    @cached_property
    def elements(self) -> dict[str, Array]:
        return {name: v.data.astype(np.float64).ravel() for name, v in self.parameters.items() if v.data is not None}

    @cached_property
    def statistics(self) -> tuple[Array, Array] | None:
        """mean and var, where they are stored and used."""
        mean, var = self.elements.get("mean"), self.elements.get("var")
        return None if self.is_training or mean is None or var is None or not var.size else (mean, var)

    def found(self, kind: str, problem: str, fix: str, is_grave: bool = False) -> Diagnosis:
        return Diagnosis(self.node.name, kind, problem, fix, is_grave)


def _shown(values: Array, at: Array) -> str:
    """Return the first channels of some."""
    return ", ".join(f"[{i}] = {values[i]:g}" for i in at[:4]) + (", ..." if at.size > 4 else "")


def _variance(s: _Stated) -> Iterator[Diagnosis]:
    """A stored variance below zero or NaN; whatever epsilon makes of it, no data has such a variance."""
    var = s.elements.get("var")
    if var is None or s.is_training or (bad := np.flatnonzero(~(var >= 0))).size == 0:
        return
    broken = np.flatnonzero(~(var + s.epsilon > 0))
    effect = (
        f"{broken.size} of them stay at or below zero with epsilon {s.epsilon:g}, so these channels give NaN or Inf"
        if broken.size
        else f"with epsilon {s.epsilon:g} they are above zero, so results are finite but not what training computed"
    )
    yield s.found(
        "negative variance",
        f"variance {s.parameters['var'].name!r} is negative or NaN in {bad.size} of {var.size} channels "
        f"({_shown(var, bad)}); {effect}",
        "re-estimate the running statistics from data, or set these channels to the variance they had in training; "
        "a tiny negative value left by a converter's rounding means 0",
        is_grave=True,
    )


def _zero_variance(s: _Stated) -> Iterator[Diagnosis]:
    """0 / 0"""
    if s.statistics is None or s.epsilon > 0:
        return
    var = s.statistics[1]
    if (bad := np.flatnonzero(var == 0)).size:
        yield s.found(
            "zero variance without epsilon",
            f"epsilon is 0 and variance {s.parameters['var'].name!r} is 0 in {bad.size} of {var.size} channels "
            f"({_shown(var, bad)}), so these channels give NaN or Inf",
            "set epsilon to what training had (1e-5 in PyTorch and ONNX, 1e-3 in Keras)",
            is_grave=True,
        )


def _not_finite(s: _Stated) -> Iterator[Diagnosis]:
    """Parameters that are no numbers; a variance that is NaN is told by `_variance`."""
    for name, values in s.elements.items():
        bad = np.flatnonzero(np.isinf(values) | (np.isnan(values) & (name != "var")))
        if bad.size == 0 or (s.is_training and name in ("mean", "var")):
            continue
        v = s.parameters[name]
        is_half = v.dtype == "float16"
        yield s.found(
            "not finite",
            f"{name} {v.name!r} ({v.dtype}) is not finite in {bad.size} of {values.size} channels "
            f"({_shown(values, bad)})" + (": beyond float16's 65504" if is_half else ""),
            "keep parameters and statistics of norms in float32 when a network is converted to float16"
            if is_half
            else "training diverged, or the file was damaged: take an earlier checkpoint",
            is_grave=True,
        )


def _saturated(s: _Stated) -> Iterator[Diagnosis]:
    """float16's largest number, which a converter that clips leaves."""
    for name, v in s.parameters.items():
        if v.dtype == "float16" and (bad := np.flatnonzero(np.abs(values := s.elements[name]) == 65504)).size:
            yield s.found(
                "float16 overflow",
                f"{name} {v.name!r} is float16's largest number in {bad.size} of {values.size} channels "
                f"({_shown(values, bad)}): it was cut off there",
                "keep parameters and statistics of norms in float32 when a network is converted to float16",
            )


def _untouched(s: _Stated) -> Iterator[Diagnosis]:
    """Statistics as frameworks initialise them. With epsilon 0 a converter wrote a scale and a bias as a norm."""
    if s.statistics is None or s.epsilon == 0:
        return
    mean, var = s.statistics
    if mean.any() or not (var == 1).all():
        return
    is_new = all((s.elements.get(n, np.zeros(1)) == start).all() for n, start in (("scale", 1), ("bias", 0)))
    yield s.found(
        "statistics never updated",
        f"mean is 0 and variance is 1 in all of {var.size} channels, as they are before training"
        + (", and so are scale (1) and bias (0)" if is_new else ", while scale or bias were trained"),
        "run the network in training mode over data before it is exported, or load the checkpoint with its statistics",
    )


def _scale(s: _Stated) -> Iterator[Diagnosis]:
    """Channels that are their bias only, and scales that no trained network has."""
    scale = s.elements.get("scale")
    if scale is None or scale.size == 0:
        return
    size = np.abs(scale)
    if (dead := np.flatnonzero(size <= DEAD)).size >= MANY_DEAD * scale.size:
        yield s.found(
            "dead scales",
            f"scale is 0, or at most {DEAD:g}, in {dead.size} of {scale.size} channels ({_shown(scale, dead)}): "
            "these give only their bias",
            "prune these channels; where nearly all are 0, look whether the block that ends here was ever trained",
        )
    if (huge := np.flatnonzero(np.isfinite(size) & (size > HUGE_SCALE))).size:
        yield s.found(
            "huge scales",
            f"scale is above {HUGE_SCALE:g} in {huge.size} of {scale.size} channels ({_shown(scale, huge)}), "
            "which is the standard deviation of the results",
            "look at the learning rate and weight decay of norms in training; float16 will overflow",
        )
    elif s.statistics is not None and scale.size == s.statistics[1].size:
        with np.errstate(all="ignore"):
            k = size / np.sqrt(s.statistics[1] + s.epsilon)
        if (huge := np.flatnonzero(np.isfinite(k) & (k > HUGE_FACTOR))).size:
            yield s.found(
                "huge factors",
                f"|scale| / sqrt(var + epsilon) is above {HUGE_FACTOR:g} in {huge.size} of {k.size} channels "
                f"({_shown(k, huge)}), with epsilon {s.epsilon:g}: rounding of float32 is magnified as much",
                "set epsilon to what training had, or prune channels whose variance is 0",
            )


def _small_variances(s: _Stated) -> Iterator[Diagnosis]:
    """Epsilon decides where variances do not."""
    if s.statistics is None or s.epsilon == 0:
        return
    var = s.statistics[1]
    small = np.flatnonzero((var >= 0) & (var <= s.epsilon))
    if small.size >= MANY_SMALL * var.size:
        yield s.found(
            "variances below epsilon",
            f"variance is at or below epsilon {s.epsilon:g} in {small.size} of {var.size} channels "
            f"({_shown(var, small)}), so that epsilon sets the scale of the results",
            "look whether what the norm reads is as large as in training (inputs divided by 255 twice, say), or "
            "whether epsilon is that of training",
        )


def _epsilon(s: _Stated) -> Iterator[Diagnosis]:
    if s.epsilon > LARGE_EPSILON:
        yield s.found(
            "unusual epsilon",
            f"epsilon is {s.epsilon:g}, where frameworks have 1e-3 to 1e-6",
            "look whether a converter has put another number in its place (momentum, say)",
        )


def _momentum(s: _Stated) -> Iterator[Diagnosis]:
    """Told by the attribute alone: statistics of one batch look like any others."""
    held = s.elements.get("momentum")  # an operand where statistics are updated
    momentum = s.node.op.values.get("momentum") if held is None else float(held[0])
    if momentum is not None and momentum < LOW_MOMENTUM:
        yield s.found(
            "flipped momentum",
            f"momentum is {momentum:g}: as ONNX counts, momentum * old + (1 - momentum) * batch, statistics would be "
            "those of the last batch or two",
            f"if {1 - momentum:g} was meant (PyTorch counts the other way round), training goes on with that "
            "here; if it was trained so, re-estimate the statistics from data. Inference does not read momentum",
        )


def _training(s: _Stated) -> Iterator[Diagnosis]:
    if s.is_training:
        yield s.found(
            "training mode",
            "it normalizes with statistics of the batch (training mode), so that a result depends on what else is in "
            "the batch, and nothing can be folded",
            "export the network for inference (PyTorch: model.eval(), and track_running_stats=True)",
        )


def _cancelling(s: _Stated) -> Iterator[Diagnosis]:
    """Means that are so much larger than deviations that their difference has few digits left."""
    scale, bias = s.elements.get("scale"), s.elements.get("bias")
    if s.statistics is None or scale is None or bias is None:
        return
    mean, var = s.statistics
    rounding = unit_roundoff("float32") * cancellation(scale, bias, mean, var, s.epsilon)
    if not ROUNDING < rounding < np.inf:  # what is not finite is told by others
        return
    with np.errstate(all="ignore"):
        ratio = np.abs(mean) / np.sqrt(var + s.epsilon)
    worst = int(np.nanargmax(ratio * np.abs(scale)))
    yield s.found(
        "means far above deviations",
        f"mean is {ratio[worst]:.3g} standard deviations in channel {worst} (mean {mean[worst]:g}, variance "
        f"{var[worst]:g}): in float32 the difference is rounded by {rounding:.1g} of the largest result",
        "subtract a constant from what is read (centre the inputs) and train the network again; or prune the channel "
        "where its variance is 0",
    )


_CHECKS: tuple[Callable[[_Stated], Iterator[Diagnosis]], ...] = (
    _variance,
    _zero_variance,
    _not_finite,
    _saturated,
    _untouched,
    _scale,
    _small_variances,
    _epsilon,
    _momentum,
    _training,
    _cancelling,
)
