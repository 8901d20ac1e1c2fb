"""python -m benchmarks run, pytorch, keras, compiled, training, ...: measure. page: docs/benchmarks.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from benchmarks import coverage
from benchmarks.machine import commit, now
from benchmarks.run import RESULTS, RUNTIMES, Settings, results, write
from benchmarks.run import run as measure
from renorm.core.errors import RenormError
from renorm.runtime import threads as teams


@click.group()
def main() -> None:
    """Speed and memory of renorm beside other runtimes."""


for command in coverage.COMMANDS:
    main.add_command(command)


@main.command()
@click.option("--networks", default="", help="Names of benchmarks.networks, or .onnx files; default: all networks.")
@click.option("--runtimes", default=",".join(RUNTIMES), show_default=True)
@click.option("--threads", type=click.IntRange(1), default=None, help="Default: one for each core.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="How often runtimes take turns.")
@click.option("--seconds", type=float, default=2.0, show_default=True, help="How long each runtime runs a network.")
@click.option("--layers/--no-layers", default=True, help="Whether to measure each kernel of renorm too.")
@click.option("--norms/--no-norms", default=True, help="Whether to measure normalizations alone too.")
@click.option(
    "--target", default="llvm", show_default=True,
    help='What renorm compiles for. "llvm -mcpu=haswell", on a newer CPU: other runtimes are held to AVX2, too.',
)  # fmt: skip
@click.option(
    "--into", type=click.Path(path_type=Path), help="The file of results. Networks that it has are not measured again."
)
def run(
    networks: str,
    runtimes: str,
    threads: int | None,
    rounds: int,
    seconds: float,
    layers: bool,
    norms: bool,
    target: str,
    into: Path | None,
) -> None:
    """Measures networks beside other runtimes, in turns, and each kernel of renorm."""
    settings = Settings(teams.resolve(threads), rounds, seconds, tuple(runtimes.split(",")), layers, norms, target)
    path = into or results(settings)
    names = networks.split(",") if networks else _all()
    failed = measure(names, settings, path, _tell)
    print(path)
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


@main.command()
@click.option("--networks", default="", help="package/name of benchmarks.pytorch, or packages; default: all.")
@click.option("--into", type=click.Path(path_type=Path), default=None, help="The file of results.")
def pytorch(networks: str, into: Path | None) -> None:
    """Takes networks of PyTorch's packages through torch.export, and compares them with eager float64."""
    from benchmarks import pytorch as programs

    path = into or RESULTS / f"pytorch-{now()[:10]}-{commit()['id'][:8]}.json"
    programs.run(networks.split(",") if networks else [], path, _tell)
    print(path)


@main.command("pytorch-page")
def pytorch_page() -> None:
    """Writes docs/pytorch-networks.md from the results."""
    from benchmarks.pytorch_page import write as write_page

    print(write_page())


