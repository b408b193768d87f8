"""Accuracy, memory and features of a ResNet with pooled activations: ``python -m bench.pool``.

Trains a ResNet-18 (transformers' layers, narrow, with the 3 x 3 stem for small images) without compression,
with another seed, and with activations pooled by 2 and by 4, all on the same batches. The images are
scikit-learn's digits, 8 x 8 made 32 x 32, or those of ``--data``, a folder with a folder for each class.

Columns: accuracy on the fifth of the images that is held out, at the end and at its best; the epoch that
first came within a point of the exact run's best; MB that autograd keeps between the passes, parameters left
out; MB at the peak of a step, with parameters, momenta, gradients and all (on a CPU from the profiler's
record of every allocation); and linear CKA, how alike the features of each stage are to the exact run's, at
most 1 (Kornblith et al., ICML 2019). That of another seed tells how alike two exact runs are. Rows, with the
accuracy after every epoch, go to build/bench/pool.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import nn
from torch.nn import functional

from gen.arguments import at_least
from torch_bridge import Compressor, Policy
from torch_bridge.job import train
from torch_bridge.job.peak import measure
from torch_bridge.schemes import pool

SIZE = 32
SCHEMES: dict[str, tuple[int, int | None]] = {  # seed of the weights, kernel
    "exact": (0, None),
    "exact, another seed": (1, None),
    "pooled by 2": (0, 2),
    "pooled by 4": (0, 4),
}
DEVICE = train.Options().torch_device
COMPARED = 256  # images whose features are compared
OUTPUT = Path("build/bench/pool.json")

Data = tuple[torch.Tensor, torch.Tensor]


def digits() -> Data:
    """float[1797, 1, 32, 32] in 0 to 1, and int64[1797]."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SystemExit(
            "the digits come with scikit-learn: pip install scikit-learn, or give --data"
        ) from None
    found = load_digits()
    images = torch.from_numpy(found.images).float()[:, None] / 16
    return functional.interpolate(images, size=(SIZE, SIZE), mode="bilinear"), torch.from_numpy(found.target)


def folder(path: Path) -> Data:
    """The images in the folders of a folder, whose names are the classes: float[n, 3, 32, 32], int64[n]."""
    from PIL import Image

    images, labels = [], []
    endings = Image.registered_extensions()
    classes = sorted(part for part in path.iterdir() if part.is_dir()) if path.is_dir() else []
    for label, part in enumerate(classes):
        for file in sorted(file for file in part.iterdir() if file.suffix.lower() in endings):
            with Image.open(file) as image:
                pixels = image.convert("RGB").resize((SIZE, SIZE)).tobytes()
            images.append(torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(SIZE, SIZE, 3))
            labels.append(label)
    if not images:
        raise SystemExit(f"--data must be a folder of folders of images, not {str(path)!r}")
    return torch.stack(images).permute(0, 3, 1, 2).float() / 255, torch.tensor(labels)


def resnet(data: Data, seed: int) -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(seed)
    channels, width = data[0].shape[1], 16
    config = ResNetConfig(
        num_channels=channels,
        embedding_size=width,
        hidden_sizes=[width, 2 * width, 4 * width, 8 * width],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        num_labels=int(data[1].max()) + 1,
    )
    model = ResNetForImageClassification(config)
    model.resnet.embedder.embedder.convolution = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    model.resnet.embedder.pooler = nn.Identity()
    return model.to(DEVICE)


