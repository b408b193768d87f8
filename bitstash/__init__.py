"""Activation compression for training GPTs: everything public of ``golden`` and ``torch_bridge``.

Other schemes are in ``torch_bridge.schemes``; the callback for Lightning, which needs that package, in
``torch_bridge.trainers.lightning``.

Example:
    >>> import bitstash
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
    >>> saver = bitstash.Compressor(model)
    >>> with saver:
    ...     loss = model(torch.randn(64, 64)).square().mean()
    >>> loss.backward()
"""

import golden
import torch_bridge
from golden import *  # noqa: F403
from torch_bridge import *  # noqa: F403

__all__ = sorted({*golden.__all__, *torch_bridge.__all__})
