"""docs/benchmarks.md, and the section on speed of README.md, from the newest file of results of each machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from math import fsum
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figures import (
    LABELS,
    LESS_PRECISE,
    OURS,
    STEPS,
    Behind,
    behind,
    error,
    geometric_mean,
    kinds,
    limit_us,
    mebibytes,
    milliseconds,
    to_best,
    to_its_own_precision,
)
from benchmarks.machine import ROOT, label
from benchmarks.run import RESULTS
from benchmarks.summary import README, growth, percent, put_into
from renorm.driver.disturbance import OTHERS, SLOWED, STEAL

PAGE = ROOT / "docs" / "benchmarks.md"
PLOTS = ROOT / "docs" / "benchmarks"
NETWORKS, TRAINING, ANY_SHAPE = "2*.json", "training-*.json", "any-shape-*.json"  # files of results
SLOWEST = 20  # layers, of all networks
SHOWN = 6  # kinds of kernels of each network; the file of results has every kernel


def newest(of: str = NETWORKS) -> dict[Path, dict[str, Any]]:
    """The results of each machine that were written last, by their own account, the newest first."""
    found = {path: json.loads(path.read_text()) for path in RESULTS.glob(of)}
    last = {label(found[path]): path for path in sorted(found, key=lambda p: found[p]["when"])}
    return {path: found[path] for path in sorted(last.values(), key=lambda p: found[p]["when"], reverse=True)}


def folds() -> dict[str, Any] | None:
    """The results that `python -m benchmarks folds` wrote last: they are the same on all machines."""
    found = [json.loads(p.read_text()) for p in RESULTS.glob("folds-*.json")]
    return max(found, key=lambda f: f["when"], default=None)


def write() -> None:
    """Write the page and its plots, and the section of README.md."""
    from benchmarks.plots import draw  # needs matplotlib, which a test of the text does not

    results = newest()
    for result in results.values():
        draw(result, PLOTS / _folder(result))
    PAGE.write_text(text(results))
    README.write_text(readme(list(results.values())))


def readme(results: Sequence[dict[str, Any]]) -> str:
    """README.md with these results."""
    return put_into(README.read_text(), results, folds(), list(newest(TRAINING).values()))


def text(results: dict[Path, dict[str, Any]]) -> str:
    """The page of these results of networks, and of the newest of folds and of training."""
    files = [
        f"- {label(result)}: {', commit '.join(_state(result).values())}, "
        f"[{path.name}](../benchmarks/results/{path.name})"
        for path, result in results.items()
    ]
    parts = ["# Benchmarks", "Written by `python -m benchmarks page` from the newest results of each machine:"]
    parts += ["\n".join(files), _HOW]
    for result in results.values():
        parts += [f"## {label(result)}", *_of_machine(result)]
    for opened in newest(ANY_SHAPE).values():
        parts += [f"## Any shape after one compile on {label(opened)}", *_any_shape(opened)]
    if folded := folds():
        parts += ["## Norms folded", _FOLDS.format(cases=folded["cases"], **_state(folded)), _folds(folded)]
    for trained in newest(TRAINING).values():
        parts += [f"## Normalizations in training on {label(trained)}", *_training(trained)]
    return "\n\n".join(parts) + "\n"


def _folder(result: dict[str, Any]) -> str:
    """Return the name of the folder below PLOTS that has the plots of a machine."""
    return re.sub(r"\W+", "-", label(result).lower())


def _of_machine(result: dict[str, Any]) -> Iterable[str]:
    networks, settings, plots = result["networks"], result["settings"], f"benchmarks/{_folder(result)}"
    yield _machine(result["machine"], settings)
    if held := result["machine"].get("held to"):
        yield _HELD.format(target=settings["target"], held=held.upper(), not_held=_not_held(networks))
    yield "### Latency"
    yield f"![latency of each network and runtime]({plots}/latency.svg)"
    has_tenths, has_load = _has_tenths(networks), any("load" in n for n in networks.values())
    has_slowed = any(r and "slowed" in r for n in networks.values() for r in n.get("load", {}).get("rounds", ()))
    yield (_TENTHS if has_tenths else _LATENCY).format(**settings)
    header = ["network", *_labels(networks), "renorm / fastest other"]
    load = "steal, others, slowed" if has_slowed else "steal, others"
    yield _table([*header, load] if has_load else header, _latency(networks, has_tenths, has_load))
    if has_load:
        limits = [f"{limit:.0%}" for limit in (STEAL, OTHERS, *[SLOWED] * has_slowed)]
        yield _LOAD.format(limits=f"{', '.join(limits[:-1])} or {limits[-1]}", disturbed=_disturbed(networks))
    if has_slowed:
        yield _SLOWED
    yield _means(networks)
    yield from _failures(networks)
    yield "### Memory"
    yield f"![peak memory of each network and runtime]({plots}/memory.svg)"
    yield _MEMORY
    header = ["network", *(LABELS[r] for r in _held(networks)), "renorm / least other", "compiling / least other"]
    yield _table([*header, "arena", "lower bound"], _memory(networks))
    yield "### Compiling"
    yield _COMPILING
    first = (f"first result, {n}" for n in _labels(networks))
    yield _table(["network", "cold", "warm", *first, "error"], _compiling(networks))
    if "norms" in result:
        yield from ("### Normalizations alone", _NORMS, _norms(result["norms"]))
    measured = {name: n for name, n in networks.items() if "layers" in n}
    if beside := {name: n for name, n in measured.items() if n["layers"].get("layers")}:
        yield from ("### Layers beside the others", _LAYERS, *_beside(beside))
    if measured:
        yield from ("### Kernels", f"![kernels below the roofline]({plots}/roofline.svg)", _KERNELS)
        yield from _kernels(measured)


_HOW = """\
Each runtime runs in a process of its own, float32 unless its column says otherwise, with its own best settings for
latency; MNN and ncnn run what their own converters make of the model. They take turns, a tenth of a second apart, so
that a machine that slows down slows all alike, and threads that spin after a run disturb nobody; the first call of a
turn is not counted. Outputs are compared in the same run. The networks are those of `benchmarks/networks/`, with random
weights; renorm was developed on resnet50, se_resnet101_ibn, dcgan and unet; the others were measured to see where it is
slow, and what was mended for them was mended in schedules and passes that know no network.

