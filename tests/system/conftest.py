"""Clusters shared by the system tests of this folder: each takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.serving import Serving, serving
from tests.support.tiny_directory import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on disk."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="module")
def pair(tiny_model: Path) -> Iterator[Serving]:
    """One prefill and one decode worker with different block sizes, and a decode pool that forces preemption."""
    argv = ["--prefill", "1", "--decode", "1", "--prefill-block-size", "8", "--block-size", "16"]
    argv += ["--routing-policy", "least_loaded"]  # all KV is ferried, however busy the prefill worker is
    with serving(str(tiny_model), *argv, "--max-step-tokens", "64", "--kv-cache-memory", "1152KiB") as server:
        yield server
