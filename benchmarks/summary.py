"""The section on speed of README.md: the figures of docs/benchmarks.md in a few sentences, between two marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.figures import LABELS, LESS_PRECISE, OURS, STEPS, geometric_mean, mebibytes, milliseconds, to_best
from benchmarks.machine import ROOT, label

README = ROOT / "README.md"
BEGIN, END = "<!-- written by python -m benchmarks page -->\n", "<!-- end -->\n"


def put_into(
    readme: str, results: Sequence[dict[str, Any]], folds: dict[str, Any] | None, trained: Sequence[dict[str, Any]]
) -> str:
    """The text of README.md with these results, of a machine each, and those of folds, between its marks."""
    before, rest = readme.split(BEGIN)
    said = "".join(f"- {sentence}\n" for sentence in _sentences(results, folds, trained))
    return f"{before}{BEGIN}\n{said}\n{END}{rest.split(END)[1]}"


def _sentences(
    results: Sequence[dict[str, Any]], folds: dict[str, Any] | None, trained: Sequence[dict[str, Any]]
) -> Iterable[str]:
    for result in results:
        yield f"**Inference** on {_where(result)}: {_inference(result['networks'])}"
        yield f"**Memory** there: {_memory(result['networks'])}"
    if folds:
        yield f"**Folding** (commit `{folds['commit']['id'][:10]}`): {_folding(folds)}"
    for one in trained:
        shape = "x".join(map(str, one["settings"]["shape"]))
        yield f"**Norms in training**, {shape}, on {_where(one)}: {_training(one)}"
    yield "All in float32; ± is half the distance between quartiles. No other CPU was measured, nor more threads."


def _where(result: dict[str, Any]) -> str:
    cores, threads = result["machine"]["cores"], result["settings"]["threads"]
    return f"{label(result)} ({cores} cores, {threads} threads, commit `{result['commit']['id'][:10]}`)"


def _inference(networks: dict[str, Any]) -> str:
    kinds = {
        tuned: [x for n in networks.values() if n["tuned"] == tuned and (x := to_best(n, milliseconds))]
        for tuned in (True, False)
    }
    means = [f"{geometric_mean(ratios):.2f} over {len(ratios)}" for ratios in kinds.values()]
    ratios = sorted(kinds[True] + kinds[False])
    slower = [name for name, n in networks.items() if (to_best(n, milliseconds) or 0.0) > 1]
    spread = max(n["runtimes"]["renorm"]["ms"]["spread"] for n in networks.values() if milliseconds(n, "renorm"))
    return (
        f"{len(ratios)} networks take {ratios[0]:.2f} to {ratios[-1]:.2f} of the time of the fastest of "
        f"{_others(networks)} (geometric mean {means[0]} that renorm was developed on, {means[1]} others; slower: "
        f"{', '.join(slower) or 'none'}; quartiles at most {spread:.0%} from renorm's median)."
    )


def _memory(networks: dict[str, Any]) -> str:
    """Of the least other, by how renorm comes to its code."""
    said = list[str]()
    for own, what in zip(OURS, ("that loads an artifact", "that compiles the network")):
        if ratios := sorted(x for n in networks.values() if (x := to_best(n, mebibytes, own))):
            said.append(f"a process {what} takes {ratios[0]:.2f} to {ratios[-1]:.2f}")
    return f"Of the least of {_others(networks)}, {', '.join(said)}."


def _others(networks: dict[str, Any]) -> str:
    apart = (*OURS, *LESS_PRECISE)
    measured = [r for r in LABELS if r not in apart and any(milliseconds(n, r) for n in networks.values())]
    return ", ".join(LABELS[r] for r in measured)


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
        ours, torch, kept = (_pm(n["ms"][r], 1) for r in ("renorm", "torch", "torch, memory kept"))
        said.append(f"{name} {ours} ms, PyTorch {torch} ({kept} with its memory kept)")
    text = f"{'; '.join(said)}."
    if step := found.get("step"):
        theirs, ours = (_pm(step["ms"][s], 0) for s in STEPS)
        text += (
            f" A whole step of a small ResNet, {step['share']:.0%} of it norms: {ours} ms, PyTorch {theirs}:"
            f" {percent(step['faster'])} shorter, with {growth(step['megabytes'])} of memory."
        )
    return text


def percent(spread: dict[str, float]) -> str:
    return f"{spread['median']:.0%} (quartiles {spread['lower']:.0%} and {spread['upper']:.0%})"


def growth(megabytes: dict[str, int]) -> str:
    """Return the memory that renorm's norms add to a training step."""
    theirs, ours = (megabytes[s] for s in STEPS)
    return f"{ours / theirs - 1:+.0%}"


def _pm(spread: dict[str, float], digits: int) -> str:
    return f"{spread['median']:.{digits}f} ± {(spread['upper'] - spread['lower']) / 2:.{digits}f}"
