"""CUDA C of expressions: what the text calls things, and how it computes.

float16 and bfloat16 are storage: they widen to float when loaded and round when stored; tf32 is float, and rounds as
they do. Elements of at most 8 bits that are storage, too, stay bytes until they are cast (stored_types.py).
"""

from __future__ import annotations

from math import isinf, isnan

from renorm.codegen.cuda import stored_types, vectors
from renorm.core import dtypes
from renorm.core.conversion import TF32_HALF, TF32_KEPT
from renorm.core.errors import InternalError
from renorm.expr.bounds import interval, is_exact
from renorm.expr.nodes import (
    INTRINSICS,
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Select,
    Var,
    integer_limits,
)
from renorm.expr.rewrite import loads
from renorm.tir.nodes import Buffer, Store

TYPES = {
    "float64": "double", "float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16", "tf32": "float",
    "bool": "bool",
    "int64": "long long", "int32": "int", "int16": "short", "int8": "signed char",
    "uint64": "unsigned long long", "uint32": "unsigned int", "uint16": "unsigned short", "uint8": "unsigned char",
    **stored_types.TYPES,
}  # fmt: skip
_WIDEN = {"float16": "__half2float", "bfloat16": "__bfloat162float", "tf32": ""}
_NARROW = {"float16": "__float2half_rn", "bfloat16": "__float2bfloat16_rn", "tf32": "renorm_tf32"}
_TF32 = (
    "static __device__ __forceinline__ float renorm_tf32(float x) { return x != x ? __int_as_float(0x7fc00000) : "
    f"__int_as_float((__float_as_int(x) + {TF32_HALF:#x}) & {TF32_KEPT:#x}); }}"
)

# intrinsics whose C name differs from ours; float gets an `f` after it
_C_NAMES = {"abs": "fabs", "round": "rint"}
_BITCAST = {
    "int32": "__float_as_int",
    "int64": "__double_as_longlong",
    "float32": "__int_as_float",
    "float64": "__longlong_as_double",
}
_OWN = {
    "sigmoid": "{t} {name}({t} x) {{ const {t} e = exp{f}(-fabs{f}(x)); return (x < 0 ? e : 1) / (1 + e); }}",
    "sign": "{t} {name}({t} x) {{ return x != x ? x : (x > 0) - (x < 0); }}",
    "min": "{t} {name}({t} a, {t} b) {{ return a != a || a < b ? a : b; }}",  # NaN propagates, as in NumPy
    "max": "{t} {name}({t} a, {t} b) {{ return a != a || a > b ? a : b; }}",
    # GPUs err by 2 units in the last place, which an integer power must not become another integer for
    "shift_left": "{t} {name}({t} a, {t} b) {{ "
    "return b < 0 || b >= (int)sizeof({t}) * 8 ? 0 : ({t})((unsigned long long)a << b); }}",
    "shift_right": "{t} {name}({t} a, {t} b) {{ "
    "return b < 0 || b >= (int)sizeof({t}) * 8 ? (a < 0 ? -1 : 0) : a >> b; }}",
    "pow": "{t} {name}({t} a, {t} b) {{ const {t} r = pow(a, b), n = rint(r); "
    "return fabs(r - n) <= 4.5e-16 * fabs(n) ? n : r; }}",
    "power": "{t} {name}({t} a, {t} b) {{ "  # wraps; a negative exponent counts as 0
    "unsigned long long r = 1, s = a; for (; b > 0; b >>= 1, s *= s) if (b & 1) r *= s; return ({t})r; }}",
    "quotient": "{t} {name}({t} a, {t} b) {{ "  # -2**31 / -1 wraps
    "return b == 0 ? 0 : b < 0 && b == -1 ? ({t})(0ULL - (unsigned long long)a) : a / b; }}",
    "floordiv": "{t} {name}({t} a, {t} b) {{ "
    "if (b == 0) return 0; if (b < 0 && b == -1) return ({t})(0ULL - (unsigned long long)a); "
    "{t} q = a / b; return q * b != a && (a < 0) != (b < 0) ? q - 1 : q; }}",
    "fmod": "{t} {name}({t} a, {t} b) {{ return b == 0 || (b < 0 && b == -1) ? 0 : a % b; }}",  # of integers
    "floormod": "{t} {name}({t} a, {t} b) {{ "
    "if (b == 0 || (b < 0 && b == -1)) return 0; {t} r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }}",
}
# what no buffer or variable may be called: words of C++, and names that the text uses
_WORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const const_cast
    constexpr continue decltype default delete do double dynamic_cast else enum explicit export extern false float
    for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private
    protected public register reinterpret_cast return short signed sizeof static static_assert static_cast struct
    switch template this thread_local throw true try typedef typeid typename union unsigned using virtual void
    volatile wchar_t while xor xor_eq renorm_shared threadIdx blockIdx blockDim gridDim int2 int4 isnan isinf fabs rint
    exp exp2 log log2 sqrt pow sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf floor ceil trunc round
    abs min max fabsf rintf NULL
