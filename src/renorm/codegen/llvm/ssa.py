"""A small emitter of LLVM IR as text, in SSA form.

    Function    the text of one function being built: a tree of regions, in each a chain of basic blocks
    Region      a function's body, a loop's body, or one side of a branch; regions inside see its values
    Value       an SSA value or a constant: its text, its type, and the depth of the region that defines it

`pure` instructions (no effect on memory, no trap) are hash-consed and placed in the outermost region where their
operands exist, moving out of loops but not out of branches: what LLVM does by GVN and LICM, at the cost of one table
look-up. A block is closed only when its region ends, so a region can receive instructions while an inner one is being
written.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

from renorm.core.errors import InternalError

_BITS = {
    **{f"i{bits}": bits for bits in (1, 8, 16, 32, 64, 128)},
    "half": 16,
    "float": 32,
    "double": 64,
    "ptr": 64,
}
_SUFFIX = {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}


@dataclass(frozen=True, slots=True)
class Type:
    """An LLVM type: a scalar or a vector of `lanes` elements."""

    element: str
    lanes: int = 1

    def __str__(self) -> str:
        return self.element if self.lanes == 1 else f"<{self.lanes} x {self.element}>"

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return _BITS[self.element]

    @property
    def is_float(self) -> bool:
        return self.element in ("half", "float", "double")

    @property
    def suffix(self) -> str:
        """As in names of overloaded intrinsics: v16f32."""
        scalar = _SUFFIX.get(self.element, self.element)
        return scalar if self.lanes == 1 else f"v{self.lanes}{scalar}"

    def of(self, element: str) -> Type:
        """As many lanes of another element."""
        return vector(element, self.lanes)


@cache
def vector(element: str, lanes: int) -> Type:
    return Type(element, lanes)


I1, I8, I32, I64, PTR = vector("i1", 1), vector("i8", 1), vector("i32", 1), vector("i64", 1), vector("ptr", 1)
VOID = Type("void")


class Value:
    """An SSA value or a constant; never changed once made.

    text: as an operand ("%7", "splat (float 1.0)"). depth: of the defining region; 0 for constants and arguments.
    number: the value of a constant, None for anything else.
    """

    __slots__ = ("depth", "number", "text", "type")

    def __init__(self, text: str, type: Type, depth: int = 0, number: float | int | None = None):
        self.text, self.type, self.depth, self.number = text, type, depth, number

    @property
    def typed(self) -> str:
        return f"{self.type} {self.text}"


def constant(type: Type, number: float | int | bool) -> Value:
    """A constant, the same in all lanes; floats are rounded to the type."""
    if type.element == "float":
        number = _to_float32(float(number))
        text = _hexadecimal(number)
    elif type.element == "double":
        number = float(number)
        text = _hexadecimal(number)
    elif type.element == "i1":
        number = int(bool(number))
        text = "true" if number else "false"
    else:
        number = int(number)
        half = 1 << (type.bits - 1)
        number = ((number + half) & (2 * half - 1)) - half
        text = str(number)
    if type.lanes > 1:
        text = "zeroinitializer" if text in ("0", "false", "0x0000000000000000") else f"splat ({type.element} {text})"
    return Value(text, type, 0, number)


def constants(type: Type, numbers: list[float] | list[int]) -> Value:
    """A constant vector with a number for each lane."""
    scalar = vector(type.element, 1)
    if type.lanes == 1:
        return constant(type, numbers[0])
    if len(set(numbers)) == 1 and numbers[0] != 0:
        return constant(type, numbers[0])
    return Value(f"<{', '.join(constant(scalar, n).typed for n in numbers)}>", type)


def poison(type: Type) -> Value:
    return Value("poison", type)


def weights_of(rounds: int) -> tuple[str, str]:
    """(name, definition) of the metadata of a loop that runs `rounds` times: for each time that it ends, how often it
    goes on."""
    name = f"!{rounds}"  # numbers below 2 are taken (codegen.llvm.kernel)
    return name, f'{name} = !{{!"branch_weights", i32 {rounds - 1}, i32 1}}'


def written_out(rounds: int) -> tuple[str, str]:
    """(name, definition) of the metadata of a loop, so many rounds of which LLVM writes out one after the other; of 1
    it leaves the loop alone."""
    name = f"!{(1 << 30) + rounds}"  # beyond those of weights
    what = f'!"llvm.loop.unroll.count", i32 {rounds}' if rounds > 1 else '!"llvm.loop.unroll.disable"'
    return name, f"{name} = distinct !{{{name}, !{{{what}}}}}"


def _to_float32(x: float) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:  # finite, but rounds to infinity
        return float("inf") if x > 0 else float("-inf")


def _hexadecimal(x: float) -> str:
    if x != x:
        return "0x7FF8000000000000"
    return "0x" + struct.pack(">d", x).hex().upper()


@dataclass(slots=True, eq=False)
class Block:
    label: str
    phis: list[str] = field(default_factory=list[str])
    lines: list[str] = field(default_factory=list[str])
    terminator: str = ""


@dataclass(slots=True)
class Region:
    """hoists: whether pure instructions may leave it for the region around (loop bodies). stored: addresses of the
    memory that it changes."""

    block: Block
    hoists: bool
    known: dict[str, Value] = field(default_factory=dict[str, Value])
    stored: set[Value] = field(default_factory=set[Value])


@dataclass(slots=True)
class Branch:
    """A branch from the block `before` to its first side or to `join`, where both sides go on."""

    before: Block
    join: Block = field(init=False)


class Function:
    """Builds `define result @name(parameters)`. Instructions go to the innermost region's current block.
    is_avx512: whether it uses vectors of 64 bytes."""

    def __init__(
        self,
        name: str,
        parameters: list[str],
        attributes: str,
        is_avx512: bool = False,
        result: Type = VOID,
        linkage: str = "",
    ):
        self.name, self.parameters, self.attributes, self.is_avx512 = name, parameters, attributes, is_avx512
        self.result, self.linkage = result, linkage
        self.entry = Block("entry")
        self.blocks: list[Block] = [self.entry]
        self.allocations: list[str] = []
        self.tables: dict[str, str] = {}  # constant arrays that the module must define, by name
        self.metadata: dict[str, str] = {}  # that the module must define, by name
        self.regions: list[Region] = [Region(self.entry, hoists=False)]
        self._ends: list[Block] = []  # of the loops without end that are being written
        self._is_early = False
        self._values = 0
        self._labels = 0

    # regions ---------------------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        return len(self.regions) - 1

    @property
    def block(self) -> Block:
        return self.regions[-1].block

    def new_block(self, hint: str) -> Block:
        self._labels += 1
        block = Block(f"{hint}{self._labels}")
        self.blocks.append(block)
        return block

    def _fresh(self) -> str:
        self._values += 1
        return f"%v{self._values}"

    @contextmanager
    def _region(self, block: Block, hoists: bool) -> Generator[None, None, None]:
        self.regions.append(Region(block, hoists))
        yield
        self.regions.pop()

    @contextmanager
    def loop(self, start: Value, end: Value, at_least_once: bool, at_a_time: int = 1) -> Generator[Value, None, None]:
        """for i in [start, end), step 1, of type i64; yields i. A test in front is left out where it runs at least
        once. LLVM is told how often it runs, where that is known: which values stay in registers depends on it; and how
        many rounds to write out at a time.
        """
        outer = self.regions[-1]
        before = outer.block
        body = self.new_block("loop")
        variable = Value(self._fresh(), I64, self.depth + 1)
        with self._region(body, hoists=True):
            yield variable
            following = self.op("add nuw nsw" if (start.number or -1) >= 0 else "add nsw", variable, constant(I64, 1))
            again = self.compare("icmp slt", following, end)
            latch = self.block
        after = self.new_block("end")
        latch.terminator = f"br i1 {again.text}, label %{body.label}, label %{after.label}"
        if start.number is not None and end.number is not None:
            rounds = min(max(2, int(end.number) - int(start.number)), 1 << 30)
            latch.terminator += f", !prof {self._described(weights_of(rounds))}"
        latch.terminator += f", !llvm.loop {self._described(written_out(at_a_time))}"
        body.phis.append(
            f"{variable.text} = phi i64 [ {start.text}, %{before.label} ], [ {following.text}, %{latch.label} ]"
        )
        if at_least_once:
            before.terminator = f"br label %{body.label}"
        else:
            # the test may be hoisted, hence goes through `compare`; it belongs to the outer region
            outer.block = before
            entered = self.compare("icmp slt", start, end)
            before.terminator = f"br i1 {entered.text}, label %{body.label}, label %{after.label}"
        outer.block = after

    def _described(self, metadata: tuple[str, str]) -> str:
        """The name of metadata that the module is to define."""
        name, self.metadata[name] = metadata
        return name

    @contextmanager
    def forever(self) -> Generator[None, None, None]:
        """for (;;) { ... }, which `leave` ends."""
        outer, body = self.regions[-1], self.new_block("forever")
        outer.block.terminator = f"br label %{body.label}"
        self._ends.append(self.new_block("end"))
        with self._region(body, hoists=True):
            yield
            self.block.terminator = f"br label %{body.label}"
        outer.block = self._ends.pop()

    def leave(self, condition: Value) -> None:
        """if (condition) break;"""
        with self.branch(condition):
            self.jump(f"br label %{self._ends[-1].label}")

    def jump(self, terminator: str) -> None:
        """End the block; what is written next in the region is never reached."""
        self.block.terminator = terminator
        self.regions[-1].block = self.new_block("unreachable")

    @contextmanager
    def branch(self, condition: Value) -> Generator[Branch, None, None]:
        """if (condition) { ... }; yields what `otherwise` takes."""
        before, then = self.block, self.new_block("then")
        branch = Branch(before)
        with self._region(then, hoists=False):
            yield branch
            last = self.block
        branch.join = join = self.new_block("join")
        last.terminator = f"br label %{join.label}"
        before.terminator = f"br i1 {condition.text}, label %{then.label}, label %{join.label}"
        self.regions[-1].block = join

    @contextmanager
    def otherwise(self, branch: Branch) -> Generator[None, None, None]:
        """else { ... }, right after the first side of the branch."""
        self.blocks.remove(join := branch.join)
        first = self.new_block("else")
        branch.before.terminator = branch.before.terminator.replace(f"%{join.label}", f"%{first.label}")
        outer = self.regions[-1]
        outer.block = branch.before  # what leaves this side stands before both
        with self._region(first, hoists=False):
            yield
            self.block.terminator = f"br label %{join.label}"
        outer.block = join
        self.blocks.append(join)

    @contextmanager
    def early(self) -> Generator[None, None, None]:
        """Pure instructions leave branches as well, for where their operands are known: for what takes long, may stand
        in a loop, and is no harm where nobody asks for it."""
        before, self._is_early = self._is_early, True
        yield
        self._is_early = before

    # instructions ----------------------------------------------------------------------------------------------------

    def pure(self, text: str, type: Type, *operands: Value) -> Value:
        """A value without effects; `text` is the right-hand side."""
        regions = self.regions
        target = depth = len(regions) - 1
        needed = max((o.depth for o in operands), default=0)
        while target > needed and (regions[target].hoists or self._is_early):
            target -= 1
        for k in range(needed, depth + 1):
            found = regions[k].known.get(text)
            if found is not None:
                return found
        value = Value(self._fresh(), type, target)
        regions[target].block.lines.append(f"{value.text} = {text}")
        regions[target].known[text] = value
        return value

    def effect(self, text: str, type: Type = VOID) -> Value:
        """An instruction that stays where it is."""
        if type is VOID:
            self.block.lines.append(text)
            return Value("", VOID, self.depth)
        value = Value(self._fresh(), type, self.depth)
        self.block.lines.append(f"{value.text} = {text}")
        return value

    def remembered(self, key: str, text: str, type: Type) -> Value:
        """A load: stays where it is, but is the earlier value of equal key where there is a visible one."""
        found = self.recall(key)
        if found is None:
            found = self.effect(text, type)
            self.note(key, found)
        return found

    def lifted(self, key: str, text: str, type: Type, memory: Value, *operands: Value) -> Value:
        """A load that may run at any time: it leaves the loops that store nothing to `memory`."""
        found = self.recall(key)
        if found is not None:
            return found
        target, needed = self.depth, max(o.depth for o in (memory, *operands))
        while target > needed and self.regions[target].hoists and memory not in self.regions[target].stored:
            target -= 1
        value = Value(self._fresh(), type, target)
        self.regions[target].block.lines.append(f"{value.text} = {text}")
        self.regions[target].known[key] = value
        return value

    def recall(self, key: str) -> Value | None:
        """Return what was noted under `key` in a region that is visible here."""
        for region in self.regions:
            found = region.known.get(key)
            if found is not None:
                return found
        return None

    def note(self, key: str, value: Value) -> None:
        """Until the innermost region ends, `value` is what `key` stands for."""
        self.regions[-1].known[key] = value

    def op(self, name: str, a: Value, b: Value) -> Value:
        """A binary instruction on operands of one type."""
        return self.pure(f"{name} {a.type} {a.text}, {b.text}", a.type, a, b)

    def compare(self, name: str, a: Value, b: Value) -> Value:
        return self.pure(f"{name} {a.type} {a.text}, {b.text}", a.type.of("i1"), a, b)

    def convert(self, name: str, a: Value, element: str) -> Value:
        """trunc, zext, sext, fptrunc, fpext, sitofp, bitcast, ...; nothing where the type is that already."""
        to = a.type.of(element)
        return a if to == a.type else self.pure(f"{name} {a.typed} to {to}", to, a)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        if condition.number is not None:
            return a if condition.number else b
        return self.pure(f"select {condition.typed}, {a.typed}, {b.typed}", a.type, condition, a, b)

    def negate(self, a: Value) -> Value:
        return self.pure(f"fneg {a.typed}", a.type, a)

    def scaled(self, a: Value, n: Value) -> Value:
        """a * 2**n, rounded once, for integers n, as floats. Only where `scales`, for float32."""
        lanes = a.type.lanes
        rest = f"{a.typed}, i16 -1, i32 4" if lanes == 16 else f"{a.typed}, i8 -1"  # in all lanes, as MXCSR says
        call = f"@llvm.x86.avx512.mask.scalef.ps.{32 * lanes}({a.typed}, {n.typed}, {rest})"
        return self.pure(f"call {a.type} {call}", a.type, a, n)

    def intrinsic(self, name: str, *args: Value, type: Type | None = None) -> Value:
        """`llvm.<name>`, overloaded on the type of the first argument, and before that on the result's where that is
        given.
        """
        overload = args[0].type.suffix if type is None else f"{type.suffix}.{args[0].type.suffix}"
        type = type or args[0].type
        listed = ", ".join(a.typed for a in args)
        return self.pure(f"call {type} @llvm.{name}.{overload}({listed})", type, *args)

    def splat(self, a: Value, lanes: int) -> Value:
        """A scalar in all lanes."""
        if lanes == 1 or a.type.lanes == lanes:
            return a
        to = vector(a.type.element, lanes)
        if a.number is not None:
            return constant(to, a.number)
        first = self.pure(f"insertelement {to} poison, {a.typed}, i64 0", to, a)
        mask = f"<{lanes} x i32> zeroinitializer"
        return self.pure(f"shufflevector {first.typed}, {to} poison, {mask}", to, first)

    def extract(self, v: Value, lane: int) -> Value:
        if v.type.lanes == 1:
            return v
        to = vector(v.type.element, 1)
        if v.number is not None:
            return constant(to, v.number)
        return self.pure(f"extractelement {v.typed}, i64 {lane}", to, v)

    def gather(self, elements: list[Value]) -> Value:
        """Scalars side by side in one vector."""
        if len(elements) == 1:
            return elements[0]
        to = vector(elements[0].type.element, len(elements))
        result = poison(to)
        for k, x in enumerate(elements):
            result = self.pure(f"insertelement {result.typed}, {x.typed}, i64 {k}", to, result, x)
        return result

    def any(self, condition: Value) -> Value:
        """Return whether any lane of an i1 vector is set."""
        if condition.type.lanes == 1:
            return condition
        text = f"call i1 @llvm.vector.reduce.or.{condition.type.suffix}({condition.typed})"
        return self.pure(text, I1, condition)

    def shuffle(self, a: Value, lanes: list[int], b: Value | None = None) -> Value:
        """Lanes of `a`, followed by those of `b`, by number."""
        to = vector(a.type.element, len(lanes))
        other = b or poison(a.type)
        mask = ", ".join(f"i32 {k}" for k in lanes)
        return self.pure(f"shufflevector {a.typed}, {other.typed}, <{len(lanes)} x i32> <{mask}>", to, a, other)

    def offset(self, pointer: Value, element: str, index: Value) -> Value:
        """The address `index` elements after `pointer`; it may lie outside the buffer, as a step to one inside."""
        if index.number == 0:
            return pointer
        return self.pure(f"getelementptr {element}, ptr {pointer.text}, {index.typed}", PTR, pointer, index)

    def allocate(self, element: str, count: int, align: int) -> Value:
        """Memory on the stack, one instance per call of the function."""
        value = Value(self._fresh(), PTR, 0)
        self.allocations.append(f"{value.text} = alloca [{count} x {element}], align {align}")
        return value

    def allocate_one(self, type: Type) -> Value:
        """Memory for one value, as `allocate`."""
        value = Value(self._fresh(), PTR, 0)
        self.allocations.append(f"{value.text} = alloca {type}")
        return value

    def table(self, name: str, element: Type, numbers: Sequence[int]) -> Value:
        """The address of a constant array, one for the whole module."""
        listed = ", ".join(constant(element, n).typed for n in numbers)
        text = f"@{name} = private unnamed_addr constant [{len(numbers)} x {element}] [{listed}], align 64"
        self.tables[name] = text
        return Value(f"@{name}", PTR)

    def text(self) -> str:
        if self.depth != 0:
            raise InternalError(f"{self.name}: {self.depth} regions are still open")
        self.block.terminator = self.block.terminator or ("ret void" if self.result is VOID else "unreachable")
        head = f"define {self.linkage} {self.result}" if self.linkage else f"define {self.result}"
        lines = [f"{head} @{self.name}({', '.join(self.parameters)}) {self.attributes} {{"]
        for block in self.blocks:
            lines.append(f"{block.label}:")
            body = [*block.phis, *(self.allocations if block is self.entry else ()), *block.lines, block.terminator]
            lines.extend(f"  {line}" for line in body)
        lines.append("}")
        return "\n".join(lines)
