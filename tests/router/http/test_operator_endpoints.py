"""Models, liveness, readiness."""

from router.generation import Readiness, WorkerReadiness
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
