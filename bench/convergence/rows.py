"""What is trained, and the rows of what has been."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Every saved tensor is in the format, queries and keys of attention too. Names with "recomputed"
# or "recompute" have the default policy, the latter with the head's product recomputed; "calibrated" takes as
# many bytes as it. "checkpointed" recomputes each layer, of which the default policy stores what it is given.
SCHEMES: dict[str, dict[str, Any]] = {
    "baseline": {},
    "planes 3.2x": {"scheme": "planes", "target": 80},
    "planes 6.4x": {"scheme": "planes", "target": 40},
    "hadamard 8x": {"scheme": "hadamard", "target": 64},
    "hadamard 10.7x": {"scheme": "hadamard", "target": 48},
    "hadamard 12.8x": {"scheme": "hadamard", "target": 40},
    "hadamard 16x": {"scheme": "hadamard", "target": 32},
    "hadamard 19.7x": {"scheme": "hadamard", "target": 26},
    "hadamard 32x": {"scheme": "hadamard", "target": 16},
    "recomputed, hadamard 8x": {"scheme": "hadamard", "target": 64},
    "recomputed, hadamard 16x": {"scheme": "hadamard", "target": 32},
    "recomputed, calibrated 16x": {"scheme": "hadamard", "target": 32},
    "recompute, 4 bits": {"scheme": "hadamard", "target": 64},
    "recompute, 4 bits, time 1.2": {"scheme": "hadamard", "target": 64, "time": 1.2},
    "recompute, 10-bit boundaries, time 1.35": {"scheme": "hadamard", "target": 64, "time": 1.35},
    "recompute, 2 bits": {"scheme": "hadamard", "target": 32},
    "recompute, calibrated 2 bits": {"scheme": "hadamard", "target": 32},
    "checkpointed, boundaries at 4 bits": {"scheme": "hadamard", "target": 64},
    "checkpointed, boundaries at 2 bits": {"scheme": "hadamard", "target": 32},
    "quant, 4 bits": {"scheme": "quant", "bits": 4},
    "quant, 3 bits": {"scheme": "quant", "bits": 3},
    "quant, 2 bits": {"scheme": "quant", "bits": 2},
    "compact": {"scheme": "compact"},
    "HyC-LoRA, 4 bits": {"scheme": "hadamard", "bits": 4},
    "HyC-LoRA, 2 bits": {"scheme": "hadamard", "bits": 2},
}


@dataclass(frozen=True)
class Study:
    """What is trained of a model.

    Attributes:
        steps, batch, validations: of each run.
        seeds: of each scheme.
        schemes: names of ``SCHEMES``.
        title: what it is, for the page.
        products: precision of matrix products, a name of ``torch.set_float32_matmul_precision``: with
            "medium" bfloat16 values are multiplied and summed in fp32, where the processor has that.
        dtype: "fp32", or "bf16" for autocast; a ratio is of the bytes that training in that type keeps.
        lora: whether LoRA's matrices are trained, and the model is frozen.
        config: the model, a name of ``torch_bridge.job.train.CONFIGS``; None for SmolLM2-135M.
    """

    title: str
    schemes: tuple[str, ...]
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    steps: int = 300
    batch: int = 8
    validations: int = 10
    products: str = "highest"
    dtype: str = "fp32"
    lora: bool = False
    config: str | None = None


_OF_OTHERS = ("compact", "recompute,", "checkpointed", "HyC-LoRA")
FROM_SCRATCH = tuple(scheme for scheme in SCHEMES if not scheme.startswith(_OF_OTHERS))
# Of a row in bf16: trained on a processor without instructions for it, with products in fp32.
WIDE = "wide_products"
FEW = ("baseline", "planes 3.2x", "hadamard 8x", "hadamard 16x", "recomputed, hadamard 16x")
_OF_SMALL = ("hadamard 10.7x", "hadamard 12.8x", "hadamard 32x", "quant, 3 bits")
STUDIES = {
    "small": Study("GPT-2, 4 layers of 192", FROM_SCRATCH, config="small"),
    "medium": Study(
        "GPT-2, 6 layers of 384",
        tuple(scheme for scheme in FROM_SCRATCH if scheme not in _OF_SMALL),
        config="medium",
    ),
    "gpt2": Study("GPT-2 124M", FEW, (1, 2), 200, 1, 5, "medium", config="gpt2"),
    "gpt2-bf16": Study(
        "the 124M model in bf16 autocast",
        ("baseline", "recompute, 4 bits", "recompute, 2 bits"),
        (1, 2),
        200,
        1,
        5,
        dtype="bf16",
        config="gpt2",
    ),
    "smollm2": Study(
        "SmolLM2-135M, pretrained",
        (*FEW, "recomputed, hadamard 8x", "compact"),
        (1, 2, 3),
        60,
        1,
        3,
        "medium",
    ),
    "smollm2-fp32": Study(
        "SmolLM2-135M, pretrained, all products in fp32",
        (
            *("baseline", "recomputed, hadamard 16x", "recomputed, calibrated 16x", "recompute, 4 bits"),
            *("recompute, 4 bits, time 1.2", "checkpointed, boundaries at 4 bits"),
        ),
        (1, 2, 3),
        60,
        1,
        3,
    ),
    "smollm2-bf16": Study(
        "SmolLM2-135M, pretrained, bf16 autocast",
        (
            *("baseline", "recompute, 4 bits", "recompute, 4 bits, time 1.2"),
            *("recompute, 10-bit boundaries, time 1.35", "recompute, 2 bits", "recompute, calibrated 2 bits"),
            *("checkpointed, boundaries at 4 bits", "checkpointed, boundaries at 2 bits"),
        ),
        (1, 2, 3),
        30,
        1,
        1,
        dtype="bf16",
    ),
    "smollm2-lora-bf16": Study(
        "SmolLM2-135M, pretrained, LoRA of rank 16, bf16 autocast",
        (
            *("baseline", "recompute, 4 bits", "recompute, 10-bit boundaries, time 1.35"),
            *("checkpointed, boundaries at 4 bits", "checkpointed, boundaries at 2 bits"),
            *("recompute, 2 bits", "HyC-LoRA, 4 bits", "HyC-LoRA, 2 bits"),
        ),
        (1, 2, 3),
        30,
        1,
        1,
        dtype="bf16",
        lora=True,
    ),
}
DOCS, FOLDER = Path("docs"), Path("build/convergence")


def finished() -> list[dict[str, Any]]:
    """All rows that are wanted and there, of two the committed one, by models, schemes and seeds."""
    rows = []
    for path in [*sorted(FOLDER.glob("*.json")), DOCS / "convergence.json"]:
        if path.exists():
            try:
                found = json.loads(path.read_text())
            except json.JSONDecodeError as error:
                sys.exit(f"{path} must be rows as JSON; without it they are trained anew: {error}")
            rows += map(with_infinities, found if isinstance(found, list) else [found])
    found = {(row["model"], row["scheme"], row["seed"], row["steps"]): row for row in rows}
    return [found[key] for key in wanted(STUDIES) if key in found]


def as_json(row: dict[str, Any]) -> str:
    """A row as JSON, which has neither infinities nor NaNs: null in their place."""

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [plain(one) for one in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps({name: plain(value) for name, value in row.items()}, allow_nan=False)


def with_infinities(row: dict[str, Any]) -> dict[str, Any]:
    """A row of JSON, with infinities where there was no finite loss or error."""

    def number(value: float | None) -> float:
        return math.inf if value is None else value

    pairs = {name: [[step, number(of)] for step, of in row[name]] for name in ("curve", "gradient_error")}
    return row | pairs | {"val_loss": number(row["val_loss"])}


def wanted(models: Any) -> list[tuple[str, str, int, int]]:
    """What identifies a run: the first seed of all schemes comes first."""
    return [
        (model, scheme, seed, STUDIES[model].steps)
        for model in models
        for seed in STUDIES[model].seeds
        for scheme in STUDIES[model].schemes
    ]
