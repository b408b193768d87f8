"""What the workers of Hugging Face's trainers share."""

from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback

from torch_bridge import attach

from .variants import Trained, Variant, copies

WORDS, STEPS, SIZE = 48, 3, 4

# Of every trainer here.
ARGUMENTS: dict[str, Any] = {
    "max_steps": STEPS,
    "per_device_train_batch_size": SIZE,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "disable_tqdm": True,
    "seed": 1,
}


def llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS + 3,
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=2,
        )
    )


def tokenizer() -> PreTrainedTokenizerFast:
    """Of words "w0", "w1" and so on."""
    names = ["<s>", "</s>", "<pad>", *(f"w{i}" for i in range(WORDS))]
    words = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token="<pad>"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def text(first: int, length: int) -> str:
    """Words that count on."""
    return " ".join(f"w{(first + i) % WORDS}" for i in range(length))


class _Gradients(TrainerCallback):
    def __init__(self) -> None:
        self.first: list[Any] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        self.first = self.first or copies(part.grad for part in model.parameters() if part.grad is not None)


def train(build: Callable[[], Any], variant: Variant) -> Trained:
    """Train with what a function makes: a transformers.Trainer or one that is made of it."""
    trainer, gradients = build(), _Gradients()
    trainer.add_callback(gradients)
    if variant.policy is not None:
        variant.saver = attach(trainer, variant.policy, **variant.options)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    weights = [part for part in trainer.model.parameters() if part.requires_grad]
    return Trained(losses, gradients.first, copies(weights))
