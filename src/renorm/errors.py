"""The public name of the exception tree: `from renorm.errors import RenormError`."""

from renorm.core.errors import (
    InternalError,
    InvalidArtifact,
    InvalidExpression,
    InvalidGraph,
    InvalidInput,
    InvalidLoops,
    InvalidModel,
    InvalidSchedule,
    InvalidTarget,
    OperandError,
    ParseError,
    RenormError,
    SynchronizationError,
    UnsupportedOp,
    UserCodeError,
    VerificationError,
)

__all__ = [
    "InternalError",
    "InvalidArtifact",
    "InvalidExpression",
    "InvalidGraph",
    "InvalidInput",
    "InvalidLoops",
    "InvalidModel",
    "InvalidSchedule",
    "InvalidTarget",
    "OperandError",
    "ParseError",
    "RenormError",
    "SynchronizationError",
    "UnsupportedOp",
    "UserCodeError",
    "VerificationError",
]
