"""Other people's trainers do with the bridge what a plain loop does with the same context; examples run."""

import copy
import pickle
import re

import pytest
import pytorch_lightning as lightning
import torch
import transformers
from torch import nn

from torch_bridge import Compressor, Offload, attach
from torch_bridge.backends import GoldenBackend
from torch_bridge.trainers.lightning import Callback

from .launch import TORCHRUN, python
from .plain_hooks import COARSE, untouched

STEPS, RATE = 4, 0.1


class Regression(nn.Module):
    """The norm of vectors; the loss as transformers' models return it."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, x, labels=None):
        found = self.net(x)
        return {"loss": (found - x.norm(dim=1, keepdim=True)).square().mean(), "found": found}


def data():
    return torch.randn(STEPS * 64, 32, generator=torch.Generator().manual_seed(0))


def fresh(kind=Regression):
    torch.manual_seed(0)
    return kind()


def trained_by_a_plain_loop(context):
    model = fresh()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for x in data().split(64):
        with context(model):
            loss = model(x)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.net.state_dict()


def equal(found, expected):
    return all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.fixture(scope="module")
def expected():
    found = trained_by_a_plain_loop(lambda model: Compressor(model, COARSE))
    assert not equal(found, trained_by_a_plain_loop(lambda model: untouched()))
    return found


class PlainTrainer(transformers.Trainer):
    """Batches in their order."""

    def get_train_dataloader(self):
        examples = [{"x": x} for x in data()]
        return torch.utils.data.DataLoader(examples, batch_size=64)


class WithOwnLoss(PlainTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


def huggingface(kind, folder, options=None, **arguments):
    model = fresh()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    settings = transformers.TrainingArguments(
        str(folder),
        max_steps=STEPS,
        logging_steps=1,
        max_grad_norm=0.0,
        remove_unused_columns=False,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        **arguments,
    )
    trainer = kind(model, settings, optimizers=(optimizer, constant))
    return trainer, attach(trainer, COARSE, **(options or {}))


def every_option(folder):
    """Of Compressor, but for the policy; each leaves its trace in it."""
    disk = Offload(folder, amount="all")
    return {"backend": "golden", "min_values": 4096, "verify": True, "offload": disk}


def check_options(saver, plain):
    """Only the first two activations are large enough, each 64 x 64 values in 256 blocks of 9 and 4 bytes."""
    rows = [row for row in saver.report().rows if row.counted]
    found = {(row.module.removeprefix("regression."), row.kept): row.stored_bytes for row in rows}
    assert found["net.1", "compressed, offloaded"] == found["net.3", "compressed, offloaded"] == 256 * (9 + 4)
    assert found["net.0", "under 4096 values"] == 64 * 32 * 4
    assert saver.offloaded_bytes == 2 * 256 * 9
    assert isinstance(saver._codecs.get(COARSE), GoldenBackend)
    assert "compressed, offloaded" not in {row.kept for row in plain.report().rows}


@pytest.mark.parametrize("kind", [PlainTrainer, WithOwnLoss])
def test_huggingface_trainer_equals_a_plain_loop(tmp_path, expected, kind):
    trainer, saver = huggingface(kind, tmp_path)
    trainer.train()
    assert equal(trainer.model.net.state_dict(), expected)
    logged = [entry["activation_ratio"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged == [saver.report().ratio] * STEPS
    assert logged[0] > 2


def test_huggingface_trainer_takes_every_option(tmp_path):
    plain, without = huggingface(PlainTrainer, tmp_path / "plain")
    trainer, saver = huggingface(PlainTrainer, tmp_path / "all", every_option(tmp_path))
    for one in (plain, trainer):
        one.train()
    check_options(saver, without)
    with pytest.raises(ValueError, match="min_values must not be negative, not -1"):
        huggingface(PlainTrainer, tmp_path, {"min_values": -1})


def test_huggingface_evaluation_is_left_alone(tmp_path):
    trainer, saver = huggingface(PlainTrainer, tmp_path, per_device_eval_batch_size=64)
    trainer.train()
    before = saver.report()
    examples = [{"x": x, "labels": torch.zeros(())} for x in data()]
    found = trainer.evaluate(examples)["eval_loss"]
    assert saver.report() == before
    with torch.no_grad():
        assert found == pytest.approx(trainer.model(data())["loss"].item())


def test_huggingface_trainer_with_autocast_compresses_bf16(tmp_path):
    trainer, saver = huggingface(PlainTrainer, tmp_path, bf16=True)
    trainer.train()
    kept = {row.dtype for row in saver.report().rows if row.kept == "compressed"}
    assert "bfloat16" in kept


class Engine(nn.Module):
    """What DeepSpeed's engine is to a loop; tests/frameworks has the engine itself."""

    def __init__(self):
        super().__init__()
        self.module = fresh()
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=RATE)

    def forward(self, x):
        return self.module(x)["loss"]

    def backward(self, loss):
        loss.backward()

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


def test_an_attached_engine_equals_a_plain_loop(expected):
    engine = Engine()
    saver = attach(engine, COARSE)
    for x in data().split(64):
        engine.backward(engine(x))
        engine.step()
    assert equal(engine.module.net.state_dict(), expected)
    assert saver.report().ratio > 2
    assert "net.1" in {row.module for row in saver.report().rows}


