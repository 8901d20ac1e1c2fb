"""The networks that are measured compute what their names say, and come out of the export as they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import renorm

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from benchmarks import networks
from benchmarks.networks import Network, detection, language, speech
from tests.exhaustive import one_of

SMALL: dict[str, Network] = {
    "squeezenet": replace(networks.NETWORKS["squeezenet"], shape=(2, 3, 47, 47)),
    "googlenet": replace(networks.NETWORKS["googlenet"], shape=(2, 3, 64, 64)),
    "regnet_x": replace(networks.NETWORKS["regnet_x"], shape=(2, 3, 65, 65)),
    "convnext_tiny": replace(networks.NETWORKS["convnext_tiny"], shape=(1, 3, 64, 64)),
    "yolo": Network(
        lambda: detection.Detector(8, (1, 1, 1, 1)), (1, 3, 64, 96), outputs=("fine", "middle", "coarse")
    ),
    "whisper": Network(lambda: speech.SpeechEncoder(10, 26, 24, 3, 2), (2, 10, 26)),
    "bert": Network(
        lambda: language.Encoder(24, 3, 2, words=31, length=40), examples=lambda: language.sentence(37)
    ),
    "gpt2": Network(
        lambda: language.Decoder(24, 3, 2, tokens=31, length=40),
        examples=lambda: language.cached(17, 24, 3, 2),
        outputs=("scores", "k0", "v0", "k1", "v1"),
    ),
}  # fmt: skip


def drawn(inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Other inputs of the same shapes: some words are masked, and kinds differ."""
    rng = np.random.default_rng(3)
    return {
        name: (rng.integers(0, 2, t.shape) if t.dtype == torch.int64 else rng.standard_normal(t.shape)).astype(
            np.int64 if t.dtype == torch.int64 else np.float32
        )
        for name, t in inputs.items()
    }


@pytest.mark.parametrize("name", one_of(2, SMALL))
def test_exported_and_compiled_they_are_what_torch_computes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = SMALL[name]
    monkeypatch.setitem(networks.NETWORKS, name, network)
    model, program = networks.export(name, tmp_path)
    graph = onnx.load(model).graph
    inputs = drawn(network.inputs())
    assert [v.name for v in graph.input if v.name in inputs] == list(inputs)
    assert tuple(v.name for v in graph.output) == network.outputs
    with torch.no_grad():
        expected = torch.export.load(program).module()(*map(torch.from_numpy, inputs.values()))
    found = renorm.compile(model, threads=2).run(*inputs.values())
    for ours, theirs in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-3, atol=1e-4 * float(theirs.abs().max()))


def test_words_that_are_masked_change_nothing() -> None:
    torch.manual_seed(0)
    encoder = language.Encoder(24, 3, 2, words=31, length=9).eval()
    words, kinds = torch.randint(0, 31, (2, 9)), torch.randint(0, 2, (2, 9))
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0, 0], [1] * 9])
    other = torch.where(mask == 1, words, (words + 7) % 31)
    with torch.no_grad():
        a, b = encoder(words, mask, kinds), encoder(other, mask, kinds)
    torch.testing.assert_close(a[0, :5], b[0, :5])
    torch.testing.assert_close(a[1], b[1])
    assert not torch.allclose(a[0, 5:], b[0, 5:])


def test_a_token_with_its_cache_is_the_last_of_a_sentence() -> None:
    """Against attention of all tokens at once, by PyTorch's own function, with the mask of a decoder."""
    torch.manual_seed(0)
    decoder: Any = language.Decoder(24, 3, 2, tokens=31, length=12).eval()
    sentence = torch.randint(0, 31, (2, 8))

    def whole(tokens: Any) -> Any:
        x = decoder.tokens(tokens) + decoder.positions.weight[: tokens.shape[1]]
        for layer in decoder.layers:
            q, k, v = (language.heads_of(p, 3) for p in layer.project(layer.attend_norm(x)).chunk(3, -1))
            found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer.out(found.transpose(1, 2).reshape(x.shape))
            x = x + layer.feed(layer.feed_norm(x))
        return decoder.norm(x) @ decoder.tokens.weight.t()

    with torch.no_grad():
        cache: list[Any] = [torch.empty(2, 3, 0, 8) for _ in range(4)]
        scores = torch.empty(0)
        for i in range(8):
            scores, *cache = decoder(sentence[:, i : i + 1], *cache)
        assert all(tuple(part.shape) == (2, 3, 8, 8) for part in cache)
        torch.testing.assert_close(scores[:, 0], whole(sentence)[:, -1], rtol=1e-4, atol=1e-5)


def macs(build: Callable[[], Any], shape: tuple[int, ...]) -> float:
    """Billions of multiply-adds of convolutions and products, as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        build().eval()(torch.zeros(shape))
    return counter.get_total_flops() / 2e9


@pytest.mark.parametrize(
    ("name", "parameters", "billions"),
    [  # millions of parameters, and of the network of 224x224, as published
        ("squeezenet", 1.24, 0.35),
        ("regnet_x", 5.5, 0.42),
        ("convnext_tiny", 28.6, 4.46),
        ("googlenet", 6.6, 1.50),
        ("vit_base", 86.6, 17.6),
    ],
)
def test_their_size_is_that_of_the_papers(name: str, parameters: float, billions: float) -> None:
    network = networks.NETWORKS[name]
    module = network.build()
    assert sum(p.numel() for p in module.parameters()) / 1e6 == pytest.approx(parameters, rel=0.02)
    assert macs(lambda: module, network.shape) == pytest.approx(billions, rel=0.05)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("bert_base_128", 108.9), ("gpt2_small_token", 124.4), ("whisper_base", 20.6), ("vgg16", 138.4), ("yolo", 7.2)],
)
def test_they_have_as_many_weights(name: str, parameters: float) -> None:
    with torch.device("meta"):
        module = networks.NETWORKS[name].build()
    assert sum(p.numel() for p in module.parameters()) / 1e6 == pytest.approx(parameters, rel=0.02)
