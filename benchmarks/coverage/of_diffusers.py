"""Parts of image generators of diffusers, narrow: networks that denoise, and autoencoders.

pip install --no-deps diffusers
"""

# the package is installed for this alone
# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

from benchmarks.coverage.network import Built, Given, Row, Tensors

WIDTHS: dict[str, Any] = {"block_out_channels": (16, 32), "norm_num_groups": 4, "layers_per_block": 1}
CROSS = {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}

DOWN, UP = ("DownEncoderBlock2D",) * 2, ("UpDecoderBlock2D",) * 2
ATTENDED = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
TOKENS = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "sample_size": 8, "in_channels": 4}

ROWS: tuple[Row, ...] = (
    Row(
        "UNet2DConditionModel",
        "image generation",
        WIDTHS | CROSS | {"cross_attention_dim": 24, "attention_head_dim": 4},
    ),
    Row("UNet2DModel", "image generation", WIDTHS | ATTENDED | {"attention_head_dim": 4}),
    Row("AutoencoderKL", "autoencoder", WIDTHS | {"down_block_types": DOWN, "up_block_types": UP}),
    Row("VQModel", "autoencoder", WIDTHS | {"down_block_types": DOWN, "up_block_types": UP}, "dynamo"),
    Row("DiTTransformer2DModel", "image generation", TOKENS | {"norm_num_groups": 4}),
)


def build(row: Row) -> Built:
    """Return the network of a row."""
    import diffusers

    net: Any = getattr(diffusers, row.name)(**row.options)
    if row.task == "autoencoder":
        return Built(Tensors(net, ("sample",)), (Given("sample", ("batch", 3, 32, 32)),))
    channels = net.config.in_channels
    given = [Given("sample", ("batch", channels, 16, 16)), Given("timestep", ("batch",), "tokens", 900)]
    if row.name == "UNet2DConditionModel":
        given.append(Given("encoder_hidden_states", ("batch", 5, 24)))
    names = {"sample": "hidden_states"} if row.name == "DiTTransformer2DModel" else {}
    given = [Given(names.get(g.name, g.name), g.shape, g.kind, g.words) for g in given]
    if names:
        given[0] = Given("hidden_states", ("batch", channels, 8, 8))
        given.append(Given("class_labels", ("batch",), "tokens", 900))
    return Built(Tensors(net, [g.name for g in given]), given)
