"""The layer beside Keras' own on the backend torch: results, gradients, moving statistics, weights, files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
keras = pytest.importorskip("keras", reason="Keras is not installed")
if keras.config.backend() != "torch":
    pytest.skip("Keras runs on another backend than torch", allow_module_level=True)

from renorm import training as ranks
from renorm.errors import RenormError, StatisticsWarning
from renorm.keras import BatchNormalization

# Keras' own, of NumPy's protocol for copies
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def data(*shape: int, seed: int = 0) -> Any:
    return torch.tensor(np.random.default_rng(seed).normal(1.5, 2.0, shape).astype(np.float32))


def pair(shape: Any, **options: Any) -> tuple[Any, Any]:
    layers = keras.layers.BatchNormalization(**options), BatchNormalization(**options)
    draw = np.random.default_rng(7)
    for layer in layers:
        layer.build(shape)
    weights = [draw.uniform(0.5, 2.0, w.shape) for w in layers[0].get_weights()]
    for layer in layers:
        layer.set_weights(weights)
    return layers


def agree(theirs: Any, mine: Any, x: Any, **call: Any) -> None:
    found = list[Any]()
    for layer in (theirs, mine):
        leaf = x.clone().requires_grad_()
        layer.zero_grad()
        y = layer(leaf, **call)
        (y * data(*y.shape, seed=1).to(y.dtype)).sum().backward()
        grads = [v.value.grad for v in (layer.gamma, layer.beta) if v is not None]
        found.append([y, leaf.grad, *grads, *(w.value for w in layer.weights)])
    for a, b in zip(*found, strict=True):
        bound = 2e-5 * max(1.0, b.abs().max().item())
        torch.testing.assert_close(b, a, rtol=0.0, atol=bound)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((5, 3), {}),
        ((2, 4, 5, 3), {}),
        ((2, 3, 4, 5), {"axis": 1, "momentum": 0.5, "epsilon": 0.1}),
        ((2, 4, 3, 2), {"axis": 2, "scale": False}),
        ((2, 4, 3), {"center": False}),
        ((2, 3, 4), {"axis": -2, "center": False, "scale": False}),
    ],
    ids=str,
)
def test_beside_keras(shape: Any, options: Any) -> None:
    theirs, mine = pair(shape, **options)
    for step in range(2):
        agree(theirs, mine, data(*shape, seed=step), training=True)
    agree(theirs, mine, data(*shape), training=False)
    agree(theirs, mine, data(*shape))


def test_a_layer_that_is_not_trainable_infers() -> None:
    theirs, mine = pair((5, 3))
    for layer in (theirs, mine):
        layer.trainable = False
    before = mine.get_weights()
    for layer in (theirs, mine):
        leaf = data(5, 3).requires_grad_()
        layer(leaf, training=True).sum().backward()
        layer.found = leaf.grad
    torch.testing.assert_close(mine.found, theirs.found)
    assert all(np.array_equal(a, b) for a, b in zip(before, mine.get_weights(), strict=True))


def test_masks() -> None:
    theirs, mine = pair((3, 4, 5))
    mask = torch.tensor(np.random.default_rng(3).random((3, 4)) < 0.6)
    agree(theirs, mine, data(3, 4, 5), training=True, mask=mask)
    agree(theirs, mine, data(3, 4, 5), training=False, mask=mask)
    with pytest.raises(ValueError, match="one axis less"):
        mine(data(3, 4, 5), training=True, mask=mask[0])


def test_batch_renormalization_is_keras() -> None:
    theirs, mine = pair((6, 3), renorm=True)
    agree(theirs, mine, data(6, 3), training=True)


def test_weights_and_files_are_interchanged(tmp_path: Path) -> None:
    theirs, mine = pair((None, 4, 3))
    assert [w.name for w in theirs.weights] == [w.name for w in mine.weights]
    assert mine.get_config() | {"name": ""} == theirs.get_config() | {"name": ""}
    model = keras.Sequential([keras.Input((4, 3)), mine])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert type(again.layers[0]) is BatchNormalization
    other = keras.Sequential([keras.Input((4, 3)), theirs])
    model.save_weights(tmp_path / "own.weights.h5")
    theirs.set_weights([w + 1 for w in theirs.get_weights()])
    other.load_weights(tmp_path / "own.weights.h5")
    for a, b, c in zip(mine.get_weights(), again.get_weights(), theirs.get_weights(), strict=True):
        assert np.array_equal(a, b)
        assert np.array_equal(a, c)


def test_a_model_learns_the_same() -> None:
    losses = list[Any]()
    draw = np.random.default_rng(5)
    x, t = draw.normal(size=(24, 6)).astype(np.float32), draw.normal(size=(24, 2)).astype(np.float32)
    for layer in (keras.layers.BatchNormalization, BatchNormalization):
        keras.utils.set_random_seed(2)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5), layer(), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.05), "mse", run_eagerly=True)
        losses.append(model.fit(x, t, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_synchronized_over_uneven_ranks() -> None:
    """Each rank has a part of the batch; results and statistics are those of one layer with all of it."""
    whole, _ = pair((7, 3))
    x = data(7, 3).requires_grad_()
    expected = whole(x, training=True)
    (expected * data(7, 3, seed=1)).sum().backward()
    parts = [slice(0, 2), slice(2, 3), slice(3, 7)]
    layers: list[Any] = [BatchNormalization(synchronized=True) for _ in parts]
    for layer in layers:
        layer.build((7, 3))
        layer.set_weights(pair((7, 3))[1].get_weights())

    def run(comm: Any) -> Any:
        layer, part = layers[comm.rank], parts[comm.rank]
        layer.comm = comm
        own = x.detach()[part].clone().requires_grad_()
        y = layer(own, training=True)
        (y * data(7, 3, seed=1)[part]).sum().backward()
        return y, own.grad, layer.gamma.value.grad

    found = ranks.Threads(3).run(run)
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(torch.cat([y for y, _, _ in found]), expected, **close)
    torch.testing.assert_close(torch.cat([dx for _, dx, _ in found]), x.grad, **close)
    torch.testing.assert_close(sum(g for _, _, g in found), whole.gamma.value.grad, **close)
    for layer in layers:
        for a, b in zip(layer.get_weights(), whole.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_what_one_rank_refuses_is_told_on_all() -> None:
    def run(comm: Any) -> Any:
        layer = BatchNormalization(synchronized=True, name="norm")
        layer.build((None, 4, 3))
        layer.comm, before = comm, layer.get_weights()
        said = []
        for given in ((data(2, 4, 5), None), (data(2, 3), None), (data(2, 4, 3), data(2, 9) > 0)):
            x, mask = given if comm.rank == 1 else (data(2, 4, 3), None)
            try:
                layer(x, training=True, mask=mask)
            except (ValueError, RenormError) as error:
                said.append(str(error))
        assert all(np.array_equal(a, b) for a, b in zip(before, layer.get_weights(), strict=True))
        return said

    for rank, said in enumerate(ranks.Threads(2, timeout=20).run(run)):
        assert "takes x of rank 3 with 3 channels on axis -1, not float32[2, 4, 5]" in said[0]
        assert "not float32[2, 3]" in said[1]
        assert "mask has shape [2, 9]" in said[2]
        assert rank == 1 or all("rank 1 failed" in text for text in said)


def test_a_mask_that_leaves_nothing() -> None:
    """y is that of Keras; the moving statistics, which Keras multiplies by momentum, stay."""
    theirs, mine = pair((3, 4, 5))
    x, mask, before = data(3, 4, 5), torch.zeros(3, 4, dtype=torch.bool), mine.get_weights()
    torch.testing.assert_close(mine(x, training=True, mask=mask), theirs(x, training=True, mask=mask))
    assert all(np.array_equal(a, b) for a, b in zip(before, mine.get_weights(), strict=True))


def test_a_moving_variance_that_overflows_is_reported() -> None:
    layer = BatchNormalization(name="bn7")
    with pytest.warns(StatisticsWarning, match=r"^bn7: running_var of channel 0, 1, 2 is beyond float32"):
        layer(data(5, 3) * 1e30, training=True)
    assert np.isinf(layer.get_weights()[3]).all()


def test_stateless_call_takes_arrays() -> None:
    x, found = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32), []
    both: list[Any] = [keras.layers.BatchNormalization(), BatchNormalization()]
    for layer in both:
        layer.build(x.shape)
        state = [[v.value for v in vs] for vs in (layer.trainable_variables, layer.non_trainable_variables)]
        y, new = layer.stateless_call(*state, x, training=True)
        found.append([t.detach().numpy() for t in (y, *new)])
        assert layer.moving_mean.value.detach().numpy().tolist() == [0, 0, 0]
    for theirs, mine in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
