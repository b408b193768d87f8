"""What is needed of a tensor because of what made it, or of what follows: gradients against plain PyTorch's.

Each case has a wrong gradient if a tensor is taken as it stands: a mask's number beside small values, a loss
near its least, a root behind a square.
"""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, kl_divergence
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import bitstash
from bitstash import HadamardFormat, Policy, Rule
from torch_bridge import Compressor

from .compiling import needs_a_compiler, nothing_compiled

__all__ = ["nothing_compiled"]  # around every test here

TOKENS = 64
CAUSAL = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
LARGEST_ERRORS = {4: 0.25, 2: 0.8}


class Attention(nn.Module):
    """Attention whose masked scores meet something that is trained, before their softmax."""

    def __init__(self, mask, mixes=False, divides=False):
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.temperature = nn.Parameter(torch.ones(4, 1, 1))
        self.heads = nn.Parameter(torch.eye(4) + 0.05 * torch.randn(4, 4)) if mixes else None
        self.mask, self.divides = mask, divides

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = self.mask(q @ k.mT / 4)
        if self.divides:
            scores = scores / self.temperature
        elif self.heads is None:
            scores = scores * self.temperature
        else:
            scores = (self.heads @ scores.flatten(2)).unflatten(2, (TOKENS, TOKENS))
        weight = torch.linspace(-1, 1, 64)
        return (self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)) * weight).sum()


class Loss(nn.Module):
    """A loss of what a linear layer gives."""

    def __init__(self, loss, width=256, scale=1.0):
        super().__init__()
        self.layer, self.loss = nn.Linear(64, width), loss
        with torch.no_grad():
            self.layer.weight.mul_(scale)
        noise = torch.randn(256, width)
        self.near = (self.layer(batch()) + 0.05 * noise).detach()
        self.far = noise
        self.register_buffer("bands", torch.eye(width) + torch.eye(width).roll(1, 0))

    def forward(self, x):
        return self.loss(self.layer(x), self)


class Scaled(nn.Module):
    """A loss of a mean and the logarithm of a deviation, of a linear layer each, and of draws from there."""

    def __init__(self, loss):
        super().__init__()
        self.mean, self.log_scale, self.loss = nn.Linear(64, 128), nn.Linear(64, 128), loss
        x, noise = batch(), torch.randn(256, 128)
        self.drawn = (self.mean(x) + noise * (1.7 * self.log_scale(x)).exp()).detach()

    def forward(self, x):
        return self.loss(self.drawn - self.mean(x), 1.7 * self.log_scale(x))


def batch():
    return torch.randn(256, 64, generator=torch.Generator().manual_seed(1))


def by_slices(scores):
    scores = scores.clone()
    scores[:, :, :, 40:] = -1e9
    return scores


def on_the_diagonal(scores):
    scores = scores.clone()
    scores.diagonal(dim1=-2, dim2=-1).fill_(-1e9)
    return scores


FORBIDDEN = torch.rand(256, 256, generator=torch.Generator().manual_seed(2)) < 0.3
DIAGONAL = torch.eye(256, dtype=torch.bool)


def entropy(least):
    return lambda s, _: Categorical(logits=s.masked_fill(FORBIDDEN, least)).entropy().mean()


def contrastive(s, own):
    s = functional.normalize(s)
    logits = (s @ s.mT).masked_fill(DIAGONAL, -1e9) * (own.layer.bias[0] + 1).exp()
    return functional.cross_entropy(logits, torch.arange(256).roll(1))


def cosine(one, other):
    return -(functional.normalize(one) * functional.normalize(other)).sum(-1).mean()


ZERO = torch.zeros(())


def added_square(x):
    return torch.addcmul(ZERO + 1e-6, x, x)


def charbonnier_beside_a_sum(s, own):
    squares = (s - own.far) ** 2
    squares.mean().detach()  # as for a log
    return (squares + 1e-6).sqrt().mean()


