"""How many of the onnx package's cases of single nodes pass, by groups of ops, beside ONNX Runtime's own backend.

    python -m tests.frontends.conformance_groups

What passes here is what conformance.txt leaves (test_conformance.py proves it); ONNX Runtime runs each case, in a
process of its own, and is held against the same expected values.
"""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from tests.frontends.test_conformance import CASES, agree, reasons

os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"  # cases of the opset that comes next count as well

GROUPS = {
    "convolution and pooling": "Conv ConvInteger ConvTranspose CausalConvWithState DeformConv AveragePool MaxPool "
    "LpPool GlobalAveragePool GlobalMaxPool MaxUnpool Col2Im",
    "vision": "Resize Upsample GridSample AffineGrid RoiAlign NonMaxSuppression CenterCropPad ImageDecoder "
    "DepthToSpace SpaceToDepth",
    "normalization": "BatchNormalization GroupNormalization InstanceNormalization LayerNormalization RMSNormalization "
    "LRN LpNormalization MeanVarianceNormalization",
    "quantization": "QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul MatMulInteger",
    "attention": "Attention FlexAttention LinearAttention RotaryEmbedding TensorScatter",
    "recurrence and control flow": "GRU LSTM RNN Loop Scan If",
    "sequences and optionals": "SequenceInsert SequenceMap SplitToSequence OptionalGetElement OptionalHasElement",
    "matrix products": "Gemm MatMul Einsum Det",
    "reductions": "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare ArgMax ArgMin CumSum CumProd TopK Mean Sum Max Min",
    "softmax and losses": "Softmax LogSoftmax Hardmax NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
    "movement and indexing": "Concat Split Slice Pad Reshape Flatten Squeeze Unsqueeze Transpose Tile Expand Gather "
    "GatherElements GatherND Scatter ScatterElements ScatterND ReverseSequence Compress NonZero OneHot Unique Trilu "
    "Where Identity Shape Size Range ConstantOfShape Constant EyeLike",
    "casts": "Cast CastLike BitCast",
    "signals": "DFT STFT MelWeightMatrix BlackmanWindow HammingWindow HannWindow",
    "strings and encoders": "StringConcat StringNormalizer StringSplit RegexFullMatch TfIdfVectorizer LabelEncoder "
    "TreeEnsemble ArrayFeatureExtractor Binarizer",
    "training and random numbers": "Adagrad Adam Momentum Gradient Bernoulli Dropout",
}
_GROUP_OF = {op: group for group, ops in GROUPS.items() for op in ops.split()}
OTHERS = "elementwise"


def group_of(name: str) -> str:
    """Return the group of a case; one of a body is its op's."""
    case = CASES.get(name.split("_expanded")[0], CASES[name])
    return _GROUP_OF.get(case.model.graph.node[-1].op_type, OTHERS)


def by_onnx_runtime(name: str) -> bool:
    """Return whether ONNX Runtime's backend gives what is expected."""
    import onnxruntime
    from onnxruntime import backend

    onnxruntime.set_default_logger_severity(4)
    case = CASES[name]
    try:
        rep = backend.prepare(case.model, "CPU")
        for inputs, expected in case.sets:
            results = rep.run(list(inputs))
            assert len(results) == len(expected)
            for theirs, ours in zip(results, expected):
                agree(theirs, ours, case, inputs)
    except Exception:  # whatever it raises over what it does not run
        return False
    return True


def table() -> str:
    """Return the groups, with how many cases they have and how many pass, as a table."""
    names = [name for name in CASES if CASES[name].kind == "node"]
    cases, ours, theirs = Counter[str](), Counter[str](), Counter[str]()
    pool = ProcessPoolExecutor(1, get_context("fork"))
    for name in names:
        group = group_of(name)
        cases[group] += 1
        ours[group] += not reasons(name)
        try:
            theirs[group] += pool.submit(by_onnx_runtime, name).result()
        except BrokenProcessPool:  # a case that ends the process does not pass
            pool = ProcessPoolExecutor(1, get_context("fork"))
    pool.shutdown()
    lines = ["| group | cases | renorm | ONNX Runtime |", "|---|---|---|---|"]
    for group in (*GROUPS, OTHERS):
        lines.append(f"| {group} | {cases[group]} | {ours[group]} | {theirs[group]} |")
    total = " | ".join(f"{counted.total():,}" for counted in (cases, ours, theirs))
    return "\n".join([*lines, f"| **all** | {total} |"])


if __name__ == "__main__":
    print(table())