To measure again:

<!-- not run: takes an hour -->
```sh
pip install -e ".[bench]"                  # a C++ compiler too, for inductor; what is missing is left out
python -m benchmarks run                   # --networks resnet50,my.onnx --runtimes renorm,ort --rounds 3 --into FILE
python -m benchmarks run --target "llvm -mcpu=haswell"   # on a CPU with AVX-512: all of them held to AVX2
python -m benchmarks any-shape             # --networks unet --measures calls --quick --target "llvm -mcpu=haswell"
python -m benchmarks estimates             # what convolutions are estimated to take: --target "llvm -mcpu=haswell"
python -m benchmarks predictions           # what all kernels are predicted to take, beside what they take
python -m benchmarks page
renorm bench my.onnx --against ort,openvino
```"""

_LATENCY = """\
Median milliseconds of one call on {threads} threads ± half the distance between the quartiles, in {rounds} rounds of
{seconds:g} seconds in all for each; the last column is renorm's median over that of the fastest other."""

_TENTHS = """\
Median milliseconds of one call on {threads} threads, in brackets between which 80 % of all calls lie (p10 and p90), in
{rounds} rounds of {seconds:g} seconds in all for each; the last ratio is renorm's median over that of the fastest other
in float32."""

_LOAD = """\
The last column has what the hypervisor gave to other machines and what other processes took, of the time of all cores,
in the median round. A round with more than {limits} is measured again, and the least disturbed one counts;
as many are measured again as there are rounds, at most. {disturbed}"""

_SLOWED = """\
The third number: how much slower cores multiplied before the slowest turn of a round than before its fastest."""

_HELD = """\
renorm's code is for `{target}`, and all others are held to {held}: in their processes CPUID tells of nothing beyond it
(`benchmarks/held.c`). Caches and ports are still this machine's. Linux notes which threads have used registers of
AVX-512: {not_held}."""

