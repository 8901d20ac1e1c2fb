"""Code that is not renorm's: what a target's own code generator made of a group of nodes, run as one step of a program.

The walker calls it like a phase of one iteration, which is thread 0's: the Python thread that runs the network. The
other threads wait at the barriers of the steps around it, as for any kernel. Python cannot raise through native code:
an error ends the run, and is kept until the walk is over.
"""

from __future__ import annotations

import ctypes
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import static
from renorm.core.errors import InvalidArtifact, RenormError, UserCodeError, raised_at
from renorm.core.locks import Turn
from renorm.runtime import layout
from renorm.runtime.program import External, TensorSpec
from renorm.runtime.report import WorkRecord

Array = np.ndarray[Any, Any]


class ExternalCode:
    """The code that the generator of a target makes of a group of nodes. Derive from it.

    `run` is all it must have. With `save` and `loader` it goes into artifacts, where the compiler is not needed again:
    `loader` is the name under which a function from what `save` gave to an ExternalCode is known, to this process
    (`register_loader`) or by an entry point of the group "renorm.external" of an installed package. work: what it must
    do at least; None counts the bytes of inputs and outputs only.
    """

    loader: ClassVar[str] = ""
    work: WorkRecord | None = None

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Computes the group once: writes all elements of all `outputs`.

        inputs, outputs: of the dtypes and shapes of the group's, in its order; C-contiguous, aligned to their elements,
        none overlapping an output. Inputs are read-only. Nothing of them may be kept after the call: the memory is used
        again. Called by one thread at a time (for each group, where one object is the code of several), in which it may
        run other modules; while it waits for one of these, it may be called again, by who would wait for it otherwise.
        What it raises comes out of `Module.run` as UserCodeError.
        """
        raise NotImplementedError(f"{type(self).__name__}.run")

    @property
    def source(self) -> str:
        """The code as text, for `m.kernel(name).source`."""
        return ""

    def save(self) -> bytes:
        """The code as bytes, for `loader`."""
        raise NotImplementedError(f"{type(self).__name__}.save")


Loader = Callable[[bytes], ExternalCode]

GROUP = "renorm.external"  # of entry points, each from a name to "package.module:function"
PROVIDED = {"onednn": "renorm.targets.onednn.code:load", "tandem": "renorm.targets.tandem.launch:load"}
"""Loaders of the targets that come with renorm, written as entry points are."""

_registered: dict[str, Loader] = {}


def register_loader(name: str, load: Loader) -> None:
    """Makes known to this process what makes external code of bytes that were saved under this name."""
    _registered[name] = load


def _loader(name: str) -> Loader | None:
    """Return the loader that is known under a name. A file says no more than the name: it cannot choose what is
    imported."""
    if name in _registered:
        return _registered[name]
    from importlib.metadata import EntryPoint, entry_points  # only who has external code pays for it

    own = [EntryPoint(name, PROVIDED[name], GROUP)] if name in PROVIDED else []
    found = own or list(entry_points(group=GROUP, name=name))
    return found[0].load() if found else None


def load(external: External, data: bytes, name: str) -> ExternalCode:
    """The code that `save` wrote. Raises InvalidArtifact where its loader is missing or fails."""
    headline = f"{name} holds code of another package, which cannot be loaded"
    try:
        found = _loader(external.loader)
    except (ImportError, AttributeError) as error:
        facts = [f"loader {external.loader!r}", f"{type(error).__name__}: {error}"]
        raise InvalidArtifact(headline, facts, "install what that package needs") from error
    if found is None:
        do = f"install the package that provides it, or register it: renorm.register_loader({external.loader!r}, ...)"
        raise InvalidArtifact(headline, [f"no loader is known as {external.loader!r}"], do)
    try:
        code = found(data)
    except Exception as error:
        what = error.headline if isinstance(error, RenormError) else f"{type(error).__name__}: {error}"
        raise InvalidArtifact(headline, [f"loader {external.loader!r} failed: {what}", raised_at(error)]) from error
    if not isinstance(code, ExternalCode):
        facts = [f"loader {external.loader!r} gave {type(code).__name__}, expected a renorm.ExternalCode"]
        raise InvalidArtifact(headline, facts)
    return code


def saved(code: ExternalCode, name: str) -> bytes:
    """Return the bytes of `code.save`. Raises InvalidArtifact where the code cannot be saved."""
    headline = f"{name} cannot be saved: external code of {type(code).__name__} does not go into files"
    if not code.loader:
        raise InvalidArtifact(headline, ["it names no loader"], "give it `loader` and `save` (renorm.ExternalCode)")
    try:
        data: object = code.save()
    except Exception as error:
        what = error.headline if isinstance(error, RenormError) else f"{type(error).__name__}: {error}"
        raise InvalidArtifact(headline, [what, raised_at(error)]) from error
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InvalidArtifact(headline, [f"save gave {type(data).__name__}, expected bytes"])
    return bytes(data)


class Caller:
    """External code, called on arrays by one thread at a time."""

    def __init__(self, code: ExternalCode, external: External, kernel: str):
        self._code, self._external, self._kernel = code, external, kernel
        self._turn = Turn(f"external code of kernel {kernel!r}")

    @property
    def external(self) -> External:
        """Return the types of what it reads and writes."""
        return self._external

    def call(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Run the code. Raises UserCodeError for an error in it, and other exceptions, as of signals, as they are."""
        try:
            self._compute(inputs, outputs)
        except BaseException as error:
            failed = self._failed(error)
            _let_go(error)
            if failed is error:
                raise
            raise failed from error

    def _compute(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        for x in inputs:
            x.flags.writeable = False
        self._turn.call(self._code.run, inputs, outputs)
        if (seen := _seen()) is not None:
            seen.append(([x.copy() for x in inputs], [y.copy() for y in outputs]))

    def _failed(self, error: BaseException) -> BaseException:
        if not isinstance(error, Exception):
            return error
        what = error.headline if isinstance(error, RenormError) else f"{type(error).__name__}: {error}"
        operands = ", ".join(map(str, self._external.inputs))
        failed = UserCodeError(
            f"kernel {self._kernel}: external code failed: {what}", [f"operands {operands}", raised_at(error)]
        )
        failed.__cause__ = error
        return failed


class Entry(Caller):
    """External code as the walker calls it. address: of a function that is called like a phase (codegen.abi)."""

    def __init__(self, code: ExternalCode, external: External, kernel: str):
        super().__init__(code, external, kernel)
        word = ctypes.c_int64
        self._function = ctypes.CFUNCTYPE(word, ctypes.c_void_p, word, word, word)(self._call)
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        assert address is not None
        self.address = address

    def _call(self, args: int, begin: int, end: int, thread: int) -> int:
        """SUCCESS: anything else, as what is there when an exception leaves this function, ends the run."""
        try:
            self._compute(*self._arrays(args))
        except BaseException as error:  # also what a signal raises: it comes out of Module.run like an error
            _failures.errors = [self._failed(error)]
            _let_go(error)
            return 0
        return layout.SUCCESS

    def _arrays(self, args: int) -> tuple[list[Array], list[Array]]:
        """Return inputs and outputs, whose addresses lie at `args`."""
        specs = (*self._external.inputs, *self._external.outputs)
        arrays = [_array(a, s) for a, s in zip((ctypes.c_void_p * len(specs)).from_address(args), specs)]
        count = len(self._external.inputs)
        return arrays[:count], arrays[count:]


def _let_go(error: BaseException | None) -> None:
    """Clears the variables of the frames that an error went through: they hold arrays over memory that is used again,
    or given back, before anybody looks at them."""
    seen = list[BaseException]()
    while error is not None and not any(error is e for e in seen):
        seen.append(error)
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


_failures = threading.local()  # errors: what was raised in the walk that this thread is in


def _pending() -> list[BaseException]:
    return getattr(_failures, "errors", [])


Calls = list[tuple[list[Array], list[Array]]]


def _seen() -> Calls | None:
    return getattr(_failures, "seen", None)


@contextmanager
def watched() -> Generator[Calls]:
    """Record what external code reads and writes where this thread runs it inside the block: copies, a pair for each
    call."""
    outer, _failures.seen = _seen(), Calls()
    try:
        yield _failures.seen
    finally:
        _failures.seen = outer


def walk(run: Callable[[], int]) -> int:
    """Return what one walk in this thread gives; raise what external code raised in it. Walks may lie inside of each
    other, as external code and finalizers may run networks: each has its own errors."""
    outer, _failures.errors = _pending(), []
    try:
        reason = run()
    finally:
        errors, _failures.errors = _pending(), outer
    if errors:
        raise errors[0]
    if reason == layout.FAILED:
        raise KeyboardInterrupt  # what left `_call` all the same came from outside; ctypes has printed it
    return reason


def _array(address: int | None, spec: TensorSpec) -> Array:
    """The tensor at an address. It does not keep the memory alive."""
    dtype = dtypes.numpy_dtype(spec.dtype)
    if not spec.nbytes or address is None:
        return np.empty(static(spec.shape), dtype)
    return np.ndarray(static(spec.shape), dtype, memoryview((ctypes.c_char * spec.nbytes).from_address(address)))
