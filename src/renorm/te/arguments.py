"""Arguments of functions that users call, held against the annotations of their parameters, so that a mistake is
named where it was made and not by an exception from further inside.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from renorm.core import dtypes
from renorm.core.errors import OperandError, RenormError
from renorm.expr.nodes import Binary, Const, Expr, OpenVar
from renorm.expr.rewrite import walk

P = ParamSpec("P")
R = TypeVar("R")

Extent = Annotated[int | OpenVar, "an extent"]
"""An int, or an expression of open variables, which counts as one until the program is specialised."""

Check = Callable[[Any], Any]  # gives the value as the function shall see it, or raises _Unfit

_WORDS = {
    "int": "an int", "float": "a number", "bool": "True or False", "str": "a string", "NoneType": "None",
    "Tensor": "a tensor", "Operation": "an operation", "IterVar": "an axis", "Stage": "a stage",
    "Schedule": "a schedule", "Expr": "an expression", "OpenVar": "an open variable", "Any": "a value",
}  # fmt: skip


class _Unfit(Exception):
    """A value is not of the kind that is asked for."""


def checked(where: str, error: type[RenormError] = OperandError) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function refuse arguments that do not fit its annotations.

    where: what stands before its name in messages, as "topi.". Integers of any origin (NumPy's, constants, 4.0 where
    an int belongs) reach the function as Python ints. Raises `error`, which names function, parameter and value.
    """

    def decorate(f: Callable[P, R]) -> Callable[P, R]:
        checks: dict[str, tuple[Check, str]] = {}
        signature = inspect.signature(f)

        @functools.wraps(f)
        def call(*args: P.args, **given: P.kwargs) -> R:
            nonlocal checks
            if not checks:
                hints = get_type_hints(f, include_extras=True)
                # whole from the first moment on: another thread may come between
                checks = {n: (_check(hints.get(n, Any)), _words(hints.get(n, Any))) for n in signature.parameters}
            try:
                bound = signature.bind(*args, **given)
            except TypeError as unbound:
                raise error(f"{where}{f.__name__}: {unbound}", [f"it is {_form(f.__name__, signature)}"]) from None
            for name, value in bound.arguments.items():
                check, words = checks[name]
                kind = signature.parameters[name].kind
                try:
                    bound.arguments[name] = tuple(map(check, value)) if kind is kind.VAR_POSITIONAL else check(value)
                except _Unfit:
                    owner = getattr(bound.arguments.get("self"), "name", "")
                    raise error(
                        f"{owner and owner + ': '}{where}{f.__name__}: {name} is {_shown(value)}", [f"expected {words}"]
                    ) from None
            return f(*bound.args, **bound.kwargs)

        return call

    return decorate


def _form(name: str, signature: inspect.Signature) -> str:
    shown = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"]
    return f"{name}{signature.replace(parameters=shown, return_annotation=signature.empty)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 80 else text[:77] + '...'}"


def _check(hint: Any) -> Check:
    members = get_args(hint)
    match get_origin(hint):
        case _ if hint is Any:
            return lambda x: x
        case origin if origin in (Union, UnionType):
            return _either([_check(m) for m in members])
        case origin if origin is Sequence:
            return _each(_check(members[0]))
        case origin if origin is Mapping:
            whole, (key, value) = _is(lambda x: isinstance(x, Mapping)), map(_check, members)
            return lambda x: {key(k): value(v) for k, v in whole(x).items()}
        case origin if origin is Callable:
            return _is(callable)
        case _ if hint is Extent:
            return _either([_int, _open])
        case None if hint in _SCALARS:
            return _SCALARS[hint]
        case origin:
            kind: Any = origin or hint
            return _is(lambda x: isinstance(x, kind))


def _words(hint: Any) -> str:
    members = get_args(hint)
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return " or ".join(_words(m) for m in members)
    if origin is Sequence:
        return f"a sequence of {_words(members[0]).removeprefix('a ').removeprefix('an ')}s"
    if origin is Mapping:
        return f"a mapping of {' to '.join(_words(m).split(maxsplit=1)[-1] + 's' for m in members)}"
    if origin is Callable:
        return "a function"
    if hint is Extent:
        return "an extent"
    name = getattr(hint, "__name__", str(hint))
    return _WORDS.get(name, name)


def _either(checks: Sequence[Check]) -> Check:
    def check(x: Any) -> Any:
        for one in checks:
            try:
                return one(x)
            except _Unfit:
                continue
        raise _Unfit

    return check


def _each(element: Check) -> Check:
    def check(x: Any) -> Any:
        if not isinstance(x, (list, tuple, range)) and not (isinstance(x, np.ndarray) and x.ndim == 1):
            raise _Unfit
        return [element(e) for e in x]

    return check


def _is(holds: Callable[[Any], bool]) -> Check:
    def check(x: Any) -> Any:
        if not holds(x):
            raise _Unfit
        return x

    return check


def _int(x: Any) -> Any:
    x = x.value if isinstance(x, Const) else x
    if isinstance(x, (bool, np.bool_)) or not isinstance(x, (int, float, np.integer, np.floating)) or x % 1 != 0:
        raise _Unfit
    return int(x)


def _open(x: Any) -> Any:
    if not isinstance(x, Expr) or not dtypes.is_int(x.dtype):
        raise _Unfit
    if not all(isinstance(e, (OpenVar, Const, Binary)) for e in walk(x)):
        raise _Unfit
    return x


def _number(x: Any) -> Any:
    x = x.value if isinstance(x, Const) else x
    if not isinstance(x, (int, float, np.integer, np.floating, np.bool_)):
        raise _Unfit
    return x.item() if isinstance(x, np.generic) else x


def _bool(x: Any) -> bool:
    if not isinstance(x, (bool, np.bool_)) and not (isinstance(x, int) and x in (0, 1)):
        raise _Unfit
    return bool(x)


_SCALARS: dict[Any, Check] = {
    int: _int,
    float: _number,
    bool: _bool,
    str: _is(lambda x: isinstance(x, str)),
    NoneType: _is(lambda x: x is None),
}
