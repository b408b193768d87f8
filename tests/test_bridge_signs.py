"""The default policy of a format that loses signs and zeros: backward formulas that need them have them."""

import gc
import weakref
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch.nn import functional

from golden import HadamardFormat, PlaneFormat
from torch_bridge import Compressor, Policy, QuantFormat, Rule, backends
from torch_bridge.backends.dtypes import format_for
from torch_bridge.report.rows import INFINITIES
from torch_bridge.store.codecs import Unsquashed

FMT = HadamardFormat("fp32", 128, 32)
BF16 = PlaneFormat("bf16", 64, 80)
NEEDY = {
    "relu": torch.relu,
    "relu in place": lambda x: functional.relu(x * 1, inplace=True),
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.1),
    "leaky_relu in place": lambda x: functional.leaky_relu(x * 1, 0.1, inplace=True),
    "prelu": lambda x: functional.prelu(x, torch.tensor([0.2])),
    "relu6": functional.relu6,
    "hardswish": functional.hardswish,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "abs": torch.abs,
    "sign": lambda x: x * x.sign(),
    "sign, of zeros too": lambda x: x * (x - x.clamp(-0.3, 0.3)).sign(),
    "maximum": lambda x: torch.maximum(x, 0.3 * x.detach().roll(1)),
    "amax": lambda x: x.view(-1, 4).amax(1),
    "max_pool": lambda x: functional.max_pool1d(x.view(1, 8, -1), 2),
    "divisor": lambda x: torch.ones_like(x) / x,
    "reciprocal": lambda x: 1 / x,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "log": torch.log,
    "pow(-1)": lambda x: x.pow(-1),
    "pow(0.5)": lambda x: x**0.5,
    "norm": lambda x: x.view(-1, 64).norm(dim=1),
    "smooth_l1": lambda x: functional.smooth_l1_loss(x, torch.zeros_like(x), reduction="none"),
    "celu": functional.celu,
    "hardshrink": functional.hardshrink,
    "softshrink": functional.softshrink,
    "copysign": lambda x: torch.copysign(x, x.detach().roll(1)),
    "hypot": lambda x: torch.hypot(x, x.detach().roll(1)),
    "addcdiv": lambda x: torch.addcdiv(torch.zeros_like(x), torch.ones_like(x), x),
    "fmod": lambda x: torch.fmod(torch.ones_like(x), x),
    "std": lambda x: x.view(-1, 4).std(1),
    "pairwise_distance": lambda x: functional.pairwise_distance(x.view(-1, 2), torch.zeros(2048, 2)),
    "cdist": lambda x: torch.cdist(x.view(-1, 2), torch.zeros(1, 2)),
    "dist": lambda x: torch.dist(x, torch.zeros_like(x), p=1),
    "norm(inf)": lambda x: torch.linalg.vector_norm(x.view(-1, 4), ord=torch.inf, dim=1),
    "aminmax": lambda x: sum(torch.aminmax(x.view(-1, 4), dim=1)),
    "median": lambda x: torch.stack([row.median() for row in x.view(8, -1)]),
    "lgamma": torch.lgamma,
    "log1p": torch.log1p,
    "entr": torch.special.entr,
    "sin": lambda x: (5 * x).sin(),
    "logsumexp": lambda x: (5 * x).view(-1, 64).logsumexp(1),
    "foreach": lambda x: sum(torch._foreach_div([torch.ones_like(x)], [x])),
    "binary_cross_entropy": lambda x: functional.binary_cross_entropy(
        (5 * x).sigmoid(), x.detach().sigmoid()
    ),
    "quotient of exp": lambda x: 1 / ((5 * x).exp() + 1e-6),
}
IN_PLACE = {
    "relu6": lambda x: functional.relu6(x, inplace=True),
    "hardswish": lambda x: functional.hardswish(x, inplace=True),
    "celu": lambda x: functional.celu(x, inplace=True),
    "clamp": lambda x: x.clamp_(-0.5, 0.5),
    "clamp_min": lambda x: x.clamp_min_(0.5),
    "abs": lambda x: x.abs_(),
    "divisor": lambda x: torch.ones_like(x).div_(x),
    "divided twice": lambda x: torch.ones_like(x).div_(x).div_(x * 2),
    "addcdiv": lambda x: torch.zeros_like(x).addcdiv_(torch.ones_like(x), x),
    "reciprocal": lambda x: x.reciprocal_(),
    "sqrt": lambda x: x.sqrt_(),
    "rsqrt": lambda x: x.rsqrt_(),
    "log": lambda x: x.log_(),
    "pow(-1)": lambda x: x.pow_(-1),
    "pow(0.5)": lambda x: x.pow_(0.5),
    "log of a clone": lambda x: x.clone().log_(),
}
NEEDY |= {f"{name} in place": partial(lambda f, x: f(x * 1), f) for name, f in IN_PLACE.items()}


