"""Advice about memory never changes what is in it."""

from __future__ import annotations

import torch

from engine.huge_pages import HUGE_PAGE_BYTES, advise_huge_pages


def test_contents_stay() -> None:
    """Whether or not the system takes the advice, memory holds what it held."""
    tensor = torch.arange(3 * HUGE_PAGE_BYTES // 4, dtype=torch.int32)
    advise_huge_pages(tensor.data_ptr(), tensor.nbytes)
    assert torch.equal(tensor, torch.arange(len(tensor), dtype=torch.int32))


def test_memory_that_is_not_mapped_is_refused() -> None:
    """A bad address is answered, not a crash."""
    assert not advise_huge_pages(0, 1)
