"""Where compression once ruined gradients or memory, measured: ``python -m bench.known_cases``.

Each case is a training step beside the same step without compression. "Blind" are hooks that compress every
floating-point tensor of 1,024 values or more that is no parameter, which is what a tool does that knows
nothing of operations; "bitstash" is ``Compressor``. Kernels that need a GPU are those of
``tests/kernels.py``, models those of ``tests/families.py``. Case A runs DeepSpeed in two processes where it
is installed. Rows go to build/bench/known_cases.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

import bitstash
from bitstash import HadamardFormat, PlaneFormat, Policy, Rule
from tests import kernels
from tests.families import FAMILIES, loss_of
from torch_bridge import backends
from torch_bridge.backends.dtypes import AnyFormat, float_name, format_for

OUTPUT = Path("build/bench/known_cases.json")
HADAMARD, PLANES = HadamardFormat(target=64), PlaneFormat("fp32", block=64, target=80)
LEAST = 1024  # values
EPS = 1e-6

Around = Callable[[nn.Module], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        case: its letter.
        what: is trained.
        measure: what the numbers are.
        blind: with hooks that know nothing; None if there is no such thing.
        bitstash: with ``Compressor``.
    """

    case: str
    what: str
    measure: str
    blind: float | str | None
    bitstash: float | str


def blind(
    model: nn.Module, fmt: AnyFormat, least: int = LEAST, *, tables_only: bool = False
) -> AbstractContextManager[Any]:
    """Hooks that compress whatever they are given, but for parameters and what is small.

    Args:
        tables_only: leave what requires a gradient as it is.
    """
    own = {part.untyped_storage().data_ptr() for part in model.parameters()}

    def pack(tensor: Tensor) -> Any:
        is_exact = tensor.untyped_storage().data_ptr() in own or (tables_only and tensor.requires_grad)
        if is_exact or tensor.numel() < least or float_name(tensor.dtype) is None:
            return tensor
        codec = backends.get("auto", format_for(fmt, tensor.dtype))
        return codec.compress(tensor.detach().contiguous().flatten()), tensor.shape, codec

    def unpack(packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        data, shape, codec = packed
        return codec.decompress(data, shape.numel()).view(shape)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def gradients(model: nn.Module, run: Callable[[], Tensor], around: Around | None) -> dict[str, Tensor]:
    """Of one step, by the parameters' names."""
    torch.manual_seed(1)
    with around(model) if around is not None else nullcontext():
        loss = run()
    loss.backward()
    found = {name: part.grad for name, part in model.named_parameters() if part.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def error_of(model: nn.Module, run: Callable[[], Tensor], around: Around, parts: str = "") -> float:
    """The relative gradient error of all parameters whose names start with ``parts``, together."""

    def flat(found: dict[str, Tensor]) -> Tensor:
        return torch.cat([grad.float().flatten() for name, grad in found.items() if name.startswith(parts)])

    exact, found = (flat(gradients(model, run, one)) for one in (None, around))
    return float((found - exact).norm() / exact.norm())


def both(model: nn.Module, run: Callable[[], Tensor], fmt: AnyFormat, parts: str = "") -> tuple[float, float]:
    """The errors with blind hooks and with bitstash."""
    return (
        error_of(model, run, lambda model: blind(model, fmt), parts),
        error_of(model, run, lambda model: bitstash.Compressor(model, fmt), parts),
    )


# A. Weights that DeepSpeed gathers for a layer, and frees behind it


def gathered() -> Iterator[Row]:
    """How much of them is still there when the forward pass ends."""
    what, measure = "DeepSpeed ZeRO-3", "gathered bytes alive after the forward pass"
    if importlib.util.find_spec("deepspeed") is None:
        yield Row("A", what, measure, None, "DeepSpeed is not installed")
        return
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str((OUTPUT.parent / "deepspeed").absolute()))
    with tempfile.TemporaryDirectory() as folder:
        shares = []
        for how in ("detach", "bitstash"):
            path = Path(folder) / how
            torch.multiprocessing.spawn(_train_sharded, (_free_port(), how, path), nprocs=2)
            shares.append(float(path.read_text()))
    yield Row("A", what, measure, f"{shares[0]:.0%}", f"{shares[1]:.0%}")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _train_sharded(rank: int, port: int, how: str, path: Path) -> None:
    """One process of two. A hook that detaches a parameter keeps the memory that DeepSpeed lets go of."""
    import deepspeed
    from torch.multiprocessing.reductions import StorageWeakRef

    torch.set_num_threads(1)
    here = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": 2,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in here.items()})
    torch.manual_seed(0)
    model = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(256, 256), nn.GELU())))
    sharding = {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 0}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": sharding | {"stage3_prefetch_bucket_size": 0},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config=config
    )
    seen: list[tuple[StorageWeakRef, int]] = []

    def note(layer: nn.Module, *_: Any) -> None:
        seen.append((StorageWeakRef(layer.weight.untyped_storage()), layer.weight.nbytes))

    for layer in model:
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(note)  # behind DeepSpeed's, which gathers
    detached = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach(), lambda tensor: tensor)
    with detached if how == "detach" else bitstash.Compressor(model):
        loss = engine(torch.randn(64, 256)).square().mean()
    alive = sum(nbytes for storage, nbytes in seen if not storage.expired())
    engine.backward(loss)
    if rank == 0:
        path.write_text(str(alive / sum(nbytes for _, nbytes in seen)))


