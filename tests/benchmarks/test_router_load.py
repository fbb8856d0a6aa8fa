"""The command line and the result of the router's load, without running it."""

import pytest

from benchmarks.door.figures import AddedLatency, Comparison
from benchmarks.door.lag import LagReport
from benchmarks.door.measure import Outcome
from benchmarks.door.stage import Cores
from benchmarks.router_load import figures, main, parse_arguments, table

OUTCOME = Outcome(
    rates=Comparison(300.0, 500.0, 3.0, 2.0),
    router_latency=AddedLatency(100, 0.002, 0.009, 0.02),
    bare_latency=AddedLatency(100, 0.001, 0.003, 0.01),
    lag=LagReport(0.0123, 0.011, 0.011, 0.002, 3, {"loop: encode": 4}),
    idle_lag=LagReport(0.001, 0.0, 0.0, 0.0005, 0, {}),
    client_cpu_share=0.3,
    workers_cpu_share=0.7,
    client_core_share=0.95,
    loop_name="asyncio",
    profile="",
)


def test_the_result_has_every_figure() -> None:
    """In the units of their names."""
    found = figures(OUTCOME)
    assert found["ratio_to_bare"] == 0.6
    assert found["cpu_ratio_to_bare"] == pytest.approx(0.667)
    assert (found["added_p50_ms"], found["added_p99_ms"], found["bare_added_p99_ms"]) == (2.0, 9.0, 3.0)
    assert (found["max_loop_lag_ms"], found["loop_cpu_ms_of_max"], found["num_loop_stalls"]) == (12.3, 11.0, 3)


def test_the_table_names_stalls_and_warns_of_a_busy_core() -> None:
    """Rates that the client's core may have limited are marked."""
    text = table(OUTCOME)
    assert "ratio 0.60" in text
    assert "loop: encode" in text
    assert "warning" in text


def test_servers_never_share_a_core_with_their_load() -> None:
    """Unless there is only one."""
    assert Cores.of([2, 3]) == Cores(server=2, client=3, workers=3)
    assert Cores.of([0, 1, 2, 3]) == Cores(server=0, client=1, workers=2)
    assert Cores.of([5]) == Cores(5, 5, 5)


def test_an_unknown_model_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and advice, no traceback."""
    assert main(["--model", "nowhere/at/all"]) == 2
    assert "no model" in capsys.readouterr().err


def test_defaults_are_those_of_the_bars() -> None:
    """200 streams of 20 tokens a second, prompts of 100 kB."""
    arguments = parse_arguments([])
    assert (arguments.streams, arguments.tokens_per_s, arguments.prompt_bytes) == (200, 20.0, 100_000)