POSITIVE = ("sqrt", "rsqrt", "log", "pow(0.5)", "lgamma", "log1p", "entr")


def gradient(function, policy=None, positive=False):
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    x = torch.where(x.abs() < 0.05, 0.05, x)
    x = (x.abs() if positive else x).requires_grad_()
    if policy is None:
        function(x).sum().backward()
        return x.grad, None
    with Compressor(torch.nn.Module(), policy, "golden") as saver:
        y = function(x).sum()
    y.backward()
    return x.grad, saver


def error(found, exact):
    return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize("name", NEEDY)
def test_what_backward_formulas_compare_or_divide_by_keeps_sign_and_zeros(name):
    positive = name.startswith(POSITIVE)
    exact, _ = gradient(NEEDY[name], None, positive)
    found, saver = gradient(NEEDY[name], FMT, positive)
    assert found.isfinite().all()
    assert error(found, exact) < 0.12, saver.report()  # planes at ten bits: a clamp at 0.5 opens a few gates


HALVED = {
    "divisor": lambda x: x.detach() / x,
    "log": lambda x: x.abs().log(),
    "root": lambda x: x.abs() ** 0.5,
    "xlogy": lambda x: torch.xlogy(x.detach().abs(), x.abs()),
    "square of a quotient": lambda x: 1 / (1 + x * x),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", HALVED)
def test_so_it_does_in_sixteen_bits(name, dtype):
    torch.manual_seed(1)
    layer, x = torch.nn.Linear(64, 64).to(dtype), torch.randn(256, 64).to(dtype)
    gradients = []
    for context in (nullcontext(), Compressor(layer, HadamardFormat("fp32", 128, 64))):
        with context:
            loss = HALVED[name](layer(x)).float().mean()
        gradients.append(
            torch.cat([g.float().flatten() for g in torch.autograd.grad(loss, layer.parameters())])
        )
    exact, found = gradients
    assert exact.isfinite().all()
    assert found.isfinite().all()
    assert error(found, exact) < 0.15


def losses_through(name, policy=None):
    """Of some steps of a layer that is followed by an operation."""
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(16, 16), torch.randn(256, 16)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    losses = []
    for _ in range(20):
        with nullcontext() if policy is None else Compressor(layer, policy):
            h = layer(x).flatten()
            h = h + 0.3 * h.detach().sign()  # away from 0, where most of them have no gradient
            loss = (NEEDY[name](h.abs() if name.startswith(POSITIVE) else h) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


COMPARED = {
    "amax": lambda x: x.view(-1, 4).amax(1),
    "amin": lambda x: x.view(-1, 4).amin(1),
    "max": torch.max,
    "median": torch.median,
    "nanmedian": torch.nanmedian,
    "aminmax": lambda x: sum(torch.aminmax(x.view(-1, 4), dim=1)),
    "norm(inf)": lambda x: torch.linalg.vector_norm(x.view(-1, 4), ord=torch.inf, dim=1),
    "softmax by hand": lambda x: ((z := 5 * x.view(-1, 64)) - z.amax(1, keepdim=True)).exp().square(),
    "scatter_reduce": lambda x: torch.zeros(64).scatter_reduce(0, torch.arange(4096) % 64, x, "amax"),
    "ctc_loss": lambda x: functional.ctc_loss(
        (5 * x).view(32, 4, 32).log_softmax(-1), torch.ones(4, 5, dtype=torch.long), [32] * 4, [5] * 4
    ),
    "logsumexp": lambda x: (10 * x).view(-1, 64).logsumexp(1),
}


@pytest.mark.parametrize("name", COMPARED)
@pytest.mark.parametrize("fmt", [FMT, PlaneFormat("fp32", 64, 80), QuantFormat("fp32", 8)], ids=str)
def test_what_backward_formulas_look_for_among_the_inputs_is_there_in_every_format(fmt, name):
    exact, _ = gradient(COMPARED[name])
    found, saver = gradient(COMPARED[name], Policy.default(fmt))
    assert error(found, exact) < 0.1, saver.report()


@pytest.mark.parametrize("name", NEEDY)
def test_training_through_it_is_as_without_it(name):
    expected = losses_through(name)
    assert (losses_through(name, FMT) - expected).abs().mean() < 0.08 * (expected.max() - expected.min())


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "clamp", "abs", "divisor", "log", "pow(-1)", "norm"])
def test_without_these_rules_the_gradient_is_wrong(name):
    exact, _ = gradient(NEEDY[name], None, name == "log")
    found, _ = gradient(NEEDY[name], Policy([Rule(FMT, unchecked=True)]), name == "log")
    assert error(found, exact) > 0.2


