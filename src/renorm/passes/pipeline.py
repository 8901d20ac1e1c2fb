"""The pipeline: every pass over graphs, in order, with the opt_level from which it runs.

level 0  nothing but lowering: inference is spelled out (dropout goes, batch norm becomes scale and shift)
level 1  + constants are folded, dead code and common subexpressions go
level 2  + norms in pieces become one op each; norms are folded into their neighbours, nodes are fused into kernels
level 3  + algorithms that need fewer operations and round otherwise, unless precision is "exact"; values between
         convolutions lie in blocks of channels; statistics are taken where their data are made
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from renorm.core.errors import InternalError, RenormError, raised_at
from renorm.core.target import Target
from renorm.graph import verify as verifier
from renorm.graph.ir import Graph
from renorm.graph.rewrite import Refused
from renorm.graph.typical import typical_sizes
from renorm.passes import (
    collapse_pixels,
    contractions,
    decompose,
    dilation,
    flattened_products,
    fold,
    gathered_products,
    integer_products,
    padding,
    products,
    quantization,
    raise_attention,
    scattered_runs,
    selection,
    simplify,
    split_variadic,
    unpack,
)
from renorm.passes.algorithms import ChooseAlgorithms
from renorm.passes.around_batch_norms import JoinBatchNorms
from renorm.passes.attention_parts import AttendInParts
from renorm.passes.common_subexpressions import ShareCommon
from renorm.passes.constants import FixStaticOperands, FoldConstants
from renorm.passes.context import Context, Pass, check_keep
from renorm.passes.copied_inputs import CopyInputs
from renorm.passes.dead_code import RemoveDeadCode
from renorm.passes.dot_products import KeepBlocks, ReadHeld, ScaleByReciprocals, SumNeighbours
from renorm.passes.filled_channels import FillChannels
from renorm.passes.fuse import Fuse, OneNodePerKernel
from renorm.passes.held_integers import HoldIntegers
from renorm.passes.layouts import ChooseLayouts
from renorm.passes.litert import FollowLiteRT
from renorm.passes.mixed_precision import ChoosePrecision, arithmetic
from renorm.passes.norm_fates import Ledger
from renorm.passes.partition import ClaimGroups, KeepUnits
from renorm.passes.quantized_products import MultiplyIntegers, is_weight
from renorm.passes.raising import RaiseNorms
from renorm.passes.recurrent import TakeStepsApart
from renorm.passes.rewriting import ApplyRules
from renorm.passes.statistics import StatisticsOfTiles
from renorm.passes.tied_embeddings import ReadTied
from renorm.runtime.report import Report

if TYPE_CHECKING:
    from renorm.passes.probe import Probes

# Passes on the graph as a model: what they leave is a model again, which can be written back.
MODEL: list[tuple[int, Pass]] = [
    # level, pass
    (0, KeepUnits()),
    (0, ApplyRules(simplify.IDENTITIES)),
    (0, FixStaticOperands()),
    (1, RemoveDeadCode()),
    (1, FoldConstants(is_weight)),
    (1, ShareCommon()),
    (2, RaiseNorms()),
    (2, KeepUnits()),  # of norms that are there now
    (0, ClaimGroups()),  # on constants that are computed, and before anything is taken apart
    (2, ApplyRules((*simplify.RULES, *scattered_runs.RULES))),
    (2, ApplyRules((*padding.RULES, *dilation.RULES, *products.RULES, *fold.RULES))),
    (2, FoldConstants(is_weight)),
    (1, RemoveDeadCode()),
]

IN_KERNELS = (
    *contractions.RULES, *raise_attention.RULES, *decompose.RULES, *collapse_pixels.RULES, *simplify.KERNEL_RULES,
    *quantization.RULES, *integer_products.RULES, *gathered_products.RULES,
)  # fmt: skip

# Passes towards kernels.
KERNELS: list[tuple[int, Pass]] = [
    (0, FixStaticOperands(opens=True)),
    (0, FollowLiteRT()),
    (0, TakeStepsApart()),
    (0, ApplyRules((*unpack.RULES, *split_variadic.RULES))),
    (2, JoinBatchNorms()),
    (2, ApplyRules(flattened_products.RULES)),
    (2, RemoveDeadCode()),  # views, beside which patterns would find other readers
    (3, SumNeighbours()),
    (2, ApplyRules(IN_KERNELS)),
    (2, MultiplyIntegers()),
    (1, FoldConstants()),
    (1, ShareCommon()),
    (2, ReadTied()),
    (0, RemoveDeadCode()),  # at every level: a kernel whose result nobody reads has nothing to write
    (3, FillChannels()),
    (3, ChooseAlgorithms()),
    (3, StatisticsOfTiles()),
    (3, ShareCommon()),  # the same weight, transformed for several
    (3, KeepBlocks()),
    (3, ReadHeld()),
    (3, ScaleByReciprocals()),
    (0, RemoveDeadCode()),
    (0, CopyInputs()),
    (0, AttendInParts()),
    (0, OneNodePerKernel()),
    (2, Fuse()),
    (0, ChoosePrecision()),  # of what goes from kernel to kernel
    (2, HoldIntegers()),
    (3, ChooseLayouts()),  # of the same
]

Watch = Callable[[str, str, str], None]
"""Called after each pass with its name, and the texts of the graph before and after it."""


def optimize(
    graph: Graph,
    *,
    level: int = 3,
    keep: Iterable[str] = (),
    target: Target | None = None,
    verify: bool = False,
    precision: str = "fast",
    for_export: bool = False,
    admits: Callable[[str], bool] = lambda op: True,
    passes: Sequence[str] = (),
    watch: Watch | None = None,
    without: Collection[str] = (),
) -> tuple[Graph, Report]:
    """Runs the pipeline on `graph`, which it takes over, and gives the result with a report (norms, refusals,
    diagnoses).

    level: 0 to 3. keep: names of ops or nodes that no pass takes apart. verify: each rewrite and pass is compared
    with what was there before, on random inputs; one that differs too much is reverted and named among the refusals.
    precision: "fast", "exact" without algorithms that round differently, "bfloat16", in which memory holds values
    between kernels where passes.mixed_precision allows it, or "tf32", which tensor cores multiply. for_export: only the
    passes whose result is a model again; admits: whether its format has an op that a pass would bring in. passes: names
    of passes or rules of MODEL (passes.selection), which are run instead, in that order. watch: told what each pass
    does. without: names of passes towards kernels that are left out. Raises InvalidInput for an unknown name in `keep`
    or `passes`, and where `verify` finds no inputs.
    """
    sizes = typical_sizes(graph)
    context = Context(target or Target(), level, check_keep(graph, keep), precision, admits=admits, sizes=sizes)
    ledger = Ledger(graph)
    names = [v.name for v in graph.outputs]
    probes = None
    if verify:
        from renorm.passes.probe import Probes  # what compares arrays: most compile without

        probes = Probes(graph)
    model = selection.choose(passes, [p for _, p in MODEL]) if passes else _named(MODEL, level)
    kernels = [(name, one) for name, one in _named(KERNELS, level) if name not in without]
    for stage in [model] if passes or for_export else [model, kernels]:
        for name, one in stage:
            before = str(graph) if watch else ""
            graph = _run(one, graph, context, probes)
            if isinstance(one, RaiseNorms):
                ledger.add_raised(graph, context.raised)
            if watch:
                watch(name, before, str(graph))
        if stage is model:
            ledger.close_model(graph)
    for v in graph.constants.values():
        v.exact = None
    verifier.verify(graph)
    report = Report(
        norms=ledger.records(graph, context),
        near_norms=tuple(context.near_norms),
        renamed={old: new.name for old, new in zip(names, graph.outputs) if old != new.name},
        names=ledger.names(graph),
        refusals=tuple((r.rule, r.node, r.reason) for r in context.log.refusals),
        diagnoses=tuple(str(d) for d in graph.metadata.get("diagnoses", ())),
        assumptions=tuple(graph.metadata.get("assumptions", ())),
        precisions=tuple(context.precisions),
        arithmetic=arithmetic(context),
    )
    return graph, report


def _named(passes: Sequence[tuple[int, Pass]], level: int) -> list[tuple[str, Pass]]:
    return [(type(one).__name__, one) for since, one in passes if level >= since]


def _run(one: Pass, graph: Graph, context: Context, probes: Probes | None) -> Graph:
    """The graph after a pass; with probes, the graph before it where the pass broke it, or changed what it computes.
    Rules are measured one by one as well."""
    if probes is None or isinstance(one, ChoosePrecision):  # it rounds on purpose; compiled code is measured
        _apply(one, graph, context)
        return graph
    from renorm.passes.probe import fingerprint

    before, content = graph.copy(), fingerprint(graph)
    context.probe = probes.measure
    _apply(one, graph, context)
    context.probe = None
    reason = next(iter(verifier.violations(graph)), None)
    if reason is None and fingerprint(graph) != content:
        reason = probes.compare(graph)
    if reason is None:
        return graph
    name = type(one).__name__
    context.log.reverted[name, graph.name] = Refused(name, graph.name, (), f"reverted: {reason}")
    probes.evaluate(before)
    return before


def _apply(one: Pass, graph: Graph, context: Context) -> None:
    try:
        one.run(graph, context)
    except RenormError:
        raise
    except Exception as error:  # whatever a pass did not expect is a fault of renorm
        raise InternalError(
            f"pass {type(one).__name__} failed on {graph.name}: {type(error).__name__}: {error}",
            [raised_at(error), "the graph when it failed:", *str(graph).splitlines()],
            f"report this with the model; `renorm inspect MODEL --opt-level {context.level}` reproduces it",
        ) from error
