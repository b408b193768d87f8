"""Which saved tensors are compressed, and how far: the only place that reads rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from golden import HadamardFormat, PlaneFormat

from ..backends.dtypes import AnyFormat, float_name, format_for
from ..backends.quant_format import BITS as QUANT_BITS
from ..backends.quant_format import QuantFormat
from ..facts.facts import Facts, name_of
from ..facts.functions import CHECKPOINTS
from ..facts.layers import input_readers
from ..facts.need import Exact, Need, Normed
from .decision import (
    Decision,
    Of,
    Recompute,
    Strength,
    keeps_signs,
    largest_angle,
    most_amplified,
    strength_of,
    widest,
)
from .rules import Rule

# Of a value in the Hadamard format, of which users choose.
HADAMARD_BITS = (2, 3, 4)
# What has to keep its sign, must not become 0, or has its exponential taken, has so many bits a value.
FINE_BITS = 10
# Queries and keys where that is not enough.
FINER_BITS = 12
# Queries, keys and softmaxes, where attention is done again or the softmax recomputed.
LOGIT_BITS = 4
# A log-softmax of a byte's 256 classes is small and stays as it is. One of tens of thousands of tokens is a
# sixth of all that GPT-2 saves: docs/cost.md has the gradient error of its rate.
LARGE = 1 << 20
LOG_SOFTMAX_BITS = 12  # where no rule names the operation that made it; else FINE_BITS, and any size

# Of a channel whose mean is kept: at 2 bits a value it takes 3 % more then, in a type of 16 bits.
_FEWEST_TOKENS = 256

_MOST_DECISIONS = 1 << 14  # that are remembered

UNKNOWN = "unknown operation"
STATISTIC = "one value for a row"
TABLE = "a table without gradient"
WIDE_INPUT = "input of a wide matrix product"
ATTENTION_MASK = "mask of attention"
NOT_FLOAT = "not floating point"


@dataclass(frozen=True)
class Policy:
    """Rules in their order: for each tensor the first holds that fits it, and without one it stays exact.

    Parameters and buffers stay exact whatever the rules say.

    Args:
        rules: the first that fits a tensor holds.

    Examples:
        >>> fmt = PlaneFormat("fp32", block=64, target=80)
        >>> policy = Policy([Rule("exact", module="*.ln_f"), *Policy.default(fmt).rules])
        >>> [rule.keep for rule in policy.rules][:2]
        ['exact', 'recompute']
    """

    rules: Sequence[Rule]

    def __post_init__(self) -> None:
        rules = tuple(self.rules) if isinstance(self.rules, Iterable) else None
        if rules is None or not all(isinstance(rule, Rule) for rule in rules):
            raise ValueError(f"rules must be a sequence of Rule, not {self.rules!r}")
        object.__setattr__(self, "rules", rules)
        object.__setattr__(self, "_decisions", {})

    @classmethod
    def default(cls, fmt: AnyFormat, *, recompute: bool = True, products: bool = False) -> Policy:
        """Everything in one format, as far as the table of operations lets it.

        Args:
            fmt: of what may be lossy.
            recompute: do not store, but compute anew in the backward pass, what cheap operations made of what
                is stored. The head of a language model counts as cheap.
            products: recompute by other matrix products too, as far as the time of a Compressor allows.

        Raises:
            ValueError: it is no format, or a lossless one, whose blocks vary in size.
        """
        if not isinstance(fmt, AnyFormat):
            raise ValueError(f"fmt must be a format, as PlaneFormat, not {fmt!r}")
        return cls([*([Rule("recompute", products=products)] if recompute else []), Rule(fmt)])

    @classmethod
    def layer_inputs(cls, model: torch.nn.Module, example: Any = None, *, bits: int = 4) -> Policy:
        """What each layer is given is kept finely, and all else of the layer may be recomputed from it.

        The input of each layer goes into the bit-plane format with ten bits a value, whatever else is stored
        into the Hadamard format. Matrix products may be done again, as far as the time of a Compressor
        allows: 1.35 is enough for most of a layer. The model is run once, without gradients, to find the
        modules that read the input of their layer; build the policy before the model is sharded.

        Args:
            model: with its layers in an ``nn.ModuleList``, as the decoders of transformers.
            example: what it is run on: keyword arguments as a mapping, positional ones as a tuple, or one
                tensor. By default a few tokens as ``input_ids``.
            bits: of a value in the Hadamard format: 2, 3 or 4.

        Raises:
            ValueError: the model has no layers, none of them ran, it takes no ``input_ids`` and there is no
                example, or bits is none of these.

        Examples:
            >>> model = torch.nn.Module()
            >>> model.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)])
            >>> model.forward = lambda x: model.layers[1](model.layers[0](x).tanh())
            >>> [rule.module for rule in Policy.layer_inputs(model, torch.ones(2, 8)).rules]
            ['*', 'layers.0', 'layers.1', '*']
        """
        if bits not in HADAMARD_BITS:
            raise ValueError(f"bits must be one of {', '.join(map(str, HADAMARD_BITS))}, not {bits!r}")
        fine = PlaneFormat("fp32", target=None)
        fine = replace(fine, target=fine.block * FINE_BITS // 8)
        rest = HadamardFormat()
        names = [name for readers in input_readers(model, example).values() for name in readers]
        inputs = [Rule(fine, module=name, why="input of a layer") for name in names]
        return cls(
            [
                Rule("recompute", products=True),
                *inputs,
                Rule(replace(rest, target=rest.block * bits // 8)),
            ]
        )

    @property
    def recomputes(self) -> bool:
        """Whether any rule recomputes tensors."""
        return any(rule.keep == "recompute" for rule in self.rules)

    @property
    def products(self) -> bool:
        """Whether any rule recomputes tensors by matrix products, also by those that are not wide."""
        return any(rule.products for rule in self.rules)

    def decide(self, facts: Facts) -> Decision:
        """What is to become of a tensor; the same facts have the same decision, which is remembered."""
        decisions: dict[Facts, Decision] = self._decisions  # type: ignore[attr-defined]
        found = decisions.get(facts)
        if found is None:
            if len(decisions) >= _MOST_DECISIONS:
                decisions.clear()
            found = decisions[facts] = self._decide(facts)
        return found

    def _decide(self, facts: Facts) -> Decision:
        if facts.constant:
            return Decision(why=facts.constant)
        bits, recompute, products = False, False, False
        for rule in self.rules:
            if not rule.fits(facts):
                continue
            if rule.keep == "bits":
                bits = True
            elif rule.keep == "recompute":
                recompute, products = True, products or rule.products
            elif isinstance(rule.keep, AnyFormat):
                decision = _in_format(facts, rule, rule.keep, bits, recompute)
                is_asked = products and facts.is_again and facts.need is Need.LOGITS
                lossy: Recompute = "lossy" if is_asked else decision.recompute
                return replace(decision, recompute=lossy, products=products)
            else:
                why, lossy = rule.why or "exact", _if(recompute, "lossy")
                return Decision(bits=bits, recompute=lossy, products=products, why=why)
        return Decision(bits=bits, recompute=_if(recompute, "lossy"), products=products, why="no rule")

    def table(self) -> Table:
        """The rules as a table of rich."""
        table = Table(title="policy")
        for heading in ("module", "operation", "saved by", "dtype", "values", "keep", "why"):
            table.add_column(heading, overflow="fold")
        for rule in self.rules:
            table.add_row(
                rule.module, rule.op, rule.saved_by, rule.dtype, _range(rule), _name(rule), rule.why
            )
        return table

    def __str__(self) -> str:
        console = Console(width=180)
        with console.capture() as captured:
            console.print(self.table())
        return captured.get().rstrip()


def _in_format(facts: Facts, rule: Rule, fmt: AnyFormat, bits: bool, recompute: bool) -> Decision:
    """What becomes of a tensor that a rule would have in a format."""
    bits |= not facts.requires_grad
    if not facts.dtype.is_floating_point:
        bits = facts.dtype == torch.bool
        return Decision(bits=bits, recompute=_if(recompute, "lossy"), why=NOT_FLOAT)
    if rule.unchecked and float_name(facts.dtype) is not None:
        own = format_for(fmt, facts.dtype)
        finite = (facts.is_filled or not facts.requires_grad) and not keeps_signs(own)
        lossy = _if(recompute, "lossy")
        return Decision(own, bits=bits, finite=finite, recompute=lossy, why=rule.why, least=(False, 0))
    need, normed = facts.need, facts.need if isinstance(facts.need, Normed) else None
    if isinstance(need, Normed) or (need is None and rule.names_saver):
        need = Need.VALUES
    if need is Need.VALUES and facts.made_by in _SIGNS:
        bits, need = True, Need.SIGNS
    exact = Decision(bits=bits, recompute=_if(recompute, "exact"))
    if need is None:
        return replace(exact, why=UNKNOWN, unknown=True)
    if float_name(facts.dtype) is None:
        lossy = _if(recompute, "lossy" if need in _RECOMPUTED else "exact")
        return replace(exact, recompute=lossy, why=f"no format for {name_of(facts.dtype)}")
    if isinstance(need, Exact):
        return replace(exact, why=need.why)
    if need is Need.BITS or need is Need.EXACT:
        return replace(exact, bits=True, why=need.value)
    if facts.is_statistic:
        return replace(exact, why=STATISTIC)
    if facts.is_table:
        return replace(exact, why=TABLE)
    if recompute and facts.feeds_wide:
        return replace(exact, why=WIDE_INPUT)
    if need is Need.LOG_PROBABILITIES and facts.elements < LARGE and rule.op == "*":
        return replace(exact, why=need.value)
    if need is Need.LOGITS_BIAS and not facts.requires_grad and not facts.made_by and not keeps_signs(fmt):
        return replace(exact, why=ATTENTION_MASK)
    chosen, of = _format_for_need(facts, need, fmt, recompute, rule)
    return Decision(
        chosen,
        of,
        bits=bits,
        finite=(not facts.requires_grad or (facts.is_filled and normed is None)) and not keeps_signs(chosen),
        exact_if_shared=not facts.requires_grad,
        recompute=_if(recompute, "lossy" if need in _RECOMPUTED and normed is None else "exact"),
        why=rule.why,
        normed=normed,
        channels=need is Need.VALUES and normed is None and of == "values" and _has_channels(facts, chosen),
        follows=facts.saved_by in CHECKPOINTS and facts.requires_grad and _has_tokens(facts, chosen),
        sums=need is Need.PROBABILITIES,
        finer=_finer(chosen, fmt, facts, _BOUNDS[need]) if need in _BOUNDS else (),
        least=_LEAST.get(need, strength_of(chosen)),
    )


# How far an error may be amplified: by how widely logits spread, how peaked a softmax is, how large an angle.
_BOUNDS = {Need.LOGITS: widest, Need.PROBABILITIES: most_amplified, Need.ANGLE: largest_angle}
# They have two values or three, of which one may be zero.
_SIGNS = ("sign", "sgn")
# What is enough if it is stored for another node; of other needs what they have by themselves.
_LEAST = {Need.VALUES: (False, 0.0), Need.SIGNS: (True, 0.0), Need.PROBABILITIES: (False, LOGIT_BITS)}
# What may be recomputed from what is lossy; of other needs a small error of what a tensor is made of may be a
# large one of what is needed of it.
_RECOMPUTED = (Need.VALUES, Need.PROBABILITIES, Need.ATTENDED, Need.TANH)


def _format_for_need(
    facts: Facts, need: Need, fmt: AnyFormat, recompute: bool, rule: Rule
) -> tuple[AnyFormat, Of]:
    """The format, or a finer one, and what of the values goes into it."""
    own = format_for(fmt, facts.dtype)
    if need is Need.VALUES:
        return own, "values"
    if need is Need.SIGNS:
        return (own if keeps_signs(own) else _planes(fmt, facts, FINE_BITS)), "values"
    if need is Need.PROBABILITIES:
        if keeps_signs(own):
            return own, "values"
        return (_with_logits(own) if recompute else _planes(fmt, facts, FINE_BITS)), "values"
    if need is Need.LOGITS and facts.is_again and not keeps_signs(own):
        return _with_logits(own), "values"
    if need is Need.ATTENDED and facts.is_again:
        return own, "values"
    if need is Need.LOG_PROBABILITIES:
        if isinstance(own, QuantFormat):
            return replace(own, bits=max(QUANT_BITS)), "values"
        return _planes(fmt, facts, LOG_SOFTMAX_BITS if rule.op == "*" else FINE_BITS), "values"
    if need is Need.TANH and facts.made_by == "tanh" and not recompute:
        return own, "atanh"
    fine = _planes(fmt, facts, FINE_BITS)
    if need is Need.SIGMOID:
        return fine, "logit"
    return fine, "atanh" if need is Need.TANH else "values"


def _has_tokens(facts: Facts, fmt: AnyFormat) -> bool:
    """Whether it is [..., tokens, channels], in a format that mixes the values of a block."""
    return not keeps_signs(fmt) and len(facts.shape) in (2, 3)


def _has_channels(facts: Facts, fmt: AnyFormat) -> bool:
    """Whether it also has so many tokens that the channels' means take few bytes."""
    return _has_tokens(facts, fmt) and facts.shape[-2] >= _FEWEST_TOKENS