"""
RESERVED = frozenset((*_WORDS.split(), *INTRINSICS, *(f"{name}f" for name in INTRINSICS)))
# a float as an integer: the nearest one of its type towards zero, 0 for NaN
_SATURATED = "{t} {name}({s} x) {{ return x != x ? 0 : x <= {below} ? {low} : x >= {above} ? {high} : ({t})x; }}"
_BITWISE = {"bitwise_and": " & ", "bitwise_or": " | ", "bitwise_xor": " ^ "}
_INFIX = frozenset({"+", "-", "*", "/", "==", "!=", "<", "<=", ">", ">=", "&&", "||"})


class Expressions:
    """The expressions of one __global__ function, with names of its own. needed: device functions that they call, by
    name."""

    def __init__(self, is_long: bool):
        self.needed: dict[str, str] = {}
        self._names: dict[int, str] = {}
        self._taken = set(RESERVED)
        self._bounds: dict[Var, tuple[int, int]] = {}
        self._held: dict[object, str] = {}  # elements that are in registers
        self._index = "long long" if is_long else "int"  # of indices; what is reckoned with them is as wide
        self._is_wide = False  # in an index of elements that an int might not hold

    def _name(self, what: object, hint: str) -> str:
        if id(what) not in self._names:
            self._names[id(what)] = self._fresh(hint)
        return self._names[id(what)]

    def _fresh(self, hint: str) -> str:
        base = "".join(c if c.isalnum() else "_" for c in hint).lstrip("0123456789") or "v"
        base = f"v_{base}" if base.startswith(("__", "renorm_")) else base  # the language's, and those of the text
        name, n = base, 0
        while name in self._taken:
            n += 1
            name = f"{base}_{n}"
        self._taken.add(name)
        return name

    def _narrowed(self, s: Store) -> str:
        if s.buffer.dtype in _NARROW and (bits := self._bits(s.value)):
            return bits
        return self._rounded(self._expr(s.value), s.buffer.dtype)

    def _rounded(self, text: str, dtype: str) -> str:
        """A float as memory holds it in a dtype."""
        if dtype == "tf32":
            self.needed[dtype] = _TF32
        return f"{_NARROW[dtype]}({text})" if dtype in _NARROW else text

    def _bits(self, e: Expr) -> str:
        """An expression of a narrow float that computes nothing, as what memory holds; "" for any other."""
        match e:
            case Load(predicate=None):
                return self._element(e)
            case Const(value=0):
                return self._rounded("0.0f", e.dtype)
            case (
                Call(name="if_then_else", args=(condition, then, otherwise))
                | Select(condition=condition, then=then, otherwise=otherwise)
            ):
                branches = self._bits(then), self._bits(otherwise)
                return f"({self._expr(condition)} ? {branches[0]} : {branches[1]})" if all(branches) else ""
            case _:
                return ""

    def _expr(self, e: Expr) -> str:
        match e:
            case Var():
                return self._name(e, e.name)
            case Const():
                return _constant(e)
            case Binary():
                return self._binary(e)
            case Not():
                return f"(!{self._expr(e.a)})"
            case Select():
                return f"({self._expr(e.condition)} ? {self._expr(e.then)} : {self._expr(e.otherwise)})"
            case Cast():
                return self._cast(e)
            case Call():
                return self._call(e)
            case Load():
                text = self._element(e)
                text = f"{_WIDEN[e.dtype]}({text})" if e.dtype in _WIDEN else text
                text = f"((long long){text})" if self._is_wide and e.dtype == "int32" else text
                return text if e.predicate is None else f"({self._expr(e.predicate)} ? {text} : 0)"
            case Broadcast():
                return self._expr(e.value)
            case _:
                raise InternalError(f"CUDA C has no form for the expression {e}")

    def _element(self, e: Load) -> str:
        """Return what memory, or a register that has it already, holds of an element."""
        assert isinstance(e.source, Buffer)
        held = self._held.get(vectors.of_load(e)) if self._held else None
        return held or f"{self._name(e.source, e.source.name)}[{self._place(e.indices[0])}]"

    def _place(self, index: Expr) -> str:
        """Return an index, in which elements are reckoned with in 64 bits where 32 might not hold what comes of it."""
        was, self._is_wide = self._is_wide, any(True for _ in loads(index)) and not is_exact(index)
        text, self._is_wide = self._expr(index), was
        return text

    def _own(self, name: str, dtype: str) -> str:
        """The name of a device function of ours, which is then defined in the source."""
        kind = _register(dtype)
        kind = "int64" if kind == "int32" and (self._index != "int" or self._is_wide) else kind
        full = name if kind == "float32" else f"{name}_{kind}"
        values = {"t": TYPES[kind], "f": "f" if kind == "float32" else "", "name": f"renorm_{full}"}
        self.needed[full] = "static __device__ __forceinline__ " + _OWN[name].format(**values)
        return f"renorm_{full}"

    def _binary(self, e: Binary) -> str:
        a, b = self._expr(e.a), self._expr(e.b)
        is_float = _register(e.a.dtype) in ("float32", "float64")
        match e.op:
            case "//" | "%":
                if interval(e.a, self._bounds)[0] >= 0 and interval(e.b, self._bounds)[0] > 0:
                    return f"({a} {'/' if e.op == '//' else '%'} {b})"  # C truncates, which is the same for these
                return f"{self._own('floordiv' if e.op == '//' else 'floormod', e.dtype)}({a}, {b})"
            case "/" if not is_float and interval(e.b, self._bounds)[0] <= 0:
                return f"{self._own('quotient', e.dtype)}({a}, {b})"
            case "min" | "max":
                return f"{self._own(e.op, e.dtype)}({a}, {b})"
            case "pow" if is_float:
                return (
                    f"powf({a}, {b})" if _register(e.dtype) == "float32" else f"{self._own('pow', e.dtype)}({a}, {b})"
                )
            case "pow":
                return f"{self._own('power', e.dtype)}({a}, {b})"
            case "&&" | "||" as op if not loads(e):  # both sides cost less than a branch
                return f"({a} {op[0]} {b})"
            case op if op in _INFIX:
                is_narrow = dtypes.is_int(e.dtype) and dtypes.lookup(e.dtype).bits < 32  # C goes on with an int
                return f"(({TYPES[e.dtype]})({a} {op} {b}))" if is_narrow else f"({a} {op} {b})"
            case _:
                raise InternalError(f"CUDA C has no operator {e.op!r}")

    def _cast(self, e: Cast) -> str:
        text, source = self._expr(e.a), e.a.dtype
        if dtypes.is_stored(source):
            text, source = f"{self._stored(stored_types.decoder(source))}({text})", dtypes.compute_dtype(source)
        if dtypes.is_stored(e.dtype):
            is_float = dtypes.is_float(e.dtype)
            if is_float and source == "float64":
                text = f"{self._stored(stored_types.odd())}({text})"
            text = self._as(text, source, "float32" if is_float else "int32")
            return f"{self._stored(stored_types.encoder(e.dtype))}({text})"
        return self._as(text, source, e.dtype)

    def _stored(self, function: tuple[str, str]) -> str:
        """The name of a device function for what is stored only, which is then defined in the source."""
        name, text = function
        self.needed[name] = text
        return name

    def _as(self, text: str, source: str, dtype: str) -> str:
        """`text`, of dtype source, as another dtype."""
        if dtype == "bool":
            return f"({text} != 0)"
        if dtype in _NARROW:  # round to the narrow type, go on in float
            return f"{_WIDEN[dtype]}({self._rounded(f'(float){text}', dtype)})"
        if dtypes.is_float(source) and not dtypes.is_float(dtype):
            return f"{self._saturated(_register(source), dtype)}({text})"
        return f"(({TYPES[_register(dtype)]}){text})"

    def _saturated(self, source: str, dtype: str) -> str:
        """The name of a device function that makes an integer of a float."""
        low, high = integer_limits(dtype)
        name, suffix = f"renorm_{dtype}_of_{source}", "f" if source == "float32" else ""
        ends = {"below": f"{float(low)!r}{suffix}", "above": f"{float(high + 1)!r}{suffix}"}
        ends |= {"low": f"({TYPES[dtype]}){_integer(low)}", "high": f"({TYPES[dtype]}){_integer(high)}"}
        text = _SATURATED.format(t=TYPES[dtype], s=TYPES[source], name=name, **ends)
        self.needed[name] = "static __device__ __forceinline__ " + text
        return name

    def _call(self, e: Call) -> str:
        args = [self._expr(a) for a in e.args]
        dtype = _register(e.dtype)
        suffix = "f" if dtype == "float32" else ""
        match e.name:
            case "likely":
                return args[0]
            case "if_then_else":
                return f"({args[0]} ? {args[1]} : {args[2]})"
            case "isnan" | "isinf":
                return f"{e.name}({args[0]})"
            case "bitcast":
                return f"{_BITCAST[e.dtype]}({args[0]})"
            case "popcount":
                return f"__popcll({args[0]})"
            case "bitwise_and" | "bitwise_or" | "bitwise_xor":
                return f"({_BITWISE[e.name].join(args)})"
            case "abs" if dtype not in ("float32", "float64"):
                return f"(({TYPES[dtype]})({args[0]} < 0 ? -{args[0]} : {args[0]}))"
            case name if name in _OWN and (name != "fmod" or dtype not in ("float32", "float64")):
                return f"{self._own(name, e.dtype)}({', '.join(args)})"
            case name:
                return f"{_C_NAMES.get(name, name)}{suffix}({', '.join(args)})"


def _register(dtype: str) -> str:
    """The type that a value of `dtype` has once it is loaded."""
    return "float32" if dtype in _WIDEN else dtype


def _integer(n: int) -> str:
    """A literal: -2**63 and what lies above 2**63 have no simple ones."""
    if n == -(2**63):
        return "(-9223372036854775807LL - 1)"
    return f"{n}ULL" if n >= 2**63 else f"{n}LL" if abs(n) >= 2**31 else str(n)


def _constant(e: Const) -> str:
    if dtypes.is_stored(e.dtype):
        return stored_types.constant(e.value, e.dtype)
    if isinstance(e.value, bool):
        return "true" if e.value else "false"
    if isinstance(e.value, int):
        return _integer(e.value)
    single = _register(e.dtype) == "float32"
    if isnan(e.value):
        return "__int_as_float(0x7fc00000)" if single else "__longlong_as_double(0x7ff8000000000000LL)"
    if isinf(e.value):
        text = "__int_as_float(0x7f800000)" if single else "__longlong_as_double(0x7ff0000000000000LL)"
        return text if e.value > 0 else f"(-{text})"
    text = repr(e.value)
    text = text if any(c in text for c in ".en") else text + ".0"
    return f"({text}{'f' if single else ''})" if e.value < 0 else text + ("f" if single else "")
