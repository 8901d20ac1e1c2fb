"""Whether code for one CPU may run on another: what each of them has, as Linux prints it there."""

from __future__ import annotations

import pytest

from renorm.codegen.llvm.requirements import requirements
from renorm.core import matrix_registers
from renorm.runtime import cpu
from renorm.targets import find

# /proc/cpuinfo, as far as kernels are concerned
_HASWELL = "cmov mmx sse sse2 pni ssse3 sse4_1 sse4_2 popcnt avx f16c fma avx2 bmi1 bmi2 abm movbe pclmulqdq"
_SKYLAKE = f"{_HASWELL} aes adx 3dnowprefetch avx512f avx512dq avx512bw avx512vl avx512cd"
_NOT_SKYLAKE = "-avx512f,-avxvnni,-sha,-gfni,-vaes,-vpclmulqdq,-amx-tile"
_SAPPHIRE_RAPIDS = (
    f"{_SKYLAKE} sha_ni gfni vaes vpclmulqdq avx512_vnni avx512_bf16 avx512_fp16 avx512_bitalg avx512_vpopcntdq "
    "avx512_vbmi2 avx512vbmi avx512ifma avx_vnni amx_tile amx_int8 amx_bf16"
)
_CORTEX_A72 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
_NEOVERSE_N1 = f"{_CORTEX_A72} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp ssbs"


@pytest.mark.parametrize(
    ("target", "flags", "lacks"),
    [
        ("x86_64-linux-gnu -mcpu=sapphirerapids", _SKYLAKE, "avx512fp16"),
        ("x86_64-linux-gnu -mcpu=sapphirerapids", _SAPPHIRE_RAPIDS, ""),
        # a system that does not save the registers of AVX-512 does not print it
        ("x86_64-linux-gnu -mcpu=skylake-avx512", f"{_HASWELL} aes adx 3dnowprefetch", "avx512f"),
        ("x86_64-linux-gnu -mcpu=skylake-avx512", _SAPPHIRE_RAPIDS, ""),
        ("x86_64-linux-gnu -mcpu=cooperlake", _SKYLAKE, "avx512bf16, avx512vnni"),
        ("x86_64-linux-gnu -mcpu=sierraforest", _SKYLAKE, "avxvnni"),
        ("x86_64-linux-gnu -mcpu=znver3", _SAPPHIRE_RAPIDS, "sse4a"),
        ("x86_64-linux-gnu -mcpu=haswell -mattr=+avx512fp16", _SKYLAKE, "avx512fp16"),
        (
            "x86_64-linux-gnu -mcpu=sapphirerapids -mattr=-avx512f,-avxvnni,-sha,-gfni,-vaes,-vpclmulqdq,-amx-tile",
            _SKYLAKE,
            "",
        ),
        ("aarch64-linux-gnu -mcpu=neoverse-n1", _CORTEX_A72, "dotprod, fullfp16, lse"),
        ("aarch64-linux-gnu -mcpu=neoverse-n1", _NEOVERSE_N1, ""),
        ("aarch64-linux-gnu -mcpu=apple-m1", _NEOVERSE_N1, "complxnum"),
        ("aarch64-linux-gnu -mattr=+sve", _NEOVERSE_N1, "sve"),
        ("aarch64-linux-gnu", "fp asimd", ""),
        ("aarch64-linux-gnu", "", "does not tell what this CPU has"),
    ],
)
def test_what_a_machine_lacks_is_known_before_anything_runs(
    target: str, flags: str, lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = requirements(find(f"llvm -mtriple={target}"))
    monkeypatch.setattr(cpu, "host_flags", lambda: frozenset(flags.split()))
    monkeypatch.setattr(matrix_registers, "granted", lambda: True)
    found = " ".join(cpu.obstacles(machine, machine.arch))
    assert lacks in found
    assert bool(lacks) == bool(found)


def test_registers_that_the_system_does_not_give_are_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = requirements(find("llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids"))
    monkeypatch.setattr(cpu, "host_flags", lambda: frozenset(_SAPPHIRE_RAPIDS.split()))
    monkeypatch.setattr(matrix_registers, "granted", lambda: False)
    (found,) = cpu.obstacles(machine, "x86_64")
    assert found == "the system does not give this process the registers of amx-bf16, amx-int8, amx-tile"
