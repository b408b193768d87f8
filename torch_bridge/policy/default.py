"""What stands for a policy."""

from __future__ import annotations

import reprlib

from golden import HadamardFormat

from ..backends.dtypes import AnyFormat
from .policy import HADAMARD_BITS, Policy


def as_policy(policy: AnyFormat | Policy | None, bits: int | None, products: bool = False) -> Policy:
    """A policy, or what a format or a number of bits stand for.

    Args:
        policy: a policy, or a fixed-mode format, which stands for ``Policy.default(fmt)``.
        bits: of a value in the Hadamard format, where there is no policy; 4 by default.
        products: whether matrix products are to be recomputed; a policy has to say so itself.

    Raises:
        ValueError: it is none, there are bits as well as a policy, or it recomputes no products.
    """
    if policy is None:
        bits = 4 if bits is None else bits
        if bits not in HADAMARD_BITS:
            raise ValueError(f"bits must be one of {', '.join(map(str, HADAMARD_BITS))}, not {bits!r}")
        fmt = HadamardFormat()
        return Policy.default(HadamardFormat(target=fmt.block * bits // 8), products=products)
    if bits is not None:
        raise ValueError(f"bits must be None where there is a policy, which says them, not {bits!r}")
    if isinstance(policy, AnyFormat):
        return Policy.default(policy, products=products)
    if not isinstance(policy, Policy):
        raise ValueError(f"policy must be a format or a Policy, not {reprlib.repr(policy)}")
    if products and not policy.products:
        raise ValueError(
            "time must be None where no rule of the policy recomputes products, as "
            'Rule("recompute", products=True) does'
        )
    return policy
