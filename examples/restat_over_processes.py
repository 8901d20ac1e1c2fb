"""Statistics of a network's batch norms, estimated anew by several processes, each of which has a part of the data.

A communicator says how messages of ranks travel. This one takes the pipes of the standard library; those of
`renorm.training` take threads, MPI, and torch.distributed.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from renorm import errors, training

RANKS = 3
IMAGES = (20, 7, 0)  # of each rank; one has none


class Pipes(training.Communicator):
    """A rank with a pipe to whoever brings the messages of all ranks together."""

    def __init__(self, rank: int, size: int, pipe: Connection):
        super().__init__(rank, size, timeout=60.0)
        self.pipe = pipe

    def exchange(self, message: bytes, timeout: float) -> Sequence[bytes]:
        self.pipe.send_bytes(message)
        if not self.pipe.poll(timeout):
            raise errors.SynchronizationError(f"rank {self.rank} waited {timeout:g} s for the others")
        return self.pipe.recv()


def bring_together(pipes: Sequence[Connection]) -> None:
    """Gives each rank the messages of all, in rank order, until they hang up."""
    try:
        while True:
            messages = [pipe.recv_bytes() for pipe in pipes]
            for pipe in pipes:
                pipe.send(messages)
    except (EOFError, OSError):
        return


def images(rank: int) -> list[np.ndarray[Any, Any]]:
    """The part of the data that a rank has."""
    drawn = np.random.default_rng(rank).normal(rank, 1, (IMAGES[rank], 1, 6, 6)).astype(np.float32)
    return np.array_split(drawn, 2)


def work(rank: int, pipe: Connection, model: bytes) -> None:
    found = training.restat(model, images(rank), Pipes(rank, RANKS, pipe), threads=1)
    pipe.close()
    if rank == 0:
        found.write("restated.onnx")
        print(found)


def network() -> onnx.ModelProto:
    made = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 1, 6, 6] x) => (float[N, 2, 4, 4] y) {
      p = Conv(x, weight)
      [first] q = BatchNormalization(p, scale, bias, first_mean, first_var)
      r = Relu(q)
      [second] y = BatchNormalization(r, scale, bias, second_mean, second_var)
    }""")
    held = {"weight": np.random.default_rng(9).normal(0, 1, (2, 1, 3, 3)), "scale": np.ones(2), "bias": np.zeros(2)}
    held |= {f"{n}_{s}": np.full(2, v) for n in ("first", "second") for s, v in (("mean", 0.0), ("var", 1.0))}
    for name, array in held.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return made


def main() -> None:
    model = network().SerializeToString()
    start = multiprocessing.get_context("spawn")
    ends = [start.Pipe() for _ in range(RANKS)]
    workers = [start.Process(target=work, args=(rank, end, model)) for rank, (_, end) in enumerate(ends)]
    for worker, (_, end) in zip(workers, ends):
        worker.start()
        end.close()
    hub = threading.Thread(target=bring_together, args=([own for own, _ in ends],))
    hub.start()
    wait([worker.sentinel for worker in workers])
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    hub.join()

    alone = training.restat(model, [batch for rank in range(RANKS) for batch in images(rank)])
    held = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(Path("restated.onnx")).graph.initializer}
    for layer in alone.layers:
        np.testing.assert_allclose(held[layer.mean_name], layer.mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(held[layer.var_name], layer.var, rtol=1e-5)
    print(f"{RANKS} processes give what one gives that has all of the data")


if __name__ == "__main__":
    main()