_MEMORY = """\
The most memory that the process held (VmHWM), MiB: interpreter, library, weights, inputs and outputs. renorm has two
figures: of a process that loads an artifact, which the others cannot, and of one that compiles the model with nothing
in the cache, as the others do. The last two columns are of renorm: buffers between kernels, and the least that any plan
needs."""

_COMPILING = """\
Seconds of renorm's stages with an empty cache on disk and with a full one; then until the first result is there, in a
new process: opening an artifact for renorm, reading and compiling the model for the others. The last column is the
largest difference of renorm's outputs from ONNX Runtime's, relative to the largest output."""

_ANY_SHAPE = """\
Networks whose extents are open, compiled once (`python -m benchmarks any-shape`, {when}, commit {commit}), on {threads}
threads. first: the first call of a shape never seen / the second call of the same, over {seen} random shapes; kernels:
kernels for all shapes / kernels compiled for the shape, in turns, over {shapes} shapes; memory: the most that a process
holds after {seen} shapes / after calls of the largest alone; calls: seconds of {calls} calls of random shapes, each
shape's first one included / those of ONNX Runtime; compile: seconds to compile for all shapes / for one, with an empty
cache. The file of results has each shape."""

_FOLDS = """\
{cases} random graphs of linear ops (Conv, ConvTranspose, Gemm, MatMul) and norms, before, between and behind them, with
other ops between, second readers, shared weights (`python -m benchmarks folds`, {when}, commit {commit};
`scripts/fuzz_folds` draws the same). Wrong: an output is farther than 1e-4 from float64; not supported: no result, or
none that can be run. The last column counts the nodes that scale or shift (BatchNormalization, InstanceNormalization,
Mul, Div, Add, Sub) that are gone, of those in the graphs that came out right. Not all can go: other readers or
non-linear ops are in the way. OpenVINO writes no optimized file: of it, what its kernels for convolutions and products
also compute counts as gone."""

_NORMS = """\
A tensor of 103 MB, read once and written once (gradients read two), with the output given (`out=`), beside a copy in
the same rounds."""

_TRAINING = """\
Batch norm with the statistics of the batch, its gradient, and instance norm, of {shape} float32 on {threads} threads
(`python -m benchmarks training`, {when}, commit {commit}): medians ± half the distance between the quartiles of
{rounds} rounds in which all take turns, each in a process of its own. renorm writes into an array that is given
(`out=`; one that begins on a cache line: in what `np.empty` gives, stores cross lines, which costs about a fifth), or
into fresh ones, whose memory is that of earlier results. PyTorch's fresh results cost page faults at every call; its
memory is kept with `MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000`. The last column has the tensors that
must move if no cache helps, and their bytes per second relative to the copy of the first row, of as much memory in
the same rounds: more than 100 % is what caches saved."""

_STEP = """\
A step of training of a small ResNet (`benchmarks/steps.py`) with torch's norms and with those of
`renorm.torch.replace_norms`: norms took {share} of a step with torch's by its profiler, with renorm's a step is
{faster} shorter. Less what renorm's norms take themselves, {expected} were to be gained.
The quartiles stand beside each median. Beside torch's norms, memory changes by {memory}."""

_KERNELS = """\
Each kernel launch alone, in order (`renorm profile`). GFLOP/s count the operations that are needed at least, GB/s the
bytes that must be read and written; the limit is the longer of the two at the speed of multiply-adds with operands in
the first cache and of a copy of memory, both measured in the same process. It can be passed: operands may lie in a
cache, and kernels with * use fewer operations than the direct algorithm, which is counted. Kernels that fuse the same
ops are taken together; the file of results has each."""


_LAYERS = """\
Each runtime cuts a network into kernels of its own, and tells by its own profiler how long each takes (PyTorch inductor
does not say of which nodes its kernels are). A layer is the least set of kernels that compute the same nodes in all of
them. The second table has the layers in which renorm loses the greatest part of its network's time to the fastest
other: microseconds; GFLOP/s of renorm; what part they are of the speed of multiply-adds, and the bytes that must move
of the speed of a copy (* as below). The file of results has every layer."""


