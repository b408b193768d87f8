"""Checkpoint, offload, compress: what each costs in time and saves in memory, on the same models.

Trains GPT-2, BERT and T5 for some steps with each scheme and several batch sizes, from the same weights and
on the same data, and writes rok.json, a row for each, and rok.png: activation peak against throughput of
what is on the frontier, after the recompute-offload-keep curves of SSDTrain (arXiv 2408.10013, section 4).
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from ..compressor import Compressor
from ..schemes import Scheme
from . import peak, train

FUSED = "gpt2-fused"  # with GELU as one operation, not as Hugging Face spells it
MODELS = ("gpt2", FUSED, "bert", "t5")
CONFIGS = ("small", "gpt2")
LENGTH = {"small": 128, "gpt2": 1024}
BATCHES = (4, 8, 16)

ADAPTIVE = "offload-adaptive"
# Of the Hadamard format, by rate; "recomputed" has the default policy. Others store every tensor.
RATES = {
    "hadamard-16x": train.Options(scheme="hadamard", target=32, recompute=False),
    "recomputed-16x": train.Options(scheme="hadamard", target=32),
    "recomputed-8x": train.Options(scheme="hadamard", target=64),
    "recomputed-16x+checkpointing": train.Options(scheme="hadamard+checkpointing", target=32),
}
# In the order of rows.
SCHEMES = (
    "baseline",
    "checkpointing",
    "offload",
    ADAPTIVE,
    "planes",
    "hadamard-16x",
    "recomputed-16x",
    "recomputed-8x",
    "recomputed-16x+checkpointing",
    "quant",
    "planes+offload",
    "planes+checkpointing",
    "compact",
    "pool",
)

_MASK, _IGNORED = 256, -100  # BERT's token for a masked byte; what no loss looks at


@dataclass(frozen=True)
class Task:
    """What all rows have in common.

    Attributes:
        config: "small", or "gpt2" for the real sizes: GPT-2 124M, BERT-base, T5-base.
        steps: after which the loss is taken; the time is the median of all but the first three.
        rounds: over all rows; the time is the median of those, so that what else a machine does for a while
            is not taken for a scheme's cost.
        device: "cpu" or "cuda".
        offload_dir: of the offloaded tensors.
        amount: that the scheme "offload" sends there.

    Raises:
        ValueError: the device is another.
    """

    config: str = "small"
    steps: int = 8
    rounds: int = 3
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    offload_dir: Path = Path("build/offload")
    amount: int | Literal["all", "adaptive"] = "all"

    def __post_init__(self) -> None:
        peak.name_of(self.device)


def compare(
    task: Task, models: Sequence[str], schemes: Sequence[str], batches: Sequence[int], out: Path
) -> list[dict[str, Any]]:
    """Measure all rows, print them as tables, and write rok.json and rok.png.

    Returns:
        The rows: "model", "scheme", "batch"; "activation_peak_bytes", the most that a step had allocated
        beside weights, moments and gradients; "saved_bytes", that are kept of a step between the passes;
        "seconds_per_step"; "bytes_moved", that a step wrote and read, and "bytes_written" of these; "loss",
        of the last step; "offload_plan", what was chosen to go.

    Raises:
        ModuleNotFoundError: transformers, whose models these are, or matplotlib is not installed.
    """
    import matplotlib.figure  # noqa: F401  # what is missing shows before hours of measuring
    import transformers  # noqa: F401

    work = [(model, scheme, batch) for model in models for batch in batches for scheme in schemes]
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {key: [] for key in work}
    for key in track(work * task.rounds, "comparing", console=Console(stderr=True), transient=True):
        found[key].append(measure(task, *key))
    rows = []
    for alike in found.values():
        seconds = statistics.median(row["seconds_per_step"] for row in alike)
        rows.append(alike[0] | {"seconds_per_step": seconds})
    out.mkdir(parents=True, exist_ok=True)
    (out / "rok.json").write_text(json.dumps(rows, indent=1) + "\n")
    plot(rows, task, out / "rok.png")
    for model in models:
        Console(width=120).print(table(rows, model))
    print(f"wrote {out / 'rok.json'} and {out / 'rok.png'}")
    return rows


def measure(task: Task, name: str, scheme_name: str, batch: int) -> dict[str, Any]:
    """One row."""
    with closing(_scheme(task, scheme_name)) as scheme:
        model, loss_of = build(name, task)
        scheme.convert(model)
        optimizer = scheme.optimizer(model, lr=3e-4)
        text, generator = train.read_text(None), torch.Generator().manual_seed(0)

        def step() -> Iterator[Compressor | None]:
            """Yields between the passes."""
            tokens = train.draw(text, batch, LENGTH[task.config], generator).to(task.device)
            with scheme.around(model) as saver:
                loss = loss_of(tokens)
            losses.append(loss.detach())
            yield saver
            loss.backward()

        losses: list[torch.Tensor] = []
        seconds, moved = [], []
        for _ in range(task.steps):
            before, start = _moved(scheme), time.perf_counter()
            for _between in step():
                pass
            _wait(task.device)
            seconds.append(time.perf_counter() - start)
            moved.append([now - then for now, then in zip(_moved(scheme), before, strict=True)])
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)  # gradients are no activations: they stay allocated
        loss = float(losses[-1])
        found = peak.measure(step, task.device)
        written, read = moved[-1]
        return {
            "model": name,
            "scheme": scheme_name,
            "batch": batch,
            "device": peak.name_of(task.device),
            "activation_peak_bytes": found.peak,
            "saved_bytes": found.kept,
            "seconds_per_step": statistics.median(seconds[3:] or seconds),
            "bytes_moved": written + read,
            "bytes_written": written,
            "loss": loss,
            "offload_plan": scheme.offload and scheme.offload.plan,
        }


def build(name: str, task: Task) -> tuple[torch.nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    """A model with weights of seed 0, and what computes its loss on bytes, int64[batch, length].

    GPT-2 predicts each next byte, BERT one in seven that are masked, T5 the second half from the first.
    """
    import transformers as hf

    small = task.config == "small"
    model: Any
    sizes: dict[str, Any]
    torch.manual_seed(0)
    if name in ("gpt2", FUSED):
        options = train.Options(config=task.config, device=str(task.device), fused=name == FUSED)
        gpt2 = train.build(options)
        return gpt2, lambda tokens: train.loss_of(gpt2, options, tokens)
    if name == "bert":
        sizes = {
            "hidden_size": 192,
            "num_hidden_layers": 4,
            "num_attention_heads": 6,
            "intermediate_size": 768,
        }
        model = hf.BertForMaskedLM(
            hf.BertConfig(
                **(sizes if small else {}),
                vocab_size=257 if small else 30522,
                max_position_embeddings=LENGTH[task.config],
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )
        model = model.to(task.device).train()

        def masked(tokens: torch.Tensor) -> torch.Tensor:
            is_masked = torch.arange(tokens.shape[1], device=tokens.device) % 7 == 3
            labels = tokens.masked_fill(~is_masked, _IGNORED)
            return model(tokens.masked_fill(is_masked, _MASK), labels=labels).loss

        return model, masked
    sizes = {"d_model": 768, "num_layers": 12, "num_heads": 12, "d_kv": 64, "d_ff": 3072}
    if small:
        sizes = {"d_model": 192, "num_layers": 2, "num_heads": 6, "d_kv": 32, "d_ff": 768}
    sizes["decoder_start_token_id"] = 0
    model = hf.T5ForConditionalGeneration(
        hf.T5Config(
            **sizes,
            vocab_size=256 if small else 32128,
            dropout_rate=0.0,
            use_cache=False,
        )
    )
    model = model.to(task.device).train()

    def second_half(tokens: torch.Tensor) -> torch.Tensor:
        first, second = tokens.chunk(2, dim=1)
        return model(input_ids=first, labels=second.contiguous()).loss

    return model, second_half


def frontier(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that no other beats in both memory and throughput, by memory."""
    best: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: (row["activation_peak_bytes"], -_throughput(row))):
        if not best or _throughput(row) > _throughput(best[-1]):
            best.append(row)
    return best


