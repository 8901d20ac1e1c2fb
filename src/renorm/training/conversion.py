"""Running statistics and hyper-parameters from one convention to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from renorm.core.errors import InvalidInput, suggest
from renorm.training import conventions
from renorm.training.operands import array_of, host

FIELDS = ("running_mean", "running_var", "momentum", "epsilon", "count", "num_batches_tracked")


def convert(state: Mapping[str, Any], source: str, target: str) -> dict[str, Any]:
    """`state` of a norm as the convention `target` would hold it: had the same batches been seen there, and training
    goes on as it would have here.

    state: any of running_mean, running_var (arrays [C], of any library), momentum, epsilon, count (how many values per
    channel the batches had), num_batches_tracked. What is left out of momentum and epsilon is the default of `source`;
    both stand in the result, since the defaults of `target` are others. momentum keeps the weight of a batch: 0.99 of
    Keras is 0.01 of PyTorch. Where one convention runs the unbiased variance and the other the population's,
    running_var is multiplied by n / (n - 1) or its inverse, n = count: exact for what batches of that size contributed;
    the initial value of 1 is scaled with it. For inference alone running_var stays as it is: every norm divides by what
    is stored. Arrays come back as NumPy's, of the same dtype, and share no memory with `state`.

    Raises InvalidInput: an unknown convention or key; a variance that must be corrected without count.
    """
    of, to = conventions.find(source), conventions.find(target)
    unknown = [key for key in state if key not in FIELDS]
    if unknown:
        raise InvalidInput(
            f"the state of a norm has no {', '.join(map(repr, unknown))}",
            [f"nearest: {suggest(unknown[0], FIELDS)}", f"known: {', '.join(FIELDS)}"],
        )
    found = dict(state)
    if of.epsilon is not None or "epsilon" in state:
        found["epsilon"] = conventions.epsilon_of(of, state.get("epsilon", conventions.DEFAULT))
    momentum = state.get("momentum", conventions.DEFAULT)
    if momentum is None:
        if not (of.cumulative and to.cumulative):
            raise InvalidInput(f"{target} has no cumulative mean (momentum None of {source})", do="give momentum=")
    elif of.momentum is not None or "momentum" in state:
        found["momentum"] = to.momentum_for(of.batch_weight(conventions.momentum_of(of, momentum, 0)))
    for key in ("running_mean", "running_var"):
        if state.get(key) is not None:
            found[key] = np.array(host(array_of(key, state[key])))
    if of.corrected != to.corrected and state.get("running_var") is not None:
        factor = _correction(state.get("count"), to.corrected, f"from {source} to {target}")
        var = found["running_var"]
        found["running_var"] = (var.astype(np.float64) * factor).astype(var.dtype)
    return found


def _correction(count: Any, is_unbiased: bool, where: str) -> float:
    """Return the factor that makes a variance the unbiased one, or the population's."""
    if count is None:
        raise InvalidInput(
            f"the running variance changes by n / (n - 1) {where}, and n is not known",
            do="put count= into the state: how many values per channel a batch had, N * H * W",
        )
    n = conventions.count_of(count, "count", "how many values per channel a batch had")
    if n < 2:
        raise InvalidInput(f"count is {n}: of fewer than 2 values there is no unbiased variance ({where})")
    return n / (n - 1) if is_unbiased else (n - 1) / n
