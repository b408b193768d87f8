"""Compressed activations in TRL's trainers: python examples/trl_sft.py

The model is a small one that is not pretrained, so that nothing is downloaded.
"""

from tempfile import TemporaryDirectory

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from bitstash import attach

WORDS = ["<s>", "</s>", "<pad>", *(f"word{i}" for i in range(100))]
words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
words.pre_tokenizer = WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=words, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
)
config = LlamaConfig(
    vocab_size=len(WORDS),
    hidden_size=128,
    intermediate_size=384,
    num_hidden_layers=2,
    num_attention_heads=4,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=2,
)
texts = [{"text": " ".join(WORDS[3 + (i + j) % 100] for j in range(40))} for i in range(200)]

with TemporaryDirectory() as folder:
    trainer = SFTTrainer(
        LlamaForCausalLM(config),
        SFTConfig(
            folder,
            max_steps=5,
            max_length=64,
            packing=True,
            gradient_checkpointing=False,  # on by default
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            bf16=torch.cuda.is_available(),
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=Dataset.from_list(texts),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    saver = attach(trainer)  # 4 bits a value
    trainer.train()
    print(saver.report())
    print(f"activations {saver.ratio:.2f}x smaller")
