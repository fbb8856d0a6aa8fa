"""What a cluster costs before it does anything: time to ready, memory and idle cores of each worker, time to stop.

    python -m benchmarks.footprint smollm2-135m --prefill 1 --decode 1

Starts `kvferry serve` with the given arguments as a user would, asks one question, leaves it idle, looks, and stops it.
Progress goes to standard error, the result to the last line of standard output.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.machine import machine_facts
from cluster.http_client import get_json, stream_chat

ROOT = Path(__file__).resolve().parents[1]
STOP_WITHIN_S = 30.0
ASK_WITHIN_S = 120.0
SERVES = "kvferry serves "


def main() -> int:
    """Prints the figures as one line of JSON."""
    parser = argparse.ArgumentParser(description="time to ready, memory, idle cores and time to stop of a cluster")
    parser.add_argument("--idle-s", type=float, default=10.0, help="how long to watch it idle (default %(default)s)")
    parser.add_argument("serve", nargs=argparse.REMAINDER, help="arguments of `kvferry serve`, the model first")
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "cluster.cli", "serve", *arguments.serve, "--port", "0"]
    start = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = _wait_for_url(server)
            ready_s = time.monotonic() - start
            workers = _look_at_workers(url, arguments.idle_s)
        finally:
            family = psutil.Process(server.pid).children(recursive=True)
            stopping = time.monotonic()
            server.send_signal(signal.SIGINT)
            server.wait(STOP_WITHIN_S)
            _, alive = psutil.wait_procs(family, timeout=STOP_WITHIN_S)
    result = {
        "benchmark": "footprint",
        "machine": machine_facts(),
        "arguments": arguments.serve,
        "ready_s": round(ready_s, 2),
        "stop_s": round(time.monotonic() - stopping, 2),
        "left_behind": len(alive),
        "workers": workers,
    }
    print(json.dumps(result))
    return 0


def _wait_for_url(server: subprocess.Popen[str]) -> str:
    """The address that the server prints once it is ready."""
    for line in server.stdout or ():
        if line.startswith(SERVES):
            return line.split()[-1]
    raise SystemExit("kvferry serve ended before it was ready: see its last line above")


def _look_at_workers(url: str, idle_s: float) -> dict[str, dict[str, Any]]:
    """Memory after one answer, and the cores used while nothing is asked."""
    model = get_json(f"{url}/v1/models")["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": "Name three rivers."}], "max_tokens": 16}
    for _ in stream_chat(url, body, ASK_WITHIN_S):
        pass
    processes = {one["name"]: psutil.Process(one["process_id"]) for one in get_json(f"{url}/cluster")["workers"]}
    for process in processes.values():
        process.cpu_percent()
    print(f"idle for {idle_s:.0f} s", file=sys.stderr)
    time.sleep(idle_s)
    return {
        name: {
            "resident_mb": round(process.memory_info().rss / 1e6),
            "peak_resident_mb": _peak_mb(process.pid),
            "idle_core_fraction": round(process.cpu_percent() / 100, 3),
        }
        for name, process in processes.items()
    }


def _peak_mb(process_id: int) -> int:
    """The most memory that was resident at a time, as Linux counts it."""
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) * 1024 / 1e6)
    return 0


if __name__ == "__main__":
    sys.exit(main())
