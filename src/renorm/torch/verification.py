"""A folded model beside the model that it was, on the user's own inputs.

    in float64, with parameters that nothing rounded     they agree to WIDE: the algebra is right
    in its own dtypes                                     to what the dtype allows, or rounding was measured to move

Models run on tensors that take the places of their parameters and buffers, which stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from renorm.core import dtypes
from renorm.core.difference import judge
from renorm.core.errors import InvalidInput, VerificationError
from renorm.core.tolerance import AMPLITUDE, Movements, tolerance
from renorm.torch.norm_ledger import Verified

Array = np.ndarray[Any, Any]

WIDE = 1e-10  # relative to the largest value of each channel
_SUMS = ("convolution", "mm", "addmm", "bmm", "baddbmm")


class Comparison:
    """The results of a model before it is folded. Raises InvalidInput where it does not run on these arguments."""

    def __init__(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]):
        self._given, self._name = (tuple(args), dict(kwargs)), type(model).__name__
        try:
            self._own = _run(model, _state(model), self._given)
        except Exception as error:  # whatever the model's own code raises
            raise InvalidInput(f"{self._name}: its forward fails: {_told(error)}") from error
        watch, self._wide, self._why = _Results(), None, ""
        try:
            self._wide = _run(model, _widened(_state(model)), _widened(self._given), watch)
        except Exception as error:  # it may not be written for float64
            self._why = f"in float64 its forward fails: {_told(error)}"
        self._narrowest = min(watch.dtypes, key=_bits, default=torch.float64)

    def verify(
        self, folded: nn.Module, exact: Mapping[str, Tensor], allowed: float | None, norms: Sequence[str]
    ) -> Verified:
        """Return how far the results of the folded model are from those before.

        exact: parameters that changed, in float64. allowed: the most that results may differ by in the model's own
        dtypes, relative to the largest value of each channel; None for what its dtype allows and rounding moves. norms:
        what folded, for the error. Raises VerificationError.
        """
        state = _state(folded)
        wide = _widened(state) | {name: t.to(state[name].device) for name, t in exact.items()}
        dtype = min((t.dtype for t in state.values() if t.is_floating_point()), key=_bits, default=torch.float32)
        try:
            own = _run(folded, state, self._given)
            found = None if self._wide is None else _run(folded, wide, _widened(self._given))
        except Exception as error:  # it may ask a norm for what is gone
            raise self._refused(norms, [f"its forward fails: {_told(error)}"]) from error

        def moving(of: torch.dtype) -> Callable[[int], Movements]:
            def drawn(place: int, count: int) -> list[Array]:
                assert found is not None
                return [
                    _moved(folded, wide, _widened(self._given), of, seed, found[place], place) for seed in range(count)
                ]

            return lambda place: lambda count: drawn(place, count)

        wrong, unchecked, error = list[str](), [] if found is not None else [self._why], None
        if found is not None and self._wide is not None:
            limit = WIDE if self._narrowest == torch.float64 else tolerance(_named(self._narrowest))
            error = _judged(found, self._wide, limit, moving(self._narrowest), "float64", wrong, unchecked)
        limit = tolerance(_named(dtype)) if allowed is None else allowed
        measured = moving(dtype) if allowed is None and found is not None else None
        if found is not None and [y.shape for y in own] != [y.shape for y in self._own]:
            unchecked.append(f"in {_named(dtype)} rounding decides shapes of results")
            own = self._own
        error_own = _judged(own, self._own, limit, measured, _named(dtype), wrong, unchecked)
        if wrong:
            raise self._refused(norms, wrong)
        return Verified(error, error_own, _named(dtype), limit, tuple(dict.fromkeys(unchecked)))

    def _refused(self, norms: Sequence[str], facts: Sequence[str]) -> VerificationError:
        return VerificationError(
            f"{self._name}: folded, it does not compute what it did",
            [*facts, *(f"folded: {norm}" for norm in norms)],
            "name the norms at fault in keep=; the model is as it was",
        )


class _Results(TorchDispatchMode):
    """Sees results of all calls, in whose dtypes they are. unit: by which they are rounded at random, AMPLITUDE times
    as far; results that share memory are not."""

    def __init__(self, unit: float = 0.0, seed: int = 0):
        super().__init__()
        self.dtypes, self._unit, self._draw = set[torch.dtype](), unit, torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        floats = [y for y in tree_flatten(made)[0] if isinstance(y, Tensor) and y.is_floating_point()]
        self.dtypes.update(y.dtype for y in floats)
        if not self._unit or func._schema.is_mutable or any(r.alias_info for r in func._schema.returns):
            return made
        unit = AMPLITUDE * self._unit * _terms(func, args, floats)
        return tree_map_only(Tensor, lambda y: self._off(y, unit) if y.is_floating_point() else y, made)

    def _off(self, y: Tensor, unit: float) -> Tensor:
        return y * (1 + unit * (2 * torch.rand(y.shape, generator=self._draw, dtype=torch.float64) - 1).to(y.device))


def _terms(func: Any, args: Any, results: Sequence[Tensor]) -> float:
    """Return by how many roundings an element is off: the root of the terms of its sum."""
    if func._schema.name.removeprefix("aten::") not in _SUMS or not results or not results[0].numel():
        return 1.0
    sizes = sorted((t.numel() for t in tree_flatten(args)[0] if isinstance(t, Tensor)), reverse=True)[:2]
    return 1.0 + sqrt(sqrt(sizes[0] * sizes[-1] / results[0].numel()))


def _run(model: nn.Module, state: Mapping[str, Tensor], given: Any, mode: Any = None) -> list[Tensor]:
    """Return the tensors among the results of a model, with others in the place of its parameters and buffers."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # what is drawn, dropout for example, is the same each time
        args, kwargs = tree_map_only(Tensor, Tensor.clone, given)
        with mode or nullcontext():
            made = functional_call(model, dict(state), args, kwargs, tie_weights=False)
    return [y.clone() for y in tree_flatten(made)[0] if isinstance(y, Tensor)]


