"""Scalar and vector expressions to SSA values.

Arithmetic follows IEEE 754 without fast-math; the one licence taken is contraction: a product that is added or
subtracted becomes a fused multiply-add. `min` and `max` give NaN where an operand is NaN, as NumPy's do. Integer data
wraps in its own width; what is made of loop variables and constants is index arithmetic and does not (see index).
`if_then_else` on a scalar is a branch where a side reads memory; on a vector both sides are computed, and loads skip
the lanes they must not touch.
"""

from __future__ import annotations

from renorm.codegen.llvm import integers, math, types
from renorm.codegen.llvm.index import Indices, is_index
from renorm.codegen.llvm.lanes import Lanes, Variable
from renorm.codegen.llvm.memory import Memory
from renorm.codegen.llvm.ssa import I32, I64, Function, Value, constant, constants, poison, vector
from renorm.codegen.llvm.stored_types import held
from renorm.core import dtypes
from renorm.core.conversion import limits
from renorm.core.errors import InternalError
from renorm.core.linear import Form
from renorm.core.spans import fits_int32
from renorm.expr.nodes import Binary, Broadcast, Call, Cast, Const, Expr, Load, Not, Ramp, Select, Var
from renorm.expr.rewrite import children
from renorm.tir.nodes import Buffer

_SIGNED = {"==": "eq", "!=": "ne", "<": "slt", "<=": "sle", ">": "sgt", ">=": "sge"}
_UNSIGNED = {"==": "eq", "!=": "ne", "<": "ult", "<=": "ule", ">": "ugt", ">=": "uge"}
_ORDERED = {"==": "oeq", "!=": "une", "<": "olt", "<=": "ole", ">": "ogt", ">=": "oge"}
_FLOAT = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv"}
_INTEGER = {"+": "add", "-": "sub", "*": "mul"}
_BOOL = {"max": "or", "min": "and"}


