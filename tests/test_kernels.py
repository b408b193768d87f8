"""Training through the kernels that people run: gradients through compression beside those without it.

Stand-ins on a CPU save what the kernels save. There are as many tokens as in training, and logits and norms
are as large.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import bitstash
from bitstash import HadamardFormat, PlaneFormat, Policy, Rule

from . import kernels
from .overwriting import Sine

HADAMARD, PLANES = HadamardFormat(target=64), PlaneFormat("fp32", block=64, target=80)
FORMATS = [pytest.param(PLANES, id="planes"), pytest.param(HADAMARD, id="hadamard")]
TOKENS, WIDTH, VOCABULARY = 2048, 128, 512
Kernel = Callable[..., Tensor | tuple[Tensor, ...]]
EPS = kernels.EPS


class Activation(Function):
    """A copy that nobody knows how to make again: what is saved of it is stored, and no parameter."""

    @staticmethod
    def forward(ctx, parameter):
        return kernels.written(parameter)

    @staticmethod
    def backward(ctx, grad):
        return grad


class Trained(nn.Module):
    """A kernel of activations and weights.

    Args:
        kernel: of the activations, then the weights.
        activations: gradients are wanted of them.
        weights: parameters of the kernel.
    """

    def __init__(self, kernel: Kernel, activations: Sequence[Tensor], weights: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.kernel = kernel
        self.sources = nn.ParameterList(activations)
        self.weights = nn.ParameterList(weights)

    def forward(self) -> tuple[Tensor, ...]:
        made = self.kernel(*map(Activation.apply, self.sources), *self.weights)
        return made if isinstance(made, tuple) else (made,)


def random(*shape: int, scale: float = 1.0, seed: int = 0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def trained_gradients(model: Trained, saver: bitstash.Compressor | None = None) -> list[Tensor]:
    """Of all sources and weights, where the gradients of all results are random."""
    with saver or nullcontext():
        results = model()
    torch.autograd.backward(results, [random(*result.shape, seed=9) for result in results])
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad(set_to_none=True)
    return found


def errors(model: Trained, fmt: HadamardFormat | PlaneFormat) -> tuple[list[float], bitstash.Compressor]:
    """The relative error of each parameter's gradient."""
    exact = trained_gradients(model)
    saver = bitstash.Compressor(model, fmt)
    found = trained_gradients(model, saver)
    return [float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)], saver


def lossy_of(saver: bitstash.Compressor, function: str) -> int:
    """How many of the floating-point tensors that a Function saves are not exact."""
    rows = [row for row in saver.report().rows if row.saved_by == function]
    assert rows, f"no row of {function}"
    floats = [row for row in rows if row.dtype == "float32"]
    return sum(row.tensors for row in floats if row.stored_bytes < row.original_bytes)


@dataclass(frozen=True)
class Case:
    """A stand-in on inputs of realistic size.

    Attributes:
        kernel: it, of tensors alone.
        plain: the same in operations of PyTorch.
        activations, weights: make its tensors.
        bounds: of the gradients' relative error with bit planes at 10 bits and with the Hadamard format at 4.
        lossy: how many of its tensors are compressed.
    """

    kernel: Kernel
    plain: Kernel
    activations: Callable[[], Sequence[Tensor]]
    weights: Callable[[], Sequence[Tensor]] = tuple
    bounds: tuple[float, float] = (0.02, 0.16)
    lossy: int = 1


def rows() -> Tensor:
    """Tokens whose norms spread, as those of a residual stream do."""
    return random(TOKENS, WIDTH) * random(TOKENS, 1, scale=0.5, seed=1).exp()


def gains() -> Sequence[Tensor]:
    return [1 + random(WIDTH, scale=0.1, seed=3)]


def gains_and_biases() -> Sequence[Tensor]:
    return [*gains(), random(WIDTH, scale=0.1, seed=4)]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias, EPS)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], weight, EPS)


