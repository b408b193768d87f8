"""Calibration writes rules: the least gradient error that fits a budget."""

import gc
import re

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from golden import HadamardFormat, PlaneFormat
from torch_bridge import Compressor, Policy, Rule, calibrate
from torch_bridge.calibration import Calibration
from torch_bridge.calibration.calibration import FORMATS
from torch_bridge.store.entries import Entry

FMT = PlaneFormat("fp32", block=64, target=80)


def leaf(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), requires_grad=True)


def calibrated_model():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64),
        torch.nn.BatchNorm1d(64),
        torch.nn.GELU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(64, 64),
        torch.nn.Tanh(),
        torch.nn.Linear(64, 8),
    )
    batches = [(torch.randn(200, 32), torch.randint(8, (200,))) for _ in range(2)]
    return model, batches


def cross_entropy(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def gradients(model, batch, policy):
    torch.manual_seed(7)
    with Compressor(model, policy) as saver:
        loss = cross_entropy(model, batch)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]), saver


def test_a_calibrated_policy_fits_the_budget_with_less_error_than_one_rate():
    model, batches = calibrated_model()
    exact, _ = gradients(model, batches[0], Policy([]))
    uniform, saver = gradients(model, batches[0], PlaneFormat("fp32", 64, 48))
    policy = calibrate(model, batches, budget=saver.stored_bytes, loss=cross_entropy)
    chosen, calibrated = gradients(model, batches[0], policy)
    assert calibrated.stored_bytes <= saver.stored_bytes
    assert (chosen - exact).norm() < 0.8 * (uniform - exact).norm()
    assert any("gradient error" in rule.why for rule in policy.rules)
    assert "gradient error" in str(policy)


def test_calibration_leaves_everything_as_it_was():
    model, batches = calibrated_model()
    cross_entropy(model, batches[0]).backward()
    before = [(p.clone(), p.grad.clone()) for p in model.parameters()] + [
        (b.clone(),) for b in model.buffers()
    ]
    random = torch.random.get_rng_state()
    policy = calibrate(model, batches, budget=100_000, loss=cross_entropy)
    after = [(p, p.grad) for p in model.parameters()] + [(b,) for b in model.buffers()]
    assert all(
        torch.equal(a, b) for x, y in zip(before, after, strict=True) for a, b in zip(x, y, strict=True)
    )
    assert torch.equal(random, torch.random.get_rng_state())
    assert policy == calibrate(model, batches, budget=100_000, loss=cross_entropy)


def test_calibration_runs_no_hook_of_an_optimizer_and_gives_inputs_no_gradient():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64))
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def step(parameter):
        parameter.data.sub_(parameter.grad)
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    x = leaf(64, 64)
    calibrate(model, x, budget=1 << 20, loss=lambda model, x: model(x).square().mean())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert x.grad is None