@pytest.mark.parametrize(
    "function", [torch.nn.GELU(), torch.nn.SiLU(), torch.square, lambda x: x**3, torch.nn.Mish()]
)
def test_smooth_functions_stay_in_few_bits(function):
    _, saver = gradient(function, FMT)
    assert saver.ratio == pytest.approx(16, rel=0.01), saver.report()


def test_a_divisor_shares_nothing_with_what_was_compressed_before():
    """The same tensor is first saved by a product, which may have it in two bits a value."""

    def function(x):
        y = x * 1
        return 1e-6 * (y * torch.ones_like(y)) + torch.ones_like(y) / y

    exact, _ = gradient(function)
    found, saver = gradient(function, FMT)
    assert error(found, exact) < 0.12, saver.report()


def test_a_saved_tensor_is_compressed_as_soon_as_the_operation_that_saves_it_begins():
    """No more than the inputs of one operation wait undecided: the forward pass keeps no tensor exact."""
    with Compressor(torch.nn.Module(), FMT, "golden") as saver:
        x = torch.randn(4096, requires_grad=True)
        for _ in range(6):
            x = torch.nn.functional.silu(x * 1.5)
            assert len(saver._watch.thread.waiting) <= 2
    assert not saver._watch.thread.waiting
    x.sum().backward()


def test_a_result_that_its_operation_saves_is_stored_before_the_next_one_runs():
    with Compressor(torch.nn.Module(), Policy([Rule(FMT, unchecked=True)]), "golden") as saver:
        y = torch.randn(4096, requires_grad=True).sigmoid()
        assert len(saver._watch.thread.waiting) == 1
        z, memory = y * 2, weakref.ref(y.untyped_storage())  # a product with a number saves nothing
        assert not saver._watch.thread.waiting
        del y
        assert memory() is None
    z.sum().backward()


def test_what_is_saved_last_is_decided_by_the_end_of_the_context():
    with Compressor(torch.nn.Module(), FMT, "golden") as saver:
        y = torch.randn(4096, requires_grad=True).tanh()
        assert saver.ratio == pytest.approx(3.2, rel=0.01)
    y.sum().backward()


def test_nothing_waits_for_the_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        with Compressor(torch.nn.Module(), FMT, "golden") as saver:
            y = torch.randn(4096, requires_grad=True).exp().log().sum()
        y.backward()
        gone = weakref.ref(saver)
        del saver, y
        assert gone() is None
    finally:
        gc.enable()


def test_a_mask_that_attention_adds_is_kept_as_bits():
    q = torch.randn(2, 2, 40, 16, generator=torch.Generator().manual_seed(0), requires_grad=True)
    mask = torch.ones(2, 1, 40, 40, dtype=torch.bool).tril()
    mask[0, :, :, 30:] = False
    with Compressor(torch.nn.Module(), FMT, min_values=2) as saver:
        loss = functional.scaled_dot_product_attention(q, q, q, attn_mask=mask).square().mean()
    loss.backward()
    assert q.grad.isfinite().all()
    assert "bits" in {row.kept for row in saver.report().rows if row.shape[-2:] == (40, 40)}


