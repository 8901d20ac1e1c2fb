"""Files of Keras: what they may not do, what is damaged and what is refused; functions for layers of one's own."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frontends.keras_models import WARNINGS, data, keras, trained, wanted

import renorm
from renorm.errors import InvalidInput, InvalidModel, LimitExceeded, UnsupportedOp, UserCodeError
from renorm.frontends.keras.layers import table

pytestmark = WARNINGS
L = keras.layers
Members = dict[str, bytes]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_REGISTERED", {})


def small() -> Any:
    x = keras.Input((5, 7, 3), name="x")
    y = L.BatchNormalization(name="bn")(L.Conv2D(4, 3, name="conv")(x))
    return trained(keras.Model(x, L.Dense(2, name="fc")(L.GlobalAveragePooling2D(name="pool")(y)), name="small"))


def members(model: Any, folder: Path) -> Members:
    model.save(folder / "whole.keras")
    with zipfile.ZipFile(folder / "whole.keras") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(held: Members, path: Path, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in held.items():
            archive.writestr(name, content)
    return path


def with_config(held: Members, change: Callable[[Any], Any]) -> Members:
    config = json.loads(held["config.json"])
    return {**held, "config.json": json.dumps(change(config) or config).encode()}


def with_weights(held: Members, change: Callable[[Any], None]) -> Members:
    import h5py

    file = io.BytesIO(held["model.weights.h5"])
    with h5py.File(file, "a") as root:
        change(root)
    return {**held, "model.weights.h5": file.getvalue()}


# --- what is not done -------------------------------------------------------------------------------------------------

_READS = """
import sys
import renorm
graph = renorm.read(sys.argv[1])
print(len(graph.nodes), sorted({"keras", "tensorflow", "torch", "os_of_the_file"} & set(sys.modules)))
"""


@pytest.mark.parametrize("form", ["keras", "h5"])
def test_files_are_read_without_keras(form: str, tmp_path: Path) -> None:
    small().save(tmp_path / f"m.{form}")
    found = subprocess.run(
        [sys.executable, "-c", _READS, str(tmp_path / f"m.{form}")], capture_output=True, text=True, check=True
    )
    assert found.stdout.split(" ", 1)[1].strip() == "[]"


def test_nothing_that_a_file_names_is_imported(tmp_path: Path) -> None:
    (tmp_path / "os_of_the_file.py").write_text("raise SystemExit('imported')")

    def change(config: Any) -> None:
        config["config"]["layers"][1] |= {"module": "os_of_the_file", "registered_name": "os_of_the_file>system"}

    path = packed(with_config(members(small(), tmp_path), change), tmp_path / "m.keras")
    with pytest.raises(UnsupportedOp, match="what a file names is not imported"):
        renorm.read(path)
    assert "os_of_the_file" not in sys.modules


def test_h5py_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small().save(tmp_path / "m.keras")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(InvalidInput, match=r'pip install "renorm\[hdf5\]"'):
        renorm.read(tmp_path / "m.keras")


# --- damage -----------------------------------------------------------------------------------------------------------


def test_damaged_archives(tmp_path: Path) -> None:
    held = members(small(), tmp_path)
    whole = (tmp_path / "whole.keras").read_bytes()
    draw = np.random.default_rng(0)
    for cut in (0, 7, 100, len(whole) // 2, len(whole) - 9):
        (tmp_path / "m.keras").write_bytes(whole[:cut])
        with pytest.raises(InvalidModel, match=r"m\.keras"):
            renorm.read(tmp_path / "m.keras")
    for place in draw.integers(0, len(whole), 60):  # a bit that is not what it was: an error of the model, or none
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(draw.integers(8))
        (tmp_path / "m.keras").write_bytes(damaged)
        with suppress(InvalidModel, UnsupportedOp):
            renorm.read(tmp_path / "m.keras")
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        content = bytearray(packed(held, tmp_path / "m.keras", method).read_bytes())
        with zipfile.ZipFile(tmp_path / "m.keras") as archive:
            at = archive.getinfo("config.json").header_offset
        content[at + 45 : at + 90] = bytes(45)
        (tmp_path / "m.keras").write_bytes(content)
        with pytest.raises(InvalidModel, match=r"m\.keras"):
            renorm.read(tmp_path / "m.keras")
    for missing in ("config.json", "model.weights.h5"):
        rest = {name: content for name, content in held.items() if name != missing}
        with pytest.raises((InvalidModel, UnsupportedOp), match=missing):
            renorm.read(packed(rest, tmp_path / "m.keras"))


@pytest.mark.parametrize(
    "text", [b"", b"\xff\xfe", b"[1, 2]", b"{", b'{"class_name": "Functional"}', b"[" * 100_000, b'{"class_name": 3}']
)
def test_damaged_configs(text: bytes, tmp_path: Path) -> None:
    held = {**members(small(), tmp_path), "config.json": text}
    with pytest.raises(InvalidModel, match=r"m\.keras"):
        renorm.read(packed(held, tmp_path / "m.keras"))


def _layer(place: int, **changes: Any) -> Callable[[Any], None]:
    def change(config: Any) -> None:
        config["config"]["layers"][place]["config"] |= changes

    return change


def _node(place: int, layer: str, call: int = 0, result: int = 0) -> Callable[[Any], None]:
    def change(config: Any) -> None:
        node = config["config"]["layers"][place]["inbound_nodes"][0]
        node["args"][0]["config"]["keras_history"] = [layer, call, result]

    return change


def _ends(side: str, given: Any) -> Callable[[Any], None]:
    def change(config: Any) -> None:
        config["config"][side] = given

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_node(1, "none"), "a layer 'none', which it does not have"),
        (_node(1, "x", 3), "reads call 3 of layer 'x'"),
        (_node(2, "conv", 0, 2), "'conv' has 1 results, 2 is read"),
        (_node(1, "fc"), "in a ring: "),
        (_ends("output_layers", 7), "an end of the graph is 7"),
        (_ends("input_layers", []), "'x' is read, and not called"),
        (_layer(1, strides="two"), "strides is 'two'"),
        (_layer(1, kernel_size=None, padding="mirrored"), "padding is 'mirrored'"),
        (_layer(1, groups=0), "conv"),
        (_layer(2, axis=9), "axis 9 is outside"),
        (_layer(2, epsilon="small"), "epsilon is 'small', and no number"),
        (_layer(0, batch_shape=[None, "7", 7, 3]), "its shape is "),
        (_layer(0, dtype="string"), "its dtype is string"),
        (_layer(1, dtype={"class_name": "QuantizedDTypePolicy", "config": {}}), "its dtype policy is Quantized"),
        (_layer(1, name="bn"), "several layers of one name"),
    ],
)
def test_contradictions_of_configs(change: Callable[[Any], None], says: str, tmp_path: Path) -> None:
    held = members(small(), tmp_path)

    def both(config: Any) -> None:
        change(config)
        for layer in config["config"]["layers"]:
            layer["name"] = layer["config"]["name"]

    with pytest.raises((InvalidModel, UnsupportedOp), match=r"m\.keras") as caught:
        renorm.read(packed(with_config(held, both), tmp_path / "m.keras"))
    assert says in str(caught.value)


def _replaced(path: str, array: Any) -> Callable[[Any], None]:
    def change(root: Any) -> None:
        del root[path]
        if array is not None:
            root[path] = array

    return change


def _elsewhere(root: Any) -> None:
    import h5py

    del root["layers/conv2d/vars/0"]
    root["layers/conv2d/vars/0"] = h5py.ExternalLink("/etc/hostname", "/x")


def _outside(root: Any) -> None:
    del root["layers/conv2d/vars/1"]
    root.create_dataset("layers/conv2d/vars/1", (4,), "f4", external=[("/etc/hostname", 0, 16)])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_replaced("layers/conv2d/vars/1", None), "layers/conv2d: weights kernel, bias are needed, and 1 are there"),
        (_replaced("layers/conv2d", None), "layers/conv2d: weights kernel, bias are needed, and 0 are there"),
        (_replaced("layers/conv2d/vars/0", np.zeros((3, 3, 4))), "kernel has shape [3, 3, 4], expected 4 axes"),
        (_replaced("layers/conv2d/vars/0", np.zeros((3, 3, 2, 4), np.float32)), "conv"),
        (_replaced("layers/conv2d/vars/0", np.array([b"text"])), "and no numbers"),
        (_replaced("layers/batch_normalization/vars/2", np.zeros(5, np.float32)), "bn"),
        (_replaced("layers/batch_normalization/vars/0", np.zeros(5, np.float32)), "gamma has shape [5], expected [4]"),
        (_replaced("layers/dense/vars/0", np.zeros(8, np.float32)), "kernel has shape [8], expected 2 axes"),
        (_elsewhere, "lies somewhere else (ExternalLink)"),
        (_outside, "lies in other files"),
    ],
)
def test_wrong_weights(change: Callable[[Any], None], says: str, tmp_path: Path) -> None:
    held = with_weights(members(small(), tmp_path), change)
    with pytest.raises(InvalidModel, match=r"m\.keras") as caught:
        renorm.read(packed(held, tmp_path / "m.keras"))
    assert says in str(caught.value)


def test_bombs(tmp_path: Path) -> None:
    """What a file says to hold is looked at before it is there."""
    held = members(small(), tmp_path)
    limits = renorm.Limits(bytes=1 << 22)
    zeros = {**held, "model.weights.h5": held["model.weights.h5"] + bytes(1 << 23)}
    path = packed(zeros, tmp_path / "m.keras", zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(LimitExceeded, match=r"bytes: .* at most 4,194,304; model\.weights\.h5"):
        renorm.read(path, limits=limits)

    def vast(root: Any) -> None:
        del root["layers/dense/vars/0"]
        root.create_dataset("layers/dense/vars/0", (1 << 20, 1 << 19), "f4", chunks=(64, 64))

    with pytest.raises(LimitExceeded, match=r"elements: .*/layers/dense/vars/0"):
        renorm.read(packed(with_weights(held, vast), tmp_path / "m.keras"))
    with pytest.raises(LimitExceeded, match="file_bytes"):
        renorm.read(tmp_path / "m.keras", limits=renorm.Limits(file_bytes=1000))
    with pytest.raises(LimitExceeded, match="nodes: 4, at most 3"):
        renorm.read(packed(held, tmp_path / "m.keras"), limits=renorm.Limits(nodes=3))


def test_models_in_models_without_end(tmp_path: Path) -> None:
    config: Any = {"class_name": "Dense", "config": {"name": "d", "units": 2}}
    for i in range(60):
        config = {"class_name": "Sequential", "module": "keras", "config": {"name": f"s{i}", "layers": [config]}}
    held = {**members(small(), tmp_path), "config.json": json.dumps(config).encode()}
    with pytest.raises(LimitExceeded, match="nesting"):
        renorm.read(packed(held, tmp_path / "m.keras"))


def test_damaged_hdf5_of_whole_models(tmp_path: Path) -> None:
    import h5py

    small().save(tmp_path / "m.h5")
    whole = (tmp_path / "m.h5").read_bytes()
    for cut in (9, 100, len(whole) // 2):
        (tmp_path / "n.h5").write_bytes(whole[:cut])
        with pytest.raises(InvalidModel, match=r"n\.h5"):
            renorm.read(tmp_path / "n.h5")
    small().save_weights(tmp_path / "m.weights.h5")
    with pytest.raises(InvalidModel, match="a file of weights alone does not say which network they are of"):
        renorm.read(tmp_path / "m.weights.h5")
    with h5py.File(tmp_path / "m.h5", "a") as root:
        names: Any = root["model_weights/conv"].attrs["weight_names"]
        del root[f"model_weights/conv/{next(n for n in names if 'kernel' in n)}"]
    with pytest.raises(InvalidModel, match=r"there is no weight conv/.*kernel"):
        renorm.read(tmp_path / "m.h5")


# --- refused, and read by the user's functions ------------------------------------------------------------------------


@keras.saving.register_keras_serializable(package="mine")
class Doubled(L.Layer):
    def build(self, shape: Any) -> None:
        self.factor = self.add_weight(name="factor", shape=(shape[-1],))

    def call(self, x: Any) -> Any:
        return 2.0 * x * self.factor


@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
def with_own_layers() -> Any:
    x = keras.Input((5, 6), name="x")
    y = Doubled(name="doubled")(L.Dense(4, name="fc")(x))
    z = L.Lambda(lambda t: t + 1.0, name="plus_one", output_shape=(5, 4))(y)
    return trained(keras.Model(x, L.ConvLSTM1D(2, 2, name="deep")(L.Reshape((5, 4, 1))(z))))


@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
def test_everything_that_cannot_be_read_is_named_at_once(registry: None, tmp_path: Path) -> None:
    model = with_own_layers()
    model.save(tmp_path / "m.keras")
    for source in (tmp_path / "m.keras", model):
        with pytest.raises(UnsupportedOp) as caught:
            renorm.compile(source)
        said = str(caught.value)
        assert "node 'doubled' (mine>Doubled): Doubled of" in said
        assert "node 'plus_one' (Lambda): the code of a Lambda is not run" in said
        assert "node 'deep' (ConvLSTM1D): renorm does not read ConvLSTM1D" in said
        assert "renorm.register_keras_layer('mine>Doubled', function)" in said


@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
@pytest.mark.parametrize("name", ["mine>Doubled", "Doubled", "doubled"])
def test_functions_for_own_layers(name: str, registry: None, tmp_path: Path) -> None:
    def doubled(call: Any, x: Any) -> Any:
        (factor,) = call.weights
        assert call.config["name"] == call.name == "doubled"
        return renorm.ops.mul(x, np.float32(2) * factor)

    renorm.register_keras_layer(name, doubled)
    renorm.register_keras_layer("plus_one", lambda call, x: renorm.ops.add(x, np.float32(1)))
    x = keras.Input((5, 6), name="x")
    y = L.Conv1D(4, 3, name="conv")(x)
    z = L.Lambda(lambda t: t + 1.0, name="plus_one", output_shape=(3, 4))(Doubled(name="doubled")(y))
    model = trained(keras.Model(x, L.LayerNormalization(name="ln")(z)))
    model.save(tmp_path / "m.keras")
    (given,) = data(model, 3)
    for source in (tmp_path / "m.keras", model):
        m = renorm.compile(source)
        np.testing.assert_allclose(m.run(given)[0], wanted(model, [given])[0], rtol=1e-4, atol=1e-5)


def test_functions_that_fail(registry: None, tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((6,)), Doubled(name="doubled")])
    for function, says in (
        (lambda call, x: 1 // 0, "ZeroDivisionError"),
        (lambda call, x: "text", "returns str, expected values"),
    ):
        renorm.register_keras_layer("Doubled", function)
        with pytest.raises(UserCodeError, match=says):
            renorm.compile(model)
    with pytest.raises(InvalidInput, match="expected a name and a function"):
        renorm.register_keras_layer("", lambda call: None)


class Subclassed(keras.Model):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.fc = L.Dense(3)

    def call(self, x: Any) -> Any:
        return self.fc(x)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_classes_without_a_graph(tmp_path: Path) -> None:
    model = Subclassed()
    x = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    y = model(x)
    model.save(tmp_path / "m.keras")
    for source in (model, tmp_path / "m.keras"):
        with pytest.raises(UnsupportedOp, match=r"do: with Keras on the backend torch, compile the model itself"):
            renorm.compile(source)
    import torch

    found = renorm.compile(model.eval(), args=(torch.tensor(x),)).run(x)  # as the advice says
    np.testing.assert_allclose(found[0], y.detach().numpy(), rtol=1e-5, atol=1e-5)