class Expressions:
    """Emits expressions into one function. lets: values of the variables that are not indices. propagates: whether the
    machine's own maximum instruction gives NaN for a NaN operand (that of AArch64 does, that of x86 does not).
    """

    def __init__(self, function: Function, propagates: bool):
        self.f = function
        self.indices = Indices(function, self.value)
        self.memory = Memory(function, self.indices)
        self.lets: dict[Var, Value] = {}
        self._propagates = propagates
        self._mask: Value | None = None  # lanes that matter, inside an if_then_else of vectors
        self._generation = 0

    def renew(self) -> None:
        """Forget the values emitted so far: bindings or memory have changed, and they no longer stand for their
        expressions."""
        self._generation += 1

    def value(self, e: Expr) -> Value:
        """The value of `e`, of the register type of its dtype."""
        match e:
            case Const():
                return constant(types.register_type(e.dtype), held(e.dtype, e.value))
            case Var() if e in self.lets:
                return self.lets[e]
            case Broadcast():
                return self.f.splat(self.value(e.value), e.lanes)
            case _:
                pass
        key = f"#{id(e)}.{self._generation}.{self._mask.text if self._mask else ''}"
        found = self.f.recall(key)
        if found is None:
            found = self._index_value(e) if is_index(e) else self._emit(e)
            self.f.note(key, found)
        return found

    def _index_value(self, e: Expr) -> Value:
        if e.lanes == 1:
            return self._narrow(self.indices.value(self.indices.linear(e)), e.dtype)
        run = self.indices.affine(e)
        if run is None:
            forms = [self.indices.linear(e, k) for k in range(e.lanes)]
            return self.f.gather([self._narrow(self.indices.value(form), e.dtype) for form in forms])
        first, step = run
        base = self.f.splat(self._narrow(self.indices.value(first), e.dtype), e.lanes)
        return self.f.op("add", base, constants(base.type, [step * k for k in range(e.lanes)]))

    def _narrow(self, value: Value, dtype: str) -> Value:
        element = types.register_type(dtype).element
        if value.number is not None:
            return constant(vector(element, 1), value.number)
        return self.f.convert("trunc", value, element)

    def _emit(self, e: Expr) -> Value:
        match e:
            case Binary(op="&&" | "||"):
                return self._logic(e)
            case Binary() if e.dtype == "bool" and e.op in _ORDERED:
                return self._compare(e)
            case Binary():
                return self._arithmetic(e)
            case Not():
                return self._not(self.value(e.a))
            case Select():
                condition = self.f.splat(self.value(e.condition), e.lanes)
                return self.f.select(condition, self._spread(e.then, e.lanes), self._spread(e.otherwise, e.lanes))
            case Cast() if (found := _rounded(e)) is not None:
                x, added, ends = found
                return types.rounded(self.f, self.value(x), added, ends, e.dtype)
            case Cast():
                return types.cast(self.f, self.value(e.a), e.a.dtype, e.dtype)
            case Load():
                return self._load(e)
            case Call(name="if_then_else"):
                return self._if_then_else(e)
            case Call():
                return self._call(e)
            case Ramp():
                base, stride = self._spread(e.base, e.lanes), self._spread(e.stride, e.lanes)
                steps = constants(base.type, list(range(e.lanes)))
                return self.f.op("add", base, self.f.op("mul", stride, steps))
            case _:
                raise InternalError(f"no code for the expression {type(e).__name__} {e}")

    def _spread(self, e: Expr, lanes: int) -> Value:
        return self.f.splat(self.value(e), lanes)

    def _load(self, e: Load) -> Value:
        index, predicate = e.indices[0], e.predicate
        mask = None if predicate is None else self._spread(predicate, index.lanes)
        if self._mask is not None:
            active = self._mask if index.lanes == self._mask.type.lanes else self.f.any(self._mask)
            mask = active if mask is None else self.f.op("and", mask, active)
        place = self.memory.places.get(e.source) if isinstance(e.source, Buffer) else None
        if place is None:
            raise InternalError(f"load from {e.source.name}, which is neither a parameter nor allocated")
        return self.memory.load(place, index, mask)

    # arithmetic ------------------------------------------------------------------------------------------------------

    def _arithmetic(self, e: Binary) -> Value:
        if e.op == "pow":
            return self._power(e)
        if dtypes.is_float(e.dtype):
            return self._contracted(e) or self._float(e)
        a, b = self._spread(e.a, e.lanes), self._spread(e.b, e.lanes)
        f, unsigned = self.f, types.is_unsigned(e.dtype)
        if e.dtype == "bool":
            if e.op not in _BOOL:
                raise InternalError(f"{e.op} of truth values in {e}")
            return f.op(_BOOL[e.op], a, b)
        match e.op:
            case "min" | "max":
                return f.intrinsic(("u" if unsigned else "s") + e.op, a, b)
            case "//" | "%":
                return integers.floored(f, a, b, e.op == "%", unsigned)
            case "/":
                return integers.truncated(f, a, b, False, unsigned)
            case _:
                return f.op(_INTEGER[e.op], a, b)

    def _contracted(self, e: Binary) -> Value | None:
        """a*b + c as one fused operation, or None where there is no product."""
        if e.op not in "+-":
            return None
        f = self.f
        for product, other, product_first in ((e.a, e.b, True), (e.b, e.a, False)):
            if isinstance(product, Binary) and product.op == "*":
                a, b = self._spread(product.a, e.lanes), self._spread(product.b, e.lanes)
                c = self._spread(other, e.lanes)
                if e.op == "-":
                    if product_first:
                        c = f.negate(c)
                    else:
                        a = f.negate(a)
                return f.intrinsic("fma", a, b, c)
        return None

    def _float(self, e: Binary) -> Value:
        f = self.f
        a, b = self._spread(e.a, e.lanes), self._spread(e.b, e.lanes)
        match e.op:
            case "min" | "max":
                return self._extremum(e.op, a, b)
            case "//":
                return math.floor_divide(f, a, b)
            case "%":
                return math.floor_mod(f, a, b)
            case _:
                return f.op(_FLOAT[e.op], a, b)

    def _extremum(self, op: str, a: Value, b: Value) -> Value:
        """The instruction of x86 gives its second operand where either is NaN, so with a constant first it is right."""
        f = self.f
        if self._propagates:
            return f.intrinsic("maximum" if op == "max" else "minimum", a, b)
        if b.number is not None and b.number == b.number:
            a, b = b, a
        is_first = f"fcmp {'ogt' if op == 'max' else 'olt'}"
        if a.number is not None and a.number == a.number:
            return f.select(f.compare(is_first, a, b), a, b)
        if a.type.lanes > 1:
            # all bits set are no number. What may be a chain, `a`, waits for two instructions; a select would be joined
            # with the other one, and wait for four: pools of 3 x 3 took 1.6 to 1.9 times as long with AVX2
            bits = f"i{a.type.bits}"
            first = f.convert("bitcast", f.select(f.compare(is_first, b, a), b, a), bits)
            none = f.convert("sext", f.compare("fcmp uno", b, b), bits)
            return f.convert("bitcast", f.op("or", first, none), a.type.element)
        return f.select(f.compare("fcmp uno", a, a), a, f.select(f.compare(is_first, a, b), a, b))

    def _power(self, e: Binary) -> Value:
        exponent = e.b.value if isinstance(e.b, Broadcast) else e.b
        base = self._spread(e.a, e.lanes)
        if isinstance(exponent, Const):
            chain = math.constant_power(self.f, base, exponent.value)
            if chain is not None:
                return chain
        power = self._spread(e.b, e.lanes)
        if dtypes.is_float(e.dtype):
            return math.power(self.f, base, power)
        return integers.power(self.f, base, power, types.is_unsigned(e.dtype))

    def _call(self, e: Call) -> Value:
        f = self.f
        args = [self._spread(a, e.lanes) for a in e.args]
        first, dtype = args[0], e.args[0].dtype
        if e.name == "likely":
            return first
        if e.name == "bitcast":
            return f.convert("bitcast", first, types.register_type(e.dtype).element)
        if dtypes.is_float(dtype):
            return math.call(f, e.name, args)
        zero, element, unsigned = constant(first.type, 0), first.type.element, types.is_unsigned(dtype)
        match e.name:
            case "abs":
                return first if unsigned else f.intrinsic("smax", first, f.op("sub", zero, first))
            case "sign":
                if unsigned:
                    return f.convert("zext", f.compare("icmp ne", first, zero), element)
                positive, negative = f.compare("icmp sgt", first, zero), f.compare("icmp slt", first, zero)
                return f.op("or", f.convert("zext", positive, element), f.convert("sext", negative, element))
            case "fma":
                return f.op("add", f.op("mul", args[0], args[1]), args[2])
            case "fmod":
                return integers.truncated(f, args[0], args[1], True, unsigned)
            case "popcount":
                return f.intrinsic("ctpop", first)
            case "bitwise_and" | "bitwise_or" | "bitwise_xor":
                return f.op(e.name.removeprefix("bitwise_"), args[0], args[1])
            case "shift_left" | "shift_right":
                return integers.shifted(f, args[0], args[1], e.name == "shift_left", unsigned)
            case _:
                raise InternalError(f"no code for {e.name} of {dtype} in {e}")

    # truth -----------------------------------------------------------------------------------------------------------

    def _logic(self, e: Binary) -> Value:
        """Both sides are evaluated, unless one is constant: the verifier lets neither guard a load in the other."""
        conjunction = e.op == "&&"
        a = self._spread(e.a, e.lanes)
        if a.number is not None:
            return self._spread(e.b, e.lanes) if bool(a.number) == conjunction else a
        b = self._spread(e.b, e.lanes)
        if b.number is not None:
            return a if bool(b.number) == conjunction else b
        return self.f.op("and" if conjunction else "or", a, b)

    def _not(self, a: Value) -> Value:
        return constant(a.type, not a.number) if a.number is not None else self.f.op("xor", a, constant(a.type, 1))

    def _compare(self, e: Binary) -> Value:
        if is_index(e.a) and is_index(e.b):
            return self._compare_indices(e)
        f, dtype = self.f, e.a.dtype
        a, b = self._spread(e.a, e.lanes), self._spread(e.b, e.lanes)
        if dtypes.is_float(dtype):
            return f.compare(f"fcmp {_ORDERED[e.op]}", a, b)
        return f.compare(f"icmp {(_UNSIGNED if types.is_unsigned(dtype) else _SIGNED)[e.op]}", a, b)

    def _compare_indices(self, e: Binary) -> Value:
        f, n = self.f, e.lanes
        a, b = self.indices.affine(e.a), self.indices.affine(e.b)
        if a is None or b is None:
            forms = [(self.indices.linear(e.a, k), self.indices.linear(e.b, k)) for k in range(n)]
            return f.gather([self._compare_forms(e.op, x, y) for x, y in forms])
        (first, step), (limit, limit_step) = a, b
        ends = [self.indices.truth(e.op, first.offset(k * step), limit.offset(k * limit_step)) for k in (0, n - 1)]
        if n == 1 or step == limit_step or (ends[0] is not None and ends[0] == ends[1] and e.op not in ("==", "!=")):
            return f.splat(self._compare_forms(e.op, first, limit), n)
        # k * (step - limit_step) op limit - first, in 32 bits: a distance beyond them decides as their limit does
        form = limit - first
        distance = self.indices.value(form)
        if not fits_int32(self.indices.form_span(form)):
            least, most = constant(I64, -(2**31)), constant(I64, 2**31 - 1)
            distance = f.intrinsic("smin", f.intrinsic("smax", distance, least), most)
        steps = constants(vector("i32", n), [k * (step - limit_step) for k in range(n)])
        narrow = constant(I32, distance.number) if distance.number is not None else f.convert("trunc", distance, "i32")
        return f.compare(f"icmp {_SIGNED[e.op]}", steps, f.splat(narrow, n))

    def _compare_forms(self, op: str, a: Form[Value], b: Form[Value]) -> Value:
        known = self.indices.truth(op, a, b)
        if known is not None:
            return constant(vector("i1", 1), known)
        return self.f.compare(f"icmp {_SIGNED[op]}", self.indices.value(a), self.indices.value(b))

    # choice ----------------------------------------------------------------------------------------------------------

    def _if_then_else(self, e: Call) -> Value:
        condition, then, otherwise = e.args
        f = self.f
        c = self.value(condition)
        if c.number is not None:
            return self._spread(then if c.number else otherwise, e.lanes)
        if c.type.lanes > 1:
            return f.select(c, self._under(c, then), self._under(self._not(c), otherwise))
        if not (_is_costly(then) or _is_costly(otherwise)):
            return f.select(c, self._spread(then, e.lanes), self._spread(otherwise, e.lanes))
        chosen = Variable(Lanes(f, poison(types.register_type(e.dtype, e.lanes))))
        with f.branch(c) as branch:
            chosen.value = Lanes(f, self._spread(then, e.lanes))
        with f.otherwise(branch):
            chosen.value = Lanes(f, self._spread(otherwise, e.lanes))
        return chosen.value.value

    def _under(self, condition: Value, e: Expr) -> Value:
        """`e` with loads only where `condition` holds."""
        outer = self._mask
        self._mask = condition if outer is None else self.f.op("and", outer, condition)
        value = self._spread(e, condition.type.lanes)
        self._mask = outer
        return value


