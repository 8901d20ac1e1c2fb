"""Tags of computes: what kind of access pattern a stage has, for schedules to look for. TVM's names and strings."""

from __future__ import annotations

ELEMWISE = "elemwise"  # out[i] reads in[i]
BROADCAST = "broadcast"  # out[i, j] reads in[i, j], in[j], in[i, 0], ...
INJECTIVE = "injective"  # every output element reads one element of each input
COMM_REDUCE = "comm_reduce"
COMM_REDUCE_IDX = "comm_reduce_idx"


def is_broadcast(tag: str) -> bool:
    """Elementwise, or elementwise after broadcasting."""
    return tag in (ELEMWISE, BROADCAST) or tag.startswith((f"{ELEMWISE},", f"{BROADCAST},"))


def is_injective(tag: str) -> bool:
    """Each output element reads one element of each input."""
    return is_broadcast(tag) or tag == INJECTIVE or tag.startswith(f"{INJECTIVE},")
