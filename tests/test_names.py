"""Top-level folders are import names: nobody else may own them."""

from __future__ import annotations

import importlib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    *("protocol", "scheduling", "engine", "transfer", "prefill_worker", "decode_worker"),
    *("router", "quality", "cluster", "benchmarks"),
)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_imported_from_this_tree(name: str) -> None:
    """The import finds the folder here, and no other installed distribution offers the name."""
    module = importlib.import_module(name)
    assert Path(str(module.__file__)).parent == ROOT / name
    assert set(packages_distributions().get(name, ())) <= {"kvferry"}


def test_every_folder_of_tests_is_a_package() -> None:
    """Otherwise `tests/engine` would shadow `engine`."""
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []
