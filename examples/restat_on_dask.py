"""Statistics of a network's batch norms, estimated anew on the workers of a Dask cluster: each has a part of the data,
which stays where it is, and all come to the same file, bit for bit. What goes between workers is one message per pass.

    pip install "renorm[dask]"
    python restat_on_dask.py                          # two worker processes on this machine
    python restat_on_dask.py tcp://scheduler:8786     # the workers of a cluster; renorm is installed there

A communicator takes the class `Dask` below: how ranks exchange bytes. Ray has actors too, and needs no more than this.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from distributed import Client, LocalCluster

from renorm import training
from renorm.training.communicators import missing, places

IMAGES = str(Path(__file__).parent / "digits" / "test.npz")


class Board:
    """Lives on one worker, as an actor: ranks put their messages on it, and get those of all once all are there."""

    def __init__(self, size: int):
        self.size = size
        self.rounds: dict[int, dict[int, bytes]] = {}
        self.change = asyncio.Condition()

    async def exchange(self, rank: int, number: int, message: bytes, timeout: float) -> dict[int, bytes]:
        """The messages of round `number`: of all ranks, or of those that came in time."""
        messages = self.rounds.setdefault(number, {})
        async with self.change:
            messages[rank] = message
            self.change.notify_all()
            try:
                await asyncio.wait_for(self.change.wait_for(lambda: len(messages) == self.size), timeout)
            except TimeoutError:
                return dict(messages)
        self.rounds.pop(number - 1, None)  # which all have read, since all are here
        return messages


class Dask(training.Communicator):
    """A rank that is a task on a worker."""

    def __init__(self, rank: int, size: int, board: Board, timeout: float = 300.0):
        super().__init__(rank, size, timeout)
        self.board, self.number = board, 0

    def exchange(self, message: bytes, timeout: float) -> list[bytes]:
        self.number += 1
        exchanged: Any = self.board.exchange(self.rank, self.number, message, timeout)  # of an actor: a future
        came: dict[int, bytes] = exchanged.result()
        if absent := [rank for rank in range(self.size) if rank not in came]:
            raise missing(absent, places(message), timeout)
        return [came[rank] for rank in range(self.size)]


class Part:
    """The data of one rank, read where the rank is, each time that the batches are gone through."""

    def __init__(self, path: str, rank: int, size: int, batch: int):
        self.path, self.rank, self.size, self.batch = path, rank, size, batch

    def __iter__(self) -> Iterator[np.ndarray]:
        with np.load(self.path) as file:
            images = file["images"][self.rank :: self.size, None].astype(np.float32) / 16
        for start in range(0, len(images), self.batch):
            yield images[start : start + self.batch]


def restat(rank: int, size: int, board: Board, model: bytes, part: Part) -> training.Restated:
    """What each rank runs."""
    return training.restat(model, part, Dask(rank, size, board))


def network() -> bytes:
    """Two convolutions, a norm behind each: a step of the exact method for either."""
    made = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 1, 8, 8] x) => (float[N, 5, 4, 4] y) {
      a = Conv(x, w1)
      [first] b = BatchNormalization(a, scale1, bias1, mean1, var1)
      c = Relu(b)
      d = Conv(c, w2)
      [second] y = BatchNormalization(d, scale2, bias2, mean2, var2)
    }""")
    rng = np.random.default_rng(0)
    held = {"w1": rng.normal(0, 1, (3, 1, 3, 3)), "w2": rng.normal(0, 1, (5, 3, 3, 3))}
    for n, channels in ((1, 3), (2, 5)):
        held |= {f"{name}{n}": np.full(channels, v) for name, v in (("scale", 1), ("bias", 0), ("mean", 0), ("var", 1))}
    for name, array in held.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return made.SerializeToString()


def main(client: Client) -> None:
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    model, size = network(), len(workers)
    board = client.submit(Board, size, actor=True, workers=workers[:1]).result()
    ranks = []
    for rank, worker in enumerate(workers):  # ranks wait for each other: each has a worker of its own, and runs once
        part = Part(IMAGES, rank, size, 50 + rank)
        ranks.append(client.submit(restat, rank, size, board, model, part, workers=[worker], pure=False, retries=0))
    found: Any = client.gather(ranks)  # a list, as the client is no coroutine's
    print(f"{size} workers, which read {[one.batches for one in found]} batches in each of {found[0].passes} passes")
    print(found[0])

    alone = training.restat(model, Part(IMAGES, 0, 1, 1000))
    for one in found:
        for layer, first, whole in zip(one.layers, found[0].layers, alone.layers, strict=True):
            assert layer.mean.tobytes() == first.mean.tobytes()
            assert layer.var.tobytes() == first.var.tobytes()
            np.testing.assert_allclose(layer.mean, whole.mean, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(layer.var, whole.var, rtol=1e-5)
    with tempfile.TemporaryDirectory() as folder:
        found[0].write(f"{folder}/restated.onnx")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Client(sys.argv[1]))
    else:
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,  # pyright: ignore[reportArgumentType]
            Client(cluster) as client,
        ):
            main(client)
