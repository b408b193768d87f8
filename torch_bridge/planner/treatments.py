"""The ways to train that a plan compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from golden import PlaneFormat

from ..facts.layers import layers
from ..policy import Policy, Rule

_STEP = "with saver:\n    loss = model(**batch).loss\nloss.backward()"
_CHECKPOINTING = "model.gradient_checkpointing_enable({'use_reentrant': False})"


@dataclass(frozen=True)
class Treatment:
    """What becomes of activations.

    Attributes:
        name: in tables.
        options: of a Compressor, by name; None without one.
        written: the same as a user writes them behind the model.
        is_checkpointed: whether each block is computed anew in the backward pass, from what it was given.
        is_exact: whether gradients are those of the baseline, to the last bit.
        policy_of: makes the policy of a model with layers, beside the options.
    """

    name: str
    options: Mapping[str, Any] | None = None
    written: str = ""
    is_checkpointed: bool = False
    is_exact: bool = False
    policy_of: Callable[[torch.nn.Module], Policy] | None = None

    def compiled_code(self, compiler: str) -> str:
        """The same for a compiled model."""
        is_plain = self.options is None
        arguments = ["model", *([self.written] if self.written else [])]
        arguments += [] if compiler == "inductor" else [f'backend="{compiler}"']
        package = "torch" if is_plain else "bitstash"
        return "\n".join(
            [
                *(f"import {package}", "", *([_CHECKPOINTING] if self.is_checkpointed else [])),
                f"compiled = {package}.compile({', '.join(arguments)})",
                *("loss = compiled(**batch).loss", "loss.backward()"),
            ]
        )

    def fits(self, model: torch.nn.Module) -> bool:
        """Whether a model has layers, if the treatment is about these."""
        return self.policy_of is None or any(True for _ in layers(model))

    def options_for(self, model: torch.nn.Module) -> dict[str, Any]:
        """The options of a Compressor of a model."""
        policy = {} if self.policy_of is None else {"policy": self.policy_of(model)}
        return {**(self.options or {}), **policy}

    @property
    def code(self) -> str:
        """What a user writes, for a model of transformers in a loop of his own."""
        lines = [_CHECKPOINTING] if self.is_checkpointed else []
        if self.options is None:
            return "\n".join([*lines, "loss = model(**batch).loss", "loss.backward()"])
        arguments = f"model, {self.written}" if self.written else "model"
        return "\n".join(["import bitstash", "", *lines, f"saver = bitstash.Compressor({arguments})", _STEP])

    @property
    def checkpointed(self) -> Treatment:
        """The same on top of activation checkpointing."""
        name = "checkpointing" if self.options is None else f"checkpointing, {self.name}"
        return replace(self, name=name, is_checkpointed=True)


BASELINE = Treatment("baseline", is_exact=True)
EXACT = Treatment(
    "recomputed, exact",
    {"policy": Policy([Rule("recompute")])},
    'bitstash.Policy([bitstash.Rule("recompute")])',
    is_exact=True,
)
PLANES = Treatment(
    "bit-plane format, 3.2x",
    {"policy": PlaneFormat("fp32", block=64, target=80)},
    'bitstash.PlaneFormat("fp32", block=64, target=80)',
)
FOUR_BITS = Treatment("Hadamard, 4 bits", {"bits": 4}, "bits=4")
TIMED = Treatment("Hadamard, 4 bits, time 1.2", {"bits": 4, "time": 1.2}, "bits=4, time=1.2")
LAYER_INPUTS = Treatment(
    "layers from 10-bit inputs, time 1.35",
    {"time": 1.35},
    "bitstash.Policy.layer_inputs(model), time=1.35",
    policy_of=Policy.layer_inputs,
)
TWO_BITS = Treatment("Hadamard, 2 bits", {"bits": 2}, "bits=2")
CHECKPOINTING = BASELINE.checkpointed

# In the order in which they are recommended: what changes gradients less first, but checkpointing behind what
# takes less time.
TREATMENTS = (
    *(BASELINE, EXACT, PLANES, FOUR_BITS, CHECKPOINTING),
    *(LAYER_INPUTS, TIMED, TWO_BITS, FOUR_BITS.checkpointed),
)
# Compiled steps with a time are not planned.
COMPILED = tuple(one for one in TREATMENTS if "time" not in (one.options or {}))
# For a training that is checkpointed anyway.
CHECKPOINTED = tuple(one.checkpointed for one in (BASELINE, EXACT, PLANES, FOUR_BITS, TWO_BITS))
