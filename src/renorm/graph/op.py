"""OpDef: the form of an op. One op is one subclass in one file; everything else about it is derived from that.

An instance carries attribute values and is applied to operands: `Conv(strides=(2, 2))(x, w)` adds a node to the graph
of `x` and gives its result (a tuple where there are several). Applied to pattern variables, it builds a pattern.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Self

from renorm.core import dtypes
from renorm.core.dims import Dim, Sym, format_shape
from renorm.core.errors import OperandError, suggest
from renorm.core.target import Target
from renorm.graph import signature as signatures
from renorm.graph.attributes import Attribute
from renorm.graph.channels import Carry, ChannelMap
from renorm.graph.layout import Accepts
from renorm.graph.types import Operand, Spec, TensorType

if TYPE_CHECKING:
    from renorm.graph.ir import Node, Value


class Fusion(IntEnum):
    """How an op may share a kernel; the order is TVM's, from freest to least."""

    ELEMENTWISE = 0  # each result element needs the operand elements at its own index
    BROADCAST = 1  # the same, with axes of extent 1 spread
    INJECTIVE = 2  # each result element needs one element of each operand, at an index computed from its own
    REDUCTION = 3  # elementwise and broadcast ops may precede it in its kernel, and follow it
    OUT_ELEMENTWISE_FUSABLE = 4  # elementwise and broadcast ops may follow it in its kernel
    AFTER_SLICES = 6  # slices may precede it in its kernel, which reads them where they lie; not TVM's
    OPAQUE = 8  # alone


ELEMENTWISE, BROADCAST, INJECTIVE = Fusion.ELEMENTWISE, Fusion.BROADCAST, Fusion.INJECTIVE
REDUCTION, OUT_ELEMENTWISE_FUSABLE, OPAQUE = Fusion.REDUCTION, Fusion.OUT_ELEMENTWISE_FUSABLE, Fusion.OPAQUE
AFTER_SLICES = Fusion.AFTER_SLICES


@dataclass(frozen=True)
class Formula:
    """levels: how many operations stand within each other, indices included. reads: how often it reads an element of
    each operand."""

    levels: int
    reads: tuple[int, ...]


@dataclass(frozen=True)
class Alias:
    """part is whole[starts[0] : starts[0] + part.shape[0], ...]; without starts: all of whole, in row-major order."""

    part: Value
    whole: Value
    starts: tuple[int, ...] | None = None


Reach = tuple[Dim, Dim]  # the least, and the greatest


@dataclass(frozen=True)
class Demand:
    """A demand on data, without which a result is not defined; kernels give some number otherwise. operand: indices,
    along whose last axis there is one for each of `axes` (of the operand that they are of, with these extents), or a
    single one; without axes a divisor, which must not be 0."""

    operand: Value
    axes: tuple[int, ...] = ()
    extents: tuple[Dim, ...] = ()


class Sample:
    """Operands and attributes on which tests run the op against its reference."""

    def __init__(self, *operands: Spec | list[Spec] | None, tolerance: float | None = None, **attributes: Any):
        self.operands, self.attributes, self.tolerance = operands, attributes, tolerance


class Reject(Sample):
    """Operands and attributes that the op must refuse. because: words that the error must contain."""

    def __init__(self, *operands: Spec | list[Spec] | None, because: str, **attributes: Any):
        super().__init__(*operands, **attributes)
        self.because = because