def add_rms_norm(x: Tensor, r: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return rms_norm(x + r, weight), x + r


def swiglu(a: Tensor, b: Tensor) -> Tensor:
    return functional.silu(a) * b


def geglu(a: Tensor, b: Tensor) -> Tensor:
    return functional.gelu(a, approximate="tanh") * b


def pairs() -> Sequence[Tensor]:
    return random(TOKENS, WIDTH), random(TOKENS, WIDTH, seed=1)


def angles() -> tuple[Tensor, Tensor]:
    """Cosines and sines of [1, tokens, width]."""
    frequencies = 10000.0 ** (-torch.arange(0, 64, 2) / 64)
    table = torch.outer(torch.arange(TOKENS), frequencies).repeat(1, 2)[None]
    return table.cos(), table.sin()


def rope(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = (table[:, None] for table in angles())
    return tuple(x * cos + torch.cat((-x[..., 32:], x[..., :32]), -1) * sin for x in (q, k))


def causal_softmax(x: Tensor) -> Tensor:
    hidden = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1)
    return (0.5 * x).masked_fill(hidden, -torch.inf).softmax(-1)


def norms(name: str, *options: object) -> dict[str, Case]:
    """A norm with or without a mean, as a case of that name."""
    function = getattr(kernels, name.partition(",")[0])
    is_centred = "RMS" not in name
    return {
        name: Case(
            lambda *args: function.apply(*args, EPS, *options),
            layer_norm if is_centred else rms_norm,
            lambda: [rows()],
            gains_and_biases if is_centred else gains,
        )
    }


CASES = {
    **norms("LigerRMSNormFunction"),
    **norms("LigerLayerNormFunction"),
    **norms("FusedLayerNormAffineFunction", False),
    **norms("FusedLayerNormAffineFunction, memory-efficient", True),
    **norms("FusedRMSNormAffineFunction", False),
    **norms("FusedRMSNormAffineFunction, memory-efficient", True),
    **norms("_OperationFuserAutogradFunction"),
    "LigerFusedAddRMSNormFunction": Case(
        lambda *args: kernels.LigerFusedAddRMSNormFunction.apply(*args, EPS),
        add_rms_norm,
        lambda: [rows(), random(TOKENS, WIDTH, seed=5)],
        gains,
    ),
    "LigerSiLUMulFunction": Case(kernels.LigerSiLUMulFunction.apply, swiglu, pairs, lossy=2),
    "LigerGELUMulFunction": Case(kernels.LigerGELUMulFunction.apply, geglu, pairs, lossy=2),
    "GeLUFunction": Case(
        kernels.GeLUFunction.apply,
        lambda x, bias: functional.gelu(x + bias, approximate="tanh"),
        lambda: [random(TOKENS, WIDTH)],
        lambda: [random(WIDTH, seed=1)],
    ),
    "SwiGLUFunction": Case(
        kernels.SwiGLUFunction.apply, lambda x: swiglu(*x.chunk(2, -1)), lambda: [random(TOKENS, 2 * WIDTH)]
    ),
    "LigerRopeFunction": Case(
        lambda q, k: kernels.LigerRopeFunction.apply(q, k, *angles()),
        rope,
        lambda: [random(1, 2, TOKENS, 64), random(1, 2, TOKENS, 64, seed=1)],
        bounds=(0.0, 0.0),
        lossy=0,
    ),
    "LinearWithGradAccumulationAndAsyncCommunication": Case(
        kernels.LinearWithGradAccumulationAndAsyncCommunication.apply,
        lambda x, weight: x @ weight.t(),
        lambda: [rows()],
        lambda: [random(VOCABULARY, WIDTH)],
    ),
    "LinearFunctionForZeroStage3": Case(
        kernels.LinearFunctionForZeroStage3.apply,
        lambda x, weight, bias: functional.linear(x, weight, bias),
        lambda: [rows()],
        lambda: [random(VOCABULARY, WIDTH), random(VOCABULARY)],
    ),
    "ScaledUpperTriangMaskedSoftmax": Case(
        lambda x: kernels.ScaledUpperTriangMaskedSoftmax.apply(x, 0.5),
        causal_softmax,
        lambda: [random(2, 1024, 1024, scale=3.0)],
    ),
}


def model_of(case: Case, kernel: Kernel) -> Trained:
    return Trained(kernel, case.activations(), case.weights())


@pytest.mark.parametrize("name", CASES)
def test_a_stand_in_has_the_gradients_of_plain_operations(name):
    case = CASES[name]
    found = trained_gradients(model_of(case, case.kernel))
    expected = trained_gradients(model_of(case, case.plain))
    for ours, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4 * float(plain.abs().max()))


