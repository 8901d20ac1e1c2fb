"""Keeping batch norm whole: what a forum thread of 2018 asked of NNVM, and had to hack its core for.

The question: an accelerator has batch norm as one instruction and runs conv + batch norm + relu as one launch, but
the compiler unpacks every batch norm into add, sqrt, divide and multiply before anybody can claim it. Registering
the op again failed inside the fusion pass, in a lambda that could not be traced. Here it is one argument,
`keep=["batch_norm"]`, or RENORM_KEEP in the environment.

Where the thread errs: it says that unpacking happens "by default (with opt_level=0)"; NNVM's SimplifyInference runs
at level 0 and above, so no level kept the op. And unpacking is not what makes fusion possible: below, the whole op
shares the conv's kernel.

The second question there, an accelerator on which batch norm is an instruction behind a convolution engine, is what a
target with a code generator is for (docs/targets.md): `target="tandem"` is such a machine, as a simulator.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import renorm

DIGITS = Path(__file__).parent / "digits" / "model.onnx"


def main() -> None:
    rng = np.random.default_rng(0)
    results = {}
    for keep in ((), ("batch_norm",)):
        m = renorm.compile(DIGITS, shapes=None, keep=keep)
        x = rng_images(rng)
        results[keep] = m.run(x)[0] if not results else m.run(results["x"])[0]
        results.setdefault("x", x)
        print(f"--- keep={list(keep)}")
        for norm in m.report.norms:
            print(" ", norm)
        print("  kernels:", ", ".join(map(str, m.report.kernels)))
        whole = [k for k in m.report.kernels if "batch_norm" in str(k)]
        assert bool(whole) == bool(keep) or not keep
        if keep:
            assert all(n.fate == "unit" for n in m.report.norms if n.kind == "batch_norm")
            fused = next(k for k in whole if "conv2d" in str(k))
            print(f"--- the loops of {fused}")
            print(m.kernel(fused).loops[:1500])
    error = np.abs(results[()] - results[("batch_norm",)]).max() / np.abs(results[()]).max()
    print(f"largest difference between the two, relative to the largest output: {error:.1e}")
    assert error < 1e-4

    m = renorm.compile(DIGITS, shapes={"pixels": (8, 1, 8, 8)}, target="tandem")
    print("--- on Tandem, in its 16-bit integers; the rest of the network on this machine")
    launches = [k for k in m.report.kernels if k.target == "tandem"]
    print("  launches:", ", ".join(map(str, launches)))
    print(m.kernel(next(k for k in launches if "conv2d_batch_norm_relu" in str(k))).source)
    error = np.abs(m.run(results["x"])[0] - results[()]).max() / np.abs(results[()]).max()
    print(f"largest difference, relative to the largest output: {error:.1e}")
    assert error < 1e-3

    try:
        renorm.compile(DIGITS, keep=["batchnorm"])
    except renorm.errors.RenormError as problem:
        print("--- a name that does not exist is refused, not ignored:")
        print(problem)


def rng_images(rng: np.random.Generator) -> np.ndarray:
    """Eight pictures of noise in the range of the data set."""
    return rng.uniform(0, 1, (8, 1, 8, 8)).astype(np.float32)


if __name__ == "__main__":
    main()
