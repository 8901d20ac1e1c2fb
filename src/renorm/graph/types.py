"""Types of values, and the notation `f32[2, 3]` that op files use for samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.conversion import converted
from renorm.core.dims import Dim, Shape, format_shape, is_static, static
from renorm.core.errors import OperandError

MOST_AXES = 32  # that NumPy's iterators take


@dataclass(frozen=True)
class TensorType:
    """dtype and shape of a value; extents may be symbolic. Raises OperandError for more than MOST_AXES."""

    dtype: str
    shape: Shape

    def __post_init__(self) -> None:
        if len(self.shape) > MOST_AXES:
            raise OperandError(f"a tensor of {len(self.shape)} axes, more than {MOST_AXES}")

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        return is_static(self.shape)

    def __str__(self) -> str:
        return dtypes.short(self.dtype) + format_shape(self.shape)


@dataclass(frozen=True)
class Operand:
    """One operand as `OpDef.infer` sees it. known: its elements where they are computed already (ints or Syms), or
    None."""

    name: str
    type: TensorType
    known: np.ndarray[Any, Any] | None = field(default=None, compare=False)

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(frozen=True)
class Spec:
    """One operand of a Sample: its type, and what to fill it with."""

    type: TensorType
    low: float = -2.0
    high: float = 2.0
    values: Any = field(default=None, compare=False)

    def between(self, low: float, high: float) -> Spec:
        """Random elements are drawn from [low, high]."""
        return replace(self, low=low, high=high)

    def of(self, values: Any) -> Spec:
        """Exactly these elements; a static operand takes them at compile time."""
        array = np.asarray(values, dtypes.numpy_dtype(self.type.dtype))
        return replace(self, values=array.reshape(static(self.type.shape)))

    def draw(self, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """An array of this type: the given values, or fresh random ones."""
        if self.values is not None:
            return np.asarray(self.values)
        shape = static(self.type.shape)
        dtype = dtypes.lookup(self.type.dtype)
        if dtype.kind == "bool":
            return np.asarray(rng.random(shape) < 0.5)
        if dtype.kind == "float":
            return rng.uniform(self.low, self.high, shape).astype(dtypes.numpy_dtype(dtype.name))
        low = 0 if dtype.kind == "uint" else int(self.low) - 3
        return converted(rng.integers(low, int(self.high) + 3, shape), dtype.name)

    def __str__(self) -> str:
        return str(self.type)


class _Notation:
    def __init__(self, dtype: str):
        self._dtype = dtype

    def __getitem__(self, shape: Dim | Sequence[Dim]) -> Spec:
        """`f32[2, 3]`; `f32[()]` is a scalar."""
        return Spec(TensorType(self._dtype, tuple(shape) if isinstance(shape, Sequence) else (shape,)))


f64, f32, f16, bf16 = (_Notation(d) for d in ("float64", "float32", "float16", "bfloat16"))
i64, i32, i16, i8 = (_Notation(d) for d in ("int64", "int32", "int16", "int8"))
f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f4e2m1 = (_Notation(d) for d in dtypes.FORMATS)
i4, i2, u4, u2 = (_Notation(d) for d in ("int4", "int2", "uint4", "uint2"))
u8, u32, u64, boolean = (_Notation(d) for d in ("uint8", "uint32", "uint64", "bool"))
