"""A small transformer that predicts the next of a few tokens, in layers that can be distributed."""

import torch
from torch import nn
from torch.nn import functional

CLASSES, LENGTH, WIDTH, HEADS, WIDE = 40, 32, 64, 4, 192


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = (part(x).unflatten(-1, (-1, WIDTH // HEADS)) for part in (self.query, self.key, self.value))
        q, k, v = (part.transpose(1, 2) for part in parts)
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(found.transpose(1, 2).flatten(2))


class Feedforward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDE), nn.Linear(WIDE, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x)))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.feedforward_norm, self.feedforward = nn.LayerNorm(WIDTH), Feedforward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feedforward(self.feedforward_norm(x))


class Net(nn.Module):
    """Tokens to logits, int64[batch, LENGTH] to float32[batch, LENGTH, CLASSES]."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Of logits and the tokens that they were made of: each predicts the next, and the last the first."""
    return functional.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())


def batches(steps: int, size: int, seed: int = 0) -> list[torch.Tensor]:
    """Tokens that a model can learn: each sequence counts on from a token of its own."""
    random = torch.Generator().manual_seed(seed)
    first = torch.randint(CLASSES, (steps, size, 1), generator=random)
    return list((first + torch.arange(LENGTH)) % CLASSES)
