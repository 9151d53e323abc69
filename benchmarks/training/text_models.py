"""Networks that predict the next character of a text."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal attention with several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.inputs(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        found: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, length, width))
        return found


class TransformerLayer(nn.Module):
    """Attention and two linear layers, each with a norm before it and a shortcut around it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, 4 * width)
        self.linear2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        found: Tensor = x + self.linear2(functional.gelu(self.linear1(self.norm2(x))))
        return found


class Transformer(nn.Module):
    """Layers of one width over symbols and their places; logits for every next symbol."""

    def __init__(self, symbols: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(symbols, width)
        self.places = nn.Embedding(length, width)
        self.layers = nn.Sequential(*(TransformerLayer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        hidden = self.symbols(x) + self.places(places)
        found: Tensor = self.head(self.norm(self.layers(hidden)))
        return found


class CharacterLstm(nn.Module):
    """An embedding, an LSTM and a linear layer; logits for every next symbol."""

    def __init__(self, symbols: int, embedding: int, width: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(symbols, embedding)
        self.lstm = nn.LSTM(embedding, width, batch_first=True)
        self.head = nn.Linear(width, symbols)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.symbols(x))
        found: Tensor = self.head(hidden)
        return found
