"""What LLVM is asked of CPUs: against what their makers say, and against the features that it lists itself."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from typing import Any

import pytest

from renorm.codegen.llvm import subtarget
from renorm.codegen.llvm.requirements import requirements
from renorm.core.errors import InternalError, InvalidTarget
from renorm.core.features import FEATURES, NEEDED
from renorm.core.target import Target, parse
from renorm.runtime import cpu
from renorm.targets import find

X86, ARM = "x86_64-linux-gnu", "aarch64-linux-gnu"

_V3 = "avx2 fma f16c bmi bmi2 lzcnt movbe popcnt sse4.2"  # the level x86-64-v3 of the System V ABI
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"
_N1 = "neon lse rdm dotprod fullfp16 rcpc crc aes sha2"  # Arm's technical reference manuals

# CPU: features it has, features it does not have, bytes of a vector; by its maker's manuals
MAKERS = {
    (X86, "x86-64-v3"): (_V3, "aes sha avx512f avxvnni sse4a", 32),
    (X86, "x86-64-v4"): (_V4, "avx512vnni avx512vbmi aes", 64),
    (X86, "haswell"): (_V3, "adx sha avx512f", 32),
    (X86, "skylake-avx512"): (f"{_V4} aes adx", "avx512vnni avx512bf16 sha", 64),
    (X86, "cooperlake"): (f"{_V4} avx512vnni avx512bf16", "avx512fp16 avx512vbmi", 64),
    (X86, "sapphirerapids"): (f"{_V4} avx512fp16 avx512bf16 avx512vnni avxvnni gfni", "avx512vp2intersect sse4a", 64),
    (X86, "knl"): (f"{_V3} avx512f avx512cd", "avx512bw avx512dq avx512vl", 32),
    (X86, "sierraforest"): (f"{_V3} avxvnni avxifma avxvnniint8", "avx512f", 32),
    (X86, "bdver4"): ("avx2 fma f16c xop fma4 tbm", "adx avx512f", 32),
    (X86, "znver3"): (f"{_V3} sse4a sha vaes", "avx512f gfni", 32),
    (X86, "znver4"): (
        f"{_V4} avx512vnni avx512bf16 avx512vbmi2 gfni sse4a",
        "avx512fp16 avx512vp2intersect avxvnni",
        64,
    ),
    (X86, "znver5"): (f"{_V4} avx512vnni avx512vp2intersect avxvnni sse4a", "avx512fp16", 64),
    (ARM, "generic"): ("neon fp-armv8", "lse dotprod fullfp16 sve crc", 16),
    (ARM, "cortex-a72"): ("neon crc aes sha2", "lse rdm dotprod fullfp16 sve", 16),
    (ARM, "neoverse-n1"): (_N1, "sve bf16 i8mm fp16fml sha3", 16),
    (ARM, "neoverse-v1"): (f"{_N1} sve bf16 i8mm fp16fml sha3 complxnum", "sve2 cssc", 16),
    (ARM, "neoverse-v2"): ("lse dotprod fullfp16 sve sve2 bf16 i8mm", "cssc", 16),
    (ARM, "apple-m1"): (f"{_N1} sha3 fp16fml lse2 altnzcv", "sve bf16 i8mm", 16),
}


@pytest.mark.parametrize(("triple", "name"), MAKERS)
def test_features_and_widths_are_those_of_the_makers(triple: str, name: str) -> None:
    present, absent, width = MAKERS[triple, name]
    target = find(f"llvm -mtriple={triple} -mcpu={name}")
    assert target.has is not None
    assert set(present.split()) <= target.has
    assert not set(absent.split()) & target.has
    assert target.vector_bytes == width
    machine = requirements(target)
    assert (machine.arch, machine.cpu, set(machine.features)) == (triple.split("-")[0], name, target.has)


def test_features_are_added_and_taken_away_with_what_hangs_on_them() -> None:
    wide = f"llvm -mtriple={X86} -mcpu=znver4"
    whole, less = find(wide), find(f"{wide} -mattr=-avx512f")
    assert whole.has is not None
    assert less.has == whole.has - {f for f in FEATURES["x86_64"] if "512" in f}
    assert less.vector_bytes == 32
    more = find(f"llvm -mtriple={X86} -mcpu=haswell -mattr=avx512fp16,-movbe")
    assert more.has is not None
    assert {"avx512fp16", "avx512bw", "avx512f"} <= more.has
    assert "movbe" not in more.has
    assert requirements(more).features == tuple(sorted(more.has))
    assert find(f"llvm -mtriple={ARM} -mattr=+sve2").has == {"neon", "fp-armv8", "fullfp16", "sve", "sve2"}
    taste = f"llvm -mtriple={X86} -mcpu=znver4 -mattr=+prefer-256-bit"
    assert (find(taste).has, find(taste).vector_bytes) == (find(wide).has, 64)
    assert find("llvm -mattr=-bmi").has == set(requirements(parse("llvm")).features) - {"bmi"}


def test_the_host_requires_what_it_has_itself() -> None:
    machine = requirements(parse("llvm"))
    assert cpu.obstacles(machine, machine.arch) == []
    for f in cpu.missing_features(machine.arch, ["avx512fp16", "xop"]):  # asked for, though this machine lacks them
        assert f in str(cpu.obstacles(requirements(find(f"llvm -mattr=+{f}")), machine.arch))
    assert find("llvm").has is None  # nobody loads LLVM for it
    assert find("llvm").vector_bytes == find(f"llvm -mattr=+{machine.features[0]}").vector_bytes


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_no_feature_brings_one_that_cannot_be_asked_for(arch: str) -> None:
    """Of all features that this LLVM lists."""
    triple, base = f"{arch}-linux-gnu", subtarget.BASES[arch]
    cpus, features = subtarget._names(triple)
    assert {"x86_64": "znver5", "aarch64": "apple-m1"}[arch] in cpus
    known = [f for f in features if f in FEATURES[arch]]
    assert len(known) > 20
    before = subtarget._held(triple, base, "", features)
    after = subtarget._held(triple, base, ",".join(f"+{f}" for f in known), features)
    assert set(after) - set(before) == set(known) - set(before)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("-mcpu=sapphire-rapids", "does not know the processor sapphire-rapids\n  nearest to .*: sapphirerapids,"),
        ("-mattr=+avx512vnn", "does not know the feature .avx512vnn\n  nearest to avx512vnn: avx512vnni"),
        (f"-mtriple={ARM} -mcpu=neoverse-n4", "nearest to neoverse-n4: .*neoverse-n1"),
        (f"-mtriple={X86} -mattr=+ptwrite", "nothing tells at run time whether a CPU has ptwrite"),
        (f"-mtriple={X86} -mcpu=znver4 -mattr=+amx-fp16", "nothing tells at run time whether a CPU has amx-fp16"),
        (f"-mtriple={X86} -mattr=-64bit", "64bit\n.*\n  do: leave out -64bit"),
        (f"-mtriple={X86} -mattr=+32bit-mode,-cx8,-slow-3ops-lea", "leave out [+]32bit-mode, -cx8$"),
        (f"-mtriple={X86} -mcpu=pentium", "the CPU pentium has no AVX2, FMA, F16C"),  # of 32 bits
        (f"-mtriple={X86} -mcpu=i386", "the CPU i386 has no AVX2"),
    ],
)
def test_what_there_is_not_is_refused_with_the_nearest(text: str, said: str) -> None:
    with pytest.raises(InvalidTarget, match=said):
        find(f"llvm {text}")


def test_a_registered_target_has_what_its_base_has() -> None:
    target = find(Target("npu", base=f"llvm -mtriple={X86} -mcpu=znver4"))
    assert target.machine_target.vector_bytes == 64
    assert target.machine_target.has == find(f"llvm -mtriple={X86} -mcpu=znver4").has


def test_a_cpu_that_nobody_asked_about_has_no_width() -> None:
    with pytest.raises(InternalError, match=r"targets\.find"):
        parse("llvm -mcpu=haswell").vector_bytes  # noqa: B018


def test_the_host_is_found_without_llvm() -> None:
    script = "import sys, renorm.targets as t; t.find('llvm'); assert 'llvmlite' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_llvm_is_asked_where_no_disk_takes_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", none)
    subtarget._subtarget.cache_clear()
    assert "avx2" in subtarget.subtarget(parse("llvm -mcpu=haswell")).features


def test_standard_error_stays_open_where_there_are_no_more_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    before = os.fstat(2)
    monkeypatch.setattr(os, "dup", refused)
    with pytest.raises(OSError, match="Too many open files"):
        subtarget._complaints(lambda: None)
    after = os.fstat(2)
    assert (before.st_dev, before.st_ino) == (after.st_dev, after.st_ino)


@pytest.mark.parametrize("name", ["dup", "dup2"])
def test_standard_error_comes_back_after_an_interrupt(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is raised behind a call."""
    call: Any = getattr(os, name)

    def interrupted(*args: int) -> int:
        monkeypatch.setattr(os, name, call)
        call(*args)
        raise KeyboardInterrupt

    before = os.fstat(2)
    monkeypatch.setattr(os, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        subtarget._complaints(lambda: None)
    after = os.fstat(2)
    assert (before.st_dev, before.st_ino) == (after.st_dev, after.st_ino)


def test_what_others_print_meanwhile_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    def call() -> None:
        os.write(2, b"before\n'i99' is not a recognized processor for this target (ignoring processor)\nbehind")

    complaints = subtarget._complaints(call)
    assert (complaints.cpus, complaints.features) == (("i99",), ())
    assert capfd.readouterr().err == "before\nbehind"


def test_what_a_cpu_lacks_is_said_of_its_architecture() -> None:
    lacks = {f"llvm -mtriple={X86} -mcpu=nehalem": "x86-64-v3", f"llvm -mtriple={ARM} -mattr=-neon": "generic"}
    for target, other in lacks.items():
        with pytest.raises(InvalidTarget) as error:
            find(target)
        arch = target.split("=")[1].split("-")[0]
        assert error.value.facts[0].startswith(f"needed on {arch}: {', '.join(NEEDED[arch]).upper()}; ")
        assert str(error.value.do).endswith(f"-mcpu={other}")
