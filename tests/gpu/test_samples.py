"""Every sample of every op as a network of one node with target="cuda": its CUDA C run on the CPU against NumPy in
float64, with threads and blocks in two opposite orders.

g++ takes about as long for the kernels of many samples as for those of one: it gets their texts joined.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any

import pytest
from tests.gpu.host_assembler import _KERNEL as KERNEL
from tests.gpu.host_assembler import assemble, needs_compiler
from tests.gpu.host_device import Function, HostDevice
from tests.ops.one_node import OneNode

import renorm
from renorm.codegen.cuda import assemblers
from renorm.core.errors import RenormError
from renorm.graph import registry
from renorm.graph.op import OpDef
from renorm.runtime.gpu import device

ARCH = "joined"
OPS = [op for op in registry.all_ops() if op.__module__.startswith("renorm.ops")]
FUNCTION = re.compile(r"static __device__ .*\b(\w+)\(.*\) \{.*\}")

pytestmark = needs_compiler


class Joined(HostDevice):
    """A device that compiles nothing before the first code is loaded, and then all that was assembled."""

    def __init__(self) -> None:
        super().__init__(check_races=True)
        self.arch = ARCH
        self._texts = dict[str, int]()
        self._library: ctypes.CDLL | None = None

    def assemble(self, text: str, arch: str) -> bytes:
        """Keep a text, and return it for code."""
        self._texts.setdefault(text, len(self._texts))
        return text.encode()

    def load(self, code: bytes) -> Any:
        if self._library is None:
            self._library = super().load(assemble(joined(list(self._texts)), ARCH))
        return self._library, self._texts[code.decode()]

    def function(self, library: Any, name: str) -> Function:
        found, number = library
        return super().function(found, f"{name}_{number}")


def joined(texts: list[str]) -> str:
    """Return many texts as one: kernels get the number of their text, functions and headers are there once."""
    heads, functions, kernels = dict[str, None](), dict[str, str](), list[str]()
    for number, text in enumerate(texts):
        first = next((m.start() for m in KERNEL.finditer(text)), len(text))  # no elements: no launches
        for line in text[:first].splitlines():
            if found := FUNCTION.fullmatch(line):
                assert functions.setdefault(found[1], line) == line, "functions of one name differ"
            elif line:
                assert line.startswith("#include"), line
                heads[line] = None
        kernels.append(KERNEL.sub(lambda m, n=number: f"{m[0][:-1]}_{n}(", text[first:]))
    return "\n".join([*heads, *functions.values(), *kernels])


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Joined:
    made = Joined()
    monkeypatch.setitem(assemblers._OTHERS, ARCH, made.assemble)
    monkeypatch.setitem(device._OTHERS, ARCH, lambda _: made)
    return made


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_samples(host: Joined, op: type[OpDef]) -> None:
    wrong, compiled = list[str](), list[tuple[str, OneNode, Any]]()
    for i, sample in enumerate(op.samples):
        case = OneNode(op, sample)
        try:
            compiled.append((f"sample {i}", case, renorm.compile(case.graph, target=f"cuda -arch={ARCH}")))
        except RenormError as error:
            wrong.append(f"sample {i}, {sample.attributes}, is refused: {error}")
    for name, case, module in compiled:
        try:
            case.agrees(module.run(*case.arrays), case.reference())
        except (RenormError, AssertionError, RuntimeWarning) as error:
            wrong.append(f"{name}, {case.sample.attributes}: {error}")
    assert not wrong, "\n".join(wrong)
    assert len(compiled) == len(op.samples) > 0


@pytest.mark.parametrize(("right", "wrong"), [("expf(", "sinf("), ("threadIdx.x;", "threadIdx.x + 1;")])
def test_a_wrong_kernel_is_found(host: Joined, right: str, wrong: str) -> None:
    """What `test_samples` says where a kernel computes something else, or touches what is not its thread's."""
    op = next(op for op in OPS if op.name == "exp")
    assemblers.register(ARCH, lambda text, arch: host.assemble(text.replace(right, wrong), arch))
    with pytest.raises(AssertionError, match="sample 0, "):
        test_samples(host, op)
