"""Causes of failures, whose failures they are, and what is told of them."""

from __future__ import annotations

import logging

import pytest

from protocol.errors import (
    BadRequest,
    Cancelled,
    DeadlineExceeded,
    Draining,
    KvferryError,
    NotConnected,
    Overloaded,
    PromptTooLong,
    StaleTicket,
    TransferError,
    WorkerUnavailable,
)
from router.fleet.failures import FailureCause, FailureCounts, cause_at_decode, cause_at_prefill, is_own_failure


@pytest.mark.parametrize(
    ("error", "is_own", "at_prefill", "refused", "at_decode"),
    [
        (WorkerUnavailable, True, "prefill_failed", "decode_failed", "decode_failed"),
        (KvferryError, True, "prefill_failed", "decode_refused", "decode_failed"),
        (Overloaded, False, "prefill_failed", "decode_refused", "decode_failed"),
        (Draining, False, "draining", "draining", "draining"),
        (NotConnected, False, "transfer_failed", "decode_refused", "transfer_failed"),
        (TransferError, False, "transfer_failed", "decode_refused", "transfer_failed"),
        (StaleTicket, False, "transfer_failed", "decode_refused", "transfer_failed"),
        (PromptTooLong, False, "prefill_failed", None, None),
        (BadRequest, False, "prefill_failed", None, None),
        (Cancelled, False, "prefill_failed", None, None),
        (DeadlineExceeded, False, None, None, None),
    ],
)
def test_whose_failure_an_error_is(
    error: type[KvferryError], is_own: bool, at_prefill: str | None, refused: str | None, at_decode: str | None
) -> None:
    """A worker is to blame for its death and for what it cannot do, for nothing else."""
    assert is_own_failure(error("")) is is_own
    assert cause_at_prefill(error("")) == at_prefill
    assert cause_at_decode(error(""), is_refusal=True) == refused
    assert cause_at_decode(error(""), is_refusal=False) == at_decode


def test_a_failure_is_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """With the request's id, or the worker's name. What clients do is no warning."""
    counts = FailureCounts()
    assert dict(counts.by_cause) == dict.fromkeys(FailureCause, 0)
    with caplog.at_level(logging.INFO):
        counts.count(FailureCause.DECODE_FAILED, "abc", "decode-0: died")
        counts.count(FailureCause.CLIENT_GONE, "abc", "left")
        counts.count_worker(FailureCause.WORKER_GONE, "decode-0", "has ended")
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", "request abc: decode_failed: decode-0: died"),
        ("INFO", "request abc: client_gone: left"),
        ("WARNING", "worker decode-0: worker_gone: has ended"),
    ]
    assert {cause for cause, num in counts.by_cause.items() if num == 1} == {
        "decode_failed",
        "client_gone",
        "worker_gone",
    }
    assert counts.by_cause.total() == 3
