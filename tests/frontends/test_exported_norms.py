"""Norms as PyTorch exports them, in pieces or whole, at every opset: one op each, and what PyTorch computes."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import pytest

import renorm
from renorm.passes.pipeline import optimize

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
nn = torch.nn


class Rms(nn.Module):
    """As Llama and T5 write it."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Spelled(nn.Module):
    """As ConvNeXt writes it, over any axes."""

    def __init__(self, axes: tuple[int, ...], *shape: int):
        super().__init__()
        self.axes, self.weight, self.bias = axes, nn.Parameter(torch.ones(*shape)), nn.Parameter(torch.ones(*shape))

    def forward(self, x: Any) -> Any:
        u = x.mean(self.axes, keepdim=True)
        s = (x - u).pow(2).mean(self.axes, keepdim=True)
        return self.weight * ((x - u) / torch.sqrt(s + 1e-6)) + self.bias


NORMS: dict[str, tuple[Any, tuple[int, ...], str]] = {
    "layer": (lambda: nn.LayerNorm(6), (2, 3, 6), "layer_norm"),
    "layer_2d": (lambda: nn.LayerNorm((3, 6)), (2, 3, 6), "layer_norm"),
    "group": (lambda: nn.GroupNorm(2, 4), (2, 4, 5, 3), "group_norm"),
    "instance": (lambda: nn.InstanceNorm2d(4, affine=True), (2, 4, 5, 3), "instance_norm"),
    "rms": (lambda: nn.RMSNorm(6), (2, 3, 6), "rms_norm"),
    "rms_spelled": (lambda: Rms(6), (2, 3, 6), "rms_norm"),
    "instance_spelled": (lambda: Spelled((2, 3), 4, 1, 1), (2, 4, 5, 3), "instance_norm"),
    "group_spelled": (lambda: Spelled((1, 2, 3), 4, 1, 1), (2, 4, 5, 3), "group_norm"),
}


def exported(module: Any, x: Any, opset: int, dynamo: bool) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            torch.onnx.export(module, (x,), opset_version=opset, dynamo=True, verbose=False).save(file)
        else:
            torch.onnx.export(module, (x,), file, opset_version=opset, dynamo=False, verbose=False)
    return file.getvalue()


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize(
    ("opset", "dynamo"),
    [(9, False), (13, False), (17, False), *(pytest.param(o, True, marks=pytest.mark.slow) for o in (18, 20, 21))],
)
def test_norms_are_one_op(name: str, opset: int, dynamo: bool):
    make, shape, op = NORMS[name]
    if name == "rms" and not dynamo:
        pytest.skip("PyTorch's exporter by tracing has no rms_norm")
    torch.manual_seed(opset)
    module = make().eval()
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -2, 2)
    x = torch.randn(*shape)
    content = exported(module, x, opset, dynamo)
    graph, report = optimize(renorm.read(content).copy(), level=2)
    assert [n.op.name for n in graph.nodes] == [op], f"{graph}\n{report}"
    (record,) = report.norms
    assert (record.kind, record.fate) == (op, "kept")
    expected = module(x).detach().numpy()
    np.testing.assert_allclose(renorm.compile(content).run(x.numpy())[0], expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("opset", "found"), [(13, {"Div", "Pow"}), (17, {"LayerNormalization"})])
def test_written_files_have_what_their_opset_has(opset: int, found: set[str], tmp_path: Any):
    """A layer norm in pieces becomes one where ONNX has it, and stays in pieces where not."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    x = torch.randn(2, 5, 6)
    content = exported(Spelled((2,), 6), x, opset, False)
    report = renorm.optimize(content, tmp_path / "out.onnx")
    kinds = {n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node}
    assert found <= kinds
    assert len(kinds) == 1 or "LayerNormalization" not in found
    assert opset >= 17 or any("no layer_norm at this version" in reason for _, _, reason in report.refusals)
    sessions = [runtime.InferenceSession(m) for m in (content, str(tmp_path / "out.onnx"))]
    before, after = (s.run(None, {s.get_inputs()[0].name: x.numpy()})[0] for s in sessions)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("opset", "raised"), [(13, False), (18, False), (21, True)])
def test_group_norms_are_written_at_every_opset(opset: int, raised: bool, tmp_path: Any):
    """What opset 18 calls so has numbers per group and is deprecated."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    x = torch.randn(2, 4, 5, 3)
    content = exported(nn.Sequential(nn.GroupNorm(2, 4), nn.ReLU()), x, opset, False)
    renorm.optimize(content, tmp_path / "out.onnx")
    kinds = {n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node}
    assert raised == ("GroupNormalization" in kinds)
    sessions = [runtime.InferenceSession(m) for m in (content, str(tmp_path / "out.onnx"))]
    before, after = (s.run(None, {s.get_inputs()[0].name: x.numpy()})[0] for s in sessions)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)
