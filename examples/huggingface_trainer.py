"""Compressed activations in Hugging Face's Trainer: python examples/huggingface_trainer.py"""

from tempfile import TemporaryDirectory

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from bitstash import attach
from torch_bridge.job.train import draw, read_text

LENGTH = 64


config = GPT2Config(
    vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
)
text = read_text(None)  # what Python's own documentation says, as bytes
windows = draw(text, 256, LENGTH, torch.Generator().manual_seed(0))
examples = [{"input_ids": tokens, "labels": tokens} for tokens in windows]

with TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        max_steps=10,
        per_device_train_batch_size=16,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    )
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=examples)
    saver = attach(trainer)
    trainer.train()
    print(saver.report())
    print(f"activations {saver.ratio:.2f}x smaller")
