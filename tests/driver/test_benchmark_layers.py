"""Kernels of several runtimes are brought together where they compute the same nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks import figures, kernels, page
from benchmarks.kernels import PeerKernel, medians
from benchmarks.layers import Layer, layers
from onnx import parser
from tests.random_numbers import RNG

# a(x) and its norm; b(r) and c(r), which are added; t
MODEL = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (float[1,4,9,7] x) => (float[1,4,9,7] y)
<float[4,4,1,1] w, float[4] k> { [a] av = Conv(x, w) [n] nv = BatchNormalization(av, k, k, k, k) [r] rv = Relu(nv)
[b] bv = Conv(rv, w) [c] cv = Conv(rv, w) [s] sv = Add(bv, cv) [t] y = Tanh(sv) }""")


def found(
    ours: list[list[str]], **peers: list[tuple[float, list[str]]]
) -> list[tuple[tuple[int, ...], dict[str, float]]]:
    made = {name: [PeerKernel(us, tuple(labels)) for us, labels in ks] for name, ks in peers.items()}
    return [(layer.kernels, layer.us) for layer in layers(MODEL.graph, ours, made)]


def test_labels_are_names_of_nodes_or_of_values_or_begin_with_them() -> None:
    ours = [["a", "r"], ["b", "s"], ["c"], ["t"]]
    theirs = [(1.0, ["rv_nchwc", "token_3"]), (2.0, ["b/Fused"]), (4.0, ["x_1", "cv"]), (8.0, ["t"])]
    assert found(ours, one=theirs) == [((i,), {"one": 2.0**i}) for i in range(4)]


def test_what_was_folded_belongs_to_what_it_was_folded_into() -> None:
    ours = [["a", "r"], ["b"], ["c", "s"], ["t"]]
    theirs = [(1.0, ["Multiply_5", "n"]), (2.0, ["bv"]), (4.0, ["cv"]), (8.0, ["t"])]
    assert found(ours, one=theirs) == [((i,), {"one": 2.0**i}) for i in range(4)]


def test_a_kernel_that_covers_several_of_ours_makes_one_layer_of_them() -> None:
    ours = [["a"], ["r"], ["b"], ["c", "s"], ["t"]]
    one = [(1.0, ["a"]), (2.0, ["r"]), (4.0, ["bv", "sv"]), (8.0, ["t"])]
    two = [(16.0, ["n", "r"]), (32.0, ["a"]), (64.0, ["c"]), (128.0, ["b"]), (256.0, ["yv", "y"])]
    assert found(ours, one=one, two=two) == [
        ((0, 1), {"one": 3.0, "two": 48.0}),
        ((2, 3), {"one": 4.0, "two": 192.0}),
        ((4,), {"one": 8.0, "two": 256.0}),
    ]


def test_ours_without_one_of_theirs_joins_the_layer_before_it() -> None:
    assert found([["a", "r"], ["b"], ["c"], ["s"], ["t"]], one=[(1.0, ["b"]), (2.0, ["c"]), (4.0, ["t"])]) == [
        ((0, 1), {"one": 1.0}),
        ((2, 3), {"one": 2.0}),
        ((4,), {"one": 4.0}),
    ]


def test_changes_of_layout_go_with_what_follows_them() -> None:
    ours = [["a", "r"], ["b", "c", "s", "t"]]
    theirs = [(1.0, ["reorder_in"]), (2.0, ["rv"]), (4.0, ["token"]), (8.0, ["y"]), (16.0, ["reorder_out"])]
    assert found(ours, one=theirs) == [((0,), {"one": 3.0}), ((1,), {"one": 28.0})]


def test_without_others_each_kernel_is_a_layer() -> None:
    assert found([["a"], ["b", "c"]]) == [((0,), {}), ((1,), {})]
    assert found([["a"], ["b"]], one=[]) == [((0,), {"one": 0}), ((1,), {"one": 0})]
    assert found([], one=[(1.0, ["a"])]) == []


