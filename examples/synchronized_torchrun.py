"""The two ranks of `synchronized.py` as processes of torch.distributed:

torchrun --nproc-per-node 2 synchronized_torchrun.py
"""

from __future__ import annotations

import os

import torch.distributed as dist
from synchronized import step

from renorm import training

if os.environ.get("WORLD_SIZE") != "2":
    raise SystemExit("start two ranks: torchrun --nproc-per-node 2 synchronized_torchrun.py")
dist.init_process_group("gloo")
print(step(training.TorchGroup()), end="", flush=True)
dist.destroy_process_group()
