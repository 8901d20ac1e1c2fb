"""Files: what is saved is loaded; damage, other versions, other machines are refused; writing is all or nothing."""

from __future__ import annotations

import json
import os
import struct
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from renorm.core.features import FEATURES
from renorm.errors import InvalidArtifact, InvalidInput
from renorm.runtime import Machine, artifact, cpu
from renorm.runtime import load as load_any
from renorm.runtime.program import Argument, Code, Program, Step, TensorSpec, Weight
from renorm.runtime.report import ConstantRecord, Extreme, KernelRecord, MemoryRecord, NearNorm, NormRecord, Report

load: Any = load_any  # of one program


@pytest.fixture
def saved(mirrors, tmp_path):
    """A module of 40 floats and 3 steps with 1000 bytes of weights, and its file."""
    weights = np.random.default_rng(0).bytes(1000)
    m = mirrors(
        40, 3, weights=weights, name="mirrors", dims={"N": 40}, report=Report(kernels=(KernelRecord("k", ("n",)),))
    )
    path = tmp_path / "m.renorm"
    m.save(path)
    return m, path


def test_what_is_saved_is_what_is_loaded(saved, mirrored, tmp_path):
    m, path = saved
    x = np.arange(40, dtype=np.float32)
    for threads in (1, 2, 3):
        n = load(path, threads=threads)
        assert n.program == m.program
        assert n.threads == threads
        assert n.report.kernels[0].nodes == ("n",)
        np.testing.assert_array_equal(n.run(x)[0], mirrored(x, 3))
        np.testing.assert_array_equal(n._weights.arrays, m._weights.arrays)
        assert not n._weights.arrays[0].flags.writeable
        assert n._weights.address % 4096 == 0
    again = tmp_path / "again.renorm"
    n.save(again)
    assert again.read_bytes() == path.read_bytes()
    n.save(path)  # over the file that it is mapped from
    np.testing.assert_array_equal(load(path).run(x)[0], mirrored(x, 3))
    np.testing.assert_array_equal(n.run(x)[0], mirrored(x, 3))


def test_weights_are_mapped_from_the_file(saved):
    _, path = saved
    n = load(path, verify=False)
    with open("/proc/self/maps") as lines:
        (line,) = [line for line in lines if str(path) in line]
    assert line.split()[1] == "r--s"
    assert n._weights.nbytes == 1000


def test_what_is_not_mapped_may_change(saved, mirrored):
    m, path = saved
    good, x = path.read_bytes(), np.arange(40, dtype=np.float32)
    for verify in (True, False):
        path.write_bytes(good)
        n = load(path, verify=verify, mapped=False)
        assert str(path) not in Path("/proc/self/maps").read_text()
        path.write_bytes(b"")  # in place: who had mapped it would end here
        np.testing.assert_array_equal(n._weights.arrays, m._weights.arrays)
        assert not n._weights.arrays[0].flags.writeable
        np.testing.assert_array_equal(n.run(x)[0], mirrored(x, 3))
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(InvalidArtifact, match="is damaged"):
        load(path, mapped=False)


@pytest.mark.parametrize("mapped", [True, False])
def test_a_file_that_changes_while_it_is_read_is_refused(saved, monkeypatch, mapped):
    _, path = saved
    check = artifact._check

    def changing(where, part, data, expected):
        check(where, part, data, expected)
        if part == "code":
            with open(path, "r+b") as file:
                file.seek(-1, 2)
                file.write(b"x")
            os.utime(path, ns=(1, 1))  # clocks of file systems may be slow

    monkeypatch.setattr(artifact, "_check", changing)
    with pytest.raises(InvalidArtifact, match="was changed while it was read"):
        load(path, verify=False, mapped=mapped)


def test_every_damaged_byte_is_noticed(saved):
    _, path = saved
    good = path.read_bytes()
    head = struct.unpack_from("<Q", good, 16)[0]
    rng = np.random.default_rng(0)
    everywhere = [*range(256), *rng.integers(256, head, 300).tolist(), *rng.integers(head, len(good), 60).tolist()]
    for at in everywhere:
        bad = bytearray(good)
        bad[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(bad)
        with pytest.raises(InvalidArtifact) as error:
            load(path)
        assert str(path) in error.value.headline
        assert "expected" in str(error.value)


def test_every_truncation_is_noticed(saved):
    _, path = saved
    good = path.read_bytes()
    for size in (0, 1, 8, 63, 64, 255, 256, 300, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:size])
        with pytest.raises(InvalidArtifact, match=f"{size} bytes, expected"):
            load(path)
    path.write_bytes(good + b"\0")
    with pytest.raises(InvalidArtifact, match=f"{len(good) + 1} bytes, expected {len(good)}"):
        load(path)


