"""What a worker's process refuses before it loads anything."""

import pytest

from cluster.settings import ServeSettings
from cluster.worker_process import check_listening_address, check_offer, decode_config, landing_config, shipping_config
from cluster.worker_spec import WorkerSpec, spec_of
from protocol.errors import ConfigError
from protocol.wire_rule import WireCodec, WireOffer, WireRule
from tests.support.duo import SLOT_BYTES
from tests.support.tiny_model import tiny_engine
from transfer.codec.pool_codec import PoolCodec


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "", "all", "0"])
def test_a_worker_never_listens_on_all_interfaces(address: str) -> None:
    """Nor on what is no address."""
    with pytest.raises(ConfigError, match="--node-ip-address"):
        check_listening_address(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.7", "::1", "fd00::7"])
def test_one_interface_is_enough(address: str) -> None:
    """Loopback and a network's own are both fine."""
    check_listening_address(address)


def _codec() -> PoolCodec:
    engine = tiny_engine()
    return PoolCodec(engine.cache.pool, engine.layout)


@pytest.mark.parametrize(
    "offer",
    [
        WireOffer(),
        WireOffer(WireRule(WireCodec.CHANNEL, 0.5)),
        WireOffer(WireRule(WireCodec.CHANNEL, 0.5), 0.4),
        WireOffer(WireRule(), 0.4),
        WireOffer(WireRule(WireCodec.UNIFORM_INT8, 1.0), 0.7),
    ],
)
def test_a_budget_that_long_prompts_reach_is_accepted(offer: WireOffer) -> None:
    """The server's own, and the smallest that a request may ask for."""
    check_offer(offer, _codec(), SLOT_BYTES)


@pytest.mark.parametrize(
    ("offer", "word"),
    [
        (WireOffer(WireRule(WireCodec.CHANNEL, 0.2)), "^kv-wire-budget 0.2"),
        (WireOffer(WireRule(WireCodec.CHANNEL, 0.2), 0.1), "^kv-wire-budget 0.2"),
        (WireOffer(WireRule(WireCodec.CHANNEL, 0.5), 0.2), "^--kv-wire-min-budget is too small.*at least 0.3"),
        (WireOffer(WireRule(allows_int4=False), 0.4), "^--kv-wire-min-budget is too small.*without INT4"),
    ],
)
def test_a_budget_out_of_reach_is_refused_at_start(offer: WireOffer, word: str) -> None:
    """With the setting's name and the smallest that could be reached."""
    with pytest.raises(ConfigError, match=word):
        check_offer(offer, _codec(), SLOT_BYTES)


def test_how_long_kv_is_waited_for_reaches_the_workers() -> None:
    """`--kv-timeout` and `--transfer-lease` cross with the spec, to both ends of a transfer."""
    settings = ServeSettings(model="any", kv_timeout=7.0, transfer_lease=4.0)
    spec = WorkerSpec.from_json(spec_of(settings, "decode", 0, device="cpu", num_threads=1).to_json())
    assert decode_config(spec).kv_wait_s == 7.0
    assert landing_config(spec).lease_s == 4.0
    assert shipping_config(spec).stall_s == 12.0