def _machine(machine: dict[str, Any], settings: dict[str, Any]) -> str:
    packages = ", ".join(f"{k} {v}" for k, v in machine["packages"].items())
    rows = [(k, v) for k, v in machine.items() if k != "packages"]
    rows += [(k, settings[k]) for k in ("target", "threads") if k in settings]
    return _table(["machine", ""], [*rows, ("packages", packages)])


def _state(found: dict[str, Any]) -> dict[str, str]:
    """When something was measured, and of which commit."""
    of = found["commit"]
    return {"when": found["when"][:10], "commit": f"`{of['id'][:10]}`{' with changes' if of['changed'] else ''}"}


def _runtimes(networks: dict[str, Any]) -> list[str]:
    """Those whose latency is worth a column: compiled here or loaded, renorm's is the same."""
    return [r for r in _held(networks) if r not in OURS[1:]]


def _held(networks: dict[str, Any]) -> list[str]:
    """Those whose memory is."""
    return [r for r in LABELS if any(milliseconds(n, r) for n in networks.values())]


def _labels(networks: dict[str, Any]) -> list[str]:
    return [LABELS[r] for r in _runtimes(networks)]


def _any_shape(found: dict[str, Any]) -> Iterable[str]:
    yield _ANY_SHAPE.format(**_state(found), **found["settings"])
    measures = list(found["ratios"])
    rows = [
        (name, *("" if (r := found["ratios"][of].get(name)) is None else f"{r:.2f}" for of in measures))
        for name in (*found["networks"], "geometric mean")
    ]
    yield _table(["", *measures], rows)


def _folds(found: dict[str, Any]) -> str:
    rows = [
        [
            f"{s['name']} {s['version']}".strip(),
            str(s["right"]),
            str(s["wrong"]),
            str(s["unsupported"]),
            f"{s['removed']} of {s['nodes']} ({s['removed'] / max(1, s['nodes']):.0%})",
        ]
        for s in found["folds"]
    ]
    return _table(["", "right", "wrong", "not supported", "nodes that scale or shift gone"], rows)


def _training(found: dict[str, Any]) -> Iterable[str]:
    settings, norms = found["settings"], found["norms"]
    yield _TRAINING.format(
        shape="x".join(map(str, settings["shape"])),
        threads=settings["threads"],
        rounds=settings["rounds"],
        **_state(found),
    )
    runtimes = list(next(iter(norms.values()))["ms"])
    rows = [
        (
            name,
            *(_pm(n["ms"][r]) for r in runtimes),
            *(f"**{n['ratios'][r]['median']:.2f}**" for r in runtimes if r in n["ratios"] and r.startswith("torch")),
            f"{n['tensors']}: {n['of_copy']['median']:.0%}",
        )
        for name, n in norms.items()
    ]
    ratios = [f"{r} / renorm" for r in runtimes if r.startswith("torch")]
    copies = [n["copy_ms"] for n in norms.values()]
    copy = {of: median(c[of] for c in copies) for of in ("median", "lower", "upper")}
    rows.insert(0, ("copy", _pm(copy), *[""] * (len(runtimes) - 1 + len(ratios)), "2: 100%"))
    yield _table(["ms", *runtimes, *ratios, "tensors moved: of the copy"], rows)
    if step := found.get("step"):
        parts = {name: f"{step[name]:.0%}" for name in ("share", "expected")}
        yield _STEP.format(**parts, faster=percent(step["faster"]), memory=growth(step["megabytes"]))
        rows = [("a step, ms", *(_pm(step["ms"][s]) for s in STEPS))]
        rows.append(("memory at most, MB", *(str(step["megabytes"][s]) for s in STEPS)))
        yield _table(["", *STEPS], rows)


def _pm(spread: dict[str, float]) -> str:
    return f"{spread['median']:.2f} ± {(spread['upper'] - spread['lower']) / 2:.2f}"


def _latency(networks: dict[str, Any], has_tenths: bool, has_load: bool) -> Iterable[Sequence[Any]]:
    for name, n in networks.items():
        cells = list[str]()
        for r in _runtimes(networks):
            ms = n["runtimes"].get(r, {}).get("ms")
            cells.append((_tenths(ms) if has_tenths else _pm(ms)) if ms else "")
        yield name, *cells, _ratio(to_best(n, milliseconds)), *([_load(n)] if has_load else [])