def test_weights_are_checked_unless_told_not_to(saved):
    _, path = saved
    bad = bytearray(path.read_bytes())
    bad[-500] ^= 4
    path.write_bytes(bad)
    load(path, verify=False)
    with pytest.raises(InvalidArtifact, match="weights: SHA-256"):
        load(path)


def test_other_files_and_versions(saved, tmp_path):
    _, path = saved
    other = tmp_path / "model.onnx"
    other.write_bytes(b"\x08\x08\x12\x07pytorch" * 100)
    with pytest.raises(InvalidArtifact, match="is not a renorm artifact"):
        load(other)
    bad = bytearray(path.read_bytes())
    struct.pack_into("<I", bad, 8, 77)
    path.write_bytes(bad)
    with pytest.raises(InvalidArtifact, match=f"version 77, expected {artifact.VERSION}"):
        load(path)
    with pytest.raises(InvalidArtifact, match=r"nothing\.renorm cannot be read: No such file"):
        load(tmp_path / "nothing.renorm")


def test_other_machines(saved, monkeypatch):
    m, path = saved

    def write(machine: Machine) -> None:
        artifact.store(
            path, artifact.encoded(replace(m.program, machine=machine), m._walker, m._objects, m._weights.arrays)
        )

    write(Machine("aarch64", "neoverse-n1"))
    with pytest.raises(InvalidArtifact, match="this machine is x86_64, expected aarch64"):
        load(path)
    write(Machine("x86_64", "znver9", ("sse2", "avx512fp16", "gfni")))
    monkeypatch.setattr(cpu, "host_flags", lambda: frozenset(("sse2", "avx2")))
    with pytest.raises(InvalidArtifact, match="this CPU lacks avx512fp16, gfni of znver9"):
        load(path)
    monkeypatch.setattr(cpu, "host_flags", lambda: frozenset(("sse2", "avx512_fp16", "gfni")))
    load(path)
    monkeypatch.setattr(cpu, "host_flags", frozenset)
    with pytest.raises(
        InvalidArtifact, match="/proc/cpuinfo does not tell what this CPU has, expected sse2, avx512fp16"
    ):
        load(path)
    write(Machine("x86_64", "znver9", ("sse2", "amx-fp16", "telepathy")))
    monkeypatch.setattr(cpu, "host_flags", lambda: frozenset(("sse2", "amx_fp16")))
    with pytest.raises(InvalidArtifact, match="nothing tells whether this CPU has amx-fp16, telepathy of znver9"):
        load(path)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InvalidArtifact, match="this system is darwin, expected linux"):
        load(path)


def test_features_of_this_machine_as_llvm_names_them_are_there():
    import llvmlite.binding as llvm

    features = [name for name, on in llvm.get_host_cpu_features().items() if on and name in FEATURES["x86_64"]]
    assert cpu.missing_features("x86_64", features) == []
    assert "avx2" in features


def test_a_failed_write_leaves_the_old_file(saved, monkeypatch):
    m, path = saved
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InvalidArtifact, match="cannot be written: disk full"):
        m.save(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]
    with pytest.raises(InvalidArtifact, match="cannot be written: No such file"):
        m.save(path.parent / "nowhere" / "m.renorm")


names = st.text(min_size=1, max_size=5)
kinds = st.sampled_from(["float32", "int64", "bool", "bfloat16"])
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
specs = st.lists(st.builds(TensorSpec, names, kinds, shapes), max_size=3, unique_by=lambda s: s.name).map(tuple)
extremes = st.none() | st.builds(Extreme, st.integers(0, 9), st.floats(0, 9))
constants = st.builds(
    ConstantRecord,
    names,
    names,
    names,
    st.booleans(),
    st.none() | st.floats(0, 9),
    extremes,
    extremes,
    extremes,
    extremes,
)
records = st.builds(
    NormRecord,
    *(names, names, names, st.lists(names, max_size=2).map(tuple), names),
    *(st.none() | st.floats(0, 1), st.lists(names, max_size=2).map(tuple), st.none() | st.floats(0, 1)),
    *(st.lists(names, max_size=2).map(tuple), st.lists(constants, max_size=2).map(tuple)),
)
programs = st.builds(
    Program,
    machine=st.builds(Machine, st.just("x86_64"), names, st.lists(names, max_size=2).map(tuple)),
    inputs=specs,
    outputs=specs,
    codes=st.lists(st.builds(Code, st.just(0), st.lists(st.integers(0, 9), max_size=3).map(tuple)), max_size=3).map(
        tuple
    ),
    steps=st.just(()),
    arena_bytes=st.integers(0, 1 << 40),
    weight_bytes=st.just(0),
    weights=st.lists(st.builds(Weight, names, kinds, st.just((0,)), st.just(0)), max_size=2).map(tuple),
    report=st.builds(
        Report,
        norms=st.lists(records, max_size=2).map(tuple),
        near_norms=st.lists(st.builds(NearNorm, names, names, names, st.lists(names).map(tuple)), max_size=2).map(
            tuple
        ),
        memory=st.builds(MemoryRecord, *[st.integers(-(1 << 63), (1 << 63) - 1)] * 3),
        renamed=st.dictionaries(names, names, max_size=2),
        names=st.dictionaries(names, st.none() | names, max_size=2),
        refusals=st.lists(st.tuples(names, names, names), max_size=2).map(tuple),
        diagnoses=st.lists(names, max_size=2).map(tuple),
    ),
    name=names,
    dims=st.dictionaries(names, st.integers(0, 9), max_size=2),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs)
