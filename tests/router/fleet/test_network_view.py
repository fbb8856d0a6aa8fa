"""What the router knows of links, and what it shows of them and of the transfers on them."""

from __future__ import annotations

import json

import pytest

from protocol import kvferry_worker_pb2 as pb
from router.config import RoutingPolicy
from router.fleet.network_view import RateSource, link_rate, sight_of
from router.fleet.view import cluster_view
from router.http.operator_schemas import ClusterAnswer
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.oracle import prompt_of
from tests.support.planned import own_reservations
from transfer.planner.network import NetworkSight, PairSight

TESTED = 2e9
LINK = pb.Link(peer=pb.WorkerId(name="decode-0", incarnation="1"), bytes_per_second=3e9)


def _duo(**options: object) -> Duo:
    duo = Duo(DuoOptions(link_bytes_per_second=TESTED, policy=RoutingPolicy.LEAST_LOADED, **options))  # type: ignore[arg-type]
    duo.run(duo.fleet.look)
    return duo


def test_a_rate_that_was_given_beats_a_measured_one_beats_the_self_test() -> None:
    """Each says where it is from; without a link there is no rate."""
    prefill = _duo().fleet.prefills["prefill-0"]
    found = [link_rate(prefill, "decode-0", None)]
    prefill.status = pb.WorkerStatus(links=[LINK])
    found += [link_rate(prefill, "decode-0", given) for given in (None, 4_000_000_000)]
    prefill.status, prefill.links["decode-0"] = pb.WorkerStatus(), pb.ConnectReply()
    found += [link_rate(prefill, name, None) for name in ("decode-0", "decode-1")]
    assert [(rate.bytes_per_second, rate.source) for rate in found] == [
        (TESTED, RateSource.SELF_TEST),
        (3e9, RateSource.MEASURED),
        (4e9, RateSource.GIVEN),
        (1e9, RateSource.ASSUMED),
        (0.0, RateSource.NO_LINK),
    ]


def test_the_planner_sees_links_of_workers_that_answer() -> None:
    """With both rates, apart; a link of a silent worker is not seen."""
    duo = _duo(num_decode=2)
    fleet = duo.fleet
    fleet.prefills["prefill-0"].status = pb.WorkerStatus(links=[LINK])
    fleet.decodes["decode-1"].num_missed_pings = 99
    seen = sight_of(fleet.prefills.values(), fleet.decodes)
    assert seen == NetworkSight((PairSight("prefill-0", "decode-0", TESTED, 3e9),))
    fleet.prefills["prefill-0"].num_missed_pings = 99
    assert sight_of(fleet.prefills.values(), fleet.decodes) == NetworkSight()


@pytest.mark.parametrize("is_planned", [True, False])
def test_the_view_has_the_described_shape(is_planned: bool) -> None:
    """Ports, counts and the transfers that have ended; null where nothing is planned."""
    duo = _duo(reservations=own_reservations if is_planned else None)
    duo.generate_all([greedy(prompt_of(70, 97))])
    answer = ClusterAnswer.model_validate_json(json.dumps(cluster_view(duo.fleet)))
    assert [link.rate_source for link in answer.links] == ["self-test"]
    if not is_planned:
        assert answer.reservations is None
        assert answer.recent_transfers == []
        return
    assert answer.reservations is not None
    assert {(port.worker, port.direction) for port in answer.reservations.ports} == {
        ("prefill-0", "egress"),
        ("decode-0", "ingress"),
    }
    assert (answer.reservations.num_reserved, answer.reservations.num_released) == (1, 1)
    assert answer.reservations.num_unplanned == {}
    assert [one.num_bytes > 0 for one in answer.recent_transfers] == [True]
