"""Where the system gives no more threads, what they would have done is done by those there are."""

from __future__ import annotations

import threading

import numpy as np
import onnx
import pytest
from tests.frontends.models import model

import renorm
from renorm.driver import weights
from renorm.frontends.onnx import reader
from renorm.runtime import threads


@pytest.mark.usefixtures("kept_code")
def test_a_network_is_compiled_and_runs(tmp_path, monkeypatch):
    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setenv("RENORM_NUM_THREADS", "4")
    w = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    path = tmp_path / "m.onnx"
    onnx.save(model("m (float[4, 8] x) => (float[4, 8] y) { y = MatMul (x, w) }", w=w), path)
    monkeypatch.setattr(weights, "WORTH_A_THREAD", 0)  # however small the network is
    monkeypatch.setattr(reader, "WORTH_A_THREAD", 0)
    monkeypatch.setattr(threading.Thread, "start", refused)
    monkeypatch.setattr(threads, "start_new_thread", refused)
    x = np.ones((4, 8), np.float32)
    np.testing.assert_allclose(renorm.compile(path).run(x)[0], x @ w, rtol=1e-5)
