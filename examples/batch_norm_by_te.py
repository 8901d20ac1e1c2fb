"""Batch norm by tensor expressions: the program of d2l-tvm 3.6, its loops, and what a schedule makes of them.

The article defines batch norm of inference as six broadcast stages over data of shape (channel, height, width),
lowers it without a schedule and prints the loops. We print ours, run them, and then schedule the same program, which
changes no number.

Where the article errs: the layout is (channel, height, width), not "weight"; in inference mean and variance are the
running statistics of training, not those of a batch; and with no schedule the data goes through memory four times
(the stages T_subtract, T_divide, T_multiply, T_add), which a reader of the listing can see and the article does not
say.
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np

import renorm as tvm
from renorm import te, topi


def batch_norm(c: int, n: int, eps: float = 1e-5):
    """Data (c, n, n) and four parameters (c, 1, 1) to the normalised data."""
    x = te.placeholder((c, n, n), name="X")
    mean, var, gamma, beta = (te.placeholder((c, 1, 1), name=name) for name in ("Mean", "Var", "Gamma", "Beta"))
    y = (x - mean) / topi.sqrt(var + eps) * gamma + beta
    return x, mean, var, gamma, beta, y


def arrays(c: int, n: int, seed: int = 0) -> list[np.ndarray]:
    """Random data and parameters; variances are positive."""
    rng = np.random.default_rng(seed)
    data, mean, var, gamma, beta = (rng.normal(size=s) for s in [(c, n, n), *[(c, 1, 1)] * 4])
    return [a.astype(np.float32) for a in (data, mean, np.abs(var + 1), gamma, beta)]


def milliseconds(f, runs: int = 25) -> float:
    """Median time of one call."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return 1e3 * sorted(times)[runs // 2]


def main() -> None:
    c, n = 32, 28
    args = batch_norm(c, n)
    y = args[-1]
    plain = te.create_schedule(y.op)
    print("--- loops of the default schedule, line for line those of the article")
    print(tvm.lower(plain, args[:-1], simple_mode=True))

    s = te.create_schedule(y.op)
    for stage in s.stages:
        if isinstance(stage.op, te.ComputeOp) and stage.op is not y.op:
            stage.compute_inline()
    _, row, column = s[y].op.axis
    _, lane = s[y].split(s[y].fuse(row, column), factor=16)
    s[y].vectorize(lane)
    print("--- one pass over the data: intermediate stages inlined, vectors of 16")
    print(tvm.lower(s, args, simple_mode=True))

    given = arrays(c, n)
    data, mean, var, gamma, beta = (a.astype(np.float64) for a in given)
    expected = (data - mean) / np.sqrt(var + 1e-5) * gamma + beta
    for name, schedule in (("default", plain), ("scheduled", s)):
        out = np.empty((c, n, n), np.float32)
        call = partial(tvm.build(schedule, args), *given, out)
        call()
        error = np.abs(out - expected).max() / np.abs(expected).max()
        print(f"{name:10} error {error:.1e} of the largest output, {milliseconds(call):.3f} ms")
        assert error < 1e-6


if __name__ == "__main__":
    main()