def test_evaluation_of_an_attached_engine_is_left_alone():
    engine = Engine()
    saver = attach(engine, COARSE)
    engine(data()[:64])
    before = saver.report()
    with torch.no_grad():
        engine(data()[:32])
    assert saver.report() == before


def test_attach_names_what_it_does_not_know():
    with pytest.raises(ValueError, match=r"Trainer or an engine of DeepSpeed, not a Regression"):
        attach(fresh())
    pipeline = type("PipelineEngine", (Engine,), {"train_batch": None})
    with pytest.raises(ValueError, match="not a PipelineEngine: enter a Compressor around its train_batch"):
        attach(pipeline())
    with pytest.raises(ValueError, match="min_values must not be negative, not -1"):
        attach(Engine(), COARSE, min_values=-1)


class Automatic(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.regression = fresh()
        self.fails = False

    def training_step(self, x, _):
        if self.fails:
            raise ArithmeticError("in the middle of a step")
        return self.regression(x)["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=RATE)


class Manual(Automatic):
    """The backward pass is in the training step, and so inside the context."""

    automatic_optimization = False

    def training_step(self, x, _):
        self.optimizers().zero_grad()
        self.manual_backward(self.regression(x)["loss"])
        self.optimizers().step()


def fit(module, *callbacks, **arguments):
    trainer = lightning.Trainer(
        max_epochs=1,
        callbacks=list(callbacks),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        **arguments,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data(), batch_size=64))
    return trainer


@pytest.mark.parametrize("kind", [Automatic, Manual])
def test_lightning_equals_a_plain_loop(expected, kind):
    module, callback = kind(), Callback(COARSE)
    trainer = fit(module, callback)
    assert equal(module.regression.net.state_dict(), expected)
    assert trainer.callback_metrics["activation_ratio"] == pytest.approx(callback.saver.report().ratio)
    assert callback.saver.report().ratio > 2


def test_lightning_takes_every_option(tmp_path):
    plain, callback = Callback(COARSE), Callback(COARSE, **every_option(tmp_path))
    for one in (plain, callback):
        fit(Automatic(), one)
    check_options(callback.saver, plain.saver)
    with pytest.raises(ValueError, match="backend must be one of"):
        Callback(COARSE, "gpu")


def test_no_step_waits_for_a_report(tmp_path, monkeypatch):
    def report(self):
        raise AssertionError("a report waits for the GPU")

    monkeypatch.setattr(Compressor, "report", report)
    trainer = fit(Automatic(), Callback(COARSE))
    assert trainer.callback_metrics["activation_ratio"] > 2
    other, _ = huggingface(PlainTrainer, tmp_path)
    other.train()
    assert other.state.log_history[0]["activation_ratio"] > 2


def test_lightning_with_autocast_compresses_bf16():
    callback = Callback(COARSE)
    fit(Automatic(), callback, precision="bf16-mixed")
    kept = {row.dtype for row in callback.saver.report().rows if row.kept == "compressed"}
    assert "bfloat16" in kept


def test_lightning_module_is_as_before_after_fit_and_after_a_failure():
    module, callback = Automatic(), Callback(COARSE)
    fit(module, callback)
    assert "training_step" not in vars(module)
    module.fails = True
    with pytest.raises(ArithmeticError):
        fit(module, callback)
    assert "training_step" not in vars(module)
    x = torch.randn(64, 64, requires_grad=True)
    (x * x).sum().backward()
    assert torch.equal(x.grad, 2 * x)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_copy_made_while_fitting_trains_the_copy(copied):
    """As callbacks that average weights make one."""

    class Copies(lightning.Callback):
        def on_train_start(self, trainer, pl_module):
            self.copy = copied(pl_module)

    module, callback, copies = Automatic(), Callback(COARSE), Copies()
    fit(module, callback, copies)
    loss = copies.copy.training_step(data()[:64], 0)
    module.zero_grad()
    loss.backward()
    assert all(weight.grad is None for weight in module.parameters())
    assert all(weight.grad is not None for weight in copies.copy.parameters())


def test_a_step_of_the_instance_comes_back_after_fit_and_after_a_failure():
    module, callback = Automatic(), Callback(COARSE)
    calls = []

    def own(x, batch_idx):  # as Lightning keeps the step of a compiled module
        calls.append(batch_idx)
        return Automatic.training_step(module, x, batch_idx)

    module.training_step = own
    fit(module, callback)
    assert vars(module)["training_step"] is own
    assert len(calls) == STEPS
    assert callback.saver.report().ratio > 2
    module.fails = True
    with pytest.raises(ArithmeticError):
        fit(module, callback)
    assert vars(module)["training_step"] is own


EXAMPLES = {
    "plain_loop": ["examples/plain_loop.py"],
    "huggingface_trainer": ["examples/huggingface_trainer.py"],
    "lightning_module": ["examples/lightning_module.py"],
    "accelerate_loop": ["examples/accelerate_loop.py"],
    "train_ddp": [*TORCHRUN, "examples/train_ddp.py", "--steps", "3"],
    "train_ddp with fsdp": [*TORCHRUN, "examples/train_ddp.py", "--steps", "3", "--fsdp"],
}


@pytest.mark.parametrize("command", EXAMPLES.values(), ids=EXAMPLES)
def test_an_example_runs(command):
    output = python(*command)
    ratios = re.findall(r"activations ([\d.]+)x smaller", output)
    assert ratios, output
    assert all(float(ratio) > 1.9 for ratio in ratios), output
