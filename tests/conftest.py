"""What holds for all tests: how far properties are tried, and that they have no deadline: a busy machine must not fail them.

`--hypothesis-profile thorough` tries those that state no number of their own more often.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("quick", deadline=None, max_examples=30)
settings.register_profile("thorough", deadline=None, max_examples=500)
settings.load_profile("quick")
