"""The two ranks of `synchronized.py` as processes of MPI:

pip install "renorm[mpi]"
mpiexec -n 2 python synchronized_mpi.py
"""

from __future__ import annotations

from synchronized import step

from renorm import training

comm = training.Mpi()  # of MPI.COMM_WORLD; any communicator of mpi4py
if comm.size != 2:
    raise SystemExit("start two ranks: mpiexec -n 2 python synchronized_mpi.py")
print(step(comm), end="", flush=True)