@pytest.mark.parametrize(("fmt", "bound"), [(PLANES, 0), (HADAMARD, 1)], ids=["planes", "hadamard"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_survive_compression(name, fmt, bound):
    case = CASES[name]
    found, saver = errors(model_of(case, case.kernel), fmt)
    assert max(found) <= case.bounds[bound], found
    assert lossy_of(saver, name.partition(",")[0]) == case.lossy


def flash(function: Kernel, *, heads_first: bool = False) -> Kernel:
    """Causal attention by a Function, of [1, tokens, heads, width] whatever the order of the kernel's own."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        swapped = [part.transpose(1, 2) if heads_first else part for part in (q, k, v)]
        out = function(*swapped, q.shape[-1] ** -0.5, True)
        out = out[0] if isinstance(out, tuple) else out
        return out.transpose(1, 2) if heads_first else out

    return attention


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    parts = (part.transpose(1, 2) for part in (q, k, v))
    return functional.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2)


ATTENTION = {
    "FlashAttnFunc": flash(kernels.FlashAttnFunc.apply),
    "_fMHA": flash(kernels._fMHA.apply),
    "GeneratedBackwardFor_flash_attn_3__flash_attn_forward_default": flash(
        torch.ops.flash_attn_3._flash_attn_forward
    ),
    "FlexAttentionAutogradOp": flash(kernels.FlexAttentionAutogradOp.apply, heads_first=True),
}
# Standard deviations of logits, from a model's at its first step to one's that was trained for long, and the
# gradient error that PyTorch's own attention has with the Hadamard format.
SPREADS = {1.3: 0.26, 5.4: 0.54, 21.5: 1.2}


def attended(spread: float) -> Sequence[Tensor]:
    """Queries, keys and values of two heads, whose logits have that standard deviation."""
    scale = spread**0.5
    queries, keys = (random(1, 1024, 2, 64, scale=scale, seed=seed) for seed in (0, 1))
    return queries, keys, random(1, 1024, 2, 64, seed=2)


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_has_the_gradients_of_plain_operations(name):
    found = trained_gradients(Trained(ATTENTION[name], attended(1.3)))
    expected = trained_gradients(Trained(plain_attention, attended(1.3)))
    for ours, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-4 * float(plain.abs().max()))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_survives_compression_as_torchs_own_does(name, spread, fmt):
    found, saver = errors(Trained(ATTENTION[name], attended(spread)), fmt)
    assert max(found) < SPREADS[spread]
    assert lossy_of(saver, name) == 4  # queries, keys, values and outputs, but no log-sum-exps


@pytest.mark.parametrize("fmt", FORMATS)
def test_attention_survives_compression_in_bf16(fmt):
    found, saver = errors(
        Trained(ATTENTION["FlashAttnFunc"], [part.bfloat16() for part in attended(5.4)]), fmt
    )
    assert max(found) < SPREADS[5.4]
    rows = [row for row in saver.report().rows if row.saved_by == "FlashAttnFunc" and row.dtype == "bfloat16"]
    assert all(row.stored_bytes < row.original_bytes for row in rows)
    assert sum(row.tensors for row in rows) == 4


class Head(nn.Module):
    """Tokens, a head, and a cross-entropy for each token.

    Args:
        loss: of logits and targets.
        head: the linear layer, of input and weight.
        sureness: how much of its target's weight is in a token.
    """

    def __init__(self, loss: Kernel, head: Kernel = functional.linear, sureness: float = 1.0) -> None:
        super().__init__()
        self.loss, self.head = loss, head
        target = torch.randint(VOCABULARY, (TOKENS,), generator=torch.Generator().manual_seed(2))
        self.register_buffer("target", target)
        self.weight = nn.Parameter(random(VOCABULARY, WIDTH, scale=0.3, seed=1))
        self.tokens = nn.Parameter(random(TOKENS, WIDTH) + sureness * self.weight.detach()[target])

    def forward(self) -> tuple[Tensor, ...]:
        return (self.loss(self.head(Activation.apply(self.tokens), self.weight), self.target),)


def cross_entropies(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(logits, target, reduction="none")


def in_one(function: Kernel) -> Kernel:
    """A kernel of tokens and the head's weight, in place of a loss of logits."""
    return lambda given, target: function(*given, target)


# Of each loss the arguments of a head, PyTorch's own loss, and how many floating-point tensors are lossy.
LOSSES = {
    "_VocabParallelCrossEntropy": ((kernels._VocabParallelCrossEntropy.apply,), cross_entropies, 1),
    "LigerVocabParallelCEFunction": ((kernels.LigerVocabParallelCEFunction.apply,), cross_entropies, 1),
    "LigerCrossEntropyFunction": ((kernels.LigerCrossEntropyFunction.apply,), functional.cross_entropy, 0),
    "LigerFusedLinearCrossEntropyFunction": (
        (in_one(kernels.LigerFusedLinearCrossEntropyFunction.apply), lambda *given: given),
        functional.cross_entropy,
        0,
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_has_the_gradients_of_plain_operations(name):
    kernel, plain, _ = LOSSES[name]
    for ours, theirs in zip(trained_gradients(Head(*kernel)), trained_gradients(Head(plain)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


# In nats: 12, 1.8, 0.2 and 0.02. The nearer a prediction is to its target, the less is left of the gradient.
@pytest.mark.parametrize("sureness", [0.0, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_adds_little_error_to_that_of_the_heads_input(name, fmt, sureness):
    """Of a million probabilities: where there are fewer, those of some losses are exact."""
    kernel, plain, lossy = LOSSES[name]
    model = Head(*kernel, sureness=sureness)
    (weight, tokens), saver = errors(model, fmt)
    (own, _), _ = errors(Head(plain, sureness=sureness), fmt)
    assert tokens < 0.025  # the head's input has no part in it
    assert weight < own + 0.015
    assert lossy_of(saver, name) == lossy


@pytest.mark.parametrize("reentrant", [True, False])
def test_inputs_of_a_recomputation_are_lossy_and_what_it_recomputes_fits_them(reentrant):
    """ReLU's gates: those of the lossy input and those of the gradient are the same."""
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def kernel(x: Tensor, *weights: Tensor) -> Tensor:
        named = dict(zip(dict(layers.named_parameters()), weights, strict=True))
        return checkpoint(lambda x: torch.func.functional_call(layers, named, x), x, use_reentrant=reentrant)

    model = Trained(kernel, [random(TOKENS, WIDTH)], [*layers.parameters()])
    found, saver = errors(model, HADAMARD)
    assert 0 < max(found) < 0.35
    (row,) = [row for row in saver.report().rows if row.shape == (TOKENS, WIDTH)]
    assert row.stored_bytes < row.original_bytes / 7


class Unread(nn.Module):
    """A part of a model with a Function that no table knows."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (Sine.apply(Activation.apply(x)),)


class OfUnread(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(random(TOKENS, WIDTH))
        self.part = Unread()

    def forward(self) -> tuple[Tensor, ...]:
        return self.part(self.x)


def test_a_function_that_nobody_has_read_stays_exact_and_is_named_once():
    model = OfUnread()
    exact = trained_gradients(model)
    saver = bitstash.Compressor(model, HADAMARD)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert torch.equal(trained_gradients(model, saver)[0], exact[0])
    (message,) = [str(warning.message) for warning in caught if "Sine" in str(warning.message)]
    assert "'part'" in message
    assert f"{TOKENS * WIDTH * 4:,} bytes" in message
    assert 'Rule(fmt, saved_by="Sine")' in message
    (row,) = [row for row in saver.report().rows if row.saved_by == "Sine"]
    assert row.stored_bytes == row.original_bytes


def test_a_rule_allows_what_nobody_has_read():
    model, policy = OfUnread(), Policy.default(HADAMARD)
    saver = bitstash.Compressor(model, Policy([Rule(HADAMARD, saved_by="Sine"), *policy.rules]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained_gradients(model, saver)
    assert lossy_of(saver, "Sine") == 1


class RMSNormFunction(Function):
    """A project's own, which saves what PyTorch's does and divides by an activation."""

    @staticmethod
    def forward(ctx, x, weight):
        rstd = kernels.written((x.square().mean(-1) + EPS).rsqrt())
        ctx.save_for_backward(x, weight, rstd)
        return kernels.written(x.abs().log() * rstd[:, None] * weight)

    @staticmethod
    def backward(ctx, dy):
        x, weight, rstd = ctx.saved_tensors
        return dy * weight * rstd[:, None] / x, None


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_class_that_only_has_a_known_name_stays_exact_and_is_named(fmt):
    x = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weight = torch.ones(WIDTH)

    def gradient(around):
        with around or nullcontext():
            loss = RMSNormFunction.apply(1 * x, weight).sum()
        return torch.autograd.grad(loss, x)[0]

    exact = gradient(None)
    with pytest.warns(RuntimeWarning, match=r"tests\.test_kernels\.RMSNormFunction', no class of torch,"):
        found = gradient(bitstash.Compressor(nn.Identity(), fmt))
    assert torch.equal(found, exact)