# B. Attention kernels


class Kernel(nn.Module):
    """A kernel of parameters' copies, against random gradients of its results."""

    def __init__(self, kernel: Callable[..., Tensor], *given: Tensor) -> None:
        super().__init__()
        self.kernel = kernel
        self.given = nn.ParameterList(given)

    def forward(self) -> Tensor:
        result = self.kernel(*map(Copy.apply, self.given))
        return Weighed.apply(result)


class Copy(torch.autograd.Function):
    """An activation that nobody knows how to make again."""

    @staticmethod
    def forward(ctx, parameter):
        return kernels.written(parameter)

    @staticmethod
    def backward(ctx, grad):
        return grad


class Weighed(torch.autograd.Function):
    """A sum with random weights, of which nothing is saved."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return (x * random(*x.shape, seed=9)).sum()

    @staticmethod
    def backward(ctx, grad):
        return grad * random(*ctx.shape, seed=9)


def random(*shape: int, scale: float = 1.0, seed: int = 0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def attention() -> Iterator[Row]:
    def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return kernels.FlashAttnFunc.apply(q, k, v, q.shape[-1] ** -0.5, True)

    def own(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads_first = (part.transpose(1, 2) for part in (q, k, v))
        return functional.scaled_dot_product_attention(*heads_first, is_causal=True)

    for name, kernel in (("FlashAttnFunc", flash), ("PyTorch's attention", own)):
        for spread in (1.3, 5.4, 21.5):
            parts = [random(1, 1024, 2, 64, scale=spread**0.5, seed=seed) for seed in (0, 1)]
            model = Kernel(kernel, *parts, random(1, 1024, 2, 64, seed=2))
            yield Row(
                "B",
                f"{name}, logits' deviation {spread}",
                "gradient error, 8x",
                *both(model, model, HADAMARD),
            )


# C. Norm statistics in memory of a kernel's own


def norms() -> Iterator[Row]:
    x = random(2048, 256)
    x[::100] *= 1000.0  # tokens as every pretrained model has some
    weight, bias = 1 + random(256, scale=0.1, seed=3), random(256, scale=0.1, seed=4)

    def rms(x: Tensor) -> Tensor:
        return kernels.LigerRMSNormFunction.apply(x, weight, EPS)

    def layer(x: Tensor) -> Tensor:
        return kernels.LigerLayerNormFunction.apply(x, weight, bias, EPS)

    for name, kernel in (("Liger's RMSNorm", rms), ("Liger's LayerNorm", layer)):
        model = Kernel(kernel, x)
        yield Row("C", f"{name}, 2,048 tokens", "gradient error, 8x", *both(model, model, HADAMARD))


# D. A softmax that the loss saves


class Head(nn.Module):
    """Tokens, an output weight, and Megatron's cross-entropy.

    Args:
        sureness: how much of its target's weight is in a token.
    """

    def __init__(self, sureness: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(random(512, 128, scale=0.3, seed=1))
        self.target = torch.randint(512, (2048,), generator=torch.Generator().manual_seed(2))
        self.tokens = nn.Parameter(random(2048, 128) + sureness * self.weight.detach()[self.target])

    def forward(self) -> Tensor:
        logits = functional.linear(Copy.apply(self.tokens), self.weight)
        return kernels._VocabParallelCrossEntropy.apply(logits, self.target).mean()


def softmaxes() -> Iterator[Row]:
    for sureness in (1.0, 1.5, 2.0):
        model = Head(sureness)
        what = f"Megatron's cross-entropy, at {model().item():.2g} nats"
        yield Row(
            "D", what, "gradient error of the output weight, 3.2x", *both(model, model, PLANES, "weight")
        )


# E. The bit-plane format under bf16 autocast


def families() -> Iterator[Row]:
    for dtype in ("fp32", "bf16"):
        errors = {name: _family(name, dtype) for name in FAMILIES}
        middle = (statistics.median(values) for values in zip(*errors.values(), strict=True))
        yield Row("E", f"{len(FAMILIES)} families, {dtype}", "median gradient error, 3.2x in fp32", *middle)
        for name in ("albert", "electra", "bert", "swin"):
            yield Row("E", f"{name}, {dtype}", "gradient error, 3.2x in fp32", *errors[name])


def _family(name: str, dtype: str, fmt: AnyFormat = PLANES) -> tuple[float, float]:
    model = FAMILIES[name].build(FAMILIES[name].attentions[0])

    def run() -> Tensor:
        batch = FAMILIES[name].batch()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            return loss_of(model(**batch))

    return both(model, run, fmt)


# F. Hooks of others


def others() -> Iterator[Row]:
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.autograd.graph.save_on_cpu(), bitstash.Compressor(model):
            model(random(64, 256))
    told = [str(one.message).partition(":")[0] for one in caught if "hooks" in str(one.message)]
    yield Row("F", "offloading hooks around it", "what is said", "nothing", told[0] if told else "nothing")


# G. Gates


def gates() -> Iterator[Row]:
    yield Row("G", "ResNet, fp32", "gradient error, 3.2x", *_family("resnet", "fp32"))


# H. Tables of rotary embeddings


def rotary_tables() -> Iterator[Row]:
    model = FAMILIES["llama"].build("sdpa")
    torch.manual_seed(1)
    batch = FAMILIES["llama"].batch()
    for bits in (2, 4):
        fmt = HadamardFormat(target=16 * bits)
        rules = Policy([Rule(fmt, saved_by="mul*", module="*self_attn")])  # which saves no other factor there
        errors = (
            error_of(model, lambda: loss_of(model(**batch)), around)
            for around in (
                lambda model, fmt=fmt: blind(model, fmt, 256, tables_only=True),
                lambda model, rules=rules: bitstash.Compressor(model, rules, min_values=256),
            )
        )
        yield Row("H", "Llama's cos and sin alone", f"gradient error, {bits} bits", *errors)


# I. Blocks with two tokens


def widths() -> Iterator[Row]:
    for width in (64, 128, 192, 256, 512, 576, 960):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(width, width, bias=False), nn.RMSNorm(width), nn.Linear(width, width))
        x = random(512, width, seed=2) * (1.5 * random(512, 1, seed=3)).exp()
        target = random(512, width, seed=4)
        errors = both(model, lambda model=model, x=x, y=target: (model(x) - y).square().mean(), HADAMARD)
        yield Row("I", f"RMSNorm between linear layers, width {width}", "gradient error, 4 bits", *errors)


# J. Norms of what has a mean of many times its spread


class Offset(nn.Module):
    """A norm behind a layer whose bias is large, of one sign or of both in turns."""

    def __init__(self, norm: nn.Module, offset: float, *, signs: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.norm, self.behind = nn.Linear(128, 128), norm, nn.Linear(128, 128)
        with torch.no_grad():
            self.before.weight.mul_(3**0.5)  # a spread of 1
            self.before.bias.fill_(offset)[::signs].mul_(-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.behind(self.norm(self.before(x)))


def means() -> Iterator[Row]:
    x, target = random(512, 128, seed=2), random(512, 128, seed=3)
    for name, norm, signs in (("LayerNorm", nn.LayerNorm, 1), ("BatchNorm1d", nn.BatchNorm1d, 2)):
        for offset in (0, 3, 9, 35, 100):
            model = Offset(norm(128), float(offset), signs=signs)
            what = f"{name}, a mean of {offset} times the spread"
            errors = both(
                model, lambda model=model: (model(x) - target).square().mean(), HADAMARD, "before.weight"
            )
            yield Row("J", what, "gradient error of the layer before, 4 bits", *errors)


# K. Attention of single operations with much of a row in one place


class Sink(nn.Module):
    """Attention as torch.nn.functional's softmax and products give it, whose first token draws attention.

    Args:
        height: by how much the logits of the first token are above the others'.
        spread: their standard deviation.
        mean: of the values, in standard deviations.
    """

    def __init__(self, height: float = 0.0, spread: float = 1.0, mean: float = 0.0) -> None:
        super().__init__()
        self.logits = nn.Parameter(spread * random(1, 2, 256, 256, seed=1))
        with torch.no_grad():
            self.logits[..., 0] += height
        self.values, self.target = random(1, 2, 256, 32, seed=2) + mean, random(1, 2, 256, 32, seed=3)

    def forward(self) -> Tensor:
        weights = (1 * self.logits).softmax(-1)
        return (weights @ self.values * self.target).sum()


def sinks() -> Iterator[Row]:
    models = {f"a first token of {height} above the others": Sink(float(height)) for height in (0, 5, 8, 12)}
    models |= {f"logits' deviation {spread}": Sink(spread=float(spread)) for spread in (9, 64)}
    models |= {f"values of a mean of {mean} deviations": Sink(spread=3.0, mean=mean) for mean in (10, 30)}
    for name, model in models.items():
        errors = both(model, model, HADAMARD, "logits")
        yield Row("K", f"eager attention, {name}", "gradient error of the logits, 8x", *errors)


CASES = (gathered, attention, norms, softmaxes, families, others, gates, rotary_tables, widths, means, sinks)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.known_cases", description=__doc__.partition(":")[0]
    )
    parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for case in CASES for row in case()]
    table = Table("case", "trained", "measured")
    for heading in ("blind", "bitstash"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(row.case, row.what, row.measure, _text(row.blind), _text(row.bitstash))
    Console(width=140).print(table)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    OUTPUT.with_suffix(".md").write_text("\n".join(_markdown(rows)) + "\n")
    print(f"written to {OUTPUT}")


def _markdown(rows: list[Row]) -> Iterator[str]:
    yield "| | trained | measured | blind | bitstash |"
    yield "| --- | --- | --- | ---: | ---: |"
    for row in rows:
        yield f"| {row.case} | {row.what} | {row.measure} | {_text(row.blind)} | {_text(row.bitstash)} |"


def _text(value: float | str | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:.2g}"


if __name__ == "__main__":
    main()
