"""Synchronized batch norm on two ranks, which prints on each what Kaixi Hou's article prints for Horovod's: mean and
variance of the group (`batch_mean` and `batch_var` there), and the moving mean and variance after one step. Here the
ranks are threads of one process; `synchronized_mpi.py` and `synchronized_torchrun.py` run the same over processes.

Where the article errs:
- it computes the group variance in a second pass over x, once the group mean is known. None is needed: a rank sends how
  many values it has, their mean, and M2, the sum of squared distances from that mean. What n_b values add to n_a is
      mean += d n_b / n      M2 += M2_b + d^2 n_a n_b / n      where d = mean_b - mean_a, n = n_a + n_b
  which is exact, and takes one exchange;
- it divides by N * batch_size, ranks times samples. The divisor is the count of values per channel, height and width
  included: 2 ranks x 2 samples x 1 x 2 pixels = 8, not 4;
- it averages the means of the ranks, which is the group mean only where all have equally many values (shown below).
"""

from __future__ import annotations

import numpy as np

from renorm import training

# what the article prints: its inputs it does not
MEAN = np.array([0.45652372, 0.5745423, 0.65629953])
VARIANCE = np.array([0.0657616, 0.0710133, 0.00523123])
MOVING_MEAN = np.array([0.7282618, 0.78727114, 0.8281498])
MOVING_VARIANCE = np.array([0.5328808, 0.53550667, 0.50261563])


def batch() -> np.ndarray:
    """float32[4, 1, 2, 3], samples of both ranks, channels last, whose statistics print as the article's."""
    z = np.random.default_rng(893).standard_normal((4, 1, 2, 3))
    z = (z - z.mean((0, 1, 2))) / z.std((0, 1, 2))
    return (MEAN + np.sqrt(VARIANCE) * z).astype(np.float32)


def step(comm: training.Communicator) -> str:
    """One step of a layer on one rank of two, and what to print of it."""
    x = batch()
    own = x[2 * comm.rank : 2 * comm.rank + 2]
    scale, offset = np.ones(3, np.float32), np.zeros(3, np.float32)
    moving = np.ones(3, np.float32), np.ones(3, np.float32)
    r = training.batch_norm(own, scale, offset, *moving, axis=-1, convention="keras", momentum=0.5, comm=comm)
    assert r.count == 8

    np.testing.assert_allclose(r.batch_mean, MEAN, rtol=2e-6)
    np.testing.assert_allclose(r.batch_var, VARIANCE, rtol=2e-6)
    assert r.running_mean is not None
    assert r.running_var is not None
    np.testing.assert_allclose(r.running_mean, MOVING_MEAN, rtol=2e-6)
    np.testing.assert_allclose(r.running_var, MOVING_VARIANCE, rtol=2e-6)
    two_passes = ((x - x.mean((0, 1, 2), np.float64)) ** 2).sum((0, 1, 2)) / 8
    np.testing.assert_allclose(r.batch_var, two_passes, rtol=1e-6)

    uneven = x[:3] if comm.rank == 0 else x[3:]  # the same batch, three samples and one
    group = training.moments(uneven, axis=-1, comm=comm)
    np.testing.assert_allclose(group.mean, r.batch_mean, rtol=1e-6)
    means = comm.gather("means of the ranks", uneven.mean((0, 1, 2), np.float64))
    assert np.abs(np.mean(means, axis=0) - group.mean).max() > 0.01

    shown = {
        "batch_mean": r.batch_mean,
        "batch_var": r.batch_var,
        "moving_mean": r.running_mean,
        "moving_var": r.running_var,
    }
    return "".join(f"rank {comm.rank}: {name}: {value}\n" for name, value in shown.items())


if __name__ == "__main__":
    print("".join(training.Threads(2).run(step)), end="")
    print("One exchange of (count, mean, M2); no second pass. Each variance is M2 / 8, the values per channel.")
