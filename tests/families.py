"""Families of models in transformers, each made small from its own configuration; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn

BATCH, LENGTH, WIDTH, HEADS, LAYERS, VOCABULARY = 2, 32, 64, 4, 2, 96
IMAGE, PATCH, CLASSES = 32, 8, 5
MELS, FRAMES, SAMPLES = 16, 64, 4000

Batch = dict[str, Any]
BOTH = ("eager", "sdpa")


@dataclass(frozen=True)
class Family:
    """A model of transformers, made small, and what it is trained on.

    Attributes:
        model: name of its class in transformers.
        settings: of its configuration.
        batch: makes the arguments of its forward pass.
        attentions: implementations of attention that it has.
    """

    model: str
    settings: Batch
    batch: Callable[[], Batch]
    attentions: tuple[str, ...] = BOTH
    parts: dict[str, tuple[str, Batch]] = field(default_factory=dict)

    def build(self, attention: str) -> nn.Module:
        """The model in training mode, the same for every call."""
        torch.manual_seed(0)
        model = getattr(transformers, self.model)
        parts = {
            name: getattr(transformers, kind)(**settings) for name, (kind, settings) in self.parts.items()
        }
        config = model.config_class(**self.settings, **parts, attn_implementation=attention)
        made = model(config)
        for parameter in made.parameters():  # none stays zero or one, which would hide gradients
            parameter.data.add_(0.02 * torch.randn_like(parameter))
        return made.train()


def loss_of(output: Any) -> Tensor:
    """The loss that a model computes of labels, or one that reaches all of its hidden states."""
    loss = output.get("loss") if hasattr(output, "get") else None
    if loss is not None:
        return loss.mean()
    states = output.get("logits", output.get("last_hidden_state"))
    return states.float().square().mean()


# Batches


def tokens(length: int = LENGTH) -> Tensor:
    return torch.randint(5, VOCABULARY, (BATCH, length))


def next_tokens() -> Batch:
    ids = tokens()
    return {"input_ids": ids, "labels": ids}


def masked_tokens() -> Batch:
    attention_mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    attention_mask[1, 24:] = 0
    return {"input_ids": tokens(), "labels": tokens(), "attention_mask": attention_mask}


def translated_tokens() -> Batch:
    return {"input_ids": tokens(), "labels": tokens(24)}


def pixels(size: int = IMAGE) -> Tensor:
    return torch.rand(BATCH, 3, size, size) - 0.5


def images() -> Batch:
    return {"pixel_values": pixels(), "labels": torch.randint(CLASSES, (BATCH,))}


def large_images() -> Batch:
    return {"pixel_values": pixels(64), "labels": torch.randint(CLASSES, (BATCH,))}


def pixel_classes() -> Batch:
    return {"pixel_values": pixels(), "labels": torch.randint(CLASSES, (BATCH, IMAGE, IMAGE))}


def boxes() -> Batch:
    labels = [
        {"class_labels": torch.randint(CLASSES, (3,)), "boxes": 0.3 + 0.4 * torch.rand(3, 4)}
        for _ in range(BATCH)
    ]
    return {"pixel_values": pixels(64), "labels": labels}


def patches() -> Batch:
    return {"pixel_values": pixels()}


def speech() -> Batch:
    return {"input_values": torch.randn(BATCH, SAMPLES), "labels": torch.randint(1, VOCABULARY, (BATCH, 4))}


def spectrograms() -> Batch:
    return {"input_features": torch.randn(BATCH, MELS, FRAMES), "labels": tokens(16)}


def frames() -> Batch:
    return {"input_features": torch.randn(BATCH, FRAMES, MELS), "labels": tokens(16)}


def sounds() -> Batch:
    return {"input_values": torch.randn(BATCH, FRAMES, MELS), "labels": torch.randint(CLASSES, (BATCH,))}


def captions() -> Batch:
    return {"input_ids": tokens(16), "pixel_values": pixels(), "return_loss": True}


def questions() -> Batch:
    return {"input_ids": tokens(16), "pixel_values": pixels(), "labels": torch.rand(BATCH, CLASSES)}


def series() -> Batch:
    return {"past_values": torch.randn(BATCH, 64, 3), "future_values": torch.randn(BATCH, 16, 3)}


# Settings that many configurations share

TEXT: Batch = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LAYERED: Batch = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
}
DECODER: Batch = {**TEXT, **LAYERED, "use_cache": False, "max_position_embeddings": 64}
GROUPED: Batch = {**DECODER, "num_key_value_heads": 2, "head_dim": WIDTH // HEADS}
ENCODER: Batch = {**TEXT, **LAYERED, "max_position_embeddings": 64}
EXPERTS: Batch = {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": WIDTH}
SEQUENCES: Batch = {
    **TEXT,
    "d_model": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 2 * WIDTH,
    "decoder_ffn_dim": 2 * WIDTH,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
    "use_cache": False,
}
T5: Batch = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "d_kv": WIDTH // HEADS,
    "d_ff": 2 * WIDTH,
    "num_layers": LAYERS,
    "num_decoder_layers": LAYERS,
    "num_heads": HEADS,
    "decoder_start_token_id": 0,
    "use_cache": False,
}
VISION: Batch = {**LAYERED, "image_size": IMAGE, "patch_size": PATCH, "num_labels": CLASSES}
STAGES: Batch = {"depths": [1, 1], "hidden_sizes": [32, WIDTH], "num_labels": CLASSES}
WINDOWS: Batch = {
    "image_size": IMAGE,
    "patch_size": 2,
    "embed_dim": 32,
    "depths": [2, 1],
    "num_heads": [2, 4],
    "window_size": 4,
    "num_labels": CLASSES,
}
SPEECH: Batch = {
    **LAYERED,
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "conv_dim": [32, 32, 32],
    "conv_stride": [5, 4, 2],
    "conv_kernel": [10, 8, 4],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "layerdrop": 0.0,
    "mask_time_prob": 0.0,
    "apply_spec_augment": False,
}
STATE: Batch = {
    **TEXT,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "state_size": 8,
    "use_cache": False,
}
DETECTOR: Batch = {
    "d_model": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 2 * WIDTH,
    "decoder_ffn_dim": 2 * WIDTH,
    "num_queries": 8,
    "num_labels": CLASSES,
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
}
SMALL_TEXT: Batch = {**ENCODER}
SMALL_VISION: Batch = {**LAYERED, "image_size": IMAGE, "patch_size": PATCH}
NONE = ("eager",)  # models without attention, or with their own

FAMILIES: dict[str, Family] = {
    # Decoders
    "gpt2": Family(
        "GPT2LMHeadModel",
        {**TEXT, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 64, "use_cache": False},
        next_tokens,
    ),
    "gpt_neo": Family(
        "GPTNeoForCausalLM",
        {
            **TEXT,
            "hidden_size": WIDTH,
            "num_layers": LAYERS,
            "num_heads": HEADS,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 16,
            "max_position_embeddings": 64,
            "use_cache": False,
        },
        next_tokens,
        NONE,
    ),
    "gpt_neox": Family("GPTNeoXForCausalLM", DECODER, next_tokens),
    "gptj": Family(
        "GPTJForCausalLM",
        {
            **TEXT,
            "n_embd": WIDTH,
            "n_layer": LAYERS,
            "n_head": HEADS,
            "n_positions": 64,
            "rotary_dim": 8,
            "use_cache": False,
        },
        next_tokens,
        NONE,
    ),
    "opt": Family(
        "OPTForCausalLM", {**DECODER, "ffn_dim": 2 * WIDTH, "word_embed_proj_dim": WIDTH}, next_tokens
    ),
    "bloom": Family(
        "BloomForCausalLM",
        {**TEXT, "hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "use_cache": False},
        next_tokens,
        NONE,
    ),
    "llama": Family("LlamaForCausalLM", GROUPED, next_tokens),
    "mistral": Family("MistralForCausalLM", {**GROUPED, "sliding_window": 16}, next_tokens),
    "qwen2": Family("Qwen2ForCausalLM", GROUPED, next_tokens),
    "qwen3": Family("Qwen3ForCausalLM", GROUPED, next_tokens),
    "phi": Family("PhiForCausalLM", DECODER, next_tokens),
    "phi3": Family("Phi3ForCausalLM", GROUPED, next_tokens),
    "gemma": Family("GemmaForCausalLM", GROUPED, next_tokens),
    "gemma2": Family("Gemma2ForCausalLM", {**GROUPED, "query_pre_attn_scalar": 16}, next_tokens, NONE),
    "gemma3": Family("Gemma3ForCausalLM", {**GROUPED, "query_pre_attn_scalar": 16}, next_tokens),
    "falcon": Family("FalconForCausalLM", {**DECODER, "num_kv_heads": 2, "alibi": False}, next_tokens),
    "mpt": Family(
        "MptForCausalLM",
        {
            **TEXT,
            "d_model": WIDTH,
            "n_heads": HEADS,
            "n_layers": LAYERS,
            "max_seq_len": 64,
            "use_cache": False,
        },
        next_tokens,
        NONE,
    ),
    "stablelm": Family("StableLmForCausalLM", GROUPED, next_tokens),
    "starcoder2": Family("Starcoder2ForCausalLM", GROUPED, next_tokens),
    "olmo2": Family("Olmo2ForCausalLM", GROUPED, next_tokens),
    "cohere": Family("CohereForCausalLM", GROUPED, next_tokens),
    "nemotron": Family("NemotronForCausalLM", GROUPED, next_tokens),
    "xglm": Family(
        "XGLMForCausalLM",
        {
            **TEXT,
            "d_model": WIDTH,
            "num_layers": LAYERS,
            "attention_heads": HEADS,
            "ffn_dim": 2 * WIDTH,
            "max_position_embeddings": 64,
            "use_cache": False,
        },
        next_tokens,
        NONE,
    ),
    # Mixtures of experts
    "mixtral": Family("MixtralForCausalLM", {**GROUPED, "num_local_experts": 4}, next_tokens),
    "qwen2_moe": Family(
        "Qwen2MoeForCausalLM", {**EXPERTS, "shared_expert_intermediate_size": WIDTH}, next_tokens
    ),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", EXPERTS, next_tokens),
    "olmoe": Family("OlmoeForCausalLM", EXPERTS, next_tokens),
    "deepseek_v3": Family(
        "DeepseekV3ForCausalLM",
        {
            **DECODER,
            "num_key_value_heads": HEADS,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "moe_intermediate_size": WIDTH,
            "first_k_dense_replace": 1,
            "kv_lora_rank": 16,
            "q_lora_rank": 32,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
        },
        next_tokens,
    ),
    "granitemoe": Family(
        "GraniteMoeForCausalLM", {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}, next_tokens
    ),
    "phimoe": Family("PhimoeForCausalLM", {**GROUPED, "num_local_experts": 4}, next_tokens),
    # State spaces and recurrences
    "mamba": Family("MambaForCausalLM", STATE, next_tokens, NONE),
    "mamba2": Family(
        "Mamba2ForCausalLM",
        {**STATE, "num_heads": 8, "head_dim": 16, "n_groups": 1, "chunk_size": 16},
        next_tokens,
        NONE,
    ),
    "recurrent_gemma": Family(
        "RecurrentGemmaForCausalLM",
        {
            **GROUPED,
            "lru_width": WIDTH,
            "attention_window_size": 32,
            "block_types": ["recurrent", "attention"],
        },
        next_tokens,
        NONE,
    ),
    # Encoders
    "bert": Family("BertForMaskedLM", ENCODER, masked_tokens),
    "roberta": Family("RobertaForMaskedLM", ENCODER, masked_tokens),
    "albert": Family("AlbertForMaskedLM", {**ENCODER, "embedding_size": 32}, masked_tokens),
    "electra": Family("ElectraForMaskedLM", {**ENCODER, "embedding_size": 32}, masked_tokens),
    "distilbert": Family(
        "DistilBertForMaskedLM",
        {**TEXT, "dim": WIDTH, "hidden_dim": 2 * WIDTH, "n_layers": LAYERS, "n_heads": HEADS},
        masked_tokens,
    ),
    "deberta_v2": Family(
        "DebertaV2ForMaskedLM",
        {
            **ENCODER,
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "type_vocab_size": 0,
            "position_buckets": 16,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
        },
        masked_tokens,
        NONE,
    ),
    "mpnet": Family("MPNetForMaskedLM", ENCODER, masked_tokens, NONE),
    "modernbert": Family("ModernBertForMaskedLM", {**ENCODER, "local_attention": 16}, masked_tokens),
    "xlnet": Family(
        "XLNetLMHeadModel",
        {**TEXT, "d_model": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "d_inner": 2 * WIDTH},
        next_tokens,
        NONE,
    ),
    "fnet": Family("FNetForMaskedLM", ENCODER, next_tokens, NONE),
    "roformer": Family("RoFormerForMaskedLM", ENCODER, masked_tokens, NONE),
    "convbert": Family("ConvBertForMaskedLM", {**ENCODER, "embedding_size": WIDTH}, masked_tokens, NONE),
    "squeezebert": Family(
        "SqueezeBertForMaskedLM", {**ENCODER, "embedding_size": WIDTH}, masked_tokens, NONE
    ),
    # Encoders and decoders
    "t5": Family("T5ForConditionalGeneration", T5, translated_tokens, NONE),
    "switch_transformers": Family(
        "SwitchTransformersForConditionalGeneration",
        {**T5, "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
        translated_tokens,
        NONE,
    ),
    "bart": Family("BartForConditionalGeneration", SEQUENCES, translated_tokens),
    "pegasus": Family("PegasusForConditionalGeneration", SEQUENCES, translated_tokens),
    "marian": Family("MarianMTModel", SEQUENCES, translated_tokens),
    "m2m_100": Family("M2M100ForConditionalGeneration", SEQUENCES, translated_tokens),
    "prophetnet": Family(
        "ProphetNetForConditionalGeneration",
        {
            **TEXT,
            "hidden_size": WIDTH,
            "num_encoder_layers": LAYERS,
            "num_decoder_layers": LAYERS,
            "num_encoder_attention_heads": HEADS,
            "num_decoder_attention_heads": HEADS,
            "encoder_ffn_dim": 2 * WIDTH,
            "decoder_ffn_dim": 2 * WIDTH,
            "use_cache": False,
        },
        translated_tokens,
        NONE,
    ),
    # Vision
    "vit": Family("ViTForImageClassification", VISION, images),
    "deit": Family("DeiTForImageClassification", VISION, images),
    "beit": Family("BeitForImageClassification", VISION, images),
    "dinov2": Family("Dinov2ForImageClassification", VISION, images),
    "swin": Family("SwinForImageClassification", WINDOWS, images, NONE),
    "swinv2": Family("Swinv2ForImageClassification", WINDOWS, images, NONE),
    "convnext": Family("ConvNextForImageClassification", {**STAGES, "num_stages": 2}, large_images, NONE),
    "convnextv2": Family("ConvNextV2ForImageClassification", {**STAGES, "num_stages": 2}, large_images, NONE),
    "resnet": Family("ResNetForImageClassification", {**STAGES, "embedding_size": 16}, images, NONE),
    "regnet": Family(
        "RegNetForImageClassification", {**STAGES, "embedding_size": 16, "groups_width": 16}, images, NONE
    ),
    "segformer": Family(
        "SegformerForSemanticSegmentation",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [4, 2],
            "hidden_sizes": [32, WIDTH],
            "patch_sizes": [7, 3],
            "strides": [2, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 32,
            "num_labels": CLASSES,
        },
        pixel_classes,
        NONE,
    ),
    "poolformer": Family(
        "PoolFormerForImageClassification",
        {
            "depths": [1, 1],
            "hidden_sizes": [32, WIDTH],
            "num_encoder_blocks": 2,
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "padding": [2, 1],
            "num_labels": CLASSES,
        },
        images,
        NONE,
    ),
    "vit_mae": Family(
        "ViTMAEForPreTraining",
        {
            **VISION,
            "decoder_hidden_size": 32,
            "decoder_num_hidden_layers": 1,
            "decoder_num_attention_heads": 2,
        },
        patches,
    ),
    "yolos": Family(
        "YolosForObjectDetection",
        {**VISION, "image_size": [64, 64], "num_detection_tokens": 8},
        boxes,
    ),
    "detr": Family(
        "DetrForObjectDetection",
        DETECTOR,
        boxes,
        NONE,
        parts={
            "backbone_config": ("ResNetConfig", {**STAGES, "embedding_size": 16, "out_features": ["stage2"]})
        },
    ),
    # Audio
    "wav2vec2": Family("Wav2Vec2ForCTC", SPEECH, speech),
    "hubert": Family("HubertForCTC", SPEECH, speech),
    "wavlm": Family("WavLMForCTC", SPEECH, speech, NONE),
    "whisper": Family(
        "WhisperForConditionalGeneration",
        {**SEQUENCES, "num_mel_bins": MELS, "max_source_positions": FRAMES // 2, "max_target_positions": 64},
        spectrograms,
    ),
    "speech_to_text": Family(
        "Speech2TextForConditionalGeneration",
        {
            **SEQUENCES,
            "input_feat_per_channel": MELS,
            "conv_channels": 32,
            "max_source_positions": FRAMES,
            "max_target_positions": 64,
        },
        frames,
        NONE,
    ),
    "audio_spectrogram_transformer": Family(
        "ASTForAudioClassification",
        {**LAYERED, "num_mel_bins": MELS, "max_length": FRAMES, "patch_size": PATCH, "num_labels": CLASSES},
        sounds,
    ),
    # Images and text
    "clip": Family(
        "CLIPModel",
        {"projection_dim": 32},
        captions,
        parts={
            "text_config": ("CLIPTextConfig", SMALL_TEXT),
            "vision_config": ("CLIPVisionConfig", SMALL_VISION),
        },
    ),
    "siglip": Family(
        "SiglipModel",
        {},
        captions,
        parts={
            "text_config": ("SiglipTextConfig", SMALL_TEXT),
            "vision_config": ("SiglipVisionConfig", SMALL_VISION),
        },
    ),
    "blip": Family(
        "BlipModel",
        {"projection_dim": 32},
        captions,
        NONE,
        parts={
            "text_config": ("BlipTextConfig", SMALL_TEXT),
            "vision_config": ("BlipVisionConfig", SMALL_VISION),
        },
    ),
    "vilt": Family("ViltForQuestionAnswering", {**ENCODER, **VISION}, questions, NONE),
    # Series
    "patchtst": Family(
        "PatchTSTForPrediction",
        {
            **LAYERED,
            "d_model": WIDTH,
            "ffn_dim": 2 * WIDTH,
            "num_input_channels": 3,
            "context_length": 64,
            "prediction_length": 16,
            "patch_length": 8,
            "patch_stride": 8,
            "loss": "mse",
        },
        series,
    ),
}
