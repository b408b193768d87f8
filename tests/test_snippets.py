"""The Python of the pages runs as it stands there, page by page, with a small model."""

import importlib.util
import re
from pathlib import Path

import pytest
import pytorch_lightning
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

import bitstash

ROOT = Path(__file__).parent.parent
SIMULATED = ("hardware",)  # its Python runs in a simulator
PAGES = sorted(
    page
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md")]
    if page.stem not in SIMULATED
)
CODE = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def snippets():
    for page in PAGES:
        code = CODE.findall(page.read_text())
        if code:
            yield pytest.param(code, id=page.stem)


LLAMA = LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2
)


def model_of_a_reader():
    config = GPT2Config(
        vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    config.use_cache = False
    return GPT2LMHeadModel(config).train()


class Tokens(torch.nn.Module):
    """A model whose output is a loss, for pages that call it with tokens alone."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(tokens, labels=tokens).loss


def names(folder):
    """What a reader has before the first line of a page."""
    torch.manual_seed(0)
    model = model_of_a_reader()
    tokens = torch.randint(256, (8, 64))
    batch = {"input_ids": tokens, "labels": tokens}
    x = torch.randn(8, 64, 64, requires_grad=True)
    return {
        "torch": torch,
        "model": model,
        "net": Tokens(model),
        "optimizer": torch.optim.AdamW(model.parameters()),
        "tokens": tokens,
        "batch": batch,
        "another": batch,
        "batches": [batch, batch],
        "x": x,
        "policy": bitstash.Policy.default(bitstash.HadamardFormat(target=64)),
        # A stage of a pipeline.
        "part": torch.nn.Linear(64, 64),
        "rank": 0,
        "stages": 1,
        "device": torch.device("cpu"),
        "micro_batches": 2,
        "loss_fn": torch.nn.functional.mse_loss,
        "my_kernel": torch.nn.functional.gelu,
        "llama": LlamaForCausalLM(LLAMA),
        "resnet": torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3)),
        "Trainer": Trainer,
        "arguments": TrainingArguments(
            str(folder), max_steps=2, per_device_train_batch_size=4, save_strategy="no", report_to="none"
        ),
        "examples": [{"input_ids": row, "labels": row} for row in tokens],
        "loader": DataLoader(tokens, batch_size=4),
        "lightning": pytorch_lightning,
        "module": Module(),
        "engine": Engine(model),
    }


class Module(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Tokens(model_of_a_reader())

    def training_step(self, tokens):
        return self.net(tokens)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Engine(torch.nn.Module):
    """What DeepSpeed's engine is to a loop."""

    def __init__(self, model):
        super().__init__()
        self.module = model

    def forward(self, **batch):
        return self.module(**batch)

    def backward(self, loss):
        loss.backward()

    def step(self):
        self.module.zero_grad()


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def is_missing(code):
    """Packages of others that a snippet imports and this environment does not have."""
    found = re.findall(r"^(?:from|import) (\w+)", code, re.M)
    return [name for name in found if importlib.util.find_spec(name) is None]


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("code", list(snippets()))
def test_the_python_of_a_page_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = names(tmp_path)
    for number, snippet in enumerate(code, 1):
        if missing := is_missing(snippet):
            pytest.skip(f"{', '.join(missing)} not installed")
        namespace["data"] = namespace["loader" if "lightning." in snippet else "examples"]
        exec(compile(snippet.replace("/scratch", str(tmp_path)), f"snippet {number}", "exec"), namespace)
