"""What README.md says of speed: the figures of docs/benchmarks.md in a few sentences, between two marks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.figures import LABELS, geometric_mean, mebibytes, milliseconds, to_best
from benchmarks.machine import ROOT

README = ROOT / "README.md"
BEGIN, END = "<!-- written by python -m benchmarks page -->\n", "<!-- end -->\n"


def put_into(readme: str, result: dict[str, Any], folds: dict[str, Any] | None, trained: dict[str, Any] | None) -> str:
    """The text of README.md with these results between its marks."""
    before, rest = readme.split(BEGIN)
    said = "".join(f"- {sentence}\n" for sentence in _sentences(result, folds, trained))
    return f"{before}{BEGIN}\n{said}\n{END}{rest.split(END)[1]}"


def _sentences(result: dict[str, Any], folds: dict[str, Any] | None, trained: dict[str, Any] | None) -> Iterable[str]:
    yield f"**Inference.** {_inference(result['networks'])}"
    if folds:
        yield f"**Folding.** {_folding(folds)}"
    if trained:
        yield f"**Norms in training**, {'x'.join(map(str, trained['settings']['shape']))}: {_training(trained)}"
    machine, threads = result["machine"], result["settings"]["threads"]
    yield (
        f"All on one machine: {machine['cpu']}, {machine['cores']} cores with {machine['vectors']}, {threads} threads, "
        "float32. No other CPU was measured, nor more threads."
    )


def _inference(networks: dict[str, Any]) -> str:
    kinds = {
        tuned: [x for n in networks.values() if n["tuned"] == tuned and (x := to_best(n, milliseconds))]
        for tuned in (True, False)
    }
    means = [f"{geometric_mean(ratios):.2f} over {len(ratios)}" for ratios in kinds.values()]
    ratios = sorted(kinds[True] + kinds[False])
    memory = sorted(x for n in networks.values() if (x := to_best(n, mebibytes)))
    measured = [r for r in LABELS if r != "renorm" and any(milliseconds(n, r) for n in networks.values())]
    others = " and ".join(LABELS[r] for r in measured)
    return (
        f"{len(ratios)} networks take {ratios[0]:.2f} to {ratios[-1]:.2f} of the time of the fastest of {others} "
        f"(geometric mean {means[0]} that renorm was developed on, {means[1]} others), and "
        f"{memory[0]:.2f} to {memory[-1]:.2f} of the least memory."
    )


def _folding(found: dict[str, Any]) -> str:
    ours, *others = found["folds"]
    gone = [s["removed"] / max(1, s["nodes"]) for s in (ours, *others)]
    return (
        f"Of {found['cases']} random graphs {ours['right']} come out right, and {gone[0]:.0%} of the nodes that scale "
        f"or shift are gone; the best of {len(others)} other optimizers removes {max(gone[1:]):.0%}."
    )


def _training(found: dict[str, Any]) -> str:
    said = list[str]()
    for name, n in found["norms"].items():
        ours, torch, kept = (n["ms"][r]["median"] for r in ("renorm", "torch", "torch, memory kept"))
        said.append(f"{name} {ours:.1f} ms, PyTorch {torch:.1f} ({kept:.1f} with its memory kept)")
    text = f"{'; '.join(said)}."
    if step := found.get("step"):
        theirs, ours, fused = (one["median"] for one in step["ms"].values())
        text += (
            f" A whole step of a small ResNet, {step['share']:.0%} of it norms: {ours:.0f} ms, {fused:.0f} with ReLUs"
            f" and additions in the norms' kernels, PyTorch {theirs:.0f}."
        )
    return text
