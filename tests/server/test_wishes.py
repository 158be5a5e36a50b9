"""What a client wants of its tokens' times travels in headers, to both endpoints."""

import pytest

CALLS = {
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
}


@pytest.fixture
def asked(world, monkeypatch):
    """The engine's requests, as they come."""
    found = []
    submit = world.engine.submit

    def seen(requests):
        found.extend(requests)
        return submit(requests)

    monkeypatch.setattr(world.engine, "submit", seen)
    return found


@pytest.mark.parametrize("path", CALLS)
def test_a_wish_reaches_the_engine(client, asked, path):
    wishes = {"X-SLO-TTFT-ms": "900", "X-SLO-TPOT-ms": "40", "Traceparent": "00-a-b-01"}
    told = client.post(path, json=CALLS[path], headers=wishes)
    assert told.status_code == client.post(path, json=CALLS[path]).status_code == 200
    found = [(request.ttft, request.tpot, request.trace) for request in asked]
    assert found == [(0.9, 0.04, "00-a-b-01"), (None, None, None)]


@pytest.mark.parametrize("name", ["x-slo-ttft-ms", "x-slo-tpot-ms"])
@pytest.mark.parametrize("path", CALLS)
def test_a_wish_that_is_none_is_refused(client, asked, path, name):
    told = client.post(path, json=CALLS[path], headers={name: "soon"})
    assert told.status_code == 400
    problem = told.json()["error"]
    assert problem["param"] == name
    assert "'soon'" in problem["message"]
    assert asked == []


@pytest.mark.parametrize("path", CALLS)
def test_a_seed_of_the_client_is_told_to_the_engine(client, asked, path):
    assert client.post(path, json=CALLS[path] | {"seed": 3}).status_code == 200
    assert client.post(path, json=CALLS[path]).status_code == 200
    assert [request.own_seed for request in asked] == [True, False]