class Counting(torch.nn.Module):
    """Counts its steps in a buffer that it assigns, and keeps its first input in one that was None."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("first", None)

    def forward(self, x):
        self.steps = self.steps + 1
        if self.first is None:
            self.first = x
        return self.linear(x * self.steps).tanh().square().mean()


def test_calibration_puts_back_buffers_that_a_model_assigns():
    model = Counting()
    steps = model.steps
    calibrate(model, torch.randn(64, 64), budget=1 << 20, loss=lambda model, x: model(x))
    assert model.steps is steps
    assert model.steps == 0
    assert model.first is None


class Tables(torch.nn.Module):
    """Saves sparse and jagged tensors, and has a sparse gradient."""

    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Embedding(50, 64, sparse=True)
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, tokens):
        x = self.linear(self.rows(tokens)).tanh()
        x = torch.sparse.mm(torch.eye(64).to_sparse(), x)
        jagged = torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 10, 64]))
        return (jagged * 2).sin().values().square().mean()


def test_calibration_leaves_tensors_that_are_more_than_memory_as_they_are():
    model, tokens = Tables(), torch.arange(64) % 50
    policy = calibrate(model, tokens, budget=1 << 20, loss=lambda model, x: model(x))
    tight = Calibration(model, tokens, loss=lambda model, x: model(x))
    assert any(rule.module == "linear" for rule in policy.rules)
    assert tight.stored_bytes(tight.policy(tight.least)) == tight.least < tight.most
    assert 0 < tight.error(tight.policy(tight.least)) < 1


def test_calibration_spares_what_backward_formulas_compare():
    model, batches = calibrated_model()
    model = torch.nn.Sequential(model[0], torch.nn.ReLU(), *model[2:])
    calibration = Calibration(model, batches[0], loss=cross_entropy)
    policy = calibration.policy(calibration.least)
    kept_as = {rule.keep for rule in policy.rules if "gradient error" in rule.why}
    assert any(isinstance(fmt, HadamardFormat) for fmt in kept_as)
    _, saver = gradients(model, batches[0], policy)
    relu = next(row for row in saver.report().rows if row.op == "relu")
    assert relu.original_bytes / relu.stored_bytes == pytest.approx(
        6.4, rel=0.01
    )  # the fewest planes there are


@pytest.mark.parametrize(
    ("formats", "bits"),
    [
        (FORMATS, 10),
        ([PlaneFormat("fp32", 64, 88), PlaneFormat("fp32", 64, 40)], 11),
        ([HadamardFormat()], 10),
    ],
    ids=["all", "planes", "hadamard"],
)
def test_calibration_leaves_a_log_softmax_ten_bits(formats, bits):
    model, batches = calibrated_model()
    # Behind so narrow a product it is not recomputed.
    head = torch.nn.Linear(64, 32), torch.nn.Linear(32, 8192), torch.nn.LogSoftmax(1)
    model = torch.nn.Sequential(*model[:-1], *head)
    calibration = Calibration(
        model, batches[0], formats, loss=lambda model, batch: model(batch[0])[:, 0].mean()
    )
    policy = calibration.policy(calibration.least)
    assert any("gradient" in rule.why for rule in policy.rules)
    with Compressor(model, policy) as saver:
        model(batches[0][0])
    (row,) = [row for row in saver.report().rows if row.op == "_log_softmax"]
    assert 32 * row.stored_bytes / row.original_bytes == pytest.approx(bits, rel=0.01)


class Layer(torch.nn.Module):
    """Attention and a gated MLP, each beside its input."""

    def __init__(self, width=64, heads=2):
        super().__init__()
        self.heads, self.norms = heads, torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.gate, self.up = torch.nn.Linear(width, 2 * width), torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).transpose(2, 3)
        x = x + self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


class Transformer(torch.nn.Module):
    def __init__(self, layers=3, checkpointed=False):
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 64)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(layers))
        self.head = torch.nn.Linear(64, 100)
        self.checkpointed = checkpointed

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return torch.nn.functional.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def predict(model, tokens):
    return model(tokens)


def predict_in_bf16(model, tokens):
    with torch.autocast("cpu", torch.bfloat16):
        return model(tokens)


@pytest.mark.parametrize("loss", [predict, predict_in_bf16])
def test_one_pass_measures_what_each_kind_alone_does_to_the_gradient(loss):
    torch.manual_seed(0)
    model, tokens = Transformer(), torch.randint(100, (4, 64))
    calibration = Calibration(model, tokens, formats=[HadamardFormat()], loss=loss)
    rules = [rule for rule in calibration.policy(calibration.least).rules if "gradient error" in rule.why]
    assert len(rules) > 3 * 3
    alone = [calibration.error(Policy([Rule("recompute"), rule])) for rule in rules]
    measured = [float(rule.why.removeprefix("gradient error ")) for rule in rules]
    *others, worst = np.sort(np.abs(np.log(np.array(measured) / alone)))
    assert max(others) < 0.25
    assert worst < 1  # a log-softmax's error is below the roundings of bf16


def test_layers_that_are_checkpointed_share_the_error_of_all_together():
    torch.manual_seed(0)
    model, tokens = Transformer(checkpointed=True), torch.randint(100, (4, 64))
    calibration = Calibration(model, tokens, formats=[HadamardFormat()], loss=predict)
    policy = calibration.policy(calibration.least)
    rules = [rule for rule in policy.rules if "gradient error" in rule.why]
    assert len(rules) >= 3
    measured = [float(rule.why.removeprefix("gradient error ")) for rule in rules]
    assert min(measured) > 0
    assert np.linalg.norm(measured) == pytest.approx(calibration.error(policy), rel=0.3)


@pytest.mark.parametrize("formats", [[], [PlaneFormat("fp32", 64, None)], FMT, None, ["planes"]], ids=str)
def test_calibration_needs_formats_of_a_fixed_size(formats):
    model, batches = calibrated_model()
    message = f"formats must be a list of some with a target, not {formats!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        calibrate(model, batches, budget=100_000, formats=formats, loss=cross_entropy)


def test_calibration_takes_formats_of_a_generator():
    model, batches = calibrated_model()
    found, expected = (
        calibrate(model, batches[0], budget=60_000, formats=formats, loss=cross_entropy)
        for formats in ((fmt for fmt in [FMT]), [FMT])
    )
    assert found == expected


@pytest.mark.parametrize("budget", [0, -1, float("nan"), None, "1GB"])
def test_calibration_needs_a_budget_in_bytes(budget):
    message = f"budget must be a positive number of bytes, not {budget!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        calibrate(torch.nn.Linear(64, 64), torch.ones(64, 64), budget=budget)


def test_calibration_needs_a_batch_and_a_gradient():
    model = torch.nn.Linear(64, 64)
    with pytest.raises(ValueError, match=r"batch must be one batch or a list of some, not \[\]"):
        calibrate(model, [], budget=1 << 20, loss=lambda model, x: model(x).sum())
    for x in (torch.zeros(64, 64), torch.full((64, 64), torch.nan)):
        with pytest.raises(ValueError, match="a gradient, finite and not zero; not so on batch 0"):
            calibrate(model, x, budget=1 << 20, loss=lambda model, x: (x * model.weight).sum())
    with pytest.raises(ValueError, match="model must have a parameter that is trained, not none"):
        calibrate(
            torch.nn.Identity(), torch.ones(64, 64), budget=1 << 20, loss=lambda model, x: model(x).sum()
        )


def test_what_is_no_model_or_format_is_named():
    with pytest.raises(ValueError, match=r"model must be a torch\.nn\.Module, not None"):
        calibrate(None, torch.ones(2), budget=1000)
    with pytest.raises(ValueError, match="fmt must be a format, as PlaneFormat, not 'planes'"):
        Policy.default("planes")
    with pytest.raises(ValueError, match="unchecked must be False where no format is kept, not True"):
        Rule("exact", unchecked=True)


def test_a_large_budget_keeps_everything_exact():
    model, batches = calibrated_model()
    policy = calibrate(model, batches[0], budget=1 << 30, loss=cross_entropy)
    _, saver = gradients(model, batches[0], policy)
    assert all(row.kept != "compressed" for row in saver.report().rows)


def test_a_budget_that_cannot_be_met_names_the_least():
    model, batches = calibrated_model()
    with pytest.raises(ValueError, match=r"budget must be at least [\d,]+ bytes for this batch, not 1,000"):
        calibrate(model, batches, budget=1000, loss=cross_entropy)


class Towers(torch.nn.Module):
    """Two inputs, each with layers of its own."""

    def __init__(self):
        super().__init__()
        self.towers = torch.nn.ModuleList(
            torch.nn.Sequential(
                *(layer for _ in range(3) for layer in (torch.nn.Linear(64, 64), torch.nn.Tanh()))
            )
            for _ in range(2)
        )

    def forward(self, inputs):
        first, second = (tower(x).square().mean() for tower, x in zip(self.towers, inputs, strict=True))
        return 10 * first + 0.1 * second


def test_every_batch_fits_the_budget_wherever_its_bytes_are():
    torch.manual_seed(0)
    model = Towers()
    batches = [[torch.randn(rows, 64) for rows in sizes] for sizes in ((512, 8), (8, 500))]
    calibration = Calibration(model, batches, loss=lambda model, batch: model(batch))
    assert isinstance(calibration.least, int)
    for i in range(6):
        budget = calibration.least + (calibration.most - calibration.least) * i // 5
        assert calibration.stored_bytes(calibration.policy(budget)) <= budget
    # Only the first batch is over, and only its tower can help.
    compressed = [
        rule.module for rule in calibration.policy(calibration.most - 1).rules if "error" in rule.why
    ]
    assert {module.split(".")[1] for module in compressed} == {"0"}
    with pytest.raises(ValueError, match=f"at least {calibration.least:,} bytes for this batch, not"):
        calibration.policy(calibration.least - 1)


@pytest.mark.parametrize("rows", [100, 128, 135])
def test_the_least_budget_can_be_met(rows):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh()
    )
    batches = [torch.randn(rows + 13 * i, 64) for i in range(3)]
    calibration = Calibration(model, batches, loss=lambda model, x: model(x).square().mean())
    assert calibration.stored_bytes(calibration.policy(calibration.least)) == calibration.least


class Part(torch.nn.Module):
    """Saves some of the rows that it is given."""

    def __init__(self, rows, scale):
        super().__init__()
        self.rows, self.scale = rows, scale

    def forward(self, x):
        return self.scale * x[self.rows].square().sum()


def test_modules_that_share_rows_of_a_tensor_fit_the_budget():
    torch.manual_seed(0)
    model = torch.nn.ModuleList([torch.nn.Linear(64, 64), Part(slice(10, 60), 0.01), Part(slice(0, 100), 1)])

    def loss(model, x):
        y = model[0](x)
        return model[1](y) + model[2](y)

    calibration = Calibration(model, torch.randn(100, 64), loss=loss)
    for i in range(11):
        budget = calibration.least + (calibration.most - calibration.least) * i // 10
        assert calibration.stored_bytes(calibration.policy(budget)) <= budget


def test_calibration_leaves_no_saved_tensor_behind():
    model, batches = calibrated_model()

    def entries():  # `type` asks no object's own __class__, as `isinstance` does: a dead proxy raises there
        gc.collect()
        return sum(issubclass(type(one), Entry) for one in gc.get_objects())

    before = entries()
    calibrate(model, batches, budget=10**9, loss=cross_entropy)
    assert entries() <= before