MASKED = {
    "masked_fill": lambda s: s.masked_fill(CAUSAL, -1e4),
    "where": lambda s: torch.where(CAUSAL, -1e9, s),
    "added": lambda s: s + torch.zeros(TOKENS, TOKENS).masked_fill(CAUSAL, torch.finfo().min),
    "subtracted": lambda s: s - 1e4 * CAUSAL.float(),
    "added to a tanh": lambda s: s.tanh() + torch.zeros(TOKENS, TOKENS).masked_fill(CAUSAL, -1e9),
    "at least": lambda s: torch.maximum(s.masked_fill(CAUSAL, -torch.inf), torch.tensor([-1e9])),
    "joined": lambda s: torch.stack([one.masked_fill(CAUSAL, -1e9) for one in s.unbind()]),
    "beside a block": lambda s: torch.cat([s, torch.full_like(s, -1e4).detach()], -1)[..., :TOKENS],
    "and a bias": lambda s: s.masked_fill(CAUSAL, -1e4) + s.mean(1, keepdim=True),
    "diagonal": on_the_diagonal,
    "masked twice": lambda s: (s - 1e4 * CAUSAL.float()).masked_fill(CAUSAL.roll(1), -1e8),
    "slices": by_slices,
}
LOSSES = {
    "entropy, -50": entropy(-50.0),
    "entropy, -1e8": entropy(-1e8),
    "entropy, -inf": entropy(-torch.inf),
    "contrastive": contrastive,
    "kl_div": lambda s, own: functional.kl_div(
        s.log_softmax(-1), own.near.softmax(-1), reduction="batchmean"
    ),
    "kl_div, log_target": lambda s, own: functional.kl_div(
        s.log_softmax(-1), own.near.log_softmax(-1), reduction="batchmean", log_target=True
    ),
    "kl_divergence": lambda s, own: kl_divergence(Categorical(logits=own.near), Categorical(logits=s)).mean(),
    "negative logarithms": lambda s, own: (-s.log_softmax(-1) * own.near.softmax(-1)).sum(-1).mean(),
    "in bf16": lambda s, own: -(s.bfloat16().log_softmax(-1).float() * own.near.softmax(-1)).sum(-1).mean(),
    "reverse": lambda s, own: (s.softmax(-1) * (s.log_softmax(-1) - own.near.log_softmax(-1))).sum(-1).mean(),
    "masked logarithms": lambda s, own: (
        -(s.log_softmax(-1).masked_fill(FORBIDDEN, 0) * own.near.softmax(-1).masked_fill(FORBIDDEN, 0)).sum()
    ),
    "cosine": lambda s, own: -functional.cosine_similarity(s, own.near + 0.4 * own.far).mean(),
    "cosine of both": lambda s, own: (
        -(functional.normalize(s) * functional.normalize(2 * s.flip(0) + own.near)).sum(-1).mean()
    ),
    "by einsum": lambda s, own: -torch.einsum("bc,bc->", own.near.softmax(-1), s.log_softmax(-1)) / 256,
    "by bmm": lambda s, own: -(own.near.softmax(-1)[:, None] @ s.log_softmax(-1)[:, :, None]).mean(),
    "by dot": lambda s, own: -torch.dot(own.near.softmax(-1).view(-1), s.log_softmax(-1).view(-1)) / 256,
    "by mm": lambda s, own: -(own.near.softmax(-1) @ s.log_softmax(-1).T).diagonal().mean(),
    "Charbonnier": lambda s, own: ((s - own.far) ** 2 + 1e-6).sqrt().mean(),
    "Charbonnier of a product": lambda s, own: ((s - own.far).mul(2).pow(2).view(-1) + 1e-6).sqrt().mean(),
    "Charbonnier by addcmul": lambda s, own: added_square(s - own.far).sqrt().mean(),
    "Charbonnier beside a sum": charbonnier_beside_a_sum,
    "a band of squares": lambda s, own: (1e-3 + (s - own.far).square() @ own.bands).log().sum(),
    "Cauchy": lambda s, own: (1 + 100 * (s - own.far).square()).log().mean(),
    "Gaussian": lambda s, own: -torch.exp(-10 * (s - own.far) ** 2).mean(),
    "angles": lambda s, own: (s * 100).cos().sum() + (s * 50).sin().sum(),
    "standard deviation": lambda s, own: (s + 1000).std(-1).sum(),
}
DIVISIONS = {
    "exp": lambda far, log_scale: ((far * torch.exp(-log_scale)) ** 2 / 2 + log_scale).mean(),
    "exp and a bound": lambda far, log_scale: (far * (torch.exp(-log_scale) + 1e-3)).tanh().mean(),
    "exp in addcmul": lambda far, log_scale: torch.addcmul(ZERO, far, torch.exp(-log_scale)).tanh().mean(),
    "exp as a gate": lambda far, log_scale: (far * log_scale.exp()).tanh().mean(),
    "reciprocal": lambda far, log_scale: (far * (1 / log_scale.exp())).tanh().mean(),
    "power": lambda far, log_scale: (far * (log_scale.exp() + 0.01) ** -0.5).tanh().mean(),
    "power of a number": lambda far, log_scale: (far * 0.3 ** (1.2 * log_scale)).tanh().mean(),
    "rsqrt": lambda far, log_scale: (far * (log_scale**2 + 0.01).rsqrt()).tanh().mean(),
}
CASES = {f"scores, {name}": lambda one=one: Attention(one) for name, one in MASKED.items()}
CASES["scores that are divided"] = lambda: Attention(MASKED["masked_fill"], divides=True)
CASES["heads that are mixed"] = lambda: Attention(MASKED["masked_fill"], mixes=True)
CASES |= {
    name: lambda loss=loss, name=name: Loss(loss, scale=1.0 if name == "contrastive" else 3.5)
    for name, loss in LOSSES.items()
}
CASES |= {f"division, {name}": lambda loss=loss: Scaled(loss) for name, loss in DIVISIONS.items()}


