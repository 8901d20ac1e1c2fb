"""Loads and stores: neighbouring elements as one vector access, others element by element.

A load that repeats an earlier one with no store to its buffer between them is that earlier value: buffers that are
written overlap no other (codegen.abi).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from renorm.codegen.llvm import types
from renorm.codegen.llvm.index import Indices
from renorm.codegen.llvm.ssa import I64, Function, Type, Value, constant, vector
from renorm.core import dtypes
from renorm.core.linear import Form
from renorm.expr.nodes import Const, Expr, Ramp
from renorm.tir.nodes import Buffer

LARGEST_STEP = 4  # between lanes, up to which a strided vector is picked from whole vectors
SHORTEST, LINE = 16, 64  # bytes of a store that may go past the caches: a vector register, up to a cache line
NONTEMPORAL = 1  # number of the metadata node that LLVM's hint wants (codegen.llvm.kernel)


@dataclass(frozen=True, slots=True)
class Storage:
    """Where a buffer of `size` elements lives; None, of an open number, but one at least. is_private: on the stack of
    one call, where no other thread sees it. loses_subnormals: as `types.to_memory` has it."""

    pointer: Value
    dtype: str
    size: int | None
    is_private: bool
    loses_subnormals: bool = False

    @property
    def element(self) -> str:
        return types.memory_type(self.dtype).element

    @property
    def align(self) -> int:
        """Bytes that every address is a multiple of."""
        return dtypes.itemsize(self.dtype)


class Memory:
    def __init__(self, function: Function, indices: Indices):
        self._f = function
        self._indices = indices
        self.places: dict[Buffer, Storage] = {}
        self._epochs: dict[Value, int] = {}
        self._held_zero: Value | None = None

    def forget(self, places: Iterable[Storage]) -> None:
        """Forget what was loaded from these places, which may have been overwritten."""
        for place in places:
            self._epochs[place.pointer] = self._epochs.get(place.pointer, 0) + 1

    def enter(self, places: Iterable[Storage]) -> None:
        """At the head of a loop that stores to these places, or of their life."""
        places = list(places)
        self.forget(places)
        self._f.regions[-1].stored |= {place.pointer for place in places}

    # loads -----------------------------------------------------------------------------------------------------------

    def load(self, place: Storage, index: Expr, mask: Value | None) -> Value:
        """The elements in register form; 0 where `mask` (i1, lanes of the index) is false."""
        if mask is not None and mask.number is not None:
            if not mask.number:
                return constant(types.register_type(place.dtype, index.lanes), 0)
            mask = None
        return types.from_memory(self._f, self._load(place, index, mask), place.dtype)

    def held(self, place: Storage, index: Expr, lanes: int, condition: Value | None = None) -> Value:
        """Neighbours from an index on, as memory holds them; 0 where the condition does not hold."""
        form = self._indices.linear(index)
        if condition is None or condition.number:
            return self._read(place, form, lanes)
        return self._read_if(place, form, condition, lanes)

    def _load(self, place: Storage, index: Expr, mask: Value | None) -> Value:
        lanes = index.lanes
        if lanes == 1:
            form = self._indices.linear(index)
            return self._read(place, form, 1) if mask is None else self._read_if(place, form, mask)
        run = self._run(index)
        if run is not None:
            first, step = run
            if step == 0:
                return self._read_spread(place, first, lanes, mask)
            if step == 1:
                return self._read(place, first, lanes, mask)
            if step == -1:
                reverse = list(range(lanes - 1, -1, -1))
                backward = None if mask is None else self._f.shuffle(mask, reverse)
                return self._f.shuffle(self._read(place, first.offset(1 - lanes), lanes, backward), reverse)
            if 1 < step <= LARGEST_STEP and lanes >= step:
                return self._read_apart(place, first, step, lanes, mask)
        forms = [self._indices.linear(index, k) for k in range(lanes)]
        picked = self._read_block(place, forms, mask)
        if picked is not None:
            return picked
        if mask is None:
            return self._f.gather([self._read(place, form, 1) for form in forms])
        t = vector(place.element, lanes)
        text = (
            f"call {t} @llvm.masked.gather.{t.suffix}.v{lanes}p0({self._pointers(place, forms)}, {mask.typed}, "
            f"{t} zeroinitializer)"
        )
        return self._remember(text, t, place)

    def _run(self, index: Expr) -> tuple[Form[Value], int] | None:
        """(form of lane 0, step) where the lanes are evenly spaced by a constant."""
        if isinstance(index, Ramp) and isinstance(index.stride, Const):
            return self._indices.linear(index.base), int(index.stride.value)
        return self._indices.affine(index)

    def _read(self, place: Storage, first: Form[Value], lanes: int, mask: Value | None = None) -> Value:
        address = self._indices.address(place.pointer, place.element, first)
        t = vector(place.element, lanes)
        if mask is None:
            text = f"load {t}, ptr {address.text}, align {place.align}"
            if lanes == 1 and self._is_inside(place, first, lanes):
                return self._f.lifted(self._key(text, place), text, t, place.pointer, address)
            return self._remember(text, t, place)
        if self._is_inside(place, first, lanes):
            whole = self._remember(f"load {t}, ptr {address.text}, align {place.align}", t, place)
            return self._f.select(mask, whole, constant(t, 0))
        pointer = f"ptr align {place.align} {address.text}"
        text = f"call {t} @llvm.masked.load.{t.suffix}.p0({pointer}, {mask.typed}, {t} zeroinitializer)"
        return self._remember(text, t, place)

    def _read_spread(self, place: Storage, first: Form[Value], lanes: int, mask: Value | None) -> Value:
        """One element in all lanes. Where no lane wants it, the first of the buffer is read in its place: a choice of
        addresses leaves loops that do not change it, and needs no branch."""
        f = self._f
        if mask is None:
            return f.splat(self._read(place, first, 1), lanes)
        zero = constant(vector(place.element, lanes), 0)
        if place.size == 0:
            return zero
        address = self._indices.address(place.pointer, place.element, first)
        chosen = f.select(f.any(mask), address, place.pointer)
        t = vector(place.element, 1)
        value = self._remember(f"load {t}, ptr {chosen.text}, align {place.align}", t, place)
        return f.select(mask, f.splat(value, lanes), zero)

    def _read_apart(self, place: Storage, first: Form[Value], step: int, lanes: int, mask: Value | None) -> Value:
        """Elements `step` apart, picked from vectors of neighbours that reach from the first to the last of them."""
        f = self._f
        result: Value | None = None
        picked: list[int] = []  # of each lane so far, where in `result` it is
        last_start = (lanes - 1) * step + 1 - lanes
        for k in range(step):
            start = min(k * lanes, last_start)
            inside = [(lane, lane * step - start) for lane in range(len(picked), lanes) if lane * step - start < lanes]
            part_mask = None
            if mask is not None:
                places = [lanes] * lanes  # of the second vector, which is false
                for lane, at in inside:
                    places[at] = lane
                part_mask = f.shuffle(mask, places, constant(mask.type, 0))
            part = self._read(place, first.offset(start), lanes, part_mask)
            picked += [at if result is None else lanes + at for _, at in inside]
            padded = picked + [picked[-1]] * (lanes - len(picked))
            result = f.shuffle(part, padded) if result is None else f.shuffle(result, padded, part)
            picked = list(range(len(picked)))
        assert result is not None
        return result

    def _read_block(self, place: Storage, forms: list[Form[Value]], mask: Value | None) -> Value | None:
        """Elements that lie in one block of as many as there are lanes, in any order: the whole block, shuffled. The
        buffer is cut into such blocks, so that all of it may be read where one element may."""
        f, lanes = self._f, len(forms)
        first, low = forms[0], min(form.constant for form in forms)
        start = Form(first.terms, low // lanes * lanes)
        is_cut = place.size is not None and not place.size % lanes and not first.split(lanes)[1].terms
        if not is_cut or not all(form.is_parallel(first) for form in forms):
            return None
        order = [form.constant - start.constant for form in forms]
        if max(order) >= lanes:
            return None
        if mask is None:
            return f.shuffle(self._read(place, start, lanes), order)
        address = self._indices.address(place.pointer, place.element, start)
        chosen, t = f.select(f.any(mask), address, place.pointer), vector(place.element, lanes)
        whole = self._remember(f"load {t}, ptr {chosen.text}, align {place.align}", t, place)
        return f.select(mask, f.shuffle(whole, order), constant(t, 0))

    def _read_if(self, place: Storage, form: Form[Value], condition: Value, lanes: int = 1) -> Value:
        """One element, or neighbours, where the condition holds, else 0. There is no branch, as in `_read_spread`: amid
        a tile of registers it would make LLVM spill some."""
        f, t = self._f, vector(place.element, lanes)
        if place.size is not None and place.size < lanes:
            return constant(t, 0)
        address = self._indices.address(place.pointer, place.element, form)
        chosen = f.select(condition, address, place.pointer)
        value = self._remember(f"load {t}, ptr {chosen.text}, align {place.align}", t, place)
        return f.select(condition, value, constant(t, 0))

    def _is_inside(self, place: Storage, first: Form[Value], lanes: int) -> bool:
        """Return whether all lanes are private memory: then a mask is a choice, and the buffer can become a
        register."""
        low, high = self._indices.form_span(first)
        return place.is_private and place.size is not None and low >= 0 and high + lanes <= place.size

    def _remember(self, text: str, t: Type, place: Storage) -> Value:
        return self._f.remembered(self._key(text, place), text, t)

    def _key(self, text: str, place: Storage) -> str:
        return f"{text} ; epoch {self._epochs.get(place.pointer, 0)}"

    def _pointers(self, place: Storage, forms: list[Form[Value]]) -> str:
        """A vector of addresses, as an operand."""
        f = self._f
        offsets = f.gather([self._indices.value(form) for form in forms])
        t = vector("ptr", len(forms))
        pointers = f.pure(
            f"getelementptr {place.element}, ptr {place.pointer.text}, {offsets.typed}", t, place.pointer, offsets
        )
        return f"{t} align {place.align} {pointers.text}"

    def prefetch(self, place: Storage, index: Expr) -> None:
        """Ask for the cache line of an element, to keep it in all caches."""
        address = self._indices.address(place.pointer, place.element, self._indices.linear(index))
        self._f.effect(f"call void @llvm.prefetch.p0(ptr {address.text}, i32 0, i32 3, i32 1)")

    # stores ----------------------------------------------------------------------------------------------------------

    def store(self, place: Storage, index: Expr, value: Value, mask: Value | None, nontemporal: bool = False) -> None:
        """Lanes where `mask` is false are not written; of two lanes with one index the later wins. nontemporal: whole
        vectors go past the caches where their address allows it."""
        if mask is not None and mask.number is not None:
            if not mask.number:
                return
            mask = None
        lanes = index.lanes
        raw = types.to_memory(self._f, self._f.splat(value, lanes), place.dtype, place.loses_subnormals)
        self.forget([place])
        if lanes == 1:
            form = self._indices.linear(index)
            if mask is None:
                self._write(place, form, raw)
                return
            with self._f.branch(mask):
                self._write(place, form, raw)
            return
        run = self._run(index)
        if run is not None and run[1] in (1, -1):
            first, step = run
            if step == -1:
                reverse = list(range(lanes - 1, -1, -1))
                first = first.offset(1 - lanes)
                raw = self._f.shuffle(raw, reverse)
                mask = None if mask is None else self._f.shuffle(mask, reverse)
            if nontemporal and mask is None:
                self._write_past_caches(place, first, raw)
            else:
                self._write(place, first, raw, mask)
            return
        forms = [self._indices.linear(index, k) for k in range(lanes)]
        if mask is None:
            for k, form in enumerate(forms):
                self._write(place, form, self._f.extract(raw, k))
            return
        name = f"@llvm.masked.scatter.{raw.type.suffix}.v{lanes}p0"
        self._f.effect(f"call void {name}({raw.typed}, {self._pointers(place, forms)}, {mask.typed})")

    def _write(self, place: Storage, first: Form[Value], raw: Value, mask: Value | None = None) -> None:
        address = self._indices.address(place.pointer, place.element, first)
        if mask is None:
            self._f.effect(f"store {raw.typed}, ptr {address.text}, align {place.align}")
            return
        if self._is_inside(place, first, raw.type.lanes):
            before = self._f.effect(f"load {raw.type}, ptr {address.text}, align {place.align}", raw.type)
            merged = self._f.select(mask, raw, before)
            self._f.effect(f"store {merged.typed}, ptr {address.text}, align {place.align}")
            return
        pointer = f"ptr align {place.align} {address.text}"
        # LLVM 22 stores 4 bytes for one lane that it knows, of i16, and of i8 on AVX-512; of half it stores 2
        if raw.type.element == "i16":
            raw = self._f.convert("bitcast", raw, "half")
        elif raw.type.element == "i8" and self._f.is_avx512:
            mask = self._f.select(self._unforeseen(), mask, constant(mask.type, 0))
        self._f.effect(f"call void @llvm.masked.store.{raw.type.suffix}.p0({raw.typed}, {pointer}, {mask.typed})")

    def _unforeseen(self) -> Value:
        """Return what is true, and LLVM cannot tell."""
        if self._held_zero is None:
            self._held_zero = self._f.allocate_one(I64)
        self._f.effect(f"store volatile i64 0, ptr {self._held_zero.text}")
        read = self._f.effect(f"load volatile i64, ptr {self._held_zero.text}", I64)
        return self._f.compare("icmp eq", read, constant(I64, 0))

    def _write_past_caches(self, place: Storage, first: Form[Value], raw: Value) -> None:
        """Such a store must be aligned, which parameters need not be: the address decides. An array of NumPy's begins
        16 bytes behind a line: it is written in pieces of so many, which the CPU joins to lines."""
        size = min(raw.type.lanes * dtypes.itemsize(place.dtype), LINE)
        if size < SHORTEST or size & (size - 1):
            self._write(place, first, raw)
            return
        f, lanes = self._f, SHORTEST // dtypes.itemsize(place.dtype)
        address = self._indices.address(place.pointer, place.element, first)
        number = f.pure(f"ptrtoint ptr {address.text} to i64", I64, address)

        def is_aligned(to: int) -> Value:
            return f.compare("icmp eq", f.op("and", number, constant(I64, to - 1)), constant(I64, 0))

        def write(part: Value, offset: int, align: int) -> None:
            at = self._indices.address(place.pointer, place.element, first.offset(offset))
            f.effect(f"store {part.typed}, ptr {at.text}, align {align}, !nontemporal !{NONTEMPORAL}")

        with f.branch(is_aligned(size)) as branch:
            write(raw, 0, size)
        with f.otherwise(branch):
            if size == SHORTEST:
                self._write(place, first, raw)
                return
            with f.branch(is_aligned(SHORTEST)) as second:
                for k in range(0, raw.type.lanes, lanes):
                    write(f.shuffle(raw, list(range(k, k + lanes))), k, SHORTEST)
            with f.otherwise(second):
                self._write(place, first, raw)
