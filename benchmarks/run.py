"""One network at a time: compiled with an empty cache and a full one, measured beside the others and by kernel.

Results are plain data, written to one JSON file after each network.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import onnx

import renorm
from benchmarks import held as held_to
from benchmarks import norms
from benchmarks.kernels import PROFILERS, PeerKernel, medians, profiled
from benchmarks.layers import layers
from benchmarks.machine import ROOT, commit, machine, now
from renorm.core.errors import InvalidInput, RenormError
from renorm.core.random_inputs import random_inputs
from renorm.driver.disturbance import Disturbance, Watch
from renorm.driver.measure import Comparison, Contender, Measured, environment, obstacle, side_by_side

RUNTIMES = (
    *("renorm", "renorm_compiling", "ort", "openvino", "mnn", "ncnn", "inductor", "torch"),
    *("renorm_bfloat16", "openvino_default"),  # not in float32
)
RESULTS = ROOT / "benchmarks" / "results"
FILES = ROOT / "build" / "benchmarks"  # exported networks and artifacts
REFERENCE = "ort"  # whose outputs the others are compared with
WRONG = 0.05  # from which error on, relative to the largest output, a runtime has not computed the network
_ROUNDS, _REPEATS = 3, 8  # of kernels: how often runtimes take turns at most, and how often each runs in one


@dataclass(frozen=True)
class Settings:
    threads: int
    rounds: int
    seconds: float
    runtimes: tuple[str, ...]
    layers: bool
    norms: bool
    target: str = "llvm"


def results(settings: Settings) -> Path:
    """Return the file that these results go to: of this day and commit, and apart where the machine is held."""
    held = held_to.narrower(settings.target)
    return RESULTS / f"{now()[:10]}-{commit()['id'][:8] or 'unknown'}{f'-{held}' if held else ''}.json"


def run(names: Sequence[str], settings: Settings, path: Path, tell: Callable[[str], None]) -> list[str]:
    """Measures the networks that `path` does not have yet, and writes it; gives those that failed. names: of
    benchmarks.networks, or .onnx files. Raises InvalidInput where `path` has figures of another commit or target."""
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"networks": {}}
    failed, checked_out = list[str](), commit()
    if kept.get("commit", checked_out)["id"] != checked_out["id"]:
        measured = f"measured at {kept['commit']['id'] or 'no commit'}, checked out is {checked_out['id']}"
        raise InvalidInput(f"{path} has figures of another commit", [measured], "name another file with --into")
    if (target := kept.get("settings", {}).get("target", settings.target)) != settings.target:
        measured = f"measured for {target}, asked is {settings.target}"
        raise InvalidInput(f"{path} has figures of another target", [measured], "name another file with --into")
    held = held_to.narrower(settings.target)
    variables = held_to.variables(settings.runtimes, FILES / "held", tell) if held else {}
    result: dict[str, Any] = kept | {
        "when": now(),
        "commit": checked_out,
        "machine": machine(held),
        "settings": asdict(settings),
    }
    if settings.norms and "norms" not in result:
        tell("norms")
        result["norms"] = norms.measure(settings.threads, settings.rounds, settings.seconds, settings.target)
        write(path, result)
    for name in names:
        short = Path(name).stem
        if short in result["networks"]:
            continue
        begin = time.perf_counter()
        try:
            result["networks"][short] = network(
                name, settings, variables, lambda line, short=short: tell(f"{short}: {line}")
            )
        except (RenormError, RuntimeError) as error:  # the others are worth having
            tell(f"{short} FAILED: {error}")
            failed.append(short)
            continue
        tell(f"{short}: {time.perf_counter() - begin:.0f} s")
        write(path, result)
    return failed


def write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_json(result))


def _json(result: dict[str, Any]) -> str:
    """One line for each runtime and each kernel: to be read, and to be compared by git."""
    text = json.dumps(result, indent=1)
    return re.sub(r"[{\[][^{}\[\]]*[}\]]", lambda m: re.sub(r"\s*\n\s*", " ", m[0]), text) + "\n"


def network(
    name: str, settings: Settings, variables: Mapping[str, Mapping[str, str]], tell: Callable[[str], None]
) -> dict[str, Any]:
    """All that is measured of one network. variables: of the environment of each runtime."""
    watch = Watch([])
    tell("export")
    model, program, about = _files(name)
    FILES.mkdir(parents=True, exist_ok=True)
    artifact, narrow = (FILES / f"{model.stem}{of}.renorm" for of in ("", "-bfloat16"))
    tell("compile")
    compiled = _compiled(model, artifact, settings)
    contenders, failed = list[Contender](), dict[str, Any]()
    for runtime in settings.runtimes:
        missing = obstacle(runtime)
        if runtime == "renorm_bfloat16":
            _compile(model, narrow, settings, "", "bfloat16")
        files = {"renorm": artifact, "renorm_bfloat16": narrow, "torch": program, "inductor": program}
        file = files.get(runtime, model)
        if missing or file is None:
            failed[runtime] = {"failure": missing or "there is no program of torch.export"}
        else:
            contenders.append(Contender(runtime, runtime, file, settings.target, variables.get(runtime, {})))
    inputs = random_inputs(renorm.load(artifact, verify=False).inputs)
    compared = side_by_side(
        contenders, inputs, settings.threads,
        rounds=settings.rounds, seconds=settings.seconds, again=settings.rounds, tell=tell,
    )  # fmt: skip
    measured = compared.measured
    reference = next((m for m in measured if m.name == REFERENCE and m.latency), None)
    found = {m.name: _plain(m, reference) for m in measured} | failed
    shapes = {n: list(a.shape) for n, a in inputs.items()}
    told: dict[str, Any] = {**about, "inputs": shapes, "runtimes": found, "compile": compiled}
    if settings.layers:
        peers = [m.name for m in measured if m.latency and m.name in PROFILERS]
        told["layers"] = _layers(model, artifact, inputs, peers, settings, variables, tell)
    told["load"] = _load(compared, watch.disturbance())
    for i in compared.disturbed:
        tell(f"round {i + 1} stays disturbed: {compared.disturbances[i]}")
    return told


def _load(compared: Comparison, whole: Disturbance | None) -> dict[str, Any]:
    """What others took of the machine: steal time of the whole measurement, shares of each round that counts."""
    return {
        "steal": round(whole.steal, 4) if whole else None,
        "rounds": [d and {k: round(v, 4) for k, v in asdict(d).items()} for d in compared.disturbances],
        "repeated": compared.repeated,
        "disturbed": compared.disturbed,
    }


def _files(name: str) -> tuple[Path, Path | None, dict[str, Any]]:
    """The network as ONNX, as PyTorch has it, and whether renorm was developed on it."""
    if name.endswith(".onnx"):
        return Path(name), None, {"tuned": False}
    from benchmarks.networks import NETWORKS, export  # needs PyTorch

    return *export(name, FILES), {"tuned": NETWORKS[name].tuned}


def _compiled(model: Path, artifact: Path, settings: Settings) -> dict[str, Any]:
    """Seconds of `renorm compile`, the whole command and its stages, with an empty cache and with a full one."""
    with tempfile.TemporaryDirectory() as cache:
        return {state: _compile(model, artifact, settings, cache) for state in ("cold", "warm")}


def _compile(model: Path, artifact: Path, settings: Settings, cache: str, precision: str = "fast") -> dict[str, Any]:
    """cache: its folder; "" for the user's own."""
    begin = time.perf_counter()
    asked = ("-o", artifact, "--target", settings.target, "--precision", precision)
    told = _verb("compile", model, *asked, threads=settings.threads, **({"RENORM_CACHE_DIR": cache} if cache else {}))
    report = told["report"]
    wall = time.perf_counter() - begin
    return {"command_seconds": round(wall, 3), "seconds": report["seconds"], "memory": report["memory"]}


