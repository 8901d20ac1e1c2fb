"""Programs cut out of the articles that the project grew from, run with nothing but their import lines changed: batch
norm by tensor expressions (000); dense, instance norm and its CUDA schedule (004)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.random_numbers import RNG
from tests.shared_files import article, between

from renorm import te
from renorm.tir import text
from renorm.tir.nodes import For, walk

IMPORTS = "import renorm as tvm\nfrom renorm import te, topi\nfrom renorm.topi import tag\nimport numpy as np\n"


def python_blocks(text: str) -> str:
    """All fenced Python code of a Markdown article, in order."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


def definition(code: str, header: str) -> str:
    """One top-level function, without its decorators."""
    lines = code.splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if line.startswith(f"def {header}"))
    end = start + 1
    while end < len(lines) and not re.match(r"\S", lines[end]):
        end += 1
    return "".join(lines[start:end])


def run_program(*parts: str) -> dict[str, Any]:
    """Executes the parts as one program and gives its names."""
    names: dict[str, Any] = {}
    exec(compile(IMPORTS + "\n".join(parts), "<article>", "exec"), names)
    return names


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype("float32")


def batch_norm_arrays(c: int, n: int) -> list[np.ndarray[Any, Any]]:
    return [normal(c, n, n), normal(c, 1, 1), np.abs(normal(c, 1, 1)), normal(c, 1, 1), normal(c, 1, 1)]


def batch_norm_program() -> tuple[str, str, list[str]]:
    """The article's function, the lines that schedule it, and the loops that it prints."""
    seed = article("000")
    function = between(seed, "def batch_norm(", "    return X, Mean")
    schedule = between(seed, "c = 32", "sch = te.create_schedule")
    listing = between(seed, "// attr [T_subtract]", "To execute it").splitlines()[:-1]
    return function, schedule, [line.strip() for line in listing if line.strip()]


def test_batch_norm_prints_the_loops_of_the_article() -> None:
    function, schedule, listing = batch_norm_program()
    names = run_program(function, schedule)
    kernel = te.lower(names["sch"], [names[k] for k in ("X", "Mean", "Var", "Gamma", "Beta")])
    printed = [line.strip() for line in text.simple(kernel).splitlines() if line.strip()]
    assert printed == listing


@pytest.mark.parametrize(("c", "n"), [(32, 28), (3, 5), (1, 1)])
def test_batch_norm_writes_its_result(run: Any, c: int, n: int) -> None:
    function, _, _ = batch_norm_program()
    tensors = run_program(function)["batch_norm"](c, n)
    s = te.create_schedule(tensors[-1].op)
    x, mean, var, scale, bias = arrays = batch_norm_arrays(c, n)
    y = np.zeros_like(x)
    run(te.lower(s, list(tensors)), [*arrays, y])
    want = (x - mean).astype("f8") / np.sqrt(var.astype("f8") + 1e-5) * scale + bias
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


def instance_norm_functions() -> dict[str, Any]:
    code = python_blocks(article("004"))
    functions = ("dense_default(", "instance_norm_inference(", "schedule_instance_norm(outs)")
    return run_program(*(definition(code, name) for name in functions))


@pytest.mark.parametrize("with_bias", [False, True])
def test_dense(run: Any, with_bias: bool) -> None:
    data, weight, bias = te.placeholder((3, 7)), te.placeholder((5, 7)), te.placeholder((5,))
    out = instance_norm_functions()["dense_default"](data, weight, bias if with_bias else None)
    x, w, b, y = normal(3, 7), normal(5, 7), normal(5), np.zeros((3, 5), "float32")
    operands = [data, weight, bias] if with_bias else [data, weight]
    run(te.lower(te.create_schedule(out.op), [*operands, out]), [*([x, w, b] if with_bias else [x, w]), y])
    np.testing.assert_allclose(y, x @ w.T + (b if with_bias else 0), rtol=1e-5, atol=1e-6)
    assert out.op.tag == ("broadcast" if with_bias else "dense")


def instance_norm(x: Any, scale: Any, bias: Any, eps: float, fix_gamma: bool) -> Any:
    mean, var = x.mean((2, 3), keepdims=True, dtype="f8"), x.var((2, 3), keepdims=True, dtype="f8")
    scaled = (x - mean) / np.sqrt(var + eps)
    return (scaled if fix_gamma else scaled * scale[:, None, None]) + bias[:, None, None]


@pytest.mark.parametrize("fix_gamma", [False, True])
@pytest.mark.parametrize("scheduled", [False, True])
def test_instance_norm(run: Any, fix_gamma: bool, scheduled: bool) -> None:
    """With default loops, and with the article's blocks and threads: batch 3 and 10 channels leave tails in both
    axes."""
    names = instance_norm_functions()
    shape = (3, 10, 4, 6)
    data, scale, bias = te.placeholder(shape, name="data"), te.placeholder((10,)), te.placeholder((10,))
    out = names["instance_norm_inference"](data, scale, bias, 1e-5, fix_gamma)
    mean, var = out.op.input_tensors[1:3]
    assert [t.name for t in var.op.input_tensors] == ["compute", "compute"]
    assert var.op.input_tensors[1] is mean
    s = names["schedule_instance_norm"]([out]) if scheduled else te.create_schedule(out.op)
    x, g, b, y = normal(*shape) - 2, normal(10), normal(10), np.zeros(shape, "float32")
    operands = [(data, x), (bias, b)] if fix_gamma else [(data, x), (scale, g), (bias, b)]
    kernel = te.lower(s, [*(t for t, _ in operands), out])
    run(kernel, [*(a for _, a in operands), y])
    np.testing.assert_allclose(y, instance_norm(x, g, b, 1e-5, fix_gamma), rtol=2e-4, atol=1e-5)
    if scheduled:
        launches = [x for x in walk(kernel.body) if isinstance(x, For) and x.kind == "blockIdx.y"]
        assert len(launches) == 4