def table(rows: list[dict[str, Any]], model: str) -> Table:
    """The rows of a model; of each batch size those on the frontier are marked."""
    found = Table(title=f"{model}: a step's activation peak, and what it costs")
    for heading in ("batch", "scheme"):
        found.add_column(heading)
    for heading in ("saved MB", "ratio", "peak MB", "of baseline", "seconds", "of baseline"):
        found.add_column(heading, justify="right")
    for heading in ("written MB", "loss", "frontier"):
        found.add_column(heading, justify="right")
    rows = [row for row in rows if row["model"] == model]
    for batch in sorted({row["batch"] for row in rows}):
        alike = [row for row in rows if row["batch"] == batch]
        baseline, best = next((row for row in alike if row["scheme"] == "baseline"), None), frontier(alike)
        for row in alike:
            found.add_row(
                str(batch),
                row["scheme"],
                f"{row['saved_bytes'] / 1e6:,.1f}",
                f"{baseline['saved_bytes'] / row['saved_bytes']:.1f}" if baseline else "",
                f"{row['activation_peak_bytes'] / 1e6:,.1f}",
                f"{row['activation_peak_bytes'] / baseline['activation_peak_bytes']:.2f}" if baseline else "",
                f"{row['seconds_per_step']:.3f}",
                f"{row['seconds_per_step'] / baseline['seconds_per_step']:.2f}" if baseline else "",
                f"{row['bytes_written'] / 1e6:,.1f}" if row["bytes_written"] else "",
                f"{row['loss']:.4f}",
                "yes" if row in best else "",
            )
        found.add_section()
    return found