def causal(length):
    return torch.ones(length, length, dtype=torch.bool).tril()


def alibi(length):
    """A bias for each of two heads, by distance."""
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return -distance * torch.tensor([0.3, 0.1])[:, None, None]


MASKS = {
    "add": lambda n: alibi(n) + torch.full((n, n), -torch.inf).triu(1),
    "where": lambda n: torch.where(causal(n), alibi(n), -torch.inf),
    "masked_fill": lambda n: alibi(n).masked_fill(~causal(n), -torch.inf),
    "log": lambda n: (alibi(n).exp() * causal(n)).log(),
    "cat": lambda n: torch.cat([MASKS["add"](n)[:1], MASKS["where"](n)[1:]]),
    "in place": lambda n: alibi(n).sub_(~causal(n) * 1e38).mul_(10),
    "-1e4": lambda n: (1 - causal(n) * 1.0) * -10000.0,
    "least number": lambda n: alibi(n).masked_fill(~causal(n), torch.finfo(torch.float32).min),
    "-1e9 and a bias": lambda n: torch.cat([alibi(n)[:1] + ~causal(n) * -1e9, alibi(n)[1:]]),
}


def flash(q, mask):
    return functional.scaled_dot_product_attention(q * 1, q * 2, q * 3, attn_mask=mask.expand(1, 2, -1, -1))


def eager(q, mask):
    return (q @ (q / 2).transpose(-1, -2) + mask).softmax(-1) @ (q * 3)


def by_sums(q, mask):
    """Attention that saves its masked scores."""
    scores = torch.where(mask.isinf(), -torch.inf, q @ (q / 2).transpose(-1, -2) + mask)
    return (scores - scores.logsumexp(-1, keepdim=True)).exp() @ (q * 3)


def trained(attention, make_mask, policy):
    """Losses of some steps, the first gradient, and the Compressor."""
    q = torch.randn(2, 2, 40, 16, generator=torch.Generator().manual_seed(0)).mul_(0.3).requires_grad_()
    goal = torch.randn(2, 2, 40, 16, generator=torch.Generator().manual_seed(1))
    losses, gradients = [], []
    for _ in range(4):
        q.grad = None
        with nullcontext() if policy is None else Compressor(torch.nn.Module(), policy) as saver:
            loss = (attention(q, make_mask(40)) - goal).square().mean()
        loss.backward()
        losses.append(loss.item())
        gradients.append(q.grad)
        with torch.no_grad():
            q.sub_(q.grad, alpha=40)
    return torch.tensor(losses), gradients[0], saver


@pytest.mark.parametrize("attention", [flash, eager, by_sums])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("fmt", [FMT, HadamardFormat("fp32", 128, 64), QuantFormat("fp32", 8)], ids=str)
def test_masks_with_biases_and_infinities_made_in_the_step_keep_them(name, attention, fmt):
    expected, exact, _ = trained(attention, MASKS[name], None)
    losses, found, _ = trained(attention, MASKS[name], Policy.default(fmt))
    assert error(found, exact) < 0.7
    assert (losses - expected).abs().max() < 0.1 * (expected[0] - expected[-1])


@pytest.mark.parametrize("name", ["add", "where", "masked_fill", "least number"])
def test_the_report_names_infinities(name):
    _, _, saver = trained(flash, MASKS[name], Policy([Rule(FMT, unchecked=True)]))
    assert [row.kept for row in saver.report().rows if row.shape[-2:] == (40, 40)] == [INFINITIES]


def test_a_mask_of_two_numbers_is_kept_as_bits():
    _, _, saver = trained(flash, MASKS["-1e4"], Policy([Rule(FMT)]))
    assert [row.kept for row in saver.report().rows if row.shape[-2:] == (40, 40)] == ["bits"]


def test_planes_keep_infinities_in_their_blocks():
    _, _, saver = trained(flash, MASKS["add"], Policy([Rule(PlaneFormat("fp32", 64, 80))]))
    assert INFINITIES not in {row.kept for row in saver.report().rows}


