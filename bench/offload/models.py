"""The paper's models, scaled down, in two stages of a pipeline.

The authors' scripts (github.com/K-Wu/FlashTrain, third_party/customized_scripts/driver.py) train BERT, T5 and
GPT of 4 layers 8192 wide, 3 layers 12288 wide and 2 layers 16384 wide, with heads of 128, on 16 sequences of
1024 tokens. T5 has the first half of its layers in the encoder, rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

SCALE = 64  # by which widths are divided
SHAPES = {8192: 4, 12288: 3, 16384: 2}  # the paper's widths, and layers
NAMES = ("bert", "t5", "gpt")
LENGTH, HEAD, VOCABULARY = 64, 32, 512


@dataclass(frozen=True)
class Model:
    """One of the paper's.

    Attributes:
        name: of ``NAMES``.
        paper_width: of ``SHAPES``.
    """

    name: str
    paper_width: int

    @property
    def width(self) -> int:
        return self.paper_width // SCALE

    @property
    def layers(self) -> int:
        return SHAPES[self.paper_width]

    def stage(self, rank: int) -> Stage:
        """The first or the second half, with weights that depend on the rank alone."""
        torch.manual_seed(rank)
        first = -(-self.layers // 2)
        return Stage(self, first if rank == 0 else self.layers - first, is_first=rank == 0)


class Attention(nn.Module):
    """Attention to itself, or to what another stage made."""

    def __init__(self, width: int, is_causal: bool) -> None:
        super().__init__()
        self.is_causal, self.heads = is_causal, width // HEAD
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """float[batch, tokens, width] twice -> the same."""

        def split(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.unflatten(-1, (self.heads, HEAD)).transpose(1, 2)

        key, value = self.key_value(other).chunk(2, dim=-1)
        found = scaled_dot_product_attention(
            split(self.query(x)), split(key), split(value), is_causal=self.is_causal
        )
        return self.out(found.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """A layer of a transformer, its norms first.

    Args:
        width: of it.
        is_causal: whether a token sees only those before it.
        crosses: whether it attends to an encoder's result as well.
    """

    def __init__(self, width: int, is_causal: bool, crosses: bool) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, is_causal)
        self.cross_norm = nn.LayerNorm(width) if crosses else None
        self.cross = Attention(width, False) if crosses else None
        self.mlp_norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, encoded: torch.Tensor | None) -> torch.Tensor:
        normed = self.norm(x)
        x = x + self.attention(normed, normed)
        if self.cross is not None and self.cross_norm is not None and encoded is not None:
            x = x + self.cross(self.cross_norm(x), encoded)
        return x + self.down(gelu(self.up(self.mlp_norm(x))))


class Stage(nn.Module):
    """A stage: of the first the embedding is part, of the second the head, and T5's decoder with its own.

    Args:
        model: of which it is a part.
        layers: that it has.
        is_first: which of both it is.
    """

    def __init__(self, model: Model, layers: int, is_first: bool) -> None:
        super().__init__()
        self.decodes = model.name == "t5" and not is_first
        self.embedding = nn.Embedding(VOCABULARY, model.width) if is_first or self.decodes else None
        is_causal = model.name == "gpt" or self.decodes
        self.blocks = nn.ModuleList(Block(model.width, is_causal, self.decodes) for _ in range(layers))
        self.head = None if is_first else nn.Linear(model.width, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor, decoded: torch.Tensor | None = None) -> torch.Tensor:
        """Tokens, int64[batch, tokens], or what the first stage made; logits or what the second takes.

        Args:
            x: of that.
            decoded: the tokens that T5's decoder is given.
        """
        encoded = x if self.decodes else None
        if self.embedding is not None:
            x = self.embedding(decoded if self.decodes else x)
        for block in self.blocks:
            x = block(x, encoded)
        return x if self.head is None else self.head(x)


def loss_of(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits.flatten(0, 1), target.flatten())
