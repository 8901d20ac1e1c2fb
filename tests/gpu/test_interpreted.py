"""Loops of GPU kernels, run as blocks and threads: no sample of an op and no network has accesses that race, reads
memory that nobody wrote or waits at a barrier that others miss; and faults that are planted are found.

To go on with random networks, thread by thread in orders of their own as well; to look at larger images:

    python -m tests.gpu.test_interpreted fuzz 20 200
    python -m tests.gpu.test_interpreted zoo resnet50 64
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from tests.driver.random_networks import network
from tests.driver.test_random_networks import Oracle
from tests.gpu import lanes
from tests.gpu.interpreted_device import TARGET, Runner, apart, interpreting
from tests.gpu.test_host_device import product_arrays, staged_product
from tests.ops.one_node import OneNode

import renorm
from renorm import te
from renorm.core.errors import InternalError, InvalidLoops, RenormError
from renorm.graph import registry
from renorm.graph.op import OpDef
from renorm.runtime.gpu.device import Array
from renorm.tir import interpret
from renorm.tir.nodes import Kernel
from renorm.tir.parse import parse

OPS = [op for op in registry.all_ops() if op.__module__.startswith("renorm.ops")]
SMALL = 32  # rows and columns of an image at most


def by_threads(order: int) -> Runner:
    """Return the interpreter of loops, with blocks and threads in an order."""
    return partial(interpret.run, order=order)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_samples(op: type[OpDef]) -> None:
    """In two ways that agree: each in an order of its own, and all threads at once."""
    wrong = list[str]()
    for i, sample in enumerate(op.samples):
        case = OneNode(op, sample)
        try:
            with interpreting(by_threads(i), lanes.run):
                case.agrees(renorm.compile(case.graph, target=TARGET).run(*case.arrays), case.reference())
        except (RenormError, AssertionError, RuntimeWarning) as error:
            wrong.append(f"sample {i}, {sample.attributes}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("seed", range(20))
def test_random_networks(seed: int) -> None:
    assert not (wrong := differs(seed, lanes.run)), wrong


def differs(seed: int, *runners: Runner) -> str:
    """Return how a random network differs from float64, "" for not."""
    n = network(seed)
    with interpreting(*runners):
        return Oracle.of(n).differs(renorm.compile(n.model, target=TARGET).run(**n.feeds))


@pytest.mark.parametrize("name", ["resnet50", "se_resnet101_ibn", "dcgan", "unet"])
def test_a_network(name: str) -> None:
    """The networks that renorm was developed on, on small images."""
    assert error(name, SMALL) <= 1e-4


def error(name: str, most: int) -> float:
    """Return by how much results for images of so many rows and columns at most are off, relative to the largest."""
    torch = pytest.importorskip("torch")
    from benchmarks.networks import NETWORKS, trained  # they need PyTorch

    _, channels, *plane = NETWORKS[name].shape
    shape = (2, channels, *(min(extent, most) for extent in plane))
    module = trained(replace(NETWORKS[name], shape=shape))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with interpreting(lanes.run):
        (got,) = renorm.compile(module, args=(x,), target=TARGET).run(x.numpy())
    with torch.no_grad():
        want = module.double()(x.double()).numpy()
    return float(abs(got - want).max() / abs(want).max())


# ---- faults

every_runner = pytest.mark.parametrize("run", [*map(by_threads, range(3)), lanes.run], ids=["0", "1", "2", "lanes"])
BARRIER = "barrier(shared)"
RACE = (
    r"a race: thread \(\d, \d, 0\) of block \(\d, \d, 0\) (reads|writes) {}\[\d+\], which thread \(\d, \d, 0\) of {} "
)
TILE = RACE.format(r"[AB]\.shared", "that block")


def product(old: str = "", new: str = "") -> Kernel:
    """A product whose tiles come through shared memory, with tails along every axis; one text in it replaced."""
    s, args = staged_product((9, 10, 11))
    text = str(te.lower(s, args))
    assert old in text
    return parse(text.replace(old, new))


def off(kernel: Kernel, run: Runner) -> Array:
    """Run a product, and return by how much it is off."""
    a, b, c = (x.reshape(-1) for x in product_arrays((9, 10, 11)))
    run(kernel, [a, b, c])
    a, b, c = a.reshape(9, 11), b.reshape(11, 10), c.reshape(9, 10)
    return abs(c - a.astype(np.float64) @ b)


def without_barrier(kernel: Kernel, number: int) -> Kernel:
    parts = str(kernel).split(BARRIER)
    return parse(BARRIER.join([*parts[:number], parts[number] + parts[number + 1], *parts[number + 2 :]]))


@every_runner
def test_every_missing_barrier_of_a_product_is_found(run: Runner) -> None:
    kernel = product()
    assert off(kernel, run).max() < 1e-5
    barriers = str(kernel).count(BARRIER)
    assert barriers > 1
    for i in range(barriers):
        with pytest.raises(InvalidLoops, match=rf"{TILE}|[AB]\.shared\[\d+\] is read before anything is written"):
            off(without_barrier(kernel, i), run)


FAULTS = {
    "an element too far": (
        *("= A[", "= A[1 + "),
        r"A\[99\] is outside A, which has 99 elements\n  at blockIdx\.y = 2, .*r\.outer = 2",
    ),
    "an element too far of shared memory": (
        *("+ r.inner)]", "+ r.inner + 1)]"),
        r"A\.shared\[\d+\] is (outside A\.shared, which has 16 elements|read before anything is written there)",
    ),
    "stored one too far": (
        *("C[((((blockIdx.y*40)", "C[((((blockIdx.y*40 + 1)"),
        r"C\[90\] is outside C, which has 90 elements",
    ),
    "a condition with a row too many": (
        *("threadIdx.y) < 9)", "threadIdx.y) < 10)"),
        r"(A\[99|C\[9\d)\] is outside [AC], which has 9\d elements",
    ),
    "a condition with a column too few": (  # whose element of the round before is there, in the same place
        *("(threadIdx.x + (r.outer*4)) < 11", "(threadIdx.x + (r.outer*4)) < 10"),
        r"A\.shared\[\d+\] is read before anything is written there\n  at blockIdx.*r\.outer = 2",
    ),
    "blocks with rows in common": (
        *("C[((((blockIdx.y*40)", "C[((((blockIdx.y*36)"),
        RACE.format("C", r"block \(\d, \d, 0\)"),
    ),
    "threads with columns in common": (
        *("(threadIdx.y*10)) + threadIdx.x)]", "(threadIdx.y*10)))]"),
        RACE.format("C", "that block"),
    ),
    "threads that write the same tile": (
        *("B.shared[((threadIdx.y*4) + threadIdx.x)]", "B.shared[(((threadIdx.y//2)*4) + threadIdx.x)]"),
        RACE.format(r"B\.shared", "that block"),
    ),
    "a barrier that some threads miss": (
        *(f"{BARRIER}\n      if ((", f"{BARRIER} if ((threadIdx.y < 3)) {{ {BARRIER} }} if (("),
        r"kernel main: not all threads of block \(\d, \d, 0\) reach the same barrier\n  (12|4) of 16 threads stop",
    ),
}


@every_runner
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_product_is_found(fault: str, run: Runner) -> None:
    old, new, message = FAULTS[fault]
    with pytest.raises(InvalidLoops, match=message):
        off(product(old, new), run)


@pytest.mark.parametrize("name", ["layer_norm", "log_softmax", "global_max_pool"])
def test_every_missing_barrier_of_an_op_is_found(name: str) -> None:
    """All that its kernels have, where a block has more than a thread."""
    (op,) = (op for op in OPS if op.name == name)
    found = 0

    def missing(kernel: Kernel, arrays: Sequence[Array]) -> None:
        nonlocal found
        if not re.search(r"threadIdx.*thread_extent = ([2-9]|\d\d)", str(kernel)):
            return
        for i in range(str(kernel).count(BARRIER)):
            with pytest.raises(InvalidLoops, match=RACE.format(".*", "that block")):
                lanes.run(without_barrier(kernel, i), [a.copy() for a in arrays])
            found += 1

    for sample in op.samples:
        case = OneNode(op, sample)
        with interpreting(missing):
            renorm.compile(case.graph, target=TARGET).run(*case.arrays)
    assert found > 2


def test_a_fault_of_a_network_ends_its_run() -> None:
    """Which says what the fault is, and in which kernel."""
    n = network(0)
    shift = r"blockIdx\.x\*"  # blocks that are as wide, and begin nearer to each other
    with interpreting(lanes.run, change=lambda k: parse(re.sub(shift, "0*", str(k)))):
        module = renorm.compile(n.model, target=TARGET)
        with pytest.raises(InternalError, match=r"kernel \w+_kernel0: a race: thread .* of block .* which thread"):
            module.run(**n.feeds)


@pytest.mark.parametrize("at", [3, 4, 5])
def test_what_lies_in_a_gap_of_another_array_is_not_read_with_it(at: int) -> None:
    """As buffers of a network may: X has a gap of 4 elements, and Y lies there, or one beside it."""
    kernel = parse(
        """kernel k(X: float32[12], Y: float32[4]) -> (Y) {
          // attr [iter_var(t, , threadIdx.x)] thread_extent = 4
          Y[t] = X[t] + X[t + 8]
        }"""
    )
    memory = np.arange(12, dtype=np.float32)
    arrays = apart(kernel, [memory, memory[at : at + 4]])
    lanes.run(kernel, arrays)
    assert np.isnan(memory).any() == (at != 4)
    with pytest.raises(InternalError, match="X and Y overlap"):
        apart(kernel, [memory, memory[:4].view(np.int32)])


def main(what: str, *args: str) -> int:
    begun = time.monotonic()
    if what == "zoo":
        (name, most) = args
        print(f"{name}: off by {error(name, int(most)):.1e}, {time.monotonic() - begun:.0f} s")
        return 0
    faults = 0
    for seed in range(*map(int, args)):
        if wrong := differs(seed, by_threads(seed), lanes.run):
            print(f"seed {seed}: {wrong}", flush=True)
            faults += 1
    print(f"{faults} faults, {time.monotonic() - begun:.0f} s")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
