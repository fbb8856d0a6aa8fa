"""The order in which prompts get blocks on a prefill worker."""

from __future__ import annotations

import pytest

from prefill_worker.admission import Admission
from scheduling.policies.choose import SERVING_POLICIES, make_policy
from scheduling.policies.policy import Queue
from tests.prefill_worker.test_prompt_blocks import Worker


@pytest.mark.parametrize("name", SERVING_POLICIES)
def test_what_was_begun_elsewhere_goes_first(name: str) -> None:
    """Under any policy: somebody has the beginning of its answer. The others follow as the policy says."""
    worker, policy = Worker(), make_policy(name)
    admission = Admission(policy, worker.blocks, worker.pool)
    prompts = [((1, 2, 3), 0), ((4, 5), 0), ((6, 7, 8, 9), 3)]
    added = [
        admission.add(worker.submission(tokens, num_continued=num_continued), float(number))
        for number, (tokens, num_continued) in enumerate(prompts)
    ]
    given = list(admission.admit(Queue(admission.line, [], 3.0), 8))
    assert given[0] is added[2]
    assert {id(one) for one in given} == {id(one) for one in added}
    assert not admission.waiting