def test_all_time_of_the_others_is_somewhere() -> None:
    rng = np.random.default_rng(5)
    names = ["a", "n", "r", "b", "c", "s", "t", "av", "bv", "token"]
    for _ in range(500):
        cuts = sorted(rng.choice(np.arange(1, 6), rng.integers(0, 5), replace=False).tolist())
        nodes = ["a", "r", "b", "c", "s", "t"]
        ours = [nodes[i:j] for i, j in zip([0, *cuts], [*cuts, 6])]
        peers = {
            p: [(float(rng.random()), list(rng.choice(names, rng.integers(1, 4)))) for _ in range(rng.integers(1, 9))]
            for p in ("one", "two")
        }
        of = found(ours, **peers)
        assert sorted(i for own, _ in of for i in own) == list(range(len(ours)))
        for p, theirs in peers.items():
            if any(set(labels) - {"token"} for _, labels in theirs):
                assert sum(us[p] for _, us in of) == pytest.approx(sum(us for us, _ in theirs))
                assert all(us[p] > 0 for _, us in of)


@pytest.mark.parametrize("runtime", kernels.PROFILERS)
def test_other_runtimes_say_how_long_their_kernels_take(runtime: str, tmp_path: Path) -> None:
    pytest.importorskip({"ort": "onnxruntime"}.get(runtime, runtime))
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    for name, shape in (("w", (4, 4, 1, 1)), ("k", (4,))):
        array = RNG.uniform(0.5, 1.5, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "model.onnx")
    x = RNG.standard_normal((1, 4, 9, 7)).astype(np.float32)
    told = kernels.profiled(runtime, tmp_path / "model.onnx", {"x": x}, 1, 3)
    assert all(k.us >= 0 for k in told)
    first, last = layers(model.graph, [["a", "r"], ["b", "c", "s", "t"]], {runtime: told})
    assert first.us[runtime] + last.us[runtime] == pytest.approx(sum(k.us for k in told))
    assert first.kernels == (0,)  # some kernel is found for each


def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)kernels of ort: .*missing\.onnx"):
        kernels.profiled("ort", tmp_path / "missing.onnx", {}, 1, 1)


def test_medians_of_several_turns() -> None:
    turns = [[PeerKernel(us, ("a",)), PeerKernel(2 * us, ("b",))] for us in (3.0, 1.0, 7.0)]
    assert medians(turns) == [PeerKernel(3.0, ("a",)), PeerKernel(6.0, ("b",))]


def test_medians_of_turns_that_do_not_tell_of_the_same_kernels() -> None:
    turns = [[PeerKernel(us, (name,)) for name in told] for us, told in ((3.0, "a"), (1.0, "ab"), (7.0, "b"))]
    assert medians(turns) == [PeerKernel(2.0, ("a",)), PeerKernel(4.0, ("b",))]


def measured(us: list[float], others: list[dict[str, float]], of: list[int]) -> dict[str, Any]:
    own = [
        {"kernel": f"k_{i}", "node": "", "us": t, "flops": 100_000, "bytes": 1000, "is_nominal": i == 1, "layer": layer}
        for i, (t, layer) in enumerate(zip(us, of, strict=True))
    ]
    limits = {"flops": 40e9, "bytes": 1e9}
    return {"layers": {"kernels": own, "layers": others, "limits": limits, "network_seconds": 1.0}}


def test_layers_in_which_another_is_faster() -> None:
    network = measured([5.0, 10.0, 2.0], [{"ort": 12.0, "openvino": 20.0}, {"ort": 3.0, "openvino": 2.5}], [0, 0, 1])
    (slow,) = figures.behind(network)
    assert (slow.kernel, slow.launches, slow.flops, slow.bytes, slow.nominal) == ("k_1", 2, 200_000, 2000, True)
    assert slow.us == {"renorm": 15.0, "ort": 12.0, "openvino": 20.0}
    assert slow.lost == 3.0
    sums, slowest = page._beside({"net": network})
    assert "| net | 0.02 | 0.01 | 0.02 | 2 | 1 | 17.6% |" in sums
    assert "| net | `k_1` and 1 more | 15 | 12 | 20 | **1.25** | 13 | 33%* | 13% |" in slowest


def test_layers_are_shown_in_order_of_the_time_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "SLOWEST", 2)
    networks = {
        "large": measured([1000.0, 100.0], [{"ort": 999.0}, {"ort": 50.0}], [0, 1]),
        "small": measured([10.0, 2.0], [{"ort": 4.0}, {"ort": 3.0}], [0, 1]),
    }
    _, slowest = page._beside(networks)
    assert [line.split("|")[1:3] for line in slowest.splitlines()[2:]] == [
        [" small ", " `k_0` "],
        [" large ", " `k_1` "],
    ]


def test_layers_are_values() -> None:
    assert layers(MODEL.graph, [["a"]], {}) == [Layer((0,), {})]
