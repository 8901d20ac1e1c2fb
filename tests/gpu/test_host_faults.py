"""Faults that are put into CUDA C are found: barriers left out or not reached by all, races, accesses outside."""

from __future__ import annotations

import platform

import numpy as np
import pytest
from tests.gpu.host_assembler import ARCH, needs_compiler, options
from tests.gpu.host_device import run_text
from tests.gpu.host_texts import kernel, numbers
from tests.gpu.test_host_device import product_arrays, staged_product

from renorm import te
from renorm.codegen.cuda.source import generate
from renorm.core.errors import InternalError, InvalidTarget
from renorm.core.target import parse

pytestmark = needs_compiler

REVERSE = "__shared__ float s[64];\ns[t] = a[i];\n__syncthreads();\nb[i] = s[63 - t];"


def test_the_kernel_that_faults_are_put_into_is_right() -> None:
    a, b = numbers(192)
    kernel(REVERSE, a, b, grid=3)
    np.testing.assert_array_equal(b, a.reshape(3, 64)[:, ::-1].ravel())


def test_every_missing_barrier_of_a_product_is_found() -> None:
    s, args = staged_product((9, 10, 11))
    lowered = te.lower(s, args)
    made = generate(lowered, parse(f"cuda -arch={ARCH}"))
    parts = made.source.split("__syncthreads();")
    assert len(parts) > 2
    for i in range(len(parts) - 1):
        text = "__syncthreads();".join([*parts[:i], parts[i] + parts[i + 1], *parts[i + 2 :]])
        with pytest.raises(InternalError, match=r"kernel C_kernel0|kernel \w+_kernel0: a race"):
            run_text(text, made.launches, lowered.params, product_arrays((9, 10, 11)), made.workspace)


def test_missing_barrier() -> None:
    a, b = numbers(64)
    with pytest.raises(InternalError, match=r"(?s)kernel f: a race.*argument 1: \d+ of 256 bytes differ"):
        kernel(REVERSE.replace("__syncthreads();", ""), a, b)


def test_race_of_blocks() -> None:
    a, b = numbers(128)
    with pytest.raises(InternalError, match="kernel f: a race"):
        kernel("b[t] = a[i];", a, b, grid=2)
    kernel("b[t] = a[i];", a, b, grid=2, check_races=False)  # nobody looks: one of them wins
    with pytest.raises(InternalError, match="kernel f: a race"):
        kernel("b[i] = i < 64 ? a[i] : b[i - 64];", *numbers(128), grid=2)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("if (t < 40) { __syncthreads(); }\nb[i] = a[i];", r"waits at the barrier of line 3.*it has ended"),
        ("if (t >= 63) return;\n__syncthreads();\nb[i] = a[i];", r"thread \(0, 0, 0\): .*thread \(63, 0, 0\)"),
        (
            "if (t % 2) {\n__syncthreads(); } else {\n__syncthreads(); }\nb[i] = a[i];",
            r"barrier of line (4|5), .* waits at the barrier of line (4|5)",
        ),
        ("for (int k = 0; k < t / 32; ++k) __syncthreads();\nb[i] = a[i];", r"thread \(32, 0, 0\): .*line 3"),
        (
            "b[i] = t == 7 ? 0 : __shfl_xor_sync(0xffffffffu, a[i], 1);",
            r"shuffle of line 3, .*thread \(7, 0, 0\).*ended",
        ),
        ("b[i] = __shfl_sync(1u, a[i], 0);", "mask 0x1 of line 3 does not have its own lane"),
    ],
)
def test_divergence(body: str, message: str) -> None:
    a, b = numbers(64)
    with pytest.raises(InternalError, match=rf"kernel f, block \(0, 0, 0\), .*{message}"):
        kernel(body, a, b)


def test_shared_memory_that_nobody_wrote() -> None:
    a, b = numbers(64)
    kernel("__shared__ float s[65];\ns[t] = a[i];\n__syncthreads();\nb[i] = s[t + 1];", a, b)
    assert np.isnan(b[63])
    np.testing.assert_array_equal(b[:63], a[1:])
    one, out = numbers(128)  # nor does a block see what the one before it left
    kernel(
        "__shared__ float s[64];\nif (blockIdx.x == 0) s[t] = a[t];\n__syncthreads();\nb[i] = s[t];", one, out, grid=2
    )
    assert np.isnan(out[64:]).all()


def test_index_off_by_one() -> None:
    a, b = numbers(64)
    with pytest.raises(InternalError, match=r"(?s)block \(0, 0, 0\), thread .*that is byte 256 of the 256 bytes"):
        kernel("b[i] = a[i + 1];", a, b)
    with pytest.raises(InternalError, match="byte 256 of the 256 bytes"):
        kernel("b[i + 1] = a[i];", a, b)
    with pytest.raises(InternalError, match="kernel f writes beside its argument 1"):  # up to 256 bytes are rounded up
        kernel("b[i + 1] = a[i];", a, b[:60], block=60)
    with pytest.raises(InternalError, match="kernel f writes beside its argument 1"):
        kernel("b[i - 1] = a[i];", a, b)


def test_wrong_predicate() -> None:
    """A tail of 5 elements in blocks of 64, taken for one of 6: the last store lies beside its buffer."""
    a, b = numbers(69)
    kernel("if (i < 69) b[i] = a[i];", a, b, grid=2)
    np.testing.assert_array_equal(a, b)
    with pytest.raises(InternalError, match="writes beside its argument 1"):
        kernel("if (i < 70) b[i] = a[i];", a, b, grid=2)


def test_wrong_arguments_and_launches() -> None:
    a, b = numbers(128)
    with pytest.raises(InternalError, match="a block of 65 threads, of 64 at most"):
        kernel("b[i] = a[i];", a, b, block=65)
    with pytest.raises(InternalError, match="takes 2 arguments, not 1"):
        kernel("b[i] = a[i];", b)
    with pytest.raises(InternalError, match="49156 bytes of shared memory"):
        kernel("__shared__ float s[12289];\ns[t] = a[i];\n__syncthreads();\nb[i] = s[12288 - t];", a, b)
    if platform.machine() == "x86_64":  # others give a number
        with pytest.raises(InternalError, match="an integer is divided by zero"):
            kernel("b[i] = i / (i - t);", a, b)
    for wide in ("float4", "int2", "double"):
        with pytest.raises(InternalError, match=r"thread \(0, 0, 0\): an access that is not aligned"):
            kernel(f"(({wide}*)b)[0] = *(const {wide}*)(a + 1);", a, b, block=1)
    for trap in ("SIGILL", "SIGTRAP", "SIGBUS"):
        with pytest.raises(InternalError, match="an access that is not aligned"):
            kernel(f"raise({trap});", a, b)
    with pytest.raises(InvalidTarget, match=r"(?s)g\+\+ does not take the CUDA C.*:3:.*nothing"):
        kernel("b[i] = nothing;", a, b)


def test_variable_that_nobody_wrote() -> None:
    a, b = numbers(64)
    kernel("float v;\nif (t > 3) v = a[t];\nb[t] = v;", a, b)
    np.testing.assert_array_equal(b[4:], a[4:])
    if "-ftrivial-auto-var-init=pattern" in options():
        assert (np.abs(b[:4]) > 1e30).all()