@main.command()
@click.option("--networks", default="", help="Names of benchmarks.networks; default: all.")
@click.option("--batches", default="1,8", show_default=True)
@click.option("--threads", type=click.IntRange(1), default=None, help="Default: one for each core.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="How often runtimes take turns.")
@click.option("--seconds", type=float, default=2.0, show_default=True, help="How long each runtime runs a network.")
@click.option("--into", type=click.Path(path_type=Path), default=None, help="The file of results.")
def compiled(networks: str, batches: str, threads: int | None, rounds: int, seconds: float, into: Path | None) -> None:
    """Measures torch.compile(backend="renorm") beside eager PyTorch and inductor."""
    from benchmarks import compiled as measured  # needs PyTorch

    path = into or RESULTS / f"torch-compile-{now()[:10]}-{commit()['id'][:8]}.json"
    names = networks.split(",") if networks else []
    measured.run(names, [*map(int, batches.split(","))], teams.resolve(threads), rounds, seconds, path, _tell)
    print(path)


@main.command("compiled-page")
def compiled_page() -> None:
    """Writes docs/torch-compile.md from the newest results of each machine."""
    from benchmarks.compiled_page import write as write_page  # needs PyTorch

    print(write_page())


@main.command("training-steps")
@click.option("--networks", default="resnet50,resnet50_ibn", show_default=True)
@click.option("--batches", default="8,32", show_default=True)
@click.option("--threads", type=click.IntRange(1), default=None, help="Default: one for each core.")
@click.option("--rounds", type=click.IntRange(1), default=11, show_default=True, help="How often runtimes take turns.")
@click.option("--into", type=click.Path(path_type=Path), default=None, help="The file of results.")
def training_steps(networks: str, batches: str, threads: int | None, rounds: int, into: Path | None) -> None:
    """Measures steps of training under torch.compile(backend="renorm") beside eager PyTorch and inductor."""
    from benchmarks import training_steps as steps  # needs PyTorch

    path = into or RESULTS / f"steps-{now()[:10]}-{commit()['id'][:8]}.json"
    sizes = [*map(int, batches.split(","))]
    write(path, steps.measure(teams.resolve(threads), rounds, networks.split(","), sizes, _tell))
    print(path)


@main.command()
@click.option("--networks", default="", help="Names of keras.applications; default: all.")
@click.option("--into", type=click.Path(path_type=Path), default=None, help="The file of results.")
def keras(networks: str, into: Path | None) -> None:
    """Takes networks of keras.applications through .keras files, and compares them with Keras."""
    from benchmarks import keras_networks as files

    path = into or RESULTS / f"keras-{now()[:10]}-{commit()['id'][:8]}.json"
    files.run(networks.split(",") if networks else [], path, _tell)
    print(path)


@main.command()
@click.option("--networks", default="", help="Names of benchmarks.quantized_networks; default: all.")
@click.option("--every-form", is_flag=True, help="Each network in every form, not in four in turn.")
@click.option("--parts", default="onnx,tflite,latency", show_default=True)
@click.option("--into", type=click.Path(path_type=Path), default=None, help="The file of results, which is added to.")
def quantized(networks: str, every_form: bool, parts: str, into: Path | None) -> None:
    """Compares quantized networks with the integer kernels of ONNX Runtime and LiteRT, and measures some."""
    from benchmarks import quantized as files  # needs PyTorch

    path = into or RESULTS / f"quantized-{now()[:10]}-{commit()['id'][:8]}.json"
    failed = files.run(networks.split(",") if networks else [], parts.split(","), path, _tell, every_form)
    print(path)
    if failed:
        sys.exit(f"more than a step apart, or not read: {'; '.join(failed)}")


@main.command("quantized-page")
def quantized_page() -> None:
    """Writes docs/quantized.md from the newest results."""
    from benchmarks.quantized_page import write as write_page

    print(write_page())


@main.command()
@click.option("--cases", type=click.IntRange(1), default=500, show_default=True)
@click.option("--into", type=click.Path(path_type=Path), help="The file of results.")
def folds(cases: int, into: Path | None) -> None:
    """Optimizes random graphs with renorm and other graph optimizers, and counts norms that are gone."""
    from benchmarks.folds import run, save  # needs PyTorch

    path = into or RESULTS / f"folds-{now()[:10]}-{commit()['id'][:8] or 'unknown'}.json"
    save(run(cases, _tell), path)
    print(path)


@main.command()
@click.option("--threads", type=click.IntRange(1), default=None, help="Default: one for each core.")
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True, help="How often runtimes take turns.")
@click.option("--seconds", type=float, default=0.15, show_default=True, help="How long one turn takes.")
@click.option("--shape", default="32x64x112x112", show_default=True, help="Of what is normalized.")
@click.option("--step/--no-step", default=True, help="Whether to measure a step of a small ResNet too.")
@click.option("--into", type=click.Path(path_type=Path), help="The file of results.")
def training(threads: int | None, rounds: int, seconds: float, shape: str, step: bool, into: Path | None) -> None:
    """Measures norms in training beside PyTorch, as called and with its memory kept, and a step of a small ResNet."""
    from benchmarks import training as norms

    path = into or RESULTS / f"training-{now()[:10]}-{commit()['id'][:8] or 'unknown'}.json"
    result = norms.measure(teams.resolve(threads), rounds, seconds, norms.read(shape), _tell)
    write(path, result)
    if step:
        result["step"] = norms.measure_step(teams.resolve(threads), rounds, _tell)
        write(path, result)
    print(path)


