"""How far two answers to the same tokens lie apart. Tensors and numbers only: models and codecs are not known here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class WindowScore:
    """One window: sums over its scored tokens, in nats; bytes that crossed and those of the same KV in 16 bits."""

    num_tokens: int
    kl: float
    num_agreed: int
    exact_loss: float
    coded_loss: float
    wire_bytes: int
    half_bytes: int


@dataclass(frozen=True, slots=True)
class Quality:
    """All windows: KL divergence and top-1 agreement by token, change of perplexity, bytes over those of 16 bits."""

    wire_ratio: float
    ppl_change_percent: float
    kl: float
    top1: float
    kl_per_window: tuple[float, ...]

    @classmethod
    def of(cls, scores: Sequence[WindowScore]) -> Quality:
        """Every token weighs the same, whatever its window."""
        num_tokens = sum(one.num_tokens for one in scores)
        more_loss = sum(one.coded_loss - one.exact_loss for one in scores) / num_tokens
        return cls(
            wire_ratio=round(sum(one.wire_bytes for one in scores) / sum(one.half_bytes for one in scores), 5),
            ppl_change_percent=round(100 * math.expm1(more_loss), 4),
            kl=round(sum(one.kl for one in scores) / num_tokens, 7),
            top1=round(sum(one.num_agreed for one in scores) / num_tokens, 5),
            kl_per_window=tuple(round(one.kl / one.num_tokens, 7) for one in scores),
        )


def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """float64 `[T, vocab_size]`: a KL of 0.00003 is a difference of numbers that float32 barely tells apart."""
    return logits.double().log_softmax(dim=-1)


def compare(
    exact: torch.Tensor, coded: torch.Tensor, targets: Sequence[int], wire_bytes: int, half_bytes: int
) -> WindowScore:
    """KL(exact || coded) and the rest from log-probabilities `[T, vocab_size]`; `targets` are the T tokens that followed."""
    rows = torch.arange(len(targets), device=exact.device)
    following = torch.tensor(targets, device=exact.device)
    return WindowScore(
        num_tokens=len(targets),
        kl=float((exact.exp() * (exact - coded)).sum()),
        num_agreed=int((exact.argmax(dim=-1) == coded.argmax(dim=-1)).sum()),
        exact_loss=-float(exact[rows, following].sum()),
        coded_loss=-float(coded[rows, following].sum()),
        wire_bytes=wire_bytes,
        half_bytes=half_bytes,
    )
