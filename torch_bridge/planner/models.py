"""The models that a plan can be made for: configurations of transformers, without weights or network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

# What else a name may stand for; from the config.json beside the weights of each, on the Hugging Face Hub.
_GPT2: dict[str, Any] = {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024}
_LLAMA3: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}
_QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
}


def _sizes(hidden: int, intermediate: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }


BUILT_IN: dict[str, dict[str, Any]] = {
    # openai-community/gpt2, -medium, -large, -xl
    "gpt2": {**_GPT2, "n_embd": 768, "n_layer": 12, "n_head": 12},
    "gpt2-medium": {**_GPT2, "n_embd": 1024, "n_layer": 24, "n_head": 16},
    "gpt2-large": {**_GPT2, "n_embd": 1280, "n_layer": 36, "n_head": 20},
    "gpt2-xl": {**_GPT2, "n_embd": 1600, "n_layer": 48, "n_head": 25},
    # HuggingFaceTB/SmolLM2-135M
    "smollm2-135m": {
        "model_type": "llama",
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        **_sizes(576, 1536, 30, 9),
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    },
    # meta-llama/Meta-Llama-3-8B, -70B
    "llama-3-8b": {**_LLAMA3, **_sizes(4096, 14336, 32, 32)},
    "llama-3-70b": {**_LLAMA3, **_sizes(8192, 28672, 80, 64)},
    # Qwen/Qwen3-0.6B, -8B
    "qwen3-0.6b": {**_QWEN3, **_sizes(1024, 3072, 28, 16), "tie_word_embeddings": True},
    "qwen3-8b": {**_QWEN3, **_sizes(4096, 12288, 36, 32), "tie_word_embeddings": False},
}

CAUSAL, SEQUENCES, MASKED = "CausalLM", "Seq2SeqLM", "MaskedLM"
_KINDS = (CAUSAL, SEQUENCES, MASKED)
# Positions of these are computed, so that a sequence may be longer than those a model was trained on.
_ROTARY = ("rope_parameters", "rope_theta", "rope_scaling")


def config_of(name: str) -> Any:
    """A configuration of transformers.

    Args:
        name: one of ``BUILT_IN``; a model type of transformers, with its default sizes; a config.json or the
            folder that has it; or a model of the Hub whose config.json is in the local cache.

    Raises:
        ValueError: it is none of these, or transformers takes no such configuration.
        ModuleNotFoundError: transformers is not installed.
    """
    import transformers

    path = Path(name)
    if name in BUILT_IN:
        return _config(name, BUILT_IN[name])
    if path.is_dir() or path.suffix == ".json":
        return _from_file(path / "config.json" if path.is_dir() else path)
    if name in transformers.CONFIG_MAPPING:
        return transformers.AutoConfig.for_model(name)
    try:
        return transformers.AutoConfig.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError):
        raise ValueError(
            f"MODEL must be one of {', '.join(BUILT_IN)}, a model type of transformers, a config.json or "
            f"its folder, or a name in the local Hugging Face cache, not {name!r}"
        ) from None


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"MODEL must be a config.json or its folder: there is no file {str(path)!r}")
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"a config must be JSON, which {str(path)!r} is not: {error}") from None
    if not isinstance(given, dict) or "model_type" not in given:
        raise ValueError(f"a config must have a model_type, which {str(path)!r} has not")
    return _config(str(path), given)


def _config(name: str, given: dict[str, Any]) -> Any:
    import transformers

    if given["model_type"] not in transformers.CONFIG_MAPPING:
        raise ValueError(f"model_type must be one that transformers has, not {given['model_type']!r}")
    try:
        return transformers.AutoConfig.for_model(**given)
    except Exception as error:  # each configuration has checks of its own
        raise ValueError(f"transformers takes no such config as {name!r}: {error}") from error


def kind_of(config: Any) -> str:
    """What a configuration's language model predicts: "CausalLM", "Seq2SeqLM" or "MaskedLM".

    Raises:
        ValueError: it has no language model.
    """
    import transformers

    for name in _KINDS:
        if type(config) in getattr(transformers, f"AutoModelFor{name}")._model_mapping:
            return name
    raise ValueError(f"model_type must be a language model's, not {config.model_type!r}")


def build(config: Any, attention: str | None = None) -> torch.nn.Module:
    """The language model of a configuration, in training mode and without a cache of keys and values.

    Args:
        config: of transformers.
        attention: "sdpa" or "eager"; by default what transformers chooses.

    Raises:
        ValueError: it has no language model, or sizes of which none can be made.
    """
    import transformers

    if hasattr(config, "use_cache"):
        config.use_cache = False
    options = {} if attention is None else {"attn_implementation": attention}
    kind = getattr(transformers, f"AutoModelFor{kind_of(config)}")
    try:
        model: torch.nn.Module = kind.from_config(config, **options)
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:  # what sizes of 0 end in
        raise ValueError(f"transformers makes no {config.model_type} of the config: {error}") from error
    return model.train()


def batch_of(config: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Tokens of a step: int64[batch, length]; a model with a decoder has as many in that.

    Raises:
        ValueError: the model has a table of fewer positions.
    """
    sizes = config.get_text_config()
    positions = getattr(sizes, "max_position_embeddings", None)
    is_rotary = any(getattr(sizes, name, None) for name in _ROTARY)
    if isinstance(positions, int) and length > positions > 0 and not is_rotary:
        raise ValueError(f"length must be at most the model's {positions} positions, not {length}")
    tokens = torch.zeros((batch, length), dtype=torch.int64)
    return {"input_ids": tokens, "labels": tokens}
