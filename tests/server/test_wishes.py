"""What a client wants of its tokens' time travels in a header, to both endpoints."""

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
    told = client.post(path, json=CALLS[path], headers={"X-SLO-TPOT-ms": "40"})
    assert told.status_code == client.post(path, json=CALLS[path]).status_code == 200
    assert [request.tpot for request in asked] == [0.04, None]


@pytest.mark.parametrize("path", CALLS)
def test_a_wish_that_is_none_is_refused(client, asked, path):
    told = client.post(path, json=CALLS[path], headers={"x-slo-tpot-ms": "soon"})
    assert told.status_code == 400
    problem = told.json()["error"]
    assert problem["param"] == "x-slo-tpot-ms"
    assert "'soon'" in problem["message"]
    assert asked == []


@pytest.mark.parametrize("path", CALLS)
def test_a_seed_of_the_client_is_told_to_the_engine(client, asked, path):
    assert client.post(path, json=CALLS[path] | {"seed": 3}).status_code == 200
    assert client.post(path, json=CALLS[path]).status_code == 200
    assert [request.own_seed for request in asked] == [True, False]
