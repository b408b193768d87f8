"""The ways to train that a plan compares."""

from __future__ import annotations

from dataclasses import dataclass

from golden import HadamardFormat, PlaneFormat

from ..policy import Policy, Rule

_IMPORT = "import bitstash"
_STEP = "with saver:\n    loss = model(**batch).loss\nloss.backward()"
_CHECKPOINTING = "model.gradient_checkpointing_enable({'use_reentrant': False})"


@dataclass(frozen=True)
class Treatment:
    """What becomes of activations.

    Attributes:
        name: in tables.
        policy: of a Compressor; None without one.
        saver: how a user makes that Compressor.
        is_checkpointed: whether each block is computed anew in the backward pass, from what it was given.
        is_exact: whether gradients are those of the baseline, to the last bit.
    """

    name: str
    policy: Policy | None = None
    saver: str = ""
    is_checkpointed: bool = False
    is_exact: bool = False

    @property
    def code(self) -> str:
        """What a user writes, for a model of transformers in a loop of his own."""
        lines = [_IMPORT, ""] if self.policy is not None else []
        if self.is_checkpointed:
            lines.append(_CHECKPOINTING)
        if self.policy is None:
            return "\n".join([*lines, "loss = model(**batch).loss", "loss.backward()"])
        return "\n".join([*lines, f"saver = {self.saver}", _STEP])


def _checkpointed(treatment: Treatment) -> Treatment:
    name = "checkpointing" if treatment.policy is None else f"checkpointing, {treatment.name}"
    return Treatment(name, treatment.policy, treatment.saver, True, treatment.is_exact)


BASELINE = Treatment("baseline", is_exact=True)
EXACT = Treatment(
    "recomputed, exact",
    Policy([Rule("recompute")]),
    'bitstash.Compressor(model, bitstash.Policy([bitstash.Rule("recompute")]))',
    is_exact=True,
)
PLANES = Treatment(
    "bit planes, 3.2x",
    Policy.default(PlaneFormat("fp32", block=64, target=80)),
    'bitstash.Compressor(model, bitstash.PlaneFormat("fp32", block=64, target=80))',
)
FOUR_BITS = Treatment(
    "Hadamard, 4 bits",
    Policy.default(HadamardFormat(target=64)),
    "bitstash.Compressor(model)",
)
TWO_BITS = Treatment(
    "Hadamard, 2 bits",
    Policy.default(HadamardFormat(target=32)),
    "bitstash.Compressor(model, bits=2)",
)
CHECKPOINTING = _checkpointed(BASELINE)

# In the order in which they are recommended: those that change least first.
TREATMENTS = (BASELINE, EXACT, PLANES, FOUR_BITS, CHECKPOINTING, TWO_BITS, _checkpointed(FOUR_BITS))
# For a training that is checkpointed anyway.
CHECKPOINTED = (CHECKPOINTING, *(_checkpointed(one) for one in (EXACT, PLANES, FOUR_BITS, TWO_BITS)))
