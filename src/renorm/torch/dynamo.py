"""torch.compile(model, backend="renorm"): what Dynamo captures, as AOTAutograd makes ATen calls of it.

Without gradients each graph is cut in parts that renorm reads, as few and as large as they can be, and calls between
them, which stay PyTorch's. With gradients renorm runs what lies around norms, forward and backward
(`training_graphs.py`). The logger "renorm.torch" says what became of each graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config
from torch._guards import TracingContext
from torch.fx.graph import _BoxedCodeGen

from renorm.torch import training_graphs
from renorm.torch.instance_norms import as_group_norms
from renorm.torch.parts import LOG, calls_of, cut

# Backward graphs are made with forward ones, not in the first step: what that takes of memory would lie behind what the
# step keeps, and stay (resnet50, batch 8: 130 MB). Not every version has it.
_AT_ONCE = {name: True for name in ("force_non_lazy_backward_lowering",) if hasattr(config, name)}


def backend(graph: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Return what runs a graph of Dynamo's. options: those of renorm.compile, as torch.compile(options=) hands them."""
    chosen = dict(options.get("options") or {})
    kept = [x if isinstance(x, Tensor) and _is_kept(x) else None for x in example_inputs]

    def inference(calls: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        is_all = len(kept) == sum(n.op == "placeholder" for n in calls.graph.nodes)
        total = len(calls_of(calls))  # which cutting takes out of the graph
        made, parts = cut(calls, kept if is_all else [None] * len(given), chosen)
        LOG.info("%d of %d calls in %d parts", total - len(calls_of(made)), total, len(parts))
        return _boxed(made)

    def training(calls: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        context = TracingContext.try_get()
        if context is not None and context.fw_metadata is not None:
            context.fw_metadata.bw_donated_idxs = []  # nothing is overwritten: a backward pass may run again
        return _boxed(training_graphs.cut(calls, chosen))

    made = aot_autograd(
        fw_compiler=training,
        bw_compiler=training,
        inference_compiler=inference,
        partition_fn=training_graphs.partition,
        decompositions={},
        keep_inference_input_mutations=True,  # of running statistics, which a pass that recomputes reads as they were
    )
    if torch.is_grad_enabled():
        as_group_norms(graph)
    with config.patch(_AT_ONCE):
        return made(graph, example_inputs)


def _is_kept(x: Tensor) -> bool:
    """Return whether a tensor is a parameter or a buffer, which every call is given again."""
    return isinstance(x, torch.nn.Parameter) or getattr(x, "_dynamo_static_input_type", None) is not None


def _boxed(made: fx.GraphModule) -> Callable[..., Any]:
    """Return what takes a list, which it empties, and lets go of each tensor after its last use."""
    made.graph.set_codegen(_BoxedCodeGen())
    made.recompile()
    forward = made.forward

    def call(given: list[Any]) -> Any:
        return forward(given)

    vars(call)["_boxed_call"] = True  # as AOTAutograd asks it
    return call
