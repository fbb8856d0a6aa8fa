"""Generates the protobuf code from the `.proto` files, or with `--check` says whether the committed code is current."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def generate(into: Path) -> list[Path]:
    """Writes `protocol/*_pb2*.py*` below `into` and returns their paths. Raises `RuntimeError` if protoc refuses."""
    from grpc_tools import protoc

    protos = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protocol").glob("*.proto"))
    outputs = [f"--{kind}={into}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    if protoc.main(["protoc", f"--proto_path={ROOT}", *outputs, *(str(ROOT / name) for name in protos)]) != 0:
        raise RuntimeError("protoc failed: see its message above")
    return sorted((into / "protocol").glob("*_pb2*.py*"))


def main() -> int:
    """Exit status 1 with `--check` when a committed file differs from what the `.proto` files give."""
    if "--check" not in sys.argv[1:]:
        generate(ROOT)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(Path(scratch))
        stale = [path.name for path in fresh if not _is_same(path, ROOT / "protocol" / path.name)]
    if stale:
        sys.stderr.write(f"generated code is not current: {', '.join(stale)}; run `make proto`\n")
    return 1 if stale else 0


def _is_same(fresh: Path, committed: Path) -> bool:
    return committed.exists() and committed.read_bytes() == fresh.read_bytes()


if __name__ == "__main__":
    sys.exit(main())
