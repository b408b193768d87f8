"""transformers' Trainer: ``python -m tests.frameworks.transformers_worker FOLDER``."""

import sys
import tempfile
from functools import partial
from typing import Any

import torch
from transformers import Trainer, TrainingArguments, set_seed

from .trainers import ARGUMENTS, SIZE, STEPS, WORDS, llama, train
from .variants import compare, write

LENGTH, ACCUMULATED = 48, 2
RUNS: dict[str, dict[str, Any]] = {
    "Trainer": {"gradient_accumulation_steps": ACCUMULATED},
    "Trainer, bf16": {"gradient_accumulation_steps": ACCUMULATED, "bf16": True},
    "Trainer, checkpointed": {"gradient_checkpointing": True},
}


def trainer(folder: str, options: dict[str, Any]) -> Trainer:
    set_seed(0)
    count = STEPS * SIZE * ACCUMULATED
    first = torch.randint(WORDS, (count, 1), generator=torch.Generator().manual_seed(0))
    tokens = 3 + (first + torch.arange(LENGTH)) % WORDS
    examples = [{"input_ids": one, "labels": one} for one in tokens]
    return Trainer(llama(), TrainingArguments(folder, **ARGUMENTS | options), train_dataset=examples)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as own:
        found = {
            name: compare(partial(train, partial(trainer, own, options))) for name, options in RUNS.items()
        }
    write(sys.argv[1], found)
