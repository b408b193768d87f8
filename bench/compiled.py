"""The peak of a compiled GPT-2, with the stash inside its graphs: ``python -m bench.compiled``.

Hooks around a compiled model cannot lower its peak: a compiled forward pass hands over all that it saves at
once, and the backward pass asks for all of it before it begins (PyTorch issue 148222). Hooks that are graphs
themselves are put into those of the model by AOTAutograd (issue 150032), but at the end of the one and at the
beginning of the other. Here a backend moves each to where a tensor is made and first needed. The rival is
PyTorch's own ``activation_memory_budget``, which computes anew, and of the model that is not compiled
``torch.utils.checkpoint`` for each block. Each with the model as Hugging Face has it and with GELU as one
operation, which saves less by itself. A CPU, fp32; rows go to build/bench/compiled.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config
from torch.autograd.graph import saved_tensors_hooks

from golden import HadamardFormat
from torch_bridge import Compressor, backends
from torch_bridge.job import peak, train

OUTPUT = Path("build/bench/compiled.json")
FORMAT = HadamardFormat("fp32", 128, 32)
BATCH, LENGTH = 4, 128
# Above those of norm statistics, of log-sum-exps and of the masks that attention adds, which a graph does not
# tell apart: they have to be exact.
MIN_VALUES = BATCH * LENGTH * LENGTH + 1


@torch.library.custom_op("bitstash::compress", mutates_args=())
def compress(values: torch.Tensor) -> torch.Tensor:
    """A tensor -> uint8[blocks, target]."""
    return backends.get("auto", FORMAT).compress(values.reshape(-1))


@compress.register_fake
def _(values: torch.Tensor) -> torch.Tensor:
    return values.new_empty(-(-values.numel() // FORMAT.block), FORMAT.target, dtype=torch.uint8)


@torch.library.custom_op("bitstash::decompress", mutates_args=())
def decompress(stored: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """The inverse: fp32, with these sizes and strides."""
    count = torch.Size(size).numel()
    values = backends.get("auto", FORMAT).decompress(stored, count).view(size)
    return values if values.stride() == tuple(stride) else _like(values, size, stride).copy_(values)


@decompress.register_fake
def _(stored: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    return _like(stored, size, stride)


def _like(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    return tensor.new_empty_strided(size, stride, dtype=torch.float32)


@torch.fx.wrap
def pack_any(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.dtype != torch.float32 or tensor.numel() < MIN_VALUES:
        return (tensor,)
    return compress(tensor), tensor.shape, tensor.stride()


@torch.fx.wrap
def unpack_any(packed: tuple[Any, ...]) -> torch.Tensor:
    return packed[0] if len(packed) == 1 else decompress(*packed)


def hooks_as_graphs() -> saved_tensors_hooks:
    return saved_tensors_hooks(
        torch.fx.symbolic_trace(lambda tensor: pack_any(tensor)),
        torch.fx.symbolic_trace(lambda packed: unpack_any(packed)),
    )


def early_and_late(graph_module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
    """Compress as soon as a tensor is there, decompress as late as it is needed, and run the graph."""
    graph = graph_module.graph
    places = {node: place for place, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.target is torch.ops.bitstash.compress.default:
            node.args[0].append(node)
        elif node.target is torch.ops.bitstash.decompress.default:
            min(node.users, key=places.__getitem__).prepend(node)
    graph.lint()

    def run(arguments: list[Any]) -> Any:
        return torch.fx.Interpreter(graph_module).boxed_run(arguments)

    run._boxed_call = True  # it lets go of its arguments
    return run


def measure(
    model: torch.nn.Module, call: Any, context: Callable[[], AbstractContextManager[Any]]
) -> dict[str, Any]:
    """MB that a step keeps between the passes, its peak, and its gradient."""
    subject = train.subject_of(train.Options(batch=BATCH))
    tokens = train.draw(subject.seen, BATCH, subject.length, torch.Generator().manual_seed(0))

    def step() -> Iterator[None]:
        with context():
            logits = call(tokens).logits[:, :-1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())  # its log-softmax stays
        yield
        loss.backward()

    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(2):  # the first compiles
        for _ in step():
            pass
        model.zero_grad(set_to_none=False)
    found = peak.measure(step, torch.device("cpu"))
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    return {"kept": found.kept / 1e6, "peak": found.peak / 1e6, "gradient": gradient}


def rows(fused: bool) -> Iterator[dict[str, Any]]:
    """Of the small GPT-2; gradient errors are against the model without any of it."""
    model = train.build(train.Options(fused=fused)).train()

    def around() -> AbstractContextManager[Any]:
        return Compressor(model, FORMAT, min_values=MIN_VALUES)

    @contextmanager
    def checkpoints() -> Iterator[None]:
        model.activation_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        try:
            yield
        finally:
            model.activation_checkpointing_disable()  # type: ignore[operator]

    ordered = aot_autograd(fw_compiler=early_and_late, bw_compiler=early_and_late)
    cases: list[tuple[str, Any, float, Any]] = [
        ("eager", None, 1.0, nullcontext),
        ("eager, stash", None, 1.0, around),
        ("eager, torch.utils.checkpoint", None, 1.0, checkpoints),
        ("compiled", "aot_eager", 1.0, nullcontext),
        ("compiled, stash around it", "aot_eager", 1.0, around),
        ("compiled, stash in its graphs", ordered, 1.0, hooks_as_graphs),
        *(
            (f"compiled, activation_memory_budget {share}", "aot_eager", share, nullcontext)
            for share in (0.5, 0.3, 0.1)
        ),
        ("compiled, budget 0.3, stash in its graphs", ordered, 0.3, hooks_as_graphs),
    ]
    exact = None
    for name, backend, budget, context in cases:
        torch.compiler.reset()
        with config.patch(activation_memory_budget=budget):
            call = model if backend is None else torch.compile(model, backend=backend)
            found = measure(model, call, context)
        gradient = found.pop("gradient")
        exact = gradient if exact is None else exact
        error = float((gradient - exact).norm() / exact.norm())
        yield {"name": name, "fused": fused, **found, "gradient_error": error}


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m bench.compiled", description=__doc__.partition(":")[0]
    ).parse_args()
    torch.manual_seed(0)
    table = Table("small GPT-2, 4 sequences", title="memory of a step")
    for heading in ("kept, MB", "peak, MB", "gradient error"):
        table.add_column(heading, justify="right")
    found = [row for fused in (False, True) for row in rows(fused)]
    for row in found:
        name = row["name"] + ", fused GELU" * row["fused"]
        table.add_row(name, f"{row['kept']:.1f}", f"{row['peak']:.1f}", f"{row['gradient_error']:.2g}")
    Console(width=100).print(table)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(found, indent=1) + "\n")
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