def _has_tenths(networks: dict[str, Any]) -> bool:
    """Whether the results have the first tenth of calls; older ones do not."""
    return all("p10" in told["ms"] for n in networks.values() for told in n["runtimes"].values() if "ms" in told)


def _tenths(ms: dict[str, float]) -> str:
    return f"{ms['median']:.2f} ({ms['p10']:.2f} to {ms['p90']:.2f})"


def _load(network: dict[str, Any]) -> str:
    """What others took in the median round; marked where a round stayed disturbed."""
    rounds = [r for r in network.get("load", {}).get("rounds", ()) if r]
    if not rounds:
        return ""
    said = ", ".join(f"{median(r[of] for r in rounds):.1%}" for of in ("steal", "others", "slowed") if of in rounds[0])
    return f"**{said}**" if network["load"]["disturbed"] else said


def _disturbed(networks: dict[str, Any]) -> str:
    """A sentence on rounds that stayed disturbed."""
    found = [
        f"{name} ({len(load['disturbed'])} of {len(load['rounds'])} rounds)"
        for name, n in networks.items()
        if (load := n.get("load")) and load["disturbed"]
    ]
    return f"Disturbed all the same: {', '.join(found)}." if found else "No round that counts was disturbed."


def _not_held(networks: dict[str, Any]) -> str:
    """Which runtimes used wider vectors all the same."""
    told = [(r, t["avx512"]) for n in networks.values() for r, t in n["runtimes"].items() if "avx512" in t]
    found = list(dict.fromkeys(LABELS[runtime] for runtime, used in told if used))
    unknown = "" if all(used is not None for _, used in told) else " (of some it does not tell)"
    return f"those of {', '.join(found)} have{unknown}" if found else f"none has{unknown}"


def _means(networks: dict[str, Any]) -> str:
    """Geometric means of latency, of both kinds of networks."""
    said = list[str]()
    for title, tuned in (("developed on", True), ("not developed on", False)):
        ratios = [x for n in networks.values() if n["tuned"] == tuned and (x := to_best(n, milliseconds)) is not None]
        if ratios:
            said.append(f"{geometric_mean(ratios):.2f} over the {len(ratios)} {title}")
    text = f"Geometric mean of renorm / fastest other: {', '.join(said)}."
    narrow = [x for n in networks.values() if (x := to_its_own_precision(n)) is not None]
    if narrow:
        label, other = (LABELS[r] for r in LESS_PRECISE)
        errors = [e for n in networks.values() if (e := error(n, LESS_PRECISE[0])) is not None]
        text += f" {label} / {other}: {geometric_mean(narrow):.2f} over {len(narrow)}, {min(narrow):.2f} to "
        text += f"{max(narrow):.2f}, outputs at most {max(errors):.1e} of the largest from ONNX Runtime's."
    return text


def _failures(networks: dict[str, Any]) -> list[str]:
    failed = [
        f"- {name}, {LABELS.get(r, r)}: {told['failure']}"
        for name, n in networks.items()
        for r, told in n["runtimes"].items()
        if told.get("failure")
    ]
    return ["Not measured:\n\n" + "\n".join(failed)] if failed else []


def _memory(networks: dict[str, Any]) -> Iterable[Sequence[Any]]:
    for name, n in networks.items():
        cells = ["" if (m := mebibytes(n, r)) is None else f"{m:.0f}" for r in _held(networks)]
        planned = n["compile"]["warm"]["memory"]
        sizes = (f"{planned[k] / 2**20:.1f}" for k in ("arena", "lower_bound"))
        yield name, *cells, *(_ratio(to_best(n, mebibytes, own)) for own in OURS), *sizes


def _compiling(networks: dict[str, Any]) -> Iterable[Sequence[Any]]:
    for name, n in networks.items():
        stages = (f"{fsum(n['compile'][state]['seconds'].values()):.2f}" for state in ("cold", "warm"))
        first = list[str]()
        for r in _runtimes(networks):
            told = n["runtimes"].get(r, {})
            first.append(f"{told['open_seconds'] + told['first_seconds']:.2f}" if "ms" in told else "")
        apart = error(n)
        yield name, *stages, *first, "" if apart is None else f"{apart:.1e}"


