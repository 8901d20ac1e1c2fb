"""Ranks of MPI, over mpi4py (the extra `mpi`): one Iallgather for each exchange."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core.errors import SynchronizationError
from renorm.training.communicators import TIMEOUT
from renorm.training.padded_collectives import Bytes, Framed

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no library of MPI
    raise SynchronizationError(f"training.Mpi: {error}", do='pip install "renorm[mpi]"') from None


class Mpi(Framed):
    """The ranks of a communicator of mpi4py.

    comm: an intracommunicator; default MPI.COMM_WORLD. It is duplicated, so that messages of the program and those of
    renorm never meet: all its ranks make an Mpi, at the same place, and keep it, since MPI has some 2000 of them.
    timeout: seconds (default 300) that a rank waits for the others before it raises SynchronizationError.
    """

    _engine = "MPI"

    def __init__(self, comm: Any = None, *, timeout: float = TIMEOUT):
        self._comm = (MPI.COMM_WORLD if comm is None else comm).Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)  # which mpi4py turns into exceptions
        super().__init__(self._comm.Get_rank(), self._comm.Get_size(), timeout)
        self._called: set[int] = set()
        self._under_way: list[Any] = []  # MPI writes into these buffers until their requests end

    def start(self, frame: Bytes) -> _Iallgather:
        collective = _Iallgather(self._comm, frame, self.size)
        self._under_way = [collective]
        return collective

    def call(self) -> None:
        for rank in range(self.size):
            if rank != self.rank:
                self._under_way.append(self._comm.Isend([bytearray(1), MPI.BYTE], rank))

    def present(self) -> set[int]:
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
            self._comm.Recv([bytearray(1), MPI.BYTE], status.Get_source(), status.Get_tag())
            self._called.add(status.Get_source())
        return self._called


class _Iallgather:
    def __init__(self, comm: Any, frame: Bytes, size: int):
        self._frame = frame
        self._frames = np.empty((size, len(frame)), np.uint8)
        self._request = comm.Iallgather([frame, MPI.BYTE], [self._frames, MPI.BYTE])

    def is_done(self) -> bool:
        return self._request.Test()

    def frames(self) -> Bytes:
        return self._frames