def _moved(model: nn.Module, state: Any, given: Any, dtype: torch.dtype, seed: int, plain: Tensor, place: int) -> Array:
    """Return how far roundings of a dtype move a result, drawn at random. plain: the result without any."""
    y = _run(model, state, given, _Results(dtypes.unit_roundoff(_named(dtype)), seed))[place]
    return np.abs(_array(y) - _array(plain)) if y.shape == plain.shape else np.full(plain.shape, np.inf)


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Return what stands in the places of parameters and buffers: each name of a tensor, and each layer once, for
    functional_call leaves another tensor in a layer that has two names."""
    found, made = dict[str, Tensor](), dict[Tensor, Tensor]()
    for path, m in model.named_modules():
        for name, t in (*m._parameters.items(), *m._buffers.items()):
            if t is not None:
                is_fixed = isinstance(t, nn.Parameter)
                found[f"{path}.{name}".strip(".")] = made.setdefault(t, t.detach() if is_fixed else t.clone())
    return found


def _widened(given: Any) -> Any:
    return tree_map_only(Tensor, lambda t: t.double() if t.is_floating_point() else t.clone(), given)


def _judged(
    found: Sequence[Tensor],
    wanted: Sequence[Tensor],
    limit: float,
    moving: Callable[[int], Movements] | None,
    dtype: str,
    wrong: list[str],
    unchecked: list[str],
) -> float:
    """Return the largest error of results, and add to what is wrong and to what was not compared. Integers are
    compared in float64 alone: elsewhere rounding may decide them."""
    largest = 0.0
    for place, (y, before) in enumerate(zip(found, wanted, strict=True)):
        if not before.is_floating_point() and dtype != "float64":
            continue
        if not before.numel():
            unchecked.append(f"result {place} has no elements")
        difference = judge(_array(y), _array(before), limit, None if moving is None else moving(place))
        largest = max(largest, difference.error)
        if not difference.agrees:
            wrong.append(
                f"in {dtype} {difference.sentence(f'result {place}', dtype).removeprefix('on random inputs ')}, "
                f"{limit:.1e} is allowed"
            )
        if difference.unchecked:
            unchecked.append(f"in {dtype} {difference.unchecked} of result {place}")
    return largest


def _array(t: Tensor) -> Array:
    own = t.detach().cpu()
    return own.double().numpy() if own.is_floating_point() else own.numpy()


def _bits(dtype: torch.dtype) -> int:
    return -round(torch.finfo(dtype).eps ** -1)  # the fewest digits last: bfloat16 has fewer than float16


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"
