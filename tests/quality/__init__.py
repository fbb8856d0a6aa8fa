"""Tests of `quality/`."""
