"""Rules say how each tensor is kept: as bits, raw or in a format of its own; calibration writes them."""

import contextlib
import gc
import re
import warnings

import numpy as np
import pytest
import torch

from golden import HadamardFormat, PlaneFormat
from torch_bridge import CorruptionError, Policy, Rule, calibrate, compress_activations
from torch_bridge.backends import checksum
from torch_bridge.backends.bits import BitsCodec
from torch_bridge.backends.checksum import checksums
from torch_bridge.calibration import Calibration
from torch_bridge.calibration.calibration import FORMATS
from torch_bridge.stash.entries import Entry

FMT = PlaneFormat("fp32", block=64, target=80)
COARSE = PlaneFormat("fp32", block=16, target=9)
NOTHING = torch.nn.Module()


def leaf(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), requires_grad=True)


def kept(stash):
    return {row.kept for row in stash.report().rows}


# Masks as bits


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 5000])
def test_bits_give_back_the_same_two_values(dtype, count):
    mask = torch.rand(count, generator=torch.Generator().manual_seed(count)) < 0.9
    values = mask if dtype == torch.bool else mask.to(dtype) / 0.9
    codec = BitsCodec.of(values)
    stored = codec.compress(values)
    assert stored.shape == (-(-count // 512), 64)
    assert torch.equal(codec.decompress(stored, count), values)


def test_two_values_are_told_by_their_bits():
    nan, zeros = float("nan"), torch.tensor([0.0, -0.0] * 9)
    for values in (zeros, torch.tensor([nan, 1.0, nan]), torch.full((70,), 3.5)):
        codec = BitsCodec.of(values)
        words = codec.decompress(codec.compress(values), len(values)).view(torch.int32)
        assert torch.equal(words, values.view(torch.int32))
    assert BitsCodec.of(torch.tensor([0.0, -0.0, 1.0])) is None
    assert BitsCodec.of(torch.tensor([0.0, nan, 1.0])) is None


def test_the_first_value_is_in_bit_0():
    stored = BitsCodec.of(torch.ones(1, dtype=torch.bool)).compress(torch.arange(12) % 3 == 0)
    expected = np.packbits(np.arange(12) % 3 == 0, bitorder="little")
    assert stored[0, :2].tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_dropout_mask_is_kept_as_bits_and_exact(dtype):
    def gradient(policy):
        torch.manual_seed(0)
        x = leaf(100, 100).to(dtype).detach().requires_grad_()
        with compress_activations(NOTHING, policy) as stash:
            loss = torch.nn.functional.dropout(x, 0.3).sum()
        loss.backward()
        return x.grad, stash

    exact, _ = gradient(Policy([]))
    grad, stash = gradient(COARSE)
    assert torch.equal(grad, exact)
    assert kept(stash) == {"bits"}
    assert stash.stored_bytes == -(-10_000 // 512) * 64


def test_quotients_of_16_bytes_stay_raw():
    def gradient(context):
        x = torch.randn(40, 40, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
        x.requires_grad_()
        with context as stash:
            loss = (x * 2).div_(3).square().abs().sum()
        loss.backward()
        return x.grad, stash

    found, stash = gradient(compress_activations(NOTHING, FMT))
    assert torch.equal(found, gradient(contextlib.nullcontext())[0])
    assert "not floating point" in kept(stash)


def test_a_quotient_is_no_mask():
    with compress_activations(NOTHING, FMT) as stash:
        (leaf(64, 64) * 2).div_(3).sin()
    assert kept(stash) == {"compressed"}


def test_boolean_masks_take_a_bit():
    x = leaf(64, 64)
    with compress_activations(NOTHING, COARSE) as stash:
        y = torch.where(x > 0, x, 2 * x)
    y.sum().backward()
    assert torch.equal(x.grad, torch.where(x > 0, 1.0, 2.0))
    assert stash.stored_bytes == 64 * 64 // 8


# Rules


def test_the_first_rule_that_fits_holds():
    policy = Policy([Rule("raw", op="sin", why="a test"), Rule(COARSE, op="ad*"), Rule(FMT)])
    with compress_activations(NOTHING, policy) as stash:
        x = leaf(64, 64) * 1
        (x.sin().cos(), (x + 1).cos(), (x * 2).cos())
    rows = {row.op: (row.kept, row.stored_bytes) for row in stash.report().rows}
    assert rows["sin"] == ("a test", 64 * 64 * 4)
    assert rows["add"] == ("compressed", 64 * 64 // 16 * 9)
    assert rows["mul"] == ("compressed", 2 * 64 * 80)


def test_rules_by_size_and_dtype():
    policy = Policy(
        [
            Rule("raw", most=2047, why="small"),
            Rule("raw", least=8192, why="large"),
            Rule("raw", dtype="b*16", why="short"),
            Rule(FMT),
        ]
    )
    with compress_activations(NOTHING, policy) as stash:
        for rows, dtype in (
            (31, torch.float32),
            (32, torch.float32),
            (128, torch.float32),
            (64, torch.bfloat16),
        ):
            leaf(rows, 64).to(dtype).sin()
    assert [row.kept for row in stash.report().rows] == ["small", "compressed", "large", "short"]


class Broken(torch.nn.Module):
    def forward(self, x):
        raise RuntimeError("broken")


def test_rules_by_module_also_after_one_has_failed():
    model = torch.nn.Sequential(
        torch.nn.Tanh(), torch.nn.Sequential(torch.nn.Tanh(), Broken()), torch.nn.Tanh()
    )
    policy = Policy(
        [Rule("raw", module="1.*", why="inner"), Rule("raw", module="", why="outside"), Rule(FMT)]
    )
    with compress_activations(model, policy) as stash:
        x = model[0](leaf(64, 64))
        with pytest.raises(RuntimeError, match="broken"):
            model[1](x)
        x = model[2](x)
        x.sin()
    assert [(row.kept, row.tensors) for row in stash.report().rows] == [("compressed", 2), ("inner", 1)]
    assert not torch.nn.modules.module._global_forward_hooks
    with compress_activations(model, policy) as stash:
        leaf(64, 64).sin()
    assert kept(stash) == {"outside"}


def test_a_tensor_stays_what_it_became_when_it_was_saved_first():
    model = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(64, 64))
    for first in ("raw", FMT):
        policy = Policy([Rule(first, module="0"), Rule("raw" if first is FMT else FMT)])
        with compress_activations(model, policy) as stash:
            model(leaf(64, 64))
        counted = [row for row in stash.report().rows if row.counted]
        assert [(row.kept, row.tensors) for row in counted] == [
            ("raw" if first == "raw" else "compressed", 1)
        ]


def test_bits_fall_through_where_there_are_more_values():
    with compress_activations(NOTHING, Policy([Rule("bits"), Rule(FMT)])) as stash:
        leaf(64, 64).sin()
        (leaf(64, 64) > 0).float().requires_grad_().sin()
    assert [row.kept for row in stash.report().rows] == ["compressed", "bits"]


def test_without_a_rule_all_stays_raw():
    with compress_activations(NOTHING, Policy([])) as stash:
        leaf(64, 64).sin()
    assert stash.raw_bytes == stash.stored_bytes
    assert kept(stash) == {"no rule"}


def test_a_large_log_softmax_has_a_rate_of_its_own():
    rows, classes = 64, 16_384
    with compress_activations(NOTHING, FMT) as stash:
        leaf(rows, classes).log_softmax(1)
        leaf(rows, 100).log_softmax(1)
    large, small = stash.report().rows
    assert (large.kept, large.stored_bytes) == ("compressed", rows * classes // 64 * 96)
    assert (small.kept, small.stored_bytes) == ("log-softmax", rows * 100 * 4)


@pytest.mark.parametrize("keep", ["half", None, 80])
def test_a_wrong_treatment_is_named(keep):
    with pytest.raises(ValueError, match=f"keep must be 'raw', 'bits', 'derive' or a format, not {keep!r}"):
        Rule(keep)


def test_what_no_tensor_can_fit_is_named():
    with pytest.raises(
        ValueError, match=r"dtype must be one of torch's, as 'float32', or fit one, not 'fp32'"
    ):
        Rule("raw", dtype="fp32")
    with pytest.raises(ValueError, match=r"dtype must be a name or a shell pattern, not torch.float32"):
        Rule("raw", dtype=torch.float32)
    with pytest.raises(ValueError, match="most must be a number of values, from 10, not 5"):
        Rule("raw", least=10, most=5)
    with pytest.raises(ValueError, match="least must be a number of values, from 0, not -1"):
        Rule("raw", least=-1)
    with pytest.raises(ValueError, match=r"rules must be a sequence of Rule, not \[PlaneFormat"):
        Policy([PlaneFormat("fp32", 64, 80)])
    with pytest.raises(ValueError, match=r"rules must be a sequence of Rule, not Rule"):
        Policy(Rule("raw"))


def test_a_lossless_format_is_an_error():
    with pytest.raises(ValueError, match="must have a target"):
        Rule(PlaneFormat("fp32", 64, None))


def test_a_policy_prints_as_a_table():
    text = str(Policy.default(FMT))
    for words in (
        "10 bits: 64 fp32 in 80 bytes",
        "12 bits: 64 fp32 in 96 bytes",
        "log-sum-exp",
        "bernoulli_",
    ):
        assert words in text


# Checksums


def entries():
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [thing for thing in gc.get_objects() if type(thing) is Entry]
    return [entry for entry in found if isinstance(entry.stored, torch.Tensor)]


def stashed(**options):
    x = leaf(100, 64)
    with compress_activations(NOTHING, FMT, **options) as stash:
        loss = torch.nn.functional.dropout((x * 2).sin(), 0.5).sum()
    return loss, stash


def test_every_flipped_bit_names_tensor_and_block():
    for bit in range(8):
        loss, _ = stashed(verify=True)
        [entry] = [entry for entry in entries() if entry.stored.shape[1] == 80]
        entry.stored[37, 11 * bit] ^= 1 << bit
        with pytest.raises(CorruptionError, match=r"block 37 of 100 of the tensor mul, 100 x 64, float32"):
            loss.backward()
        del loss, entry


def test_masks_are_verified_as_well():
    loss, _ = stashed(verify=True)
    [entry] = [entry for entry in entries() if entry.stored.shape[1] == 64]
    entry.stored[3, 5] ^= 4
    with pytest.raises(CorruptionError, match=r"block 3 of 13 of the tensor div_, 100 x 64"):
        loss.backward()


def test_without_verification_only_an_invalid_header_is_an_error():
    loss, _ = stashed()
    [entry] = [entry for entry in entries() if entry.stored.shape[1] == 80]
    entry.stored[37, 40] ^= 1
    loss.backward(retain_graph=True)
    entry.memory.kept = None
    entry.stored[37, 0] = 255
    with pytest.raises(ValueError, match="block 37: no encoder produces the header"):
        loss.backward()


def test_checksums_do_not_go_to_the_default_device():
    def gradient(device):
        checksum._weights.cache_clear()
        x = leaf(100, 64)
        with device:
            with compress_activations(NOTHING, FMT, verify=True):
                loss = (x * 2).sin().sum()
            loss.backward()
        return x.grad

    assert torch.equal(gradient(torch.device("meta")), gradient(contextlib.nullcontext()))
    stored = torch.arange(240, dtype=torch.uint8).view(3, 80)
    expected = checksums(stored)
    checksum._weights.cache_clear()
    with torch.device("meta"):
        found = checksums(stored)
    assert torch.equal(found, expected)


def test_checksums_are_counted_and_change_nothing_else():
    torch.manual_seed(0)
    loss, checked = stashed(verify=True)
    torch.manual_seed(0)
    same, stash = stashed()
    assert torch.equal(loss, same)
    assert checked.stored_bytes == stash.stored_bytes + 4 * (100 + 13)
    loss.backward()


@pytest.mark.parametrize("shape", [(0, 80), (1, 1), (5000, 9), (3, 513)])
def test_checksums_differ_for_every_changed_byte(shape):
    stored = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    before = checksums(stored)
    assert before.shape == shape[:1]
    for _ in range(50 if len(stored) else 0):
        row, column = (int(torch.randint(size, ())) for size in shape)
        changed = stored.clone()
        changed[row, column] = stored[row, column] + int(torch.randint(1, 256, ()))
        assert (checksums(changed) != before).nonzero().view(-1).tolist() == [row]


# Calibration


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
    with compress_activations(model, policy) as stash:
        loss = cross_entropy(model, batch)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]), stash


def test_a_calibrated_policy_fits_the_budget_with_less_error_than_one_rate():
    model, batches = calibrated_model()
    exact, _ = gradients(model, batches[0], Policy([]))
    uniform, stash = gradients(model, batches[0], PlaneFormat("fp32", 64, 48))
    policy = calibrate(model, batches, budget=stash.stored_bytes, loss=cross_entropy)
    chosen, calibrated = gradients(model, batches[0], policy)
    assert calibrated.stored_bytes <= stash.stored_bytes
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
    assert tight.stashed_bytes(tight.policy(tight.least)) == tight.least < tight.most
    assert 0 < tight.error(tight.policy(tight.least)) < 1


def test_calibration_spares_what_backward_formulas_compare():
    model, batches = calibrated_model()
    model = torch.nn.Sequential(model[0], torch.nn.ReLU(), *model[2:])
    policy = calibrate(model, batches[0], budget=30_000, loss=cross_entropy)
    kept_as = {rule.keep for rule in policy.rules if "gradient error" in rule.why}
    assert any(isinstance(fmt, HadamardFormat) for fmt in kept_as)
    _, stash = gradients(model, batches[0], policy)
    relu = next(row for row in stash.report().rows if row.op == "relu")
    assert relu.raw_bytes / relu.stored_bytes == pytest.approx(3.2, rel=0.01)


@pytest.mark.parametrize(
    ("formats", "bits"),
    [
        (FORMATS, 10),
        ([PlaneFormat("fp32", 64, 88), PlaneFormat("fp32", 64, 40)], 11),
        ([HadamardFormat()], 12),
    ],
    ids=["all", "planes", "hadamard"],
)
def test_calibration_leaves_a_log_softmax_ten_bits_or_what_it_has_by_default(formats, bits):
    model, batches = calibrated_model()
    model = torch.nn.Sequential(*model[:-1], torch.nn.Linear(64, 8192), torch.nn.LogSoftmax(1))
    calibration = Calibration(
        model, batches[0], formats, loss=lambda model, batch: model(batch[0])[:, 0].mean()
    )
    policy = calibration.policy(calibration.least)
    assert any("gradient" in rule.why for rule in policy.rules)
    with compress_activations(model, policy) as stash:
        model(batches[0][0])
    (row,) = [row for row in stash.report().rows if row.op == "_log_softmax"]
    assert 32 * row.stored_bytes / row.raw_bytes == pytest.approx(bits, rel=0.01)


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
    with pytest.raises(ValueError, match="of must be one of values, logit, atanh, not 'exp'"):
        Rule(FMT, of="exp")
    with pytest.raises(ValueError, match="of must be 'values' where no format is kept, not 'logit'"):
        Rule("raw", of="logit")


def test_a_large_budget_keeps_everything_raw():
    model, batches = calibrated_model()
    policy = calibrate(model, batches[0], budget=1 << 30, loss=cross_entropy)
    _, stash = gradients(model, batches[0], policy)
    assert "compressed" not in kept(stash)


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
        assert calibration.stashed_bytes(calibration.policy(budget)) <= budget
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
    assert calibration.stashed_bytes(calibration.policy(calibration.least)) == calibration.least


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
        assert calibration.stashed_bytes(calibration.policy(budget)) <= budget