def test_any_program_survives_the_file(program, tmp_path, walker):
    if program.codes:
        arguments = tuple(Argument("output", i) for i in range(len(program.outputs)))
        program = replace(program, steps=(Step("k", 0, arguments),))
    path = tmp_path / "p.renorm"
    program = replace(program, machine=replace(program.machine, features=()))
    artifact.store(path, artifact.encoded(program, walker, [walker], [np.empty(0, np.uint8)]))
    held = artifact.read(path)
    assert held.program == program
    assert held.objects == (walker,)


def sealed(content: bytes, manifest: bytes) -> bytes:
    """The file with another manifest, its digests as they must be."""
    head, size, weights = struct.unpack_from("<QQQ", content, 16)
    begin, data = -(-(256 + size) // 64) * 64, -(-(256 + len(manifest)) // 64) * 64
    code = bytes(data - 256 - len(manifest)) + content[begin:head]
    code += bytes(-(256 + len(manifest) + len(code)) % 4096)
    held = content[head:]
    stated = content[:16] + struct.pack("<QQQ8x", 256 + len(manifest) + len(code), len(manifest), weights)
    stated += b"".join(sha256(part).digest() for part in (manifest, code, held))
    header = stated + bytes(80)
    return header + sha256(header).digest() + manifest + code + held


def manifest_of(content: bytes) -> dict[str, Any]:
    return json.loads(content[256 : 256 + struct.unpack_from("<Q", content, 24)[0]])


def test_a_manifest_that_is_no_program(saved):
    _, path = saved
    good = path.read_bytes()
    data = manifest_of(good)
    path.write_bytes(sealed(good, json.dumps(data, separators=(",", ":")).encode()))
    assert path.read_bytes() == good  # the helper writes what the format says
    program = data["program"]
    changes = [{k: v for k, v in program.items() if k != key} for key in program]
    changes += [program | c for c in ({"arena_bytes": "8"}, {"codes": 3}, {"more": 1}, {"states": True})]
    step = program["steps"][0]
    changes += [program | {"steps": [step | c]} for c in ({"args": [["input"]]}, {"kernel": "\ud800"}, {"waits": [1]})]
    changes += [program | {"nanoseconds": 1 << 63}, [], None]
    manifests = [json.dumps(data | {"program": c}).encode() for c in changes]
    manifests += [b"", b"\xff", b"[" * 100_000, b"9" * 5000, json.dumps([data]).encode()]
    for manifest in manifests:
        path.write_bytes(sealed(good, manifest))
        for reader in (load, artifact.inspect):
            with pytest.raises(InvalidArtifact, match="has a manifest that cannot be read"):
                reader(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arena_bytes": 1 << 62}, "arena"),
        ({"arena_bytes": -1}, "arena"),
        ({"inputs": [{"name": "x", "dtype": "float31", "shape": [40], "deciding": []}]}, "'float31' is not a dtype"),
        ({"inputs": [{"name": "x", "dtype": "float32", "shape": [-1, -40], "deciding": []}]}, r"shape \(-1, -40\)"),
        (
            {"inputs": [{"name": "x", "dtype": "float32", "shape": [1 << 62, 0, 1 << 62], "deciding": []}]},
            "is more than",
        ),
        ({"inputs": [{"name": "x", "dtype": "float32", "shape": [1] * 65, "deciding": []}]}, "shape"),
        ({"outputs": [{"name": "x", "dtype": "float32", "shape": [1 << 60], "deciding": []}]}, "is more than"),
        (
            {"weights": [{"name": "w", "dtype": "float32", "shape": [1 << 60], "deciding": [], "offset": 0}]},
            "is more than",
        ),
        ({"states": 9}, "9 inputs are state"),
        ({"states": -1}, "-1 inputs are state"),
    ],
)
def test_a_program_that_cannot_be(saved, change, said):
    _, path = saved
    data = manifest_of(path.read_bytes())
    path.write_bytes(sealed(path.read_bytes(), json.dumps(data | {"program": data["program"] | change}).encode()))
    with pytest.raises(InvalidArtifact, match=said):
        load(path)


