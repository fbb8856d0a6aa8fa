"""The facts stored with every result."""

import json

from benchmarks.machine import machine_facts


def test_facts_are_json_and_say_where_and_what() -> None:
    """Cores, memory and commit are there, in a form that can be stored."""
    facts = json.loads(json.dumps(machine_facts()))
    assert facts["cores"] >= 1
    assert facts["memory_gib"] > 0
    assert "commit" in facts
