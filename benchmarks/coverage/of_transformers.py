"""Networks of transformers: of each kind its own configuration, made narrow and two layers deep.

pip install transformers
"""

# the package is installed for this alone
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.coverage.network import Built, Given, Row, Tensors

WORDS = 100
SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embedding_size", "dim", "projection_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "ffn_dim", "hidden_dim"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions"), 64),
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "d_kv": 8,
    "vocab_size": WORDS,
    "image_size": 32,
    "patch_size": 8,
    "word_embed_proj_dim": 32,
    "num_decoder_layers": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": False,
    "num_labels": 5,
    "decoder_start_token_id": 1,
}
USUAL = ...  # an option that is left as the configuration has it
TEXT, WHOLE = ("batch", "sequence"), ("batch",)
INT8 = ("dynamic int8", "static QDQ")
WAVE = {
    "conv_dim": (24, 24, 24),
    "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 2, 2),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "num_feat_extract_layers": 3,
}
STAGES: dict[str, Any] = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 24, 32, 40]}
WINDOWS: dict[str, Any] = {
    "embed_dim": 12,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
    "image_size": 64,
    "patch_size": 4,
}

FIXED = (  # networks of text whose files hold one number of sentences and words
    *("CamembertForMaskedLM", "MPNetModel", "MobileBertModel", "StableLmForCausalLM"),
    *("OlmoForCausalLM", "GraniteForCausalLM", "Gemma2ForCausalLM", "Phi3ForCausalLM"),
    *("CodeGenForCausalLM", "RoFormerModel", "ConvBertModel", "SqueezeBertModel", "MambaForCausalLM"),
)


def _words(name: str, task: str, exporter: str, forms: tuple[str, ...] = (), **options: Any) -> Row:
    return Row(name, task, options, exporter, () if name in FIXED else TEXT, forms)


def _seen(name: str, task: str, exporter: str, forms: tuple[str, ...] = (), **options: Any) -> Row:
    return Row(name, task, options, exporter, WHOLE, forms)


