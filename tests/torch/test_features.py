"""The table of docs/training-torch.md: under each feature of torch results are torch's, computed by whom it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.torch.features import FEATURES
from tests.torch.pairs import TOLERANCE, pair

from renorm.runtime.module import Module

PAGE = Path(__file__).parents[2] / "docs" / "training-torch.md"
TABLE = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", PAGE.read_text().split("## With the rest of torch")[1], re.M)[1:])
ELSEWHERE = {
    "`DistributedDataParallel`, `FullyShardedDataParallel`, `fully_shard`": "test_ddp.py",
    "`torch.jit.script`": "below",
}
LAYERS = {
    "BatchNorm2d": (4,),
    "InstanceNorm2d": (4,),
    "GroupNorm": (2, 4),
    "LayerNorm": (6,),
    "RMSNorm": (6,),
}

pytestmark = [
    pytest.mark.usefixtures("kept_code"),
    pytest.mark.filterwarnings("ignore"),  # torch's own, of features that are new or old
]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels' ops."""
    names, run = list[str](), Module._run

    def counted(self: Module, *how: Any) -> bool:
        names.append(self.name)
        return run(self, *how)

    monkeypatch.setattr(Module, "_run", counted)
    return names


def test_each_row_is_tested() -> None:
    assert set(TABLE) == FEATURES.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("name", FEATURES)
def test_a_feature(name: str, kind: str, ran: list[str]) -> None:
    options = {"affine": True} if kind.startswith("Instance") else {}
    theirs, ours = pair(kind, *LAYERS[kind], **options)
    x = 2 + 3 * torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(1))
    expected = FEATURES[name](theirs, x.clone())
    assert not ran
    found = FEATURES[name](ours, x.clone())
    who = TABLE[name]
    assert bool(ran) == who.startswith("renorm"), (who, ran)
    if who == "renorm, backward torch":
        assert not [op for op in ran if "gradient" in op]
    assert len(found) == len(expected) > 0
    tolerance = 10 * max((TOLERANCE.get(t.dtype, 0.0) for t in found if isinstance(t, torch.Tensor)), default=0.0)
    for k, (a, b) in enumerate(zip(found, expected)):
        same(a, b, f"result {k}", tolerance)


def same(found: Any, expected: Any, what: str, tolerance: float) -> None:
    if not (isinstance(found, torch.Tensor) and isinstance(expected, torch.Tensor)):
        assert type(found) is type(expected), what
        assert found == expected, what
        return
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), what
    a, b = found.detach().double(), expected.detach().double()
    largest = b.abs().nan_to_num(0, 0, 0).max().item() if b.numel() else 0.0
    bound = tolerance * max(1.0, largest) if found.is_floating_point() else 0.0
    torch.testing.assert_close(a, b, rtol=0.0, atol=bound, equal_nan=True, msg=lambda m: f"{what}: {m}")


def test_script_is_refused() -> None:
    _, ours = pair("LayerNorm", 6)
    with pytest.raises(Exception, match=r"is_inner_node|Unknown type|not supported"):
        torch.jit.script(ours)


def test_a_check_is_short() -> None:
    """Of what is active: some tenths of a microsecond, beside 100 for a call."""
    from timeit import repeat

    from renorm.torch.eligibility import is_watched

    assert min(repeat(is_watched, number=1000, repeat=20)) < 10e-6 * 1000