def _layers(
    model: Path,
    artifact: Path,
    inputs: Mapping[str, Any],
    peers: Sequence[str],
    settings: Settings,
    variables: Mapping[str, Mapping[str, str]],
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Each kernel launch: microseconds, and what it must do at least; and layers, which have times of the others too.
    All take turns, as networks do."""
    own, theirs = list[dict[str, Any]](), dict[str, list[list[PeerKernel]]]()
    rounds, threads = min(settings.rounds, _ROUNDS), settings.threads
    for done in range(rounds):
        tell(f"kernels, round {done + 1} of {rounds}")
        own.append(_verb("profile", artifact, "--repeats", str(_REPEATS), threads=threads))
        for runtime in peers:
            theirs.setdefault(runtime, []).append(
                profiled(runtime, model, inputs, threads, _REPEATS, variables.get(runtime, {}))
            )
    launches = list(zip(*(told["launches"] for told in own), strict=True))
    found = layers(
        onnx.load(model, load_external_data=False).graph,
        [turns[0]["nodes"] for turns in launches],
        {runtime: medians(turns) for runtime, turns in theirs.items()},
    )
    of = {kernel: i for i, layer in enumerate(found) for kernel in layer.kernels}
    kernels = [
        {
            "kernel": turns[0]["kernel"],
            "node": next(iter(turns[0]["nodes"]), ""),
            "us": round(median(t["seconds"] for t in turns) * 1e6, 1),
            **turns[0]["work"],
            "layer": of[i],
        }
        for i, turns in enumerate(launches)
    ]
    return {
        "limits": {k: median(told["limits"][k] for told in own) for k in own[0]["limits"]},
        "network_seconds": median(told["network_seconds"] for told in own),
        "kernels": kernels,
        "layers": [{runtime: round(us, 1) for runtime, us in layer.us.items()} for layer in found if peers],
    }


def _verb(verb: str, *arguments: str | os.PathLike[str], threads: int, **variables: str) -> dict[str, Any]:
    """Return what a verb of renorm prints as JSON, run in a process of its own."""
    call = [sys.executable, "-m", "renorm", verb, *map(str, arguments), "--threads", str(threads), "--json"]
    done = subprocess.run(call, capture_output=True, text=True, env=environment(threads) | variables)
    if done.returncode:
        raise RuntimeError(f"renorm {verb} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def _plain(measured: Measured, reference: Measured | None) -> dict[str, Any]:
    """As JSON keeps it."""
    if measured.latency is None:
        return {"failure": measured.failure}
    error = measured.error(reference) if reference else None
    if error is not None and not error <= WRONG:
        return {
            "failure": f"its outputs differ from those of {REFERENCE} by {error:.2g} of the largest",
            "error": error,
        }
    latency = {k: v for k, v in asdict(measured.latency).items() if k != "name"}
    return {
        "ms": {k: [round(x, 4) for x in v] if k == "rounds" else round(v, 4) for k, v in latency.items()},
        "open_seconds": round(measured.open_seconds, 3),
        "first_seconds": round(measured.first_seconds, 3),
        "peak_bytes": measured.peak_bytes,
        "error": error,
        "avx512": measured.avx512,
    }