def case(name):
    torch.manual_seed(0)
    model = CASES[name]()
    return model, batch().unflatten(0, (4, TOKENS)) if isinstance(model, Attention) else batch()


def error(model, value, expected):
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    errors = [
        float((one - true).norm() / true.norm())
        for name, one, true in zip(names, found, expected, strict=True)
        if name != "scale" and true is not None and true.norm() > 1e-7
    ]
    return max(errors)


def plain(model, x):
    return torch.autograd.grad(model(x), list(model.parameters()), allow_unused=True)


@pytest.mark.parametrize("bits", LARGEST_ERRORS)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_right(name, bits):
    model, x = case(name)
    expected = plain(model, x)
    with Compressor(model, bits=bits):
        value = model(x)
    assert error(model, value, expected) < LARGEST_ERRORS[bits]


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_compiled_models_are_right(name):
    model, x = case(name)
    expected = plain(model, x)
    compiled = bitstash.compile(model, Policy.default(HadamardFormat(target=64)), backend="aot_eager")
    assert error(model, compiled(x), expected) < LARGEST_ERRORS[4]


class Activated(nn.Module):
    """An activation between two layers, of values that spread widely."""

    def __init__(self, activation, spread):
        super().__init__()
        self.up, self.down, self.activation = nn.Linear(64, 256), nn.Linear(256, 64), activation
        self.scale = nn.Parameter(torch.ones(256))  # whose gradient reads small values: it stays wrong
        with torch.no_grad():
            self.up.weight.mul_(1.7 * spread)

    def forward(self, x):
        return (self.down(self.activation(self.up(x), self.scale)) - x).square().sum()


TANHS = {
    "tanh": lambda x, scale: torch.tanh(x),
    "scaled": lambda x, scale: torch.tanh(x * scale),
    "GELU": lambda x, scale: 0.5 * x * (1.0 + torch.tanh(0.79788456 * (x + 0.044715 * x.pow(3.0)))),
    "GELU of products": lambda x, scale: x * 0.5 * (1 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))),
}


@pytest.mark.parametrize("call", [{}, {"time": 1.4}, "compiled"], ids=str)
@pytest.mark.parametrize("spread", [1, 10])
@pytest.mark.parametrize("name", TANHS)
def test_the_slope_of_a_tanh_is_right_however_widely_its_argument_spreads(name, spread, call):
    torch.manual_seed(0)
    model = Activated(TANHS[name], spread)
    expected = plain(model, batch())
    if call == "compiled":
        value = bitstash.compile(model, HadamardFormat(target=64), backend="aot_eager")(batch())
    else:
        with Compressor(model, **call) as saver:
            value = model(batch())
    assert error(model, value, expected) < LARGEST_ERRORS[4]
    if call == {"time": 1.4} and (spread == 1 or "GELU" in name):
        assert saver.ratio > 15  # it is recomputed


