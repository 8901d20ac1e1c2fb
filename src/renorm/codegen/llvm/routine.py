"""Routines of native code, written statement by statement: variables, early returns, atomics and calls, on the SSA
builder (codegen.llvm.ssa).

    @routine()
    def total(f: Routine, words: Pointer, count: Number) -> Number:
        sum = f.variable(0)
        with f.count(count) as k:
            word = (words + k * 8).load()
            f.give(sum.value, when=word < 0)
            sum.value += word
        return sum.value

is LLVM's `define i64 @total(ptr %words, i64 %count)`. Called with the Routine that is being written, `total(f, p, n)`
writes a call and returns its result. `module_text` writes routines and all that they call, so that each can be compiled
and tested alone. Variables lie on the stack until LLVM makes SSA values of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Annotated, Any, TypeAlias, get_type_hints

from renorm.codegen.llvm.lanes import Lanes, Variable
from renorm.codegen.llvm.ssa import I1, I32, I64, PTR, VOID, Branch, Function, Type, Value, constant
from renorm.core.errors import InternalError
from renorm.core.lazy import cached_property

RELAXED, ORDERED = "monotonic", "seq_cst"  # orders of atomic accesses: of this word alone; of all such accesses
INT = I32  # C's
NULL = Value("null", PTR)
_ALIGNMENTS = {I32: 4, I64: 8}


class Word(Lanes):
    """A value of a routine: a signed integer, a truth (i1), or the address of words, of a struct or of code."""

    __slots__ = ()

    def __add__(self, other: Lanes | float) -> Word:
        """Return the sum; of an address, that so many bytes after it."""
        if self.type is not PTR:
            return self._op("add", other)
        offset = other.value if isinstance(other, Lanes) else constant(I64, other)
        return self._new(self.f.offset(self.value, "i8", offset))

    def __floordiv__(self, other: Lanes | float) -> Word:
        """Return the quotient of integers that are not negative."""
        return self._op("udiv", other)

    @property
    def is_null(self) -> Word:
        return self.equals(Word(self.f, NULL))

    # memory at an address

    def load(self, offset: int = 0, type: Type = I64) -> Word:
        return self._effect(f"load {type}, {(self + offset).value.typed}", type)

    def pointer(self, offset: int = 0) -> Word:
        return self.load(offset, PTR)

    def store(self, offset: int, word: Word | int) -> None:
        self._effect(f"store {_value(word).typed}, {(self + offset).value.typed}")

    def load_atomic(self, order: str, type: Type = I64) -> Word:
        return self._effect(f"load atomic {type}, {self.value.typed} {order}, align {_ALIGNMENTS[type]}", type)

    def store_atomic(self, order: str, word: Word | int, type: Type = I64) -> None:
        self._effect(f"store atomic {_value(word, type).typed}, {self.value.typed} {order}, align {_ALIGNMENTS[type]}")

    def fetch_add(self, order: str, number: Word | int, type: Type = I64) -> Word:
        """Add to what lies there, and return what it was."""
        operands = f"{self.value.typed}, {_value(number, type).typed}"
        return self._effect(f"atomicrmw add {operands} {order}, align {_ALIGNMENTS[type]}", type)

    def exchange(self, old: Word | int, new: Word | int) -> Word:
        """Replace `old` by `new`; return whether it was there."""
        operands = f"{self.value.typed}, {_value(old).typed}, {_value(new).typed}"
        pair = self._effect(f"cmpxchg {operands} {ORDERED} {ORDERED}, align 8", Type("{ i64, i1 }"))
        return self._effect(f"extractvalue {pair.value.typed}, 1", I1)

    def call(self, result: Type, *operands: Operand, parameters: str = "") -> Word:
        """Call the code there. parameters: "(type, ...)" where their number varies."""
        return self._effect(f"call {result} {parameters} {self.value.text}({_listed(operands)})", result)

    def _effect(self, text: str, type: Type = VOID) -> Word:
        return self._new(self.f.effect(text, type))


Operand = Word | int | tuple[Word, ...]
# types of parameters and results
Number: TypeAlias = Annotated[Word, I64]
Truth: TypeAlias = Annotated[Word, I1]
Pointer: TypeAlias = Annotated[Word, PTR]


def _value(word: Word | int, type: Type = I64) -> Value:
    return word.value if isinstance(word, Word) else constant(I1 if word is True or word is False else type, word)


def _listed(operands: Iterable[Operand]) -> str:
    words = chain.from_iterable(o if isinstance(o, tuple) else (o,) for o in operands)
    return ", ".join(_value(word).typed for word in words)


class Routine(Function):
    """A function that is being written for the machine `arch`. callees: the routines that it calls."""

    def __init__(self, arch: str, name: str, parameters: list[str], attributes: str, result: Type, linkage: str):
        super().__init__(name, parameters, attributes, result=result, linkage=linkage)
        self.arch, self.callees = arch, list[Definition]()

    def parameter(self, name: str, hint: Any) -> Word | tuple[Word, ...]:
        """Return one more parameter, annotated as `hint` says."""
        if isinstance(hint, type):
            parts = get_type_hints(hint, include_extras=True)
            return hint(*(self.parameter(f"{name}.{part}", inner) for part, inner in parts.items()))
        (type_,) = hint.__metadata__
        self.parameters.append(f"{type_} %{name}")
        return Word(self, Value(f"%{name}", type_))

    @property
    def null(self) -> Word:
        return Word(self, NULL)

    def word(self, number: int, type: Type = I64) -> Word:
        return Word(self, _value(number, type))

    def stack(self, size: int) -> Word:
        """Return the address of `size` bytes of the routine's own."""
        return Word(self, self.allocate("i8", size, 16))

    def variable(self, start: Word | int) -> Variable[Word]:
        return Variable(Word(self, _value(start)))

    def intrinsic_call(self, result: Type, name: str, *operands: Operand) -> Word:
        return Word(self, self.effect(f"call {result} @llvm.{name}({_listed(operands)})", result))

    def give(self, result: Word | int | None = None, when: Word | None = None) -> None:
        """if (when) return result;"""
        with self.when(when) if when else nullcontext():
            self.jump("ret void" if result is None else f"ret {_value(result, self.result).typed}")

    def stop(self, when: Word) -> None:
        """if (when) break;"""
        self.leave(when.value)

    def when(self, condition: Word) -> AbstractContextManager[Branch]:
        """if (condition) { ... }"""
        return self.branch(condition.value)

    @contextmanager
    def count(self, rounds: Word) -> Generator[Word, None, None]:
        """for (k = 0; k < rounds; k++) { ... }; yields k."""
        with self.loop(constant(I64, 0), rounds.value, at_least_once=False) as k:
            yield Word(self, k)


