"""Who computes the codes: chosen by device and variable, and never what is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from protocol.errors import ConfigError
from transfer.codec.operations import KERNELS_VARIABLE, TORCH, operations_for

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("value", [None, "auto", "torch"])
def test_a_pool_in_host_memory_is_coded_by_torch(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    """With nothing said too."""
    monkeypatch.delenv(KERNELS_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(KERNELS_VARIABLE, value)
    assert operations_for(CPU) is TORCH


def test_torch_codes_on_cuda_where_the_variable_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is installed."""
    monkeypatch.setenv(KERNELS_VARIABLE, "torch")
    assert operations_for(torch.device("cuda")) is TORCH


def test_kernels_that_cannot_run_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In host memory they need Triton's interpreter; the error says so."""
    monkeypatch.setenv(KERNELS_VARIABLE, "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match="the kernels are for CUDA"):
        operations_for(CPU)


def test_a_word_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those that are known are named."""
    monkeypatch.setenv(KERNELS_VARIABLE, "fast")
    with pytest.raises(ConfigError, match="auto, torch, triton"):
        operations_for(CPU)


def test_triton_is_imported_only_where_its_kernels_are_chosen() -> None:
    """Not for host memory; and where it is missing torch codes CUDA memory too, which the log says once."""
    code = (
        "import logging, sys, torch, transfer.codec.pool_codec, transfer.codec.operations as chosen\n"
        "logging.basicConfig(level='INFO', format='%(message)s', stream=sys.stdout)\n"
        "chosen.operations_for(torch.device('cpu'))\n"
        "assert 'triton' not in sys.modules\n"
        "sys.modules['triton'] = None\n"
        "for _ in range(2): print(chosen.operations_for(torch.device('cuda')) is chosen.TORCH)"
    )
    environment = {name: value for name, value in os.environ.items() if name != KERNELS_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines() == [
        "KV in cpu memory is coded by torch: the kernels are for CUDA",
        "KV in cuda memory is coded by torch: triton is not installed (`pip install triton`)",
        "True",
        "True",
    ], done.stderr