def test_what_follows_a_compiled_square_is_not_known():
    """As of a head that gives a variance, and a loss outside the graph."""

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean, self.deviation = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            return self.mean(x), self.deviation(x) ** 2

    def gradients(call):
        mean, variance = call(batch())
        loss = functional.gaussian_nll_loss(mean, batch(), variance, eps=1e-3)
        return torch.autograd.grad(loss, list(model.parameters()))

    torch.manual_seed(0)
    model = Head()
    compiled = bitstash.compile(model, HadamardFormat(target=64), backend="aot_eager")
    for one, true in zip(gradients(compiled), gradients(model), strict=True):
        assert (one - true).norm() < LARGEST_ERRORS[4] * true.norm()


def test_masks_before_a_graph_break_are_looked_for():
    class Broken(Attention):
        def __init__(self):
            super().__init__(mask=None)
            self.mask = self.masked

        def masked(self, scores):
            scores = scores + torch.zeros(TOKENS, TOKENS).masked_fill(CAUSAL, -1e9)
            torch._dynamo.graph_break()
            return scores

    torch.manual_seed(0)
    model, x = Broken(), batch().unflatten(0, (4, TOKENS))
    expected = plain(model, x)
    compiled = bitstash.compile(model, HadamardFormat(target=64), backend="aot_eager")
    assert error(model, compiled(x), expected) < LARGEST_ERRORS[4]


@needs_a_compiler
@pytest.mark.parametrize("name", ["scores, masked_fill", "kl_divergence", "Charbonnier"])
def test_inductor_rewrites_nothing_that_is_not_known(name):
    model, x = case(name)
    value = bitstash.compile(model, HadamardFormat(target=64))(x)
    assert error(model, value, plain(model, x)) < LARGEST_ERRORS[4]


def test_what_an_operation_in_place_saves_does_not_need_what_it_writes_to():
    def gradient(around):
        x = torch.rand(64, 64, generator=torch.Generator().manual_seed(3)).requires_grad_()
        with around:
            y = x + 1
            unused = torch.log1p(y)  # noqa: F841  # holds what is written to, for a pass that never comes
            y.pow_(2.5)
        return torch.autograd.grad(y.sum(), x)[0]

    expected = gradient(nullcontext())
    assert (gradient(Compressor(nn.Identity())) - expected).norm() < 0.02 * expected.norm()


def test_a_standard_deviation_is_kept_as_a_variance_is():
    def ratio(function):
        with Compressor(nn.Identity()) as saver:
            function((torch.randn(64, 256) + 100).requires_grad_())
        return saver.ratio

    assert ratio(lambda x: x.std(-1)) > 0.95 * ratio(lambda x: x.var(-1)) > 7


class Experts(nn.Module):
    """Each token goes to the expert that a router chooses, by operations whose shapes depend on that."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(64, 4), nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x):
        weight, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            at = (chosen == number).nonzero().squeeze(1)
            out = out.index_add(0, at, expert(x[at]) * weight[at, None])
        return out


def test_a_norm_after_a_tanh_takes_the_mean_of_what_the_tanh_gave():
    torch.manual_seed(0)
    model = Loss(lambda s, own: (functional.layer_norm(s.tanh(), [256]) * own.far).sum(), scale=3.5)
    expected = plain(model, batch())
    with Compressor(model, Policy.default(HadamardFormat(target=64), recompute=False)):
        value = model(batch())
    assert error(model, value, expected) < 0.4


def test_checkpointed_experts_are_chosen_again_where_inputs_of_checkpoints_are_exact():
    torch.manual_seed(0)
    model, x = Experts(), batch().requires_grad_()

    def gradients(around):
        with around:
            loss = checkpoint(model, x, use_reentrant=False).square().sum()
        return torch.autograd.grad(loss, list(model.parameters()))

    expected = gradients(nullcontext())
    rules = Policy.default(HadamardFormat(target=64)).rules
    found = gradients(Compressor(model, Policy([Rule("exact", saved_by="_NoopSaveInputs"), *rules])))
    for one, true in zip(found, expected, strict=True):
        assert (one - true).norm() < LARGEST_ERRORS[4] * true.norm()