class Definition:
    """A routine that `body` writes, with the parameters and the result of that: words, or named tuples of words.

    symbol: under which others find it; "": nobody does. apart: whether it is called, where others are inlined.
    """

    def __init__(self, body: Callable[..., Word | None], symbol: str, apart: bool):
        self._body, self._symbol, self._apart = body, symbol, apart
        self.name = symbol or body.__name__

    @cached_property
    def _hints(self) -> tuple[dict[str, Any], Type]:
        """Return the annotations of the parameters, and the type of the result."""
        hints = get_type_hints(self._body, include_extras=True)
        result = next(iter(getattr(hints.pop("return"), "__metadata__", ())), VOID)
        return {name: hint for name, hint in hints.items() if hint is not Routine}, result

    def __call__(self, f: Routine, *operands: Operand) -> Word:
        f.callees.append(self)
        result = self._hints[1]
        return Word(f, f.effect(f"call {result} @{self.name}({_listed(operands)})", result))

    def written(self, arch: str, is_root: bool) -> Routine:
        hints, result = self._hints
        is_internal = not is_root and not self._symbol
        attributes = "noinline" if self._apart else "alwaysinline" if is_internal else ""
        f = Routine(arch, self.name, [], attributes, result, "internal" if is_internal else "")
        last = self._body(f, *(f.parameter(name, hint) for name, hint in hints.items()))
        if last is not None or result is VOID:
            f.give(last)
        return f


def routine(symbol: str = "", apart: bool = False) -> Callable[[Callable[..., Word | None]], Definition]:
    """Return a decorator that makes a Definition of a function."""
    return lambda body: Definition(body, symbol, apart)


def module_text(arch: str, *roots: Definition) -> str:
    """Return LLVM IR of the routines `roots`, which others find by their names, and of all that they call."""
    written, known, pending = dict[str, str](), dict[str, Definition](), list(roots)
    metadata: dict[str, str] = {}
    while pending:
        definition = pending.pop()
        if known.setdefault(definition.name, definition) is not definition:
            raise InternalError(f"two routines are named {definition.name}")
        if definition.name not in written:
            f = definition.written(arch, definition in roots)
            written[definition.name] = f.text()
            metadata.update(f.metadata)
            pending.extend(f.callees)
    return "\n\n".join([*written.values(), *metadata.values()])
