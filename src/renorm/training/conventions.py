"""Conventions of batch norm in training, as data: what momentum multiplies, which variance runs, and the defaults.

All of them normalize with the population variance of the batch. They differ in the update of the running statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from renorm.core.errors import InvalidInput, suggest


class Default:
    """Stands for what the convention says."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT: Any = Default()


@dataclass(frozen=True)
class Convention:
    """The rule by which one library updates running statistics.

    momentum_multiplies: "batch": new = (1 - momentum) * old + momentum * batch; "old": the other way round.
    momentum, epsilon: defaults; None: the caller must say. corrected: the running variance is that of the batch
    times n / (n - 1). cumulative: momentum=None stands for 1 / (1 + number of batches before), the mean of all batches.
    refuses_single: one value per channel is an error. per_activation: there is a mode that normalizes every activation
    by itself. source: which functions, which version.
    """

    name: str
    momentum_multiplies: str
    momentum: float | None
    corrected: bool
    epsilon: float | None
    source: str
    cumulative: bool = False
    refuses_single: bool = False
    per_activation: bool = False

    def batch_weight(self, momentum: float) -> float:
        """Return the part of the batch in the new running statistics."""
        return momentum if self.momentum_multiplies == "batch" else 1.0 - momentum

    def momentum_for(self, batch_weight: float) -> float:
        """Return the momentum that gives the batch this part."""
        return batch_weight if self.momentum_multiplies == "batch" else 1.0 - batch_weight

    def __str__(self) -> str:
        old, batch = (
            ("momentum", "(1 - momentum)") if self.momentum_multiplies == "old" else ("(1 - momentum)", "momentum")
        )
        momentum, epsilon = ("the caller's" if v is None else f"{v:g}" for v in (self.momentum, self.epsilon))
        variance = "unbiased n / (n - 1)" if self.corrected else "biased (population)"
        return (
            f"{self.name}: running = {old} * old + {batch} * batch, momentum {momentum}, "
            f"running variance {variance}, epsilon {epsilon}"
        )


CONVENTIONS = {
    c.name: c
    for c in (
        Convention(
            "torch", "batch", 0.1, True, 1e-5, "torch.nn.BatchNorm*, functional.batch_norm", True, refuses_single=True
        ),
        Convention("keras", "old", 0.99, False, 1e-3, "keras.layers.BatchNormalization (3), TensorFlow not fused"),
        Convention(
            "tf_fused", "batch", 1.0, True, 1e-4, "tf.raw_ops.FusedBatchNormV3; momentum: exponential_avg_factor"
        ),
        Convention("onnx", "old", 0.9, False, 1e-5, "BatchNormalization from opset 7, training_mode from 14"),
        Convention(
            "cudnn", "batch", None, True, None, "cudnnBatchNormalizationForwardTraining", True, per_activation=True
        ),
    )
}


def find(name: str) -> Convention:
    """Return the convention of that name; InvalidInput lists those that exist."""
    found = CONVENTIONS.get(name) if isinstance(name, str) else None
    if found is None:
        raise InvalidInput(
            f"there is no convention {name!r}",
            [f"nearest: {suggest(str(name), CONVENTIONS)}", f"known: {', '.join(CONVENTIONS)}"],
        )
    return found


def epsilon_of(convention: Convention, epsilon: Any) -> float:
    """epsilon, or the convention's."""
    return _number("epsilon", convention.epsilon if epsilon is DEFAULT else epsilon, convention)


def momentum_of(convention: Convention, momentum: Any, num_batches_tracked: int) -> float:
    """momentum in the sense of the convention; None: that of the mean of all batches, `num_batches_tracked` before."""
    if momentum is None and convention.cumulative:
        return convention.momentum_for(1.0 / (1.0 + num_batches_tracked))
    value = _number("momentum", convention.momentum if momentum is DEFAULT else momentum, convention)
    if value > 1:
        raise InvalidInput(f"momentum is {value:g}", ["expected 0 to 1"])
    return value


def _number(what: str, value: Any, convention: Convention) -> float:
    if value is None:
        raise InvalidInput(f"convention {convention.name!r} has no default {what}", do=f"give {what}=")
    return nonnegative(what, value)


def count_of(value: Any, what: str = "num_batches_tracked", of: str = "how many batches were before this one") -> int:
    """`value` as an integer of at least 0; InvalidInput for anything else. what: its name; of: what it counts."""
    try:
        count = int(value) if value == int(value) else -1
    except (TypeError, ValueError, OverflowError):
        count = -1
    if count < 0:
        raise InvalidInput(f"{what} is {value!r}", [f"expected {of}: an integer of 0 or more"])
    return count


def nonnegative(what: str, value: Any) -> float:
    """`value` as a finite number of at least 0; InvalidInput for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InvalidInput(f"{what} is {value!r}, not a number") from None
    if not 0 <= number < float("inf"):
        raise InvalidInput(f"{what} is {number:g}", ["expected a finite number of at least 0"])
    return number