@dataclass(frozen=True)
class OnnxNode:
    """One node of an ONNX file, as an op's `from_onnx` sees it; onnx itself stays in its frontend.

    operands: Values (None where left out); outputs: names ("" where not asked for); opset: version of the node's
    domain. assumed: takes a sentence for whatever the node leaves open, or is not taken at its word; reports say it.
    """

    op_type: str
    opset: int
    name: str
    operands: tuple[Any, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    assumed: list[str] = field(default_factory=list[str])

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    @property
    def is_asked(self) -> tuple[bool, ...]:
        """Return which outputs somebody may read: those that have a name."""
        return tuple(bool(o) for o in self.outputs)


class OpDef:
    """Base of all ops. Subclasses state `signature`, attributes, and the methods below; the docstring is the
    formula."""

    signature: ClassVar[str]
    types: ClassVar[Mapping[str, Sequence[str]]] = {}
    onnx: ClassVar[Mapping[str, int]] = {}  # ONNX op type -> opset since which it means this op
    onnx_ignored: ClassVar[Sequence[str]] = ()  # ONNX attributes without meaning here
    onnx_changed: ClassVar[Mapping[str, str]] = {}  # ONNX op type -> what changed after its first version, which
    # therefore nobody can mean who states an older one
    fusion: ClassVar[Fusion] = OPAQUE
    commutative: ClassVar[bool] = False  # the two operands may be exchanged
    is_normalization: ClassVar[bool] = False  # the report says what became of it
    scheduled_as: ClassVar[str] = ""  # which schedule of renorm.ops.schedules its kernels get
    form_of: ClassVar[str] = ""  # the op that this is another form of: `keep` of that holds this one too
    is_statistic: ClassVar[bool] = False  # the kernel that makes what it reads may compute it, tile by tile
    is_product: ClassVar[bool] = False  # sums of products of data and a weight, or of data
    factors: ClassVar[int] = 2  # operands of a product that are multiplied: the first ones
    magnifies_weights: ClassVar[bool] = False  # errors of a weight grow on the way: it keeps its digits
    reads_views: ClassVar[bool] = False  # it reads operands often: only what moves no element may stand before it
    moves_axes: ClassVar[bool] = False  # each element of an operand is one of the result; axes stay whole, or parts
    samples: ClassVar[Sequence[Sample]] = ()
    rejects: ClassVar[Sequence[Reject]] = ()
    name: ClassVar[str] = ""
    attributes: ClassVar[Mapping[str, Attribute]] = {}
    parsed: ClassVar[signatures.Signature]

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        cls.attributes = {
            k: v for base in reversed(cls.__mro__) for k, v in vars(base).items() if isinstance(v, Attribute)
        }
        if "signature" in cls.__dict__:
            cls.parsed = signatures.parse(cls.signature)

    def __init__(self, **attributes: Any):
        known = type(self).attributes
        for given in attributes:
            if given not in known:
                raise OperandError(
                    f"{self.name} has no attribute {given!r}", [f"it has: {suggest(given, known) or 'none'}"]
                )
        missing = [a for a, spec in known.items() if spec.is_required and a not in attributes]
        if missing:
            raise OperandError(f"{self.name} needs {', '.join(missing)}")
        self.given = frozenset(attributes)  # what a pattern compares
        for a, spec in known.items():
            setattr(self, a, spec.check(attributes[a], self.name) if a in attributes else spec.default)

    @classmethod
    def matching(cls, **attributes: Any) -> OpDef:
        """This op for a pattern: attributes that are not given match anything, those included that are required
        elsewhere."""
        op = cls.__new__(cls)
        op.given = frozenset(attributes)
        for a, spec in cls.attributes.items():
            setattr(op, a, spec.check(attributes[a], cls.name) if a in attributes else None)
        return op

    @property
    def values(self) -> dict[str, Any]:
        """Attribute values by name."""
        return {a: getattr(self, a) for a in type(self).attributes}

    def with_attributes(self, **changed: Any) -> Self:
        """This op with some attributes changed."""
        return type(self)(**{**self.values, **changed})

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, OpDef) and self.values == other.values

    def __hash__(self) -> int:
        return hash((self.name, tuple(self.values.items())))

    def __repr__(self) -> str:
        given = ", ".join(f"{a}={v!r}" for a, v in self.values.items() if v != type(self).attributes[a].default)
        return f"{type(self).__name__}({given})"

    def __call__(self, *operands: Any, name: str | None = None) -> Any:
        """Applies the op: a Value for Values, a pattern for pattern variables. Arrays become constants."""
        flat = [o for given in operands for o in (given if isinstance(given, (list, tuple)) else (given,))]
        host = next((o for o in flat if hasattr(o, "apply_op")), None)
        if host is None:
            raise OperandError(f"{self.name}: none of the operands is a value of a graph")
        return host.apply_op(self, operands, name)

    # --- what the signature cannot say --------------------------------------------------------------------------------

    def infer(self, *operands: Any) -> Any:
        """Result types the signature leaves open: a shape, a TensorType, or a list of them. Operands are `Operand`s
        (None where left out, a list for a variadic one). Extra conditions on operands are raised here as
        OperandError."""
        return None

    def read_once(self, node: Node) -> Value | None:
        """Return the operand of which a kernel of this node reads each element once, which may be computed there."""
        x, *others = node.inputs
        return x if all(v is not x for v in others) else None

    def label(self, operands: Sequence[TensorType | None]) -> str:
        """This op's part of a kernel's name; convolutions say their rank."""
        return self.name

    def fusion_of(self, operands: Sequence[TensorType | None]) -> Fusion:
        """Return how this very application may share a kernel."""
        return self.fusion

    def formula(self, operands: Sequence[TensorType | None]) -> Formula:
        """The size of what one element of a result is, for ops that share a kernel with those that they read."""
        return Formula(4, (1,) * len(operands))

    def fold_after(self, operands: Sequence[Any], axis: int, k: Any, shift: Any) -> Any:
        """y * k + shift as one application of an op, where y is this op's result: how per-channel constants fold into
        it.

        operands: constants as float64 arrays, other operands as TensorTypes, absent ones None. A weight (see
        channel_axis) may come in the dtype that it is stored in, or as a Deferred: graph.deferred.times is its product
        with k. axis: of y, not negative. k: float64, one factor per extent of that axis, or None for 1; shift:
        likewise, or None for 0. Gives (op, operands): an operand that is returned as it came stays, a new array (or
        Deferred) becomes a constant, rounded once. Gives a sentence where it cannot be done.
        """
        return f"{self.name} has no constants that could take a scale per channel"

    def channel_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        """Return which axis of operand `index` (counted flat) carries the result's channels, where that operand is a
        weight; else None."""
        return None

    def summed_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        """Return which axis of a weight (operand `index`, counted flat) runs along axis 1 of the first operand, both
        summed over; None where there is no such axis."""
        return None

    def rows_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        """Return which axis of a weight (operand `index`, counted flat) runs along the last axis of the first operand,
        both summed over; None where there is no such axis."""
        return None

    def propagate_channels(self, node: Node, index: int, axis: int) -> Carry | Sequence[Carry] | None:
        """Return where the channels along an axis of operand `index` (counted flat) are in a result, if the op leaves
        them apart: what a scale and a shift per channel need to move through it. None where it does not. One for each
        result where they are cut into several, so that no channel is in two of them. A negative axis counts from the
        end, of constants too that do not have as many."""
        return None

    def fold_before(self, node: Node, operands: Sequence[Any], index: int, m: ChannelMap) -> Any:
        """f(.., x * k + shift, ..) as f'(.., x, ..) + rest, where x is operand `index`: how a map in front folds into
        constants. operands: as in `fold_after`. Gives (op, operands, rest): rest is None, or a float64 array that
        broadcasts to the result. Gives a sentence where it cannot be done."""
        return f"{self.name} has no weight that could take a scale per channel of what it reads"

    def in_blocks(self, node: Node, index: int | None, lanes: int) -> Accepts:
        """Return whether operand `index` of a node of this op (counted flat; None: its results) may lie in blocks of
        `lanes` channels, which are axis 1: whether the op leaves channels where they are. Ops that sum over channels
        leave that to their schedule (`renorm.ops.schedules.blocks`). Operands that are constants or small are not asked
        about, nor are ops whose schedule is a user's unless this method is too."""
        if self.fusion_of(node.operand_types()) > BROADCAST:
            return Accepts.ROW_MAJOR
        operand = None if index is None else node.inputs[index]
        return Accepts.ALIKE if operand is None or operand.rank == node.output.rank else Accepts.ROW_MAJOR

    def aliases(self, node: Node) -> Sequence[Alias] | None:
        """Return how operands lie in the result, or results in an operand, where that is all that a node of this op (of
        fixed shapes) says; else None."""
        return None

    def known_result(self, *operands: Any) -> Any:
        """Return the elements of a small integer result, or a list of those of several results, from what is known of
        operands, by which the shape chains of exporters are followed: arrays of ints and Syms, or None where they are
        not known. operands: (shape, known elements or None), a list of those for a variadic one, None where left
        out."""
        return None

    def known_range(self, node: Node, ranges: Mapping[Value, Reach]) -> Reach | None:
        """Return the least and the greatest element of an integer result, of a node of this op, as extents, where that
        is known though the elements are not. ranges: the same of operands."""
        return None

    def wants_digits(self, index: int) -> str | None:
        """Return why operand `index` (counted flat) stays float32 where values may be held in fewer digits, as a part
        of a sentence; None where it need not."""
        return None

    def rounded(self, node: Node, dtype: str, machine: Target) -> OpDef | None:
        """Return this op where whatever it multiplies is rounded to a dtype, which memory holds its operands in and the
        machine multiplies; None where it multiplies in float32 all the same."""
        return None

    def demands(self, node: Node) -> Sequence[Demand]:
        """Return what a node of this op demands of the data of its operands."""
        return ()

    # --- what it computes ---------------------------------------------------------------------------------------------

    def compute(self, *operands: Any) -> Any:
        """Results as te tensors (one, or a list). Operands are te tensors; static ones are NumPy arrays, absent ones
        None."""
        raise NotImplementedError(f"{self.name} has no compute")

    def schedule(self, s: Any, outs: Sequence[Any], target: Any) -> None:
        """Schedule `s`, made for `outs`, in place, where no schedule of renorm fits (`scheduled_as`). A fused group is
        scheduled by its op of the highest fusion kind."""
        raise NotImplementedError(f"{self.name} has no schedule")

    def nominal_flops(self, operands: Sequence[TensorType | None], results: Sequence[TensorType]) -> Dim | None:
        """Floating-point operations of the textbook algorithm, where `compute` does another that needs fewer; None
        where they are counted from compute. Open extents make them open."""
        return None

    def reference(self, *operands: Any) -> Any:
        """Results by NumPy; floating operands come as float64 and results are rounded to their dtype by the caller."""
        raise NotImplementedError(f"{self.name} has no reference")

    # --- foreign files ------------------------------------------------------------------------------------------------

    @classmethod
    def stated(cls, node: OnnxNode) -> dict[str, Any]:
        """Return the attributes that an ONNX node states, by the names that they have here; OperandError where it
        states others."""
        known = {spec.onnx: a for a, spec in cls.attributes.items()}
        unknown = [a for a in node.attributes if a not in known and a not in cls.onnx_ignored]
        if unknown:
            raise OperandError(
                f"{node.op_type}: attribute {', '.join(unknown)} is not defined here at opset {node.opset}",
                [f"known: {', '.join(known) or 'none'}"],
            )
        return {known[a]: v for a, v in node.attributes.items() if a in known}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Applies this op (or smaller ones) to the operands of an ONNX node, and gives the results in order of its
        outputs."""
        return cls(**cls.stated(node))(*cls.arrange(node.operands), name=node.name)

    def to_onnx(self, node: Node, opset: int) -> tuple[str, dict[str, Any], list[Any]] | None:
        """(op type, attributes, operands) that write this node at `opset`; None where ONNX cannot say it. Operands are
        Values, or arrays that become initializers."""
        since = [t for t, version in type(self).onnx.items() if version <= opset]
        if not since:
            return None
        written = {s.onnx: getattr(self, a) for a, s in type(self).attributes.items() if getattr(self, a) != s.default}
        return since[0], written, list(node.inputs)

    onnx_place: ClassVar[int] = 0
    """Which output of the ONNX node this op's first result is."""

    def in_onnx(self, node: Node) -> Any:
        """Return the result, or a list of several, as ops that ONNX has make it, applied where the node stands; None
        where ONNX has this one."""
        return None

    def onnx_outputs(self, opset: int) -> int:
        """Return how many outputs the ONNX node must list, where that is more than this op has results; they get names
        that nobody reads."""
        return 0

    # --- derived ------------------------------------------------------------------------------------------------------

    @classmethod
    def arrange(cls, flat: Sequence[Any]) -> list[Any]:
        """Flat operands by parameter: padded with None, the variadic one gathered into a list; OperandError on the
        wrong number."""
        parameters, given = cls.parsed.operands, list(flat)
        variadic = [i for i, p in enumerate(parameters) if p.is_variadic]
        least = sum(not (p.is_optional or p.is_variadic) for p in parameters)
        if len(given) < least or (not variadic and any(g is not None for g in given[len(parameters) :])):
            count = str(len(parameters)) if least == len(parameters) else f"{least} to {len(parameters)}"
            raise OperandError(
                f"{cls.name} takes {'at least ' + str(least) if variadic else count} operands, not {len(given)}"
            )
        if variadic:
            at, after = variadic[0], len(parameters) - variadic[0] - 1
            return [*given[:at], given[at : len(given) - after], *given[len(given) - after :]]
        given = given[: len(parameters)] + [None] * (len(parameters) - len(given))
        for p, g in zip(parameters, given):
            if g is None and not p.is_optional:
                raise OperandError(f"{cls.name}: operand {p.name} is missing")
        return given

    def result_types(self, operands: Sequence[Operand | Sequence[Operand] | None], hint: str = "") -> list[TensorType]:
        """Types of all results; extents that nobody knows become fresh symbols that start with `hint`."""
        bound = self.parsed.unify(self.name, operands, type(self).types)
        found = self.parsed.result_types(bound)
        inferred = self.infer(*operands)
        if inferred is None:
            inferred = [None] * len(found)
        elif isinstance(inferred, TensorType) or not _is_list_of_results(inferred):
            inferred = [inferred]
        dtypes_of = [bound.dtypes.get(r.dtype) or r.dtype for r in self.parsed.results]
        if self.parsed.results[-1].is_variadic:
            dtypes_of += [dtypes_of[-1]] * (len(inferred) - len(dtypes_of))
            found += [None] * (len(inferred) - len(found))
        types: list[TensorType] = []
        for i, given in enumerate(inferred):
            own = given if given is not None else found[i]
            if own is None:
                raise OperandError(f"{self.name}: neither signature nor infer gives the shape of result {i}")
            is_typed = isinstance(own, TensorType)
            extents = list[Any](own.shape if is_typed else own)  # None is one that infer does not know
            fresh = tuple(Sym(f"?{hint}.{i}.{axis}") if d is None else d for axis, d in enumerate(extents))
            if any(isinstance(d, int) and d < 0 for d in fresh):
                raise OperandError(f"{self.name}: result {i} would have the shape {format_shape(fresh)}")
            types.append(TensorType(own.dtype if is_typed else dtypes.lookup(dtypes_of[i]).name, fresh))
        return types


def _is_list_of_results(inferred: Any) -> bool:
    """A list (not a tuple) of shapes or types: several results. A tuple is one shape."""
    return isinstance(inferred, list)
