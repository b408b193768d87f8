"""TRL's trainers: ``python -m tests.frameworks.trl_worker FOLDER``."""

import sys
import tempfile
import warnings
from functools import partial
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import set_seed
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from torch_bridge import attach

from .trainers import ARGUMENTS, SIZE, STEPS, llama, text, tokenizer, train
from .variants import compare, write

LORA = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.1)


def sft(folder: str, **options: Any) -> SFTTrainer:
    set_seed(0)
    examples = [{"text": text(7 * i, 20 + i % 13)} for i in range(STEPS * SIZE * 4)]
    settings = SFTConfig(folder, packing=True, max_length=64, bf16=True, **ARGUMENTS | options)
    return SFTTrainer(
        llama(),
        settings,
        train_dataset=Dataset.from_list(examples),
        processing_class=tokenizer(),
        peft_config=LORA,
    )


def dpo(folder: str) -> DPOTrainer:
    set_seed(0)
    examples = [
        {"prompt": text(7 * i, 12), "chosen": " " + text(7 * i + 12, 20), "rejected": " " + text(5 * i, 20)}
        for i in range(STEPS * SIZE)
    ]
    return DPOTrainer(
        llama(),
        llama(),  # the reference; another than what is trained
        args=DPOConfig(folder, max_length=64, **ARGUMENTS),
        train_dataset=Dataset.from_list(examples),
        processing_class=tokenizer(),
    )


def told(folder: str) -> list[str]:
    """What attach says of a trainer that offloads by itself."""
    # TRL asks for an accelerator there, and does the same with a CPU.
    torch.accelerator.current_accelerator = lambda *_: torch.device("cpu")  # type: ignore[assignment]
    trainer = sft(folder, activation_offloading=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attach(trainer)
    return [str(one.message) for one in caught]


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as own:
        found: dict[str, Any] = {
            "SFT": compare(partial(train, partial(sft, own))),
            "DPO": compare(partial(train, partial(dpo, own))),
            "told": told(own),
        }
    write(sys.argv[1], found)