@pytest.mark.parametrize(
    "change",
    [{"phases": [1 << 63]}, {"phases": [1 << 62]}, {"phases": [-1]}, {"scratch": 1 << 60}, {"chunks": [1 << 60]}],
)
def test_code_that_cannot_be(saved, change):
    _, path = saved
    data = manifest_of(path.read_bytes())
    data["program"]["codes"][0] |= change
    path.write_bytes(sealed(path.read_bytes(), json.dumps(data).encode()))
    with pytest.raises(InvalidArtifact):
        load(path)


def test_spans_lie_in_the_code_and_do_not_share_it(saved):
    _, path = saved
    good = path.read_bytes()
    data = manifest_of(good)
    for change in ({"walker": [-1, 8]}, {"walker": [0, 1 << 60]}, {"objects": [data["walker"]] * 100}):
        path.write_bytes(sealed(good, json.dumps(data | change).encode()))
        with pytest.raises(InvalidArtifact, match="contradicts itself"):
            load(path)


def test_a_digest_names_one_artifact(saved, tmp_path):
    m, path = saved
    digest = m.save(path)
    assert m.save(tmp_path / "same.renorm") == digest  # of what it holds, not of the place
    assert load(path, digest=digest.upper()).program == m.program
    assert artifact.inspect(path, digest)[0].digest == digest
    with pytest.raises(InvalidInput, match="digest=5"):
        load(path, digest=5)
    good = path.read_bytes()
    other = replace(m.program, name="other")
    artifact.store(path, artifact.encoded(other, m._walker, m._objects, m._weights.arrays))
    for read in (load, artifact.inspect):
        with pytest.raises(InvalidArtifact, match="is another artifact than the one asked for"):
            read(path, digest=digest)
    with pytest.raises(InvalidArtifact, match="is another artifact"):
        load(path, verify=False, digest=digest[:-1])
    # other weights under mended checksums are another artifact, with and without reading them
    head = struct.unpack_from("<Q", good, 16)[0]
    forged = good[:head] + bytes([good[head] ^ 1]) + good[head + 1 :]
    path.write_bytes(sealed(forged, json.dumps(manifest_of(good), separators=(",", ":")).encode()))
    load(path)
    for verify in (True, False):
        with pytest.raises(InvalidArtifact, match="is another artifact"):
            load(path, verify=verify, digest=digest)


def test_names_of_files(saved):
    m, path = saved
    assert load(os.fsencode(path), digest=m.save(os.fsencode(path))).program == m.program
    for use in (m.save, load):
        with pytest.raises(InvalidArtifact, match="embedded null"):
            use("a\0b")
        with pytest.raises(InvalidInput, match="5 is no path"):
            use(5)


def pem() -> tuple[bytes, bytes]:
    """A private key and its public one."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    return key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()), public


def test_signed_artifacts(saved, tmp_path):
    pytest.importorskip("cryptography")
    m, path = saved
    private, public = pem()
    (tmp_path / "public.pem").write_bytes(public)
    plain = m.save(path)
    with pytest.raises(InvalidArtifact, match="is not signed"):
        load(path, key=public)
    assert m.save(path, key=private) == plain  # a signature adds nothing to what is signed
    assert load(path).program == m.program
    assert load(path, key=tmp_path / "public.pem", digest=plain).program == m.program
    assert artifact.inspect(path, key=public)[0].is_signed
    with pytest.raises(InvalidArtifact, match="was not signed with the key"):
        load(path, key=pem()[1])
    signed = path.read_bytes()
    forged = bytearray(sealed(signed, json.dumps(manifest_of(signed)).encode()))
    forged[144:208] = signed[144:208]  # the owner's signature, of something else
    forged[224:256] = sha256(forged[:224]).digest()
    path.write_bytes(forged)
    load(path)
    with pytest.raises(InvalidArtifact, match="was not signed with the key"):
        load(path, key=public)
    for wrong, said in ((private, "not a public key"), (b"x", "not a public key"), (tmp_path / "no", "cannot be read")):
        with pytest.raises(InvalidInput, match=said):
            load(path, key=wrong)
    before = path.read_bytes()
    with pytest.raises(InvalidInput, match="not a private key"):
        m.save(path, key=public)
    assert path.read_bytes() == before


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.renorm")
    for path in (tmp_path / "pipe.renorm", tmp_path, "/dev/zero"):
        for read in (load, artifact.inspect):
            with pytest.raises(InvalidArtifact, match=r"is not a file|cannot be read: Is a directory"):
                read(path)
