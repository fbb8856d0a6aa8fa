"""The commands that make two hosts and what runs on them; none is run here."""

from benchmarks.links.serving import ONE_PREFILL, TWO_PREFILLS, serve_command
from benchmarks.links.two_hosts import HOSTS, shaping_commands


def test_both_ends_of_the_cable_are_shaped() -> None:
    """With one rate, so that neither direction is faster."""
    first, second = shaping_commands(25.0)
    assert first[:8] == ["tc", "-n", "kvferry-a", "qdisc", "add", "dev", "kvferry-va", "root"]
    assert second[2:7:4] == ["kvferry-b", "kvferry-vb"]
    assert first[8:] == second[8:] == ["tbf", "rate", "25000000bit", "burst", "65536", "latency", "50ms"]


def test_a_fast_cable_has_a_larger_bucket() -> None:
    """What leaves between two ticks of the kernel's clock must fit, or the rate is not reached."""
    command = shaping_commands(1000.0)[0]
    assert command[command.index("burst") + 1] == "500000"


def test_a_command_runs_in_its_namespace_on_its_core() -> None:
    """And UCX is bound to the host's own end."""
    head, other = HOSTS
    assert other.command("true") == ["ip", "netns", "exec", "kvferry-b", "taskset", "-c", "1", "true"]
    assert head.environment()["UCX_NET_DEVICES"] == "kvferry-va"


def test_serving_goes_over_both_hosts() -> None:
    """From the host that it is started on, under its address."""
    command = serve_command(HOSTS[1], ["model", "--kv-dtype", "float16", *ONE_PREFILL])
    assert command[: command.index("serve")][:4] == ["ip", "netns", "exec", "kvferry-b"]
    options = command[command.index("serve") + 1 :]
    assert options[:3] == ["model", "--kv-dtype", "float16"]
    assert options[options.index("--ray-address") + 1] == "10.201.7.1:6391"
    assert options[options.index("--placement") + 1] == "spread"
    assert options[options.index("--host") + 1] == "10.201.7.2"


def test_two_prefill_workers_are_packed_and_asked_in_turn() -> None:
    """Beside each other, so that both send over the one cable."""
    options = dict(zip(TWO_PREFILLS[::2], TWO_PREFILLS[1::2], strict=True))
    assert options == {"--prefill": "2", "--decode": "1", "--placement": "pack", "--routing-policy": "round_robin"}
