"""What holds for all tests: properties have no deadline, since a busy machine must not fail them."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("kvferry", deadline=None)
settings.load_profile("kvferry")
