"""Needs that depend on what an operation was given: rows of the table of ``needs.py`` that are functions.

Each takes the operation's arguments by name, and their lineages: what other operations made of them before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .lineage import LineageOf
from .need import COSINE, EQUALS, SCALED_MASK, Exact, Known, Need, Normed, normed

Arguments = Mapping[str, Any]
Decision = Callable[[Arguments, LineageOf], Known]
Entry = Known | Decision


def of_power(arguments: Arguments, _: LineageOf) -> Need:
    """Small natural powers are smooth; others divide, or multiply the error."""
    exponent = arguments.get("exponent")
    if exponent == 2:
        return Need.SQUARED
    is_smooth = isinstance(exponent, int | float) and exponent in (0, 1, 3, 4)
    return Need.VALUES if is_smooth else Need.RELATIVE


def of_squared(is_summed: bool) -> Need:
    """What is needed of what was squared, by whether its squares are summed and nothing else."""
    return Need.VALUES if is_summed else Need.RELATIVE


def of_rnn_output(arguments: Arguments, _: LineageOf) -> Need:
    """A plain tanh network has its derivative from its output, by cuDNN's number of the kind of network."""
    return Need.TANH if arguments.get("mode") == 1 else Need.RELATIVE


def of_norm(arguments: Arguments, _: LineageOf) -> Need | Exact:
    """The maximum norm looks for its result; others divide by theirs."""
    order = arguments.get("p", arguments.get("ord"))
    is_maximum = isinstance(order, int | float) and math.isinf(order)
    return EQUALS if is_maximum else Need.RELATIVE


def of_reduction(arguments: Arguments, _: LineageOf) -> Need | Exact:
    """Sums read nothing of it; products and extremes divide by it, or look for it."""
    return Need.VALUES if arguments.get("reduce") in ("sum", "mean") else EQUALS


def of_layer_norm(arguments: Arguments, _: LineageOf) -> Normed:
    """The last dimensions have one mean, as many as the norm's shape has."""
    return normed(tuple(range(-len(arguments.get("normalized_shape", (1,))), 0)))


def of_group_norm(arguments: Arguments, _: LineageOf) -> Normed:
    """The groups have means of their own."""
    return normed((), arguments.get("group", 0))


def of_variance(arguments: Arguments, _: LineageOf) -> Normed:
    """A variance is over some dimensions or, without any, over all."""
    tensor, dims = arguments.get("self"), arguments.get("dim")
    every = range(-tensor.dim() if isinstance(tensor, torch.Tensor) else -1, 0)
    dims = [dims] if isinstance(dims, int) else dims
    return normed(tuple(sorted(every[dim] for dim in dims)) if dims else tuple(every))


def of_factors(one: str, other: str, are_summed: bool = False) -> Decision:
    """What a product needs of its factors, which are the arguments of these names.

    ``are_summed``: whether the operation is a sum of products.

    Of a product with a log-softmax the other factor is a target, near which the loss has its least. Of a
    product with a logarithm, as in an entropy, a softmax takes differences. Vectors that were divided by
    their norms are multiplied for their cosine, which has its largest value where they are alike. What is
    multiplied with an exponential, or a reciprocal, is large where that is small: it may be a dividend.
    """

    def need(arguments: Arguments, lineage_of: LineageOf) -> Known:
        tensors = [arguments.get(one), arguments.get(other)]
        if tensors[0] is tensors[1] is not None:
            return of_squared(True) if are_summed else Need.SQUARED
        factors = [lineage_of(one), lineage_of(other)]
        if any(factor.log for factor in factors):
            return Need.LOG_PROBABILITIES
        if all(factor.is_quotient for factor in factors if factor.is_trained):
            return COSINE
        wide = (factor.wide and _has_rows(tensor) for factor, tensor in zip(factors, tensors, strict=True))
        return Need.RELATIVE if any(wide) else Need.VALUES

    return need


def _has_rows(tensor: Any) -> bool:
    """Whether its rows may have more than one value: else it scales rows, as a norm does."""
    return not isinstance(tensor, torch.Tensor) or (tensor.dim() > 0 and tensor.shape[-1] > 1)


def of_matrices(one: str, other: str) -> Decision:
    """What a product of matrices needs of them.

    In a batch of rows times columns, as einsum makes of a sum of products, they are factors. Else a logarithm
    among them counts, and no cosine or exponential does.
    """
    of_rows = of_factors(one, other, are_summed=True)

    def need(arguments: Arguments, lineage_of: LineageOf) -> Known:
        if (
            arguments
            and arguments[one].dim() == 3
            and arguments[one].shape[1] == arguments[other].shape[2] == 1
        ):
            return of_rows(arguments, lineage_of)
        is_log = lineage_of(one).log or lineage_of(other).log
        return Need.LOG_PROBABILITIES if is_log else Need.VALUES

    return need


def of_softmax(_: Arguments, lineage_of: LineageOf) -> Known:
    """Exact where a mask's numbers were multiplied with what is trained."""
    return SCALED_MASK if lineage_of("self").scaled else Need.PROBABILITIES