@pytest.mark.parametrize(("bias", "kept"), [(0, "bits"), (-0.1, "mask of attention")])
def test_a_mask_made_before_the_step_keeps_its_infinities(bias, kept):
    q = torch.randn(2, 2, 40, 16, generator=torch.Generator().manual_seed(0), requires_grad=True)
    mask = torch.arange(40.0).expand(40, 40) * bias
    mask.masked_fill_(torch.ones(40, 40, dtype=torch.bool).triu(1), -torch.inf)
    with Compressor(torch.nn.Module(), FMT, min_values=2) as saver:
        loss = functional.scaled_dot_product_attention(q * 1, q * 2, q * 3, attn_mask=mask).square().mean()
    loss.backward()
    assert q.grad.isfinite().all()
    assert [row.kept for row in saver.report().rows if row.shape == (40, 40)] == [kept]


def test_a_rule_about_no_operation_is_not_about_one_that_no_rule_names():
    policy = Policy([Rule("exact", saved_by="", why="by none"), Rule(FMT)])
    with Compressor(torch.nn.Module(), policy, "golden") as saver:
        x = torch.randn(4096, requires_grad=True)
        (x * 1).exp()
    assert [row.kept for row in saver.report().rows] == ["compressed"]


def near(shape, seed=0):
    """Predictions, and targets that are near to them."""
    draw = torch.Generator().manual_seed(seed)
    found = torch.randn(shape, generator=draw, requires_grad=True)
    return found, found.detach() + 0.05 * torch.randn(shape, generator=draw)


def ctc(found, _):
    logs = torch.cat([found[:16].log_softmax(-1), found[16:].log_softmax(-1)])
    labels = torch.randint(1, 32, (4, 8), generator=torch.Generator().manual_seed(1))
    return torch.nn.functional.ctc_loss(logs, labels, torch.full((4,), 32), torch.full((4,), 8))


F = torch.nn.functional
LOSSES_NEAR_THEIR_LEAST = {
    "mse": lambda found, goal: F.mse_loss(found * 1, goal),
    "smooth l1": lambda found, goal: F.smooth_l1_loss(found * 1, goal),
    "huber": lambda found, goal: F.huber_loss(found * 1, goal),
    "cross-entropy of bits": lambda found, goal: F.binary_cross_entropy_with_logits(
        20 * found, (goal > 0).float()
    ),
    "ctc": ctc,
    "soft targets": lambda found, goal: F.cross_entropy(
        (found * 1).flatten(0, 1), goal.softmax(-1).flatten(0, 1)
    ),
    "distillation": lambda found, goal: F.kl_div((found * 1).log_softmax(-1), goal.softmax(-1)),
}
DRAWS = {
    "gamma": lambda found: torch.distributions.Gamma(found.exp(), 1.0),
    "student": lambda found: torch.distributions.StudentT(found.exp() + 1),
    "dirichlet": lambda found: torch.distributions.Dirichlet(found.exp()),
}


@pytest.mark.parametrize("name", LOSSES_NEAR_THEIR_LEAST)
@pytest.mark.parametrize("fmt", [FMT, PlaneFormat("fp32", 64, 80), QuantFormat("fp32", 4)], ids=str)
def test_losses_near_their_least_have_the_right_gradients(name, fmt):
    found, goal = near((32, 4, 32))
    loss = LOSSES_NEAR_THEIR_LEAST[name]
    (exact,) = torch.autograd.grad(loss(found, goal), found)
    with Compressor(torch.nn.Module(), Policy.default(fmt)):
        lossy = loss(found, goal)
    assert error(torch.autograd.grad(lossy, found)[0], exact) < 0.01


@pytest.mark.parametrize("name", DRAWS)
def test_draws_with_gradients_have_finite_ones(name):
    found, _ = near((64, 64))
    gradients = []
    for context in (
        nullcontext(),
        Compressor(torch.nn.Module(), Policy.default(FMT, recompute=False)),
    ):
        torch.manual_seed(0)
        with context:
            drawn = DRAWS[name](found).rsample().sum()
        gradients.append(torch.autograd.grad(drawn, found)[0])
    assert error(gradients[1], gradients[0]) < 0.5


def test_a_power_whose_exponent_prints_with_one_has_a_finite_gradient():
    found, _ = near((64, 64))
    with Compressor(torch.nn.Module(), Policy.default(FMT)):
        powers = (found.abs() * 1).pow(1e-5).sum()
    assert torch.autograd.grad(powers, found)[0].isfinite().all()


