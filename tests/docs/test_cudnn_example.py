"""examples/cudnn_batch_norm.py beside a library that has the parameters of cuDNN's, the CPU in the GPU's place."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.gpu import host_device
from tests.gpu.host_assembler import needs_compiler

from renorm.training import kernels
from renorm.training.kernels import Gpu

ROOT = Path(__file__).parents[2]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("cudnn_batch_norm", ROOT / "examples" / "cudnn_batch_norm.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    host_device.register()
    host: Any = host_device.host()
    monkeypatch.setattr(host, "synchronize", lambda: host.wait(0), raising=False)
    monkeypatch.setattr(module, "device", lambda arch, index: host)
    monkeypatch.setattr(kernels, "gpu", lambda index: Gpu(host_device.ARCH, index))
    return module


@needs_compiler
def test_both_give_the_articles_numbers(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library = tmp_path / "libcudnn.so.9"
    source = Path(__file__).with_name("fake_cudnn.cpp")
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    monkeypatch.setattr(example, "library", lambda: library)
    example.main()  # which compares them
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 2 * 12
    (saved,) = (i for i, line in enumerate(lines) if line.startswith("saved_mean"))
    for line in lines[saved : saved + 2]:
        assert line.split()[-3:] == ["0.545090", "0.566288", "0.637007"]
    bad: Any = example.CuDnn(library)
    with pytest.raises(RuntimeError, match="cudnnSetTensor4dDescriptor returned 3"):
        bad._call("cudnnSetTensor4dDescriptor", bad._handle, 1, 0)


@needs_compiler
def test_without_cudnn_ours_are_printed(
    example: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(example, "library", lambda: None)
    example.main()
    assert "cuDNN is not here" in capsys.readouterr().out