def plot(rows: list[dict[str, Any]], task: Task, path: Path) -> None:
    """Peak against throughput, a panel for each model; what no other row beats in both is named."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    models = list(dict.fromkeys(row["model"] for row in rows))
    across = min(len(models), 2)
    down = -(-len(models) // across)
    figure = Figure(figsize=(5.5 * across, 4 * down + 0.4), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False)
    for axis in axes.flat[len(models) :]:
        axis.set_visible(False)
    for axis, model in zip(axes.flat, models, strict=False):
        here = [row for row in rows if row["model"] == model]
        best = [(row["activation_peak_bytes"] / 1e6, _throughput(row)) for row in frontier(here)]
        others = [(row["activation_peak_bytes"] / 1e6, _throughput(row)) for row in here]
        axis.plot(*zip(*others, strict=True), "o", color="lightgray", ms=5)
        axis.plot(*zip(*best, strict=True), "o-", color="#0072B2", ms=6)
        for row, place in zip(frontier(here), best, strict=True):
            axis.annotate(
                f"{row['scheme']}, batch {row['batch']}",
                place,
                (6, -9),
                textcoords="offset points",
                fontsize=8,
            )
        axis.set_title(model)
        axis.set_xscale("log", subs=[2, 3, 5])
        axis.set_yscale("log", subs=[2, 3, 5])
        axis.margins(x=0.3)
        for direction in (axis.xaxis, axis.yaxis):
            direction.set_major_formatter(ScalarFormatter())
            direction.set_minor_formatter(ScalarFormatter())
    figure.supxlabel("activation peak of a step, MB", fontsize=10)
    figure.supylabel("sequences a second", fontsize=10)
    how = "of CUDA's allocator" if task.device.type == "cuda" else "of live autograd storage on a CPU"
    figure.suptitle(
        f"Named: what nothing beats in memory and speed ({task.config} models; peaks {how})", fontsize=11
    )
    figure.savefig(path, dpi=130)


def _scheme(task: Task, name: str) -> Scheme:
    adaptive = name == ADAPTIVE
    options = replace(
        RATES.get(name) or train.Options(scheme="offload" if adaptive else name, recompute=False),
        offload_dir=task.offload_dir,
        offload_amount="adaptive" if adaptive else task.amount,
    )
    return options.make_scheme()


def _throughput(row: dict[str, Any]) -> float:
    return row["batch"] / row["seconds_per_step"]


def _moved(scheme: Scheme) -> tuple[int, int]:
    """Bytes written and read so far."""
    return (scheme.offload.stored_bytes, scheme.offload.loaded_bytes) if scheme.offload else (0, 0)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
