"""The one exception tree. A message is: where and what; facts, actual beside expected; what to do."""

from __future__ import annotations

import os
from collections.abc import Iterable
from copy import copy
from typing import Self

__all__ = [
    "AbsentName", "Cancelled", "InternalError", "InvalidArtifact", "InvalidExpression", "InvalidGraph",
    "InvalidInput", "InvalidLoops", "InvalidModel", "InvalidSchedule", "InvalidTarget", "LimitExceeded",
    "OperandError", "OutOfMemory", "ParseError", "ReentrancyError", "RenormError", "StatisticsWarning",
    "SynchronizationError", "TimeLimit", "UnsupportedOp", "UntoldOperand", "UserCodeError", "VerificationError",
]  # fmt: skip

_PACKAGE = os.path.dirname(os.path.dirname(__file__))
# where an exception that an op's author caused is often raised, though the line to mend is the one that called it
_CALLED_BY_OPS = tuple(os.path.join(_PACKAGE, room, "") for room in ("core", "expr", "te", "topi"))


class RenormError(Exception):
    """Base of every error that renorm raises.

    headline: where and what, the user's own names first.
    facts: one line each, actual beside expected.
    do: what the user can do about it.
    """

    def __init__(self, headline: str, facts: Iterable[str] = (), do: str | None = None):
        self.headline = headline
        self.facts = tuple(facts)
        self.do = do
        lines = [headline, *(f"  {fact}" for fact in self.facts)]
        if do:
            lines.append(f"  do: {do}")
        super().__init__("\n".join(lines))

    def within(self, place: str) -> Self:
        """Return the same error, with `place` before its headline."""
        made = copy(self)
        RenormError.__init__(made, f"{place}: {self.headline}", self.facts, self.do)
        return made


class UnsupportedOp(RenormError):
    """A model uses ops that renorm does not define; all of them are named at once."""


class InvalidModel(RenormError):
    """A model file is damaged, or contradicts the specification of its format."""


class LimitExceeded(InvalidModel):
    """A model asks for more than `Limits` allow: bytes, nodes, elements, operations; all of it is named at once."""


class InvalidGraph(RenormError):
    """A graph breaks an invariant: types, order of nodes, names, operands."""


class OperandError(RenormError):
    """Operands or attributes of an op do not fit its signature."""


class UntoldOperand(OperandError):
    """An op must be told elements of an operand that are computed when the network runs. operand: its value, or the
    extent that an element of it is."""

    def __init__(self, headline: str, facts: Iterable[str] = (), do: str | None = None, operand: object = None):
        super().__init__(headline, facts, do)
        self.operand = operand


class InvalidExpression(RenormError):
    """A tensor or scalar expression is ill-typed or uses an axis that is not in scope."""


class InvalidSchedule(RenormError):
    """A schedule primitive was called with an axis, factor or stage that it cannot take."""


class InvalidLoops(RenormError):
    """A loop program breaks an invariant: an access outside its buffer, an unbound stage on a GPU."""


class ParseError(RenormError):
    """Text of an IR that does not follow its grammar; names line and column."""


class InvalidTarget(RenormError):
    """A target string that cannot be parsed, or that this build cannot generate code for."""


class InvalidInput(RenormError):
    """Arrays given to a compiled module do not fit its inputs or outputs."""


class InvalidArtifact(RenormError):
    """A saved module cannot be read or written, is damaged, or is of another version or machine."""


class Cancelled(RenormError):
    """A run was ended by `cancel`, before it was done."""


class TimeLimit(RenormError, TimeoutError):
    """A run was not done in the time that it was given."""


class OutOfMemory(RenormError, MemoryError):
    """The system gives no memory for what is asked for; says for what, and how many bytes."""


class UserCodeError(RenormError):
    """An exception inside a user's compute, schedule or infer; names node, op, operand types, file and line."""


class SynchronizationError(RenormError):
    """The ranks of a training run do not meet: other layers, a rank that failed, one that did not come in time."""


class ReentrancyError(RenormError):
    """A signal handler, a finalizer or external code needs what the call that it interrupted is in the middle of."""


class VerificationError(RenormError):
    """A rewrite or a whole network gave other numbers than it must."""


class StatisticsWarning(RuntimeWarning):
    """A running statistic has left the range of its dtype. A warning, since everything else of the call is right."""


class AbsentName(RenormError, AttributeError):
    """A name of TVM 0.6 to 0.8 that renorm does not have."""


class InternalError(RenormError):
    """A fault of renorm itself: the pass, the IR text, and a command that reproduces it."""


def raised_at(error: BaseException) -> str:
    """File, line and function that an exception comes from: the innermost frame of what an op's author writes, which
    the rooms that ops call are not."""
    import traceback  # only a failure pays for it

    frames = traceback.extract_tb(error.__traceback__)
    written = [f for f in frames[1:] if not f.filename.startswith(_CALLED_BY_OPS)]  # the first frame made the call
    at = (written or frames)[-1]
    return f"at {at.filename}:{at.lineno} in {at.name}: {at.line}"


def suggest(name: str, known: Iterable[str], most: int = 5) -> str:
    """Return the names of `known` nearest to `name`, for the fact line of a not-found error."""
    from difflib import get_close_matches  # only a failure pays for it

    known = sorted(known)
    near = get_close_matches(name, known, n=most, cutoff=0.5)
    return ", ".join(near or known[:most]) + ("" if len(near or known) <= most else ", ...")
