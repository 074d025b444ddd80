"""The examples' GPT in PyTorch under torch.compile: the same network, sizes, optimiser and text as examples/gpt. See benchmarks/models.py.

python -m benchmarks.models_torch gpt [--tiny]     # the last line printed is a report in JSON
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.models import GROUPS, LOSSES, STEPS, config_of
from examples import text

EPS = 1e-6


def norm(x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), eps=EPS)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x: [batch, length, heads, size]; cos, sin: float32[length, size / 2]."""
    a, b = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        wide, deep = config.width, (2 * config.layers) ** -0.5
        self.heads = config.heads
        self.q, self.k, self.v = (dense(wide, wide) for _ in range(3))
        self.out, self.up, self.down = dense(wide, wide, deep), dense(wide, 4 * wide), dense(4 * wide, wide, deep)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        n = norm(x)
        q, k, v = (w(n).view(*x.shape[:2], self.heads, -1) for w in (self.q, self.k, self.v))
        q, k = rotated(norm(q), cos, sin), rotated(norm(k), cos, sin)
        a = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.relu(self.up(norm(x))).square())


class GPT(nn.Module):
    """Words and those that follow, int64[sequences, length] each, to the mean loss."""

    def __init__(self, config: Any):
        super().__init__()
        self.cap = config.cap
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.head = dense(config.width, config.vocabulary, 0.5)
        size = config.width // config.heads // 2
        turns = torch.outer(torch.arange(config.length).double(), 10000.0 ** -(torch.arange(size).double() / size))
        self.register_buffer("cos", turns.cos().float())
        self.register_buffer("sin", turns.sin().float())

    def forward(self, words: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        x = norm(self.embedding(words).bfloat16())
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(norm(x)).float()
        capped = self.cap * torch.tanh(logits / self.cap)
        return F.cross_entropy(capped.flatten(0, 1), following.flatten())


def dense(rows: int, columns: int, scale: float = 1.0) -> nn.Linear:
    layer = nn.Linear(rows, columns, bias=False)
    nn.init.normal_(layer.weight, std=scale * rows**-0.5)
    return layer


def main(name: str, tiny: bool) -> None:
    config = config_of(name, tiny)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    with torch.device(device):
        model = {"gpt": GPT}[name](config)
    compiled = torch.compile(model) if device == "cuda" else model
    optimiser = torch.optim.AdamW(model.parameters(), lr=config.rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    arrays = [text.batch(i, config.sequences, config.length, config.vocabulary) for i in range(8)]
    batches = [tuple(torch.as_tensor(a, device=device).long() for a in pair) for pair in arrays]
    count = 0

    def step(i: int) -> torch.Tensor:
        nonlocal count
        count += 1
        for group in optimiser.param_groups:
            group["lr"] = config.rate * min(1.0, count / config.warmup)
        with torch.autocast(device, torch.bfloat16):
            loss = compiled(*batches[i % len(batches)])
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    start = time.perf_counter()
    losses = [float(step(0))]
    took = round(time.perf_counter() - start, 1)
    losses += [float(step(i)) for i in range(1, LOSSES)]
    times = []
    for _ in range(GROUPS):
        step(0)
        wait()
        start = time.perf_counter()
        for i in range(STEPS):
            step(i)
        wait()
        times.append(round((time.perf_counter() - start) / STEPS * 1e3, 3))
    report = {"losses": losses, "compile_s": took, "ms": round(statistics.median(times), 3), "groups_ms": times}
    arguments = sum(p.numel() * p.element_size() * 3 for p in model.parameters())
    most = torch.cuda.max_memory_allocated() if device == "cuda" else arguments
    report |= {"arguments": arguments, "temporaries": most - arguments, "torch": torch.__version__}
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], "--tiny" in sys.argv)
