"""Activation compression for training GPTs: everything public of ``golden`` and ``torch_bridge``.

The sister schemes are in ``torch_bridge.schemes``, what goes with Hugging Face's Trainer and Lightning in
``torch_bridge.trainers``: they need packages that this does not.

Example:
    >>> import bitstash
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
    >>> with bitstash.compress_activations(model, bitstash.HadamardFormat()) as stash:
    ...     loss = model(torch.randn(64, 64)).square().mean()
    >>> loss.backward()
"""

import golden
import torch_bridge
from golden import *  # noqa: F403
from torch_bridge import *  # noqa: F403

__all__ = sorted({*golden.__all__, *torch_bridge.__all__})