def test_tensors_of_two_values_are_bits_whatever_made_them():
    found, goal = near((64, 64))
    mask = (goal > 0).to(torch.float32)
    with Compressor(torch.nn.Module(), Policy.default(FMT)) as saver:
        out = (found * mask).sum()
    assert [row.kept for row in saver.report().rows] == ["bits"]
    assert torch.equal(torch.autograd.grad(out, found)[0], mask)


def squashed_gaussian(x):
    """The log-probability of what a policy draws: its gradient stays where 1 - tanh(x) ** 2 vanishes."""
    y = (x / 2).tanh()
    return (1 - y * y + 1e-6).log().sum() + (y * torch.linspace(-1, 1, 64).to(x.dtype)).sum()


SATURATING = {
    "log of what is left": lambda x: -(1 - (x * 1).sigmoid()).log().sum(),
    "in place": lambda x: -(1 - (x * 1).sigmoid_()).log().sum(),
    "cross-entropy": lambda x: F.binary_cross_entropy((x * 1).sigmoid(), (x.detach() < 0).to(x.dtype)),
    "odds": lambda x: ((y := (x * 1).sigmoid()) / (1 - y)).log().sum(),
    "squashed Gaussian": squashed_gaussian,
    "tanh in place": lambda x: (1 - (x / 2).tanh_().square() + 1e-6).log().sum(),
}


def of_saturating(name, policy=None, dtype=torch.float32):
    """The gradient of values of which some are far where nothing but the end is left."""
    draw = torch.Generator().manual_seed(0)
    x = (2.5 * torch.randn(64, 64, generator=draw)).clamp(-12, 12).to(dtype).requires_grad_()
    with nullcontext() if policy is None else Compressor(torch.nn.Module(), policy):
        loss = SATURATING[name](x)
    return torch.autograd.grad(loss, x)[0].float()


@pytest.mark.parametrize("name", SATURATING)
@pytest.mark.parametrize("fmt", [FMT, PlaneFormat("fp32", 64, 80), QuantFormat("fp32", 4)], ids=str)
def test_where_sigmoid_and_tanh_end_gradients_stay_right(name, fmt):
    assert error(of_saturating(name, Policy.default(fmt)), of_saturating(name)) < 0.06


@pytest.mark.parametrize("name", SATURATING)
@pytest.mark.parametrize("fmt", [HadamardFormat("fp32", 128, 64), PlaneFormat("fp32", 64, 80)], ids=str)
def test_so_they_do_where_nothing_is_recomputed(name, fmt):
    assert error(of_saturating(name, Policy.default(fmt, recompute=False)), of_saturating(name)) < 0.3


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("fmt", [HadamardFormat("fp32", 128, 64), PlaneFormat("fp32", 64, 80)], ids=str)
def test_a_squashed_gaussian_of_sixteen_bits_does_not_diverge(fmt, recompute):
    policy = Policy.default(fmt, recompute=recompute)
    exact = of_saturating("squashed Gaussian", None, torch.bfloat16)
    assert error(of_saturating("squashed Gaussian", policy, torch.bfloat16), exact) < 1.3


@pytest.mark.parametrize("function", [torch.sigmoid, torch.tanh])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("fmt", [HadamardFormat("fp32", 128, 64), PlaneFormat("fp32", 64, 80)], ids=str)
def test_what_has_to_be_exact_is_so_behind_them(fmt, recompute, function):
    """What looks for a value among its inputs, and losses near their least."""

    def gradients(policy):
        found, goal = near((64, 64))
        for loss in (lambda y: y.amax(1).sum(), lambda y: F.mse_loss(y, function(goal))):
            with nullcontext() if policy is None else Compressor(torch.nn.Module(), policy):
                y = loss(function(found * 1))
            yield torch.autograd.grad(y, found)[0]

    policy = Policy.default(fmt, recompute=recompute)
    for exact, found in zip(gradients(None), gradients(policy), strict=True):
        assert error(found, exact) < 0.18


ENDS = {
    "logit": (torch.sigmoid, [-200, -100, -20, -1, 0, 1, 8, 15, 200]),
    "atanh": (torch.tanh, [-200, -8, -1, 0, 1, 8, 200]),
}


