"""Models, liveness, readiness, the cluster."""

from __future__ import annotations

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from router.fleet.dispatch import Dispatcher
from router.fleet.fleet import Fleet
from router.fleet.view import add_cluster_route
from router.generation import Readiness, WorkerReadiness
from router.http.operator_schemas import (
    ClusterAnswer,
    HealthAnswer,
    ModelCard,
    ModelList,
    ReadinessAnswer,
    VersionAnswer,
)
from tests.router.fleet.driving import Cluster, with_fleet
from tests.support.http_front import MODEL, FrontUnderTest, front_config
from tests.support.scripted_generator import ScriptedGenerator


async def test_the_served_model_is_listed() -> None:
    """One model, with the most tokens that a request may have."""
    front = FrontUnderTest(config=front_config(context_tokens=64, max_request_tokens=32))
    body = (await front.get("/v1/models")).json()
    assert body["object"] == "list"
    (card,) = body["data"]
    assert isinstance(card.pop("created"), int)
    assert card == {"id": MODEL, "object": "model", "owned_by": "kvferry", "max_model_len": 32}


async def test_a_model_can_be_asked_for_by_name() -> None:
    """Names may have slashes; an unknown one is not found."""
    front = FrontUnderTest(config=front_config(served_model_name="org/model"))
    assert (await front.get("/v1/models/org/model")).json()["id"] == "org/model"
    response = await front.get("/v1/models/other")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


async def test_liveness_does_not_depend_on_workers() -> None:
    """The process is alive although nothing can be served."""
    front = FrontUnderTest(ScriptedGenerator(state=Readiness(False, "no worker")))
    assert (await front.get("/health")).status_code == 200


async def test_readiness_says_why_not() -> None:
    """503 with the reason and each worker's state; 200 once requests can be served."""
    worker = WorkerReadiness("decode-0@1a2b3c4d", "decode", False, "loading the model")
    front = FrontUnderTest(ScriptedGenerator(state=Readiness(False, "no decode worker is ready", (worker,))))
    response = await front.get("/readiness")
    assert response.status_code == 503
    assert response.json() == {
        "status": "not_ready",
        "reason": "no decode worker is ready",
        "workers": [
            {"worker": "decode-0@1a2b3c4d", "role": "decode", "is_ready": False, "reason": "loading the model"}
        ],
    }
    front.generator.state = Readiness(is_ready=True)
    response = await front.get("/readiness")
    assert response.status_code == 200
    assert response.json()["status"] == "ready"


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/models", ModelList),
        (f"/v1/models/{MODEL}", ModelCard),
        ("/health", HealthAnswer),
        ("/readiness", ReadinessAnswer),
        ("/version", VersionAnswer),
    ],
)
async def test_answers_have_the_described_shapes(path: str, shape: type[BaseModel]) -> None:
    """They have the fields that the document describes and no others, ready or not."""
    worker = WorkerReadiness("decode-0@1a2b3c4d", "decode", False, "loading the model")
    for state in (Readiness(True), Readiness(False, "no worker", (worker,))):
        response = await FrontUnderTest(ScriptedGenerator(state=state)).get(path)
        shape.model_validate_json(response.content)


async def test_metrics_can_be_read() -> None:
    """They are in the format of Prometheus, whose parser finds the router's own."""
    response = await FrontUnderTest().get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    names = {family.name for family in text_string_to_metric_families(response.text)}
    assert any(name.startswith("kvferry_") for name in names)


def test_the_cluster_has_the_described_shape() -> None:
    """Workers of both roles, and a link between them."""
    cluster = Cluster()
    nodes = [cluster.start("prefill-0"), cluster.start("decode-0")]

    async def ask(fleet: Fleet, _: Dispatcher) -> httpx.Response:
        await fleet.link_all()
        front = FrontUnderTest()
        add_cluster_route(front.app, fleet)
        return await front.get("/cluster")

    try:
        answer = ClusterAnswer.model_validate_json(with_fleet(nodes, ask).content)
    finally:
        cluster.close()
    assert sorted(worker.role for worker in answer.workers) == ["decode", "prefill"]
    assert [(link.prefill, link.decode) for link in answer.links] == [("prefill-0", "decode-0")]
