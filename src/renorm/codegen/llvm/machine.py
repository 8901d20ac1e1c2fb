"""LLVM's side: target machines, the pass list, objects and assembly."""

from __future__ import annotations

from functools import cache
from typing import Any

from renorm.codegen.llvm import subtarget
from renorm.codegen.llvm.library import llvm
from renorm.core.errors import InternalError, InvalidArtifact
from renorm.core.room import require
from renorm.core.target import Target
from renorm.runtime import elf

# Bytes that LLVM takes at most for any kernel, and for each byte of its text; where there are none, it ends the process
ROOM, ROOM_PER_BYTE = 8 << 20, 64

# What the emitter leaves to LLVM, in order. Not in it, on purpose: the loop and SLP vectorizers (schedules decide),
# loop-idiom and memcpy-opt (they call the C library).
PASSES = (
    "sroa",  # buffers of register scope become values
    "loop_unroll",  # as the emitter says of each loop
    "instruction_combine",
    "simplify_cfg",
    "aggressive_dce",  # sums that nobody stores, round loops in loops: of the pixels beyond a last tile
)


def host() -> str:
    """This machine's CPU and what it has, as LLVM names them."""
    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


@cache
def machine(target: Target) -> Any:
    """The TargetMachine of a target. Raises InvalidTarget for what this LLVM or renorm cannot make code for."""
    of = subtarget.subtarget(target)
    made = llvm.Target.from_triple(of.triple).create_target_machine(
        cpu=of.base, features=of.flags, opt=3, reloc="pic", codemodel="small"
    )
    made.set_asm_verbosity(True)  # spills are marked in comments, and loops
    return made


def _optimised(text: str, target: Target, name: str) -> Any:
    require(ROOM + ROOM_PER_BYTE * len(text), f"no memory to compile kernel {name}")
    made = machine(target)
    try:
        module = llvm.parse_assembly(text, llvm.create_context())
        module.name = "renorm"  # equal code gives equal objects
        module.triple = made.triple
        module.data_layout = str(made.target_data)
        module.verify()
    except RuntimeError as error:
        raise InternalError(f"kernel {name}: LLVM rejects the generated IR: {error}", text.splitlines()) from error
    builder = llvm.create_pass_builder(made, llvm.create_pipeline_tuning_options(speed_level=3))
    passes = llvm.create_new_function_pass_manager()
    for step in PASSES:
        getattr(passes, f"add_{step}_pass")()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    return module


def emit_object(text: str, target: Target, name: str) -> bytes:
    """An ELF object of the IR, checked to stand alone."""
    code: bytes = machine(target).emit_object(_optimised(text, target, name))
    try:
        undefined = elf.read(code, f"kernel {name}").undefined
    except InvalidArtifact as error:
        raise InternalError(error.headline, [*error.facts, *text.splitlines()]) from error
    if undefined:
        needed = ", ".join(f"the undefined symbol {u}" for u in undefined)
        raise InternalError(f"kernel {name}: its object needs {needed}", text.splitlines())
    return code


def emit_assembly(text: str, target: Target, name: str) -> str:
    return machine(target).emit_assembly(_optimised(text, target, name))