def through(fmt, of, values):
    """What comes back of values of which something else goes into a format."""
    codec = Unsquashed(backends.get("golden", fmt), of)
    return codec.decompress(codec.compress(values), len(values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("of", ENDS)
def test_ends_come_back_and_what_is_left_to_them_does(of, dtype):
    squash, given = ENDS[of]
    values = squash(torch.tensor(given, dtype=torch.float32)).to(dtype)
    fmt = format_for(PlaneFormat("fp32", 64, 80) if dtype == torch.float32 else BF16, dtype)
    saved = through(fmt, of, values)
    assert torch.equal(saved == 1, values == 1)
    assert torch.equal(saved == -1, values == -1)
    left, expected = (1 - one.double().abs() for one in (saved, values))
    assert ((left - expected).abs() <= 0.15 * expected).all()
    assert through(fmt, of, torch.full_like(values, torch.nan)).isnan().all()


@pytest.mark.parametrize("of", ENDS)
def test_what_lies_beyond_the_ends_comes_back_as_well(of):
    values = torch.linspace(-30, 30, 1024)
    saved = through(PlaneFormat("fp32", 64, 160), of, values)
    assert ((saved - values).abs() <= 0.01 + 0.001 * values.abs()).all()
    coarse = through(PlaneFormat("fp32", 64, 80), of, values)
    assert ((coarse - values).abs() < 4).all()


@pytest.mark.parametrize("of", ENDS)
def test_the_largest_half_stays_finite(of):
    values = torch.tensor([65504.0, -65504.0, torch.inf, -torch.inf], dtype=torch.float16).repeat(64, 1)
    for column in values.T.contiguous():
        saved = through(PlaneFormat("fp16", 64, 100), of, column)
        assert torch.equal(saved.isinf(), column.isinf())
        assert torch.equal(saved.sign(), column.sign())


def test_what_was_written_as_out_to_a_part_of_a_storage_is_kept_beside_the_rest():
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(0), requires_grad=True)

    def gradient(policy):
        with nullcontext() if policy is None else Compressor(torch.nn.Module(), policy):
            both = torch.empty(64, 128)
            with torch.no_grad():
                torch.tanh(x[:, :64], out=both[:, :64])
                torch.sigmoid(x[:, 64:], out=both[:, 64:])
            loss = (x * both).square().sum()
        return torch.autograd.grad(loss, x)[0]

    exact = gradient(None)
    assert error(gradient(Policy.default(PlaneFormat("fp32", 64, 80))), exact) < 0.05


@pytest.mark.parametrize("kind", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
@pytest.mark.parametrize("fmt", [FMT, PlaneFormat("fp32", 64, 80), QuantFormat("fp32", 4)], ids=str)
def test_recurrent_cells_whose_gates_share_a_storage(kind, fmt):
    torch.manual_seed(0)
    cell, x = kind(64, 64), torch.randn(6, 64, 64)

    def gradient(policy):
        state, outputs = None, []
        with nullcontext() if policy is None else Compressor(cell, policy):
            for step in x:
                state = cell(step, state)
                outputs.append(state[0] if isinstance(state, tuple) else state)
            loss = torch.stack(outputs).square().mean()
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(cell.parameters()))])

    exact = gradient(None)
    assert error(gradient(Policy.default(fmt)), exact) < (0.5 if fmt is FMT else 0.15)


@pytest.mark.parametrize("function", [torch.log, torch.sqrt, torch.reciprocal, lambda x: x**-0.25])
@pytest.mark.parametrize("target", [40, 24])
def test_divisors_of_every_size_keep_theirs_in_planes_of_few_bits(function, target):
    """Beside large values small ones would be zeros there."""
    x = torch.rand(64, 64, generator=torch.Generator().manual_seed(0)).mul(-30).exp().requires_grad_()
    (exact,) = torch.autograd.grad(function(x * 1).sum(), x)
    with Compressor(torch.nn.Module(), PlaneFormat("fp32", 64, target)):
        y = function(x * 1).sum()
    (found,) = torch.autograd.grad(y, x)
    assert ((found - exact).abs() <= 0.3 * exact.abs()).all()