def _finer(
    chosen: AnyFormat, fmt: AnyFormat, facts: Facts, bound: Callable[[Strength], float]
) -> tuple[tuple[float, AnyFormat | None], ...]:
    """What a tensor is kept in where its error is amplified too much for a format."""
    formats = [chosen]
    for bits in (FINE_BITS, FINER_BITS):
        planes = _planes(fmt, facts, bits)
        if strength_of(planes) > strength_of(formats[-1]):
            formats.append(planes)
    bounds = [bound(strength_of(one)) for one in formats]
    return tuple(zip(bounds, [*formats[1:], None], strict=True))


def _planes(fmt: AnyFormat, facts: Facts, bits: int) -> PlaneFormat:
    """Bit planes with no fewer than so many bits a value."""
    own = format_for(fmt, facts.dtype)
    if isinstance(own, PlaneFormat):
        assert own.target is not None
        return replace(own, target=max(own.target, own.block * bits // 8))
    name = float_name(facts.dtype)
    assert name is not None
    planes = PlaneFormat(name, target=None)
    return replace(planes, target=planes.block * bits // 8)


def _with_logits(fmt: AnyFormat) -> AnyFormat:
    """The format, or the next one that is enough for queries, keys and softmaxes."""
    if isinstance(fmt, HadamardFormat):
        return replace(fmt, target=max(fmt.target, fmt.block * LOGIT_BITS // 8))
    if isinstance(fmt, QuantFormat):
        return replace(fmt, bits=max(fmt.bits, LOGIT_BITS))
    return fmt


def _if(recompute: bool, how: Recompute) -> Recompute:
    return how if recompute else "no"


def _range(rule: Rule) -> str:
    if rule.most is None:
        return f"from {rule.least:,}" if rule.least else "any"
    return f"{rule.least:,} to {rule.most:,}"


def _name(rule: Rule) -> str:
    keep = rule.keep
    if isinstance(keep, str):
        return f"{keep}, products too" if rule.products else keep
    assert keep.target is not None
    bits = 8 * keep.target / keep.block
    unchecked = ", unchecked" if rule.unchecked else ""
    return f"{keep.scheme}, {bits:.3g} bits: {keep.block} {keep.dtype} in {keep.target} bytes{unchecked}"