ROWS: tuple[Row, ...] = (
    _words("BertForSequenceClassification", "text encoder", "script", (*INT8, "static QOperator")),
    _words("BertForMaskedLM", "text encoder", "dynamo", ("4-bit weights",)),
    _words("BertForQuestionAnswering", "text encoder", "script", num_labels=2),
    _words("RobertaForTokenClassification", "text encoder", "script"),
    _words("XLMRobertaForSequenceClassification", "text encoder", "script"),
    _words("DistilBertForSequenceClassification", "text encoder", "script", ("dynamic int8",)),
    _words("AlbertForMaskedLM", "text encoder", "script"),
    _words("ElectraForPreTraining", "text encoder", "script"),
    _words("DebertaModel", "text encoder", "script", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    _words("DebertaV2Model", "text encoder", "script", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    _words("MPNetModel", "text encoder", "script"),
    _words("CamembertForMaskedLM", "text encoder", "script"),
    _words("SqueezeBertModel", "text encoder", "script"),
    _words("MobileBertModel", "text encoder", "script", intra_bottleneck_size=16),
    _words("ConvBertModel", "text encoder", "script"),
    _words("RoFormerModel", "text encoder", "script"),
    _words("FunnelModel", "text encoder", "script", block_sizes=[1, 1], num_hidden_layers=USUAL, n_head=4, d_head=8),
    _words("FNetModel", "text encoder", "dynamo"),
    _words("NystromformerModel", "text encoder", "script"),
    _words("ModernBertModel", "text encoder", "script"),
    _words("XLNetModel", "text encoder", "script", max_position_embeddings=USUAL),
    _words("LayoutLMModel", "text encoder", "script"),
    _words("GPT2LMHeadModel", "text decoder", "script", ("dynamic int8",)),
    _words("GPTNeoForCausalLM", "text decoder", "script", attention_types=[[["global", "local"], 1]]),
    _words("GPTNeoXForCausalLM", "text decoder", "script"),
    _words("GPTJForCausalLM", "text decoder", "script", rotary_dim=4),
    _words("OPTForCausalLM", "text decoder", "script"),
    _words("BloomForCausalLM", "text decoder", "script"),
    _words("CodeGenForCausalLM", "text decoder", "script", rotary_dim=4),
    _words("FalconForCausalLM", "text decoder", "script", head_dim=USUAL),
    _words("MptForCausalLM", "text decoder", "script"),
    _words("LlamaForCausalLM", "text decoder", "dynamo", ("4-bit weights",)),
    _words("MistralForCausalLM", "text decoder", "script"),
    _words("Qwen2ForCausalLM", "text decoder", "script"),
    _words("Qwen3ForCausalLM", "text decoder", "script"),
    _words("GemmaForCausalLM", "text decoder", "script"),
    _words("Gemma2ForCausalLM", "text decoder", "script"),
    _words("Gemma3ForCausalLM", "text decoder", "script"),
    _words("PhiForCausalLM", "text decoder", "script"),
    _words("Phi3ForCausalLM", "text decoder", "script"),
    _words("StableLmForCausalLM", "text decoder", "script"),
    _words("CohereForCausalLM", "text decoder", "dynamo"),
    _words("OlmoForCausalLM", "text decoder", "script"),
    _words("GraniteForCausalLM", "text decoder", "script"),
    _words("MambaForCausalLM", "text decoder, state space", "dynamo", state_size=4, time_step_rank=4),
    *(
        Row(f"{name} cached", "text decoder with its cache", {}, exporter, ("batch", "past"), forms)
        for name, exporter, forms in (
            ("GPT2LMHeadModel", "script", ("dynamic int8",)),
            ("OPTForCausalLM", "script", ()),
            ("LlamaForCausalLM", "dynamo", ("4-bit weights",)),
            ("Qwen2ForCausalLM", "script", ()),
            ("MistralForCausalLM", "script", ()),
            ("PhiForCausalLM", "script", ()),
            ("GemmaForCausalLM", "script", ()),
        )
    ),
    *(
        Row(name, "text encoder and decoder", {}, exporter, ("batch", "sequence", "target"), forms)
        for name, exporter, forms in (
            ("T5ForConditionalGeneration", "script", ("dynamic int8",)),
            ("BartForConditionalGeneration", "dynamo", ()),
            ("MBartForConditionalGeneration", "script", ()),
            ("PegasusForConditionalGeneration", "script", ()),
            ("MarianMTModel", "script", ()),
            ("M2M100ForConditionalGeneration", "script", ()),
        )
    ),
    _seen("ViTForImageClassification", "image classification", "script", ("static QDQ", "static QOperator")),
    _seen("DeiTForImageClassification", "image classification", "dynamo", ("static QDQ",)),
    _seen("BeitForImageClassification", "image classification", "script", use_relative_position_bias=True),
    _seen("Dinov2Model", "image features", "script"),
    _seen("ViTMAEModel", "image features", "script", mask_ratio=0.0),
    _seen("SwinForImageClassification", "image classification", "script", ("static QDQ",), **WINDOWS),
    _seen("Swinv2ForImageClassification", "image classification", "script", **WINDOWS),
    _seen("Swin2SRForImageSuperResolution", "super-resolution", "script", patch_size=1, upscale=2,
          **{k: v for k, v in WINDOWS.items() if k != "patch_size"}),
    _seen("PvtForImageClassification", "image classification", "script"),
    _seen("CvtForImageClassification", "image classification", "script", depth=[1, 2, 3], embed_dim=[16, 24, 36]),
    _seen("ConvNextForImageClassification", "image classification", "script", ("static QDQ",), image_size=64,
          num_hidden_layers=USUAL, **STAGES),
    _seen("ConvNextV2ForImageClassification", "image classification", "script", image_size=64,
          num_hidden_layers=USUAL, **STAGES),
    _seen("ResNetForImageClassification", "image classification", "script", embedding_size=16, image_size=64, **STAGES),
    _seen("RegNetForImageClassification", "image classification", "script", groups_width=8, image_size=64, **STAGES),
    _seen("MobileViTForImageClassification", "image classification", "script", image_size=64, patch_size=2),
    _seen("PoolFormerForImageClassification", "image classification", "script", image_size=64, **STAGES),
    _seen("LevitForImageClassification", "image classification", "script", image_size=64, patch_size=16),
    _seen("SegformerForSemanticSegmentation", "segmentation", "script", ("static QDQ",), image_size=64, depths=[1] * 4),
    _seen("DPTForDepthEstimation", "depth", "script", neck_hidden_sizes=[8, 12, 16, 20], fusion_hidden_size=16,
          num_hidden_layers=4, backbone_out_indices=[0, 1, 2, 3], is_hybrid=False),
    _seen("GLPNForDepthEstimation", "depth", "script", image_size=64, depths=[1, 1, 1, 1]),
    _seen("YolosForObjectDetection", "detection", "script", num_detection_tokens=7),
    _seen("DetrForObjectDetection", "detection", "script", num_queries=9),
    Row("CLIPModel", "image and text", {}, "script", TEXT),
    Row("SiglipModel", "image and text", {}, "script", TEXT),
    Row("BlipForImageTextRetrieval", "image and text", {}, "script", TEXT),
    Row("ViltModel", "image and text", {}, "script", WHOLE),
    Row("Wav2Vec2ForCTC", "speech, CTC head", WAVE, "script", WHOLE, ("dynamic int8",)),
    Row("HubertForCTC", "speech, CTC head", WAVE, "dynamo", WHOLE),
    Row("WavLMForCTC", "speech, CTC head", WAVE, "script", WHOLE),
    Row("SEWForCTC", "speech, CTC head", {**WAVE, "squeeze_factor": 2}, "script", WHOLE),
    Row("WhisperEncoder", "speech encoder", {"num_mel_bins": 20, "max_source_positions": 30}, "script", WHOLE, INT8),
    Row("WhisperForConditionalGeneration", "speech encoder and decoder",
        {"num_mel_bins": 20, "max_source_positions": 30}, "dynamo", ("batch", "target")),
    Row("ASTForAudioClassification", "audio classification", {"max_length": 40, "num_mel_bins": 24, "patch_size": 8,
        "frequency_stride": 8, "time_stride": 8}, "script", WHOLE),
    Row("PatchTSTForPrediction", "time series", {"num_input_channels": 3, "context_length": 32, "prediction_length": 8,
        "patch_length": 8, "patch_stride": 4}, "script", WHOLE),
)  # fmt: skip


def build(row: Row) -> Built:
    """Return the network of a row."""
    import transformers
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    name, _, cached = row.name.partition(" ")
    network: Any = WhisperEncoder if name == "WhisperEncoder" else getattr(transformers, name)
    options = dict(row.options)
    if name == "DetrForObjectDetection":  # which takes another network's features, of timm by default
        options["backbone_config"] = transformers.ResNetConfig(embedding_size=16, out_features=["stage4"], **STAGES)
    config = _configured(network.config_class, options)
    config.use_cache = bool(cached)
    net = network(config)
    if cached:
        return _cached(net, config)
    size = getattr(config, "image_size", None) or 32
    size = size if isinstance(size, int) else size[0]
    words = Given("input_ids", ("batch", "sequence"), "tokens", WORDS)
    mask = Given("attention_mask", ("batch", "sequence"), "mask")
    image = Given("pixel_values", ("batch", getattr(config, "num_channels", 3), size, size))
    match row.task:
        case "text encoder" | "text decoder":
            given = (words,) if name in ("FNetModel", "NystromformerModel") else (words, mask)
        case "text decoder, state space":
            given = (words,)
        case "text encoder and decoder":
            given = (words, mask, Given("decoder_input_ids", ("batch", "target"), "tokens", WORDS))
        case "image and text":
            size = config.image_size if name == "ViltModel" else config.vision_config.image_size
            image = Given("pixel_values", ("batch", 3, size, size))
            given = (words, image) if name == "SiglipModel" else (words, mask, image)
        case "speech, CTC head":
            given = (Given("input_values", ("batch", 1600)),)
        case "speech encoder":
            given = (Given("input_features", ("batch", config.num_mel_bins, 2 * config.max_source_positions)),)
        case "speech encoder and decoder":
            features = Given("input_features", ("batch", config.num_mel_bins, 2 * config.max_source_positions))
            given = (features, Given("decoder_input_ids", ("batch", "target"), "tokens", WORDS))
        case "audio classification":
            given = (Given("input_values", ("batch", config.max_length, config.num_mel_bins)),)
        case "time series":
            given = (Given("past_values", ("batch", config.context_length, config.num_input_channels)),)
        case _:
            patches = (size // getattr(config, "patch_size", size)) ** 2 if name == "ViTMAEModel" else 0
            # what it hides is drawn at random, unless it is given
            given = (image, Given("noise", ("batch", patches), "uniform")) if patches else (image,)
    return Built(Tensors(net, [g.name for g in given]), given)


def _configured(kind: Any, options: Mapping[str, Any]) -> Any:
    """Return a configuration with SMALL's numbers where it has such, and so in the configurations inside."""
    usual = kind()
    small = {k: v for k, v in SMALL.items() if isinstance(getattr(usual, k, ""), (int, type(None)))}
    inner = {
        k: _configured(type(v), {}) for k, v in vars(usual).items() if k.endswith("_config") and hasattr(v, "to_dict")
    }
    chosen = {**small, **{k: v.to_dict() for k, v in inner.items()}, **options}
    return kind(**{k: v for k, v in chosen.items() if v is not USUAL})


class _Cached(torch.nn.Module):
    """A decoder that takes keys and values of earlier words, and gives scores and all keys and values."""

    def __init__(self, net: torch.nn.Module):
        super().__init__()
        self.net = net

    def forward(self, words: torch.Tensor, mask: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from transformers import DynamicCache

        cache = DynamicCache()
        for i in range(0, len(past), 2):
            cache.update(past[i], past[i + 1], i // 2)
        found = self.net(input_ids=words, attention_mask=mask, past_key_values=cache, use_cache=True)
        held = ((layer.keys, layer.values) for layer in found.past_key_values.layers)
        return (found.logits, *(t for pair in held for t in pair))


def _cached(net: torch.nn.Module, config: Any) -> Built:
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    past = (Given(f"{k}{i}", ("batch", heads, "past", width)) for i in range(2) for k in ("keys", "values"))
    # one word after those of the cache
    words = Given("input_ids", ("batch", 1), "tokens", WORDS)
    return Built(_Cached(net), (words, Given("attention_mask", ("batch", "reach"), "mask"), *past))