def _norms(norms: dict[str, Any]) -> str:
    rows = [
        (name, f"{n['ms']:.2f}", f"{n['bytes_per_second'] / 1e9:.1f}", f"{n['of_copy']:.0%}")
        for name, n in norms.items()
    ]
    return _table(["", "ms", "GB/s", "of the copy"], rows)


def _beside(networks: dict[str, Any]) -> Iterable[str]:
    """How many layers of each network another runtime computes faster, and in which renorm loses most."""
    peers = [r for r in LABELS if any(r in layer for n in networks.values() for layer in n["layers"]["layers"])]
    labels, sums, slow = [LABELS[r] for r in ("renorm", *peers)], list[Sequence[Any]](), list[tuple[float, Any]]()
    for name, n in networks.items():
        layers, slower = n["layers"]["layers"], behind(n)
        ours = fsum(k["us"] for k in n["layers"]["kernels"])
        ms = [f"{us / 1e3:.2f}" for us in (ours, *(fsum(x.get(r, 0.0) for x in layers) for r in peers))]
        sums.append((name, *ms, len(layers), len(slower), f"{fsum(x.lost for x in slower) / ours:.1%}"))
        slow += [(x.lost / ours, (name, *_layer(x, peers, n["layers"]["limits"]))) for x in slower]
    slow.sort(key=lambda one: -one[0])
    yield _table(["network", *(f"{x}, ms" for x in labels), "layers", "another is faster in", "time lost there"], sums)
    yield _table(
        ["network", "layer", *labels, "renorm / fastest other", "GFLOP/s", "of peak", "of copy"],
        [row for _, row in slow[:SLOWEST]],
    )


def _layer(x: Behind, peers: Sequence[str], limits: dict[str, float]) -> Sequence[Any]:
    us, best = x.us["renorm"], min(x.us.values())
    per_second = {"flops": x.flops / us * 1e6, "bytes": x.bytes / us * 1e6}
    return (
        f"`{x.kernel}`" + (f" and {x.launches - 1} more" if x.launches > 1 else ""),
        *(f"{x.us[r]:.0f}" if r in x.us else "" for r in ("renorm", *peers)),
        _ratio(us / best if best else None),
        f"{per_second['flops'] / 1e9:.0f}",
        f"{per_second['flops'] / limits['flops']:.0%}{'*' * x.nominal}",
        f"{per_second['bytes'] / limits['bytes']:.0%}",
    )


def _kernels(networks: dict[str, Any]) -> Iterable[str]:
    for name, n in networks.items():
        limits, kernels = n["layers"]["limits"], n["layers"]["kernels"]
        total = fsum(k["us"] for k in kernels) or 1.0
        least = fsum(limit_us(k, limits) for k in kernels)
        rows = list[Sequence[Any]]()
        for kind, count, us, flops, moved, nominal in kinds(kernels)[:SHOWN]:
            limit = limit_us({"flops": flops, "bytes": moved}, limits)
            speeds = (f"{flops / us / 1e3:.0f}", f"{moved / us / 1e3:.1f}") if us else ("", "")
            rows.append(
                (f"`{kind}`", count, f"{us / 1e3:.2f}", f"{us / total:.0%}", *speeds, _share(limit, us, nominal))
            )
        yield (
            f"#### {name}\n\n{len(kernels)} launches, {total / 1e3:.2f} ms one by one, "
            f"{n['layers']['network_seconds'] * 1e3:.2f} ms as a network, {least / total:.0%} of the "
            f"limits ({limits['flops'] / 1e9:.0f} GFLOP/s, {limits['bytes'] / 1e9:.0f} GB/s)."
        )
        yield _table(["kernels", "launches", "ms", "share", "GFLOP/s", "GB/s", "of the limit"], rows)


def _share(limit: float, us: float, nominal: bool) -> str:
    return f"{limit / us:.0%}{'*' * nominal}" if us else ""


def _ratio(value: float | None) -> str:
    return "" if value is None else f"**{value:.2f}**"


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |" for row in lines)