def _is_costly(e: Expr) -> bool:
    return isinstance(e, (Load, Call)) or any(_is_costly(c) for c in children(e))


_EXACT = 1 << 16  # below which sums of what counts and whole numbers are exact in float32


def _rounded(e: Cast) -> tuple[Expr, int, tuple[int, int]] | None:
    """Return x, c, and between which ends it is cut, where `e` is vectors of round(x) + c, float32, as integers of
    fewer bits. Ends are those of the integers less c, or such as lie between these."""
    if e.lanes == 1 or e.a.dtype != "float32" or not types.is_short(e.dtype):
        return None
    x, added, (low, high) = e.a, 0, limits(e.dtype)
    if isinstance(x, Binary) and x.op == "+" and (c := _whole(x.b)) is not None:
        x, added, low, high = x.a, c, low - c, high - c
    while isinstance(x, Binary) and x.op in ("min", "max") and (end := _whole(x.b)) is not None and low <= end <= high:
        x, low, high = x.a, max(low, end) if x.op == "max" else low, min(high, end) if x.op == "min" else high
    match x:
        case Call(name="round", args=(of,)) if low <= -added <= high:  # a NaN becomes 0 in the end
            return of, added, (low, high)
        case _:
            return None


def _whole(e: Expr) -> int | None:
    """Return the whole number that lanes are; None where they are none that is exact in any sum."""
    c = e.value.value if isinstance(e, Broadcast) and isinstance(e.value, Const) else None
    return int(c) if c is not None and abs(c) < _EXACT and c == int(c) else None