@main.command("any-shape")
@click.option("--networks", default="", help="Names of benchmarks.any_shape; default: all networks.")
@click.option("--measures", default="", help="Of first,kernels,memory,calls,compile; default: all.")
@click.option("--threads", type=click.IntRange(1), default=None, help="Default: one for each core.")
@click.option("--shapes", type=click.IntRange(2), default=8, show_default=True, help="Of each network's kernels.")
@click.option(
    "--seen", type=click.IntRange(2), default=100, show_default=True, help="Shapes called for the first time."
)
@click.option("--calls", type=click.IntRange(1), default=300, show_default=True, help="Calls of random shapes.")
@click.option("--target", default="llvm", show_default=True, help='Such as "llvm -mcpu=haswell", on a newer CPU.')
@click.option("--quick", is_flag=True, help="Those networks whose calls are measured, few shapes and calls.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON, too.")
@click.option("--into", type=click.Path(path_type=Path), help="The file of results.")
def any_shape(
    networks: str,
    measures: str,
    threads: int | None,
    shapes: int,
    seen: int,
    calls: int,
    target: str,
    quick: bool,
    as_json: bool,
    into: Path | None,
) -> None:
    """Measures networks whose extents are open: first calls, kernels, memory, random calls, compiling."""
    from benchmarks import any_shape as opened  # needs PyTorch

    path = into or RESULTS / f"any-shape-{now()[:10]}-{commit()['id'][:8] or 'unknown'}.json"
    served = [name for name, s in opened.SUBJECTS.items() if s.is_served]
    names = networks.split(",") if networks else served if quick else list(opened.SUBJECTS)
    of = tuple(measures.split(",")) if measures else opened.MEASURES
    few = (3, 12, 20, 1) if quick else (shapes, seen, calls, 3)
    result = opened.measure(names, opened.Settings(teams.resolve(threads), of, *few, target), _tell)
    write(path, result)
    for name, ratios in result["ratios"].items():
        _tell(f"{name}: {', '.join(f'{of} {ratio:.3f}' for of, ratio in ratios.items())}")
    print(json.dumps(result) if as_json else path)
    if result["failed"]:
        sys.exit(f"not measured: {', '.join(result['failed'])}")


@main.command()
@click.option("--target", default="llvm", show_default=True, help='Such as "llvm -mcpu=haswell", on a newer CPU.')
@click.option("--json", "as_json", is_flag=True, help="Print each way as JSON, too.")
def estimates(target: str, as_json: bool) -> None:
    """Measures convolutions by each algorithm, beside what it is estimated to take."""
    from benchmarks.estimates import measure

    result = measure(target, _tell)
    if as_json:
        print(json.dumps(result))
    for what in ("nanoseconds of a product", "rank correlation", "median error"):
        _tell(f"{what}: {result[what]:.3f}")
    _tell(f"chosen over fastest: {', '.join(f'{ratio:.2f}' for ratio in result['chosen over fastest'])}")


@main.command()
@click.option("--networks", default="", help="Names of benchmarks.networks that are exported, or .onnx files.")
@click.option("--target", default="llvm", show_default=True, help='Such as "llvm -mcpu=haswell", on a newer CPU.')
@click.option("--worst", type=click.IntRange(0), default=20, show_default=True, help="Print so many kernels.")
@click.option("--json", "as_json", is_flag=True, help="Print each kernel as JSON, too.")
def predictions(networks: str, target: str, worst: int, as_json: bool) -> None:
    """Measures each kernel of networks on one thread, beside what its loops are predicted to take."""
    from benchmarks.predictions import NETWORKS, measure, outliers

    result = measure(networks.split(",") if networks else NETWORKS, target, _tell)
    if as_json:
        print(json.dumps(result))
    for line in outliers(result, worst):
        _tell(line)
    for what in ("nanoseconds of a predicted one", "rank correlation", "median error", "ninth of ten errors"):
        _tell(f"{what}: {result[what]:.3f}")


@main.command()
def page() -> None:
    """Writes docs/benchmarks.md, its plots, and the section of README.md from the newest results of each machine."""
    from benchmarks.page import write as write_page  # needs matplotlib

    write_page()


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _all() -> list[str]:
    from benchmarks.networks import NETWORKS  # needs PyTorch

    return list(NETWORKS)


if __name__ == "__main__":
    try:
        main()
    except ModuleNotFoundError as error:
        sys.exit(f"{error}: pip install -e '.[bench]'")
    except RenormError as error:
        sys.exit(str(error))
