"""Keep calls out of what torch.compile makes: what ranks exchange is no operation of torch. A module of its own, for
who is being compiled: it loads Dynamo, 3 s and 90 MB that others do without."""

from typing import Any

import torch

from renorm.torch.modules import SyncBatchNorm

sync_batch_norm: Any = torch.compiler.disable(super(SyncBatchNorm, SyncBatchNorm).forward)
