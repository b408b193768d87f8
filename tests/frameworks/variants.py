"""The same training once without the bridge and once with each kind of policy, in one process.

A worker gives :func:`compare` a function that trains. What it returns stands in a JSON file of each rank;
:func:`check` holds it to what every framework is promised.
"""

import json
import os
import tempfile
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from golden import HadamardFormat
from torch_bridge import Compressor, Offload, Policy, Rule

EIGHTH = HadamardFormat(target=64)  # 4 bits a value, an eighth of fp32
POLICIES: dict[str, Policy | None] = {
    "plain": None,
    "exact": Policy([]),
    "exact, offloaded": Policy([]),
    "recomputed": Policy([Rule("recompute")]),
    "8x": Policy.default(EIGHTH),
    "8x, offloaded": Policy.default(EIGHTH),
}
EXACT = ("exact", "exact, offloaded", "recomputed")
# Gradient error of a step and change of a loss, relative, at 8x. Gradients of two batches differ by 1.1.
MOST_ERROR, MOST_LOSS = 0.3, 0.02


@dataclass
class Trained:
    """What a training run left.

    Args:
        losses: of each step.
        gradients: of the first step, of this rank.
        weights: after the last step, of this rank.
        gathered: bytes of gathered weights that are there when the forward pass has ended.
        more: whatever else is to be the same, as JSON has it.
    """

    losses: list[float]
    gradients: list[torch.Tensor]
    weights: list[torch.Tensor]
    gathered: int = 0
    more: dict[str, Any] = field(default_factory=dict)


class Variant(ExitStack):
    """One way to train; a context that closes what it opened.

    Attributes:
        policy: None without the bridge.
        options: of a Compressor or of what makes one, beside the policy.
        saver: the Compressor that was made last.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.policy, self.options = POLICIES[name], dict[str, Any]()
        self.saver: Compressor | None = None
        if "offloaded" in name:
            folder = self.enter_context(tempfile.TemporaryDirectory())
            self.options["offload"] = self.enter_context(Offload(folder, amount="all"))

    def around(self, model: nn.Module) -> AbstractContextManager[Any]:
        """A Compressor for a model, or a context that does nothing; made once and entered in every step."""
        if self.policy is None:
            return nullcontext()
        self.saver = Compressor(model, self.policy, **self.options)
        return self.saver


def compare(train: Callable[[Variant], Trained], names: tuple[str, ...] = tuple(POLICIES)) -> dict[str, Any]:
    """Train in each way; losses, how far gradients and weights are from the plain run's, and bytes."""
    found: dict[str, Any] = {}
    plain: Trained | None = None
    for name in names:
        with Variant(name) as variant, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trained = train(variant)
            plain = plain or trained
            found[name] = _facts(trained, plain) | _bytes(variant.saver)
        found[name]["warnings"] = sorted({str(one.message) for one in caught if _is_ours(one)})
    return found


def _is_ours(warning: warnings.WarningMessage) -> bool:
    return "stay exact" in str(warning.message) or "Compressor" in str(warning.message)


def _facts(trained: Trained, plain: Trained) -> dict[str, Any]:
    gradients, expected = _flat(trained.gradients), _flat(plain.gradients)
    return {
        "losses": trained.losses,
        "gathered": trained.gathered,
        "more": trained.more,
        "error": float((gradients - expected).norm() / expected.norm()),
        "changed": _changed(trained.gradients, plain.gradients) + _changed(trained.weights, plain.weights),
        "digest": [float(weight.double().sum()) for weight in map(local, trained.weights)],
    }


def _bytes(saver: Compressor | None) -> dict[str, Any]:
    if saver is None:
        return {"original": 0, "stored": 0, "offloaded": 0, "kept": {}}
    kept: dict[str, int] = {}
    for row in saver.report().rows:
        if row.counted:
            kept[row.kept] = kept.get(row.kept, 0) + row.stored_bytes
    return {
        "original": saver.original_bytes,
        "stored": saver.stored_bytes,
        "offloaded": saver.offloaded_bytes,
        "kept": kept,
    }


def _changed(found: list[torch.Tensor], expected: list[torch.Tensor]) -> int:
    """How many tensors are not the same to the last bit."""
    return sum(not torch.equal(local(a), local(b)) for a, b in zip(found, expected, strict=True))


def _flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([local(tensor).double().flatten() for tensor in tensors])


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a tensor."""
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()


def copies(tensors: Any) -> list[torch.Tensor]:
    return [local(tensor).clone() for tensor in tensors]


def write(folder: str, found: dict[str, Any]) -> None:
    """Write what this rank found."""
    Path(folder, f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))


def read(folder: Path, ranks: int = 1) -> list[dict[str, Any]]:
    """What the ranks found."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def check(
    found: dict[str, Any], *, ratio: float, most_error: float = MOST_ERROR, most_loss: float = MOST_LOSS
) -> None:
    """Hold one rank's variants to what every framework is promised.

    Args:
        found: of :func:`compare`.
        ratio: original over stored bytes at 8x, at least.
        most_error: of the first step's gradients at 8x.
        most_loss: that a loss changes at 8x, relative.
    """
    plain = found["plain"]
    assert len(set(plain["losses"])) > 1, "the model does not train"
    for name, run in found.items():
        assert run["gathered"] <= plain["gathered"], f"{name}: gathered weights live longer"
        assert run["warnings"] == [], name
        if name in EXACT:
            assert (run["losses"], run["more"]) == (plain["losses"], plain["more"]), name
            assert run["changed"] == 0, f"{name}: gradients or weights are not the plain run's"
    lossy = found["8x"]
    assert 0 < found["exact"]["original"] <= found["exact"]["stored"]  # a slice holds all of its memory
    assert lossy["original"] >= ratio * lossy["stored"], lossy["kept"]
    assert 0 < lossy["error"] < most_error
    for loss, expected in zip(lossy["losses"], plain["losses"], strict=True):
        assert abs(loss - expected) < most_loss * abs(expected), (lossy["losses"], plain["losses"])
    away = found["8x, offloaded"]
    assert (away["losses"], away["digest"]) == (lossy["losses"], lossy["digest"])
    assert away["offloaded"] > 0.5 * away["stored"] > 0
    assert found["exact, offloaded"]["offloaded"] > 0.5 * found["exact, offloaded"]["stored"]
