"""PyTorch's own samples of its operators, read as programs, against PyTorch. What renorm does not read of them, and
why, is in torch_operators.txt: a line that is too many fails as one that is missing does."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("expecttest", reason="expecttest is not installed, which PyTorch's samples import")
import torch
from tests.exhaustive import one_of
from tests.frontends.torch_samples import FEW, MOST, outcome, programs, reasons

# importing it forbids the whole process to set flags of PyTorch's back ends, as torch.onnx.export does
with warnings.catch_warnings(), patch.object(torch.backends, "disable_global_flags"):
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)


def called(info: Any, dtype: torch.dtype) -> str:
    variant = f".{info.variant_test_name}" if info.variant_test_name else ""
    return f"{info.name}{variant} {str(dtype).removeprefix('torch.')}"


NOT_READ = reasons(Path(__file__).parent / "torch_operators.txt")
OPERATORS = {called(info, d): (info, d) for info in op_db for d in DTYPES if d in info.dtypes}


def refusals(name: str, most: int = MOST) -> list[str]:
    """Return why samples of an operator are not read, or what differs; nothing for those that are."""
    torch.manual_seed(0)
    return [said for p in programs(*OPERATORS[name], most) if (said := outcome(p))]


def test_every_line_is_of_an_operator_and_has_a_reason() -> None:
    assert [n for n, why in NOT_READ.items() if n not in OPERATORS or not why] == []


@pytest.mark.parametrize("name", [n for n in OPERATORS if n not in NOT_READ])
def test_operator(name: str) -> None:
    assert refusals(name, FEW) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [n for n in OPERATORS if n not in NOT_READ])
def test_each_sample_of_an_operator(name: str) -> None:
    assert refusals(name) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", one_of(8, [n for n in OPERATORS if n in NOT_READ]))
def test_what_is_not_read_is_refused(name: str) -> None:
    """No line is left of what is read by now, and nothing is wrong but what PyTorch leaves undefined."""
    said, is_undefined = refusals(name) or refusals(name, FEW), NOT_READ[name].startswith("undefined: ")
    wrong = [s for s in said if "differ" in s]
    assert said == wrong if is_undefined else said and not wrong, said  # what is undefined may be the same by chance
