"""PyTorch's own examples of what programs do (torch._export.db): closures, containers, control flow, mutations. Under
torch.compile all run; through torch.export all but those of a file, which has a line with the reason for each."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch
from tests.frontends.torch_samples import reasons
from torch.utils._pytree import tree_leaves

import renorm
from renorm.errors import InvalidInput, UnsupportedOp

examples: Any = pytest.importorskip("torch._export.db.examples", reason="this PyTorch has no such examples")

# what PyTorch itself warns of while it captures is not ours
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
CASES: dict[str, Any] = examples.all_examples()
REFUSED = reasons(Path(__file__).parent / "export_examples.txt")


@pytest.fixture(autouse=True)
def begin_anew() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)


def after(case: Any, run: Any = None) -> list[Any]:
    """Return the results of a call on copies, and what became of its arguments. run: makes of the model what is
    called."""
    model = copy.deepcopy(case.model)
    args, kwargs = copy.deepcopy((case.example_args, case.example_kwargs))
    torch.manual_seed(0)
    with torch.no_grad():
        results = (model if run is None else run(model))(*args, **kwargs)
    return tree_leaves((results, args, kwargs, [*model.buffers()]))


def same(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for y, expected in zip(found, wanted):
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(torch.as_tensor(y), expected)
        else:
            assert y == expected


@pytest.mark.parametrize("name", sorted(CASES))
def test_compiled(name: str) -> None:
    same(after(CASES[name], lambda model: torch.compile(model, backend="renorm")), after(CASES[name]))


def compiled(name: str) -> Any:
    case = CASES[name]
    given = copy.deepcopy((case.model, case.example_args, case.example_kwargs))
    return renorm.compile(given[0], args=given[1], kwargs=given[2], dynamic_shapes=case.dynamic_shapes)


@pytest.mark.parametrize("name", sorted(CASES.keys() - REFUSED.keys()))
def test_exported(name: str) -> None:
    case = CASES[name]
    tensors = [t for t in tree_leaves((case.example_args, case.example_kwargs)) if isinstance(t, torch.Tensor)]
    found = compiled(name).run(*tensors)
    torch.manual_seed(0)
    results = copy.deepcopy(case.model)(*copy.deepcopy(case.example_args), **copy.deepcopy(case.example_kwargs))
    tensors = [torch.as_tensor(t) for t in tree_leaves(results) if isinstance(t, (torch.Tensor, int))]
    same(list(found), [t.detach() for t in tensors])


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_refused_is_an_error_that_says_where(name: str) -> None:
    with pytest.raises((UnsupportedOp, InvalidInput), match=r"node '|writes to 'x'|torch\.export refuses it"):
        compiled(name)