def split(data: Data) -> tuple[Data, Data]:
    """What to train on, and the fifth that is held out; the same every time."""
    order = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(0))
    held_out, seen = order[: len(order) // 5], order[len(order) // 5 :]
    return (data[0][seen], data[1][seen]), (data[0][held_out], data[1][held_out])


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
    model.eval()
    right = 0
    for images, labels in zip(data[0].split(256), data[1].split(256), strict=True):
        right += int((model(images.to(DEVICE)).logits.argmax(1).cpu() == labels).sum())
    model.train()
    return right / len(data[0])


@torch.no_grad()
def features(model: nn.Module, images: torch.Tensor) -> list[torch.Tensor]:
    """What stem and stages make of the images: float[images, channels * height * width] of each."""
    model.eval()
    stages = model(images.to(DEVICE), output_hidden_states=True).hidden_states
    model.train()
    return [stage.flatten(1).cpu() for stage in stages]


def similarity(x: torch.Tensor, y: torch.Tensor) -> float:
    """Linear CKA of two float[images, features]."""
    first, second = (centred @ centred.T for centred in (x - x.mean(0), y - y.mean(0)))
    return float((first * second).sum() / (first.norm() * second.norm()))


def row(
    data: Data, seed: int, kernel: int | None, given: argparse.Namespace, bar: Progress
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Train and measure; the row, and the features of some held-out images."""
    model = resnet(data, seed)
    if kernel is not None:
        pool.convert(model, kernel)
    (images, labels), held_out = split(data)
    optimizer = torch.optim.SGD(model.parameters(), given.lr, momentum=0.9, weight_decay=5e-4)
    generator = torch.Generator().manual_seed(0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.epochs)

    def step(batch: torch.Tensor) -> Iterator[Compressor | None]:
        """Yields between the passes."""
        optimizer.zero_grad(set_to_none=True)
        loss = model(images[batch].to(DEVICE), labels=labels[batch].to(DEVICE)).loss
        yield None
        loss.backward()
        optimizer.step()

    curve, seconds = [], []
    task = bar.add_task("exact" if kernel is None else f"pooled by {kernel}", total=given.epochs)
    for _ in range(given.epochs):
        start = time.perf_counter()
        for batch in torch.randperm(len(images), generator=generator).split(given.batch):
            for _between in step(batch):
                pass
        schedule.step()
        seconds.append(time.perf_counter() - start)
        curve.append(accuracy(model, held_out))
        bar.advance(task)
    found = features(model, held_out[0][:COMPARED])

    momenta = [state["momentum_buffer"] for state in optimizer.state.values()]
    resting = sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers(), *momenta])
    optimizer.zero_grad(set_to_none=True)
    batch = torch.arange(given.batch)
    peak = measure(lambda: step(batch), DEVICE).peak
    with Compressor(model, Policy([])) as saver:
        next(step(batch))
    measured = {
        "accuracy": curve,
        "seconds_per_epoch": statistics.median(seconds),
        "kept_bytes": saver.original_bytes,
        "peak_bytes": resting + peak,
    }
    return measured, found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pool", description="Pooled activations.")
    parser.add_argument("--data", type=Path, help="a folder of folders of images, one for each class")
    parser.add_argument("--epochs", type=at_least(1), default=8)
    parser.add_argument("--batch", type=at_least(1), default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    given = parser.parse_args()
    data = folder(given.data) if given.data else digits()
    rows: list[dict[str, Any]] = []
    with Progress(console=Console(stderr=True), transient=True) as bar:
        for scheme, (seed, kernel) in SCHEMES.items():
            measured, found = row(data, seed, kernel, given, bar)
            if not rows:
                exact = found
            alike = [similarity(x, y) for x, y in zip(found, exact, strict=True)]
            rows.append({"scheme": scheme} | measured | {"cka": alike})

    table = Table("scheme", title=f"ResNet-18, {given.epochs} epochs of {len(split(data)[0][0]):,} images")
    for heading in (
        "accuracy",
        "best",
        "epoch",
        "seconds",
        "kept MB",
        "peak MB",
        "less peak",
        "CKA by stage",
    ):
        table.add_column(heading, justify="right")
    for each in rows:
        near = [a >= max(rows[0]["accuracy"]) - 0.01 for a in each["accuracy"]]
        table.add_row(
            each["scheme"],
            f"{each['accuracy'][-1]:.2%}",
            f"{max(each['accuracy']):.2%}",
            str(near.index(True) + 1) if any(near) else "-",
            f"{each['seconds_per_epoch']:.1f}",
            f"{each['kept_bytes'] / 1e6:.1f}",
            f"{each['peak_bytes'] / 1e6:.1f}",
            f"{1 - each['peak_bytes'] / rows[0]['peak_bytes']:.0%}",
            " ".join(f"{value:.2f}" for value in each["cka"]),
        )
    Console(width=120).print(table)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(
        json.dumps({"options": vars(given) | {"data": str(given.data)}, "rows": rows}, indent=2)
    )
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
