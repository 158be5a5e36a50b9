"""GET /debug/rounds: there when it is asked for, behind the key, with the rounds that were kept."""

from types import SimpleNamespace

import httpx
import pytest

from server.api import Api, ApiOptions
from server.app import create_app
from server.backend import Backend
from server.settings import SettingsError, load_settings
from telemetry.round_log import RoundLog
from tests.server.world import metrics_page
from tests.telemetry.rounds import plain, step

pytestmark = pytest.mark.anyio


def visitor(rounds, *keys):
    """A client of an application that shows `rounds`."""
    app = create_app(
        Api(backend=Backend(), options=ApiOptions(api_keys=keys)),
        metrics=metrics_page,
        outcomes=SimpleNamespace(call=lambda _: None),
        rounds=rounds,
    )
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")


@pytest.fixture
def log():
    """Three rounds."""
    log = RoundLog(5)
    for number in (1, 2, 3):
        log.step(step(plain(), round_id=number))
    return log


@pytest.mark.parametrize(
    ("query", "shown"), [("", [1, 2, 3]), ("?last=1", [3]), ("?last=999999999", [1, 2, 3])]
)
async def test_the_newest_rounds_are_shown(log, query, shown):
    async with visitor(log.page) as client:
        answer = await client.get(f"/debug/rounds{query}")
    assert answer.headers["content-type"] == "application/json"
    assert [each["round_id"] for each in answer.json()["rounds"]] == shown


@pytest.mark.parametrize("last", ["0", "-1", "1.5", "x", "", "٣", "9" * 10, "9" * 5000])
async def test_what_is_no_number_of_rounds_is_refused(log, last):
    async with visitor(log.page) as client:
        answer = await client.get("/debug/rounds", params={"last": last})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "last"


async def test_without_the_setting_there_is_no_such_route():
    async with visitor(None) as client:
        answer = await client.get("/debug/rounds")
        page = (await client.get("/openapi.json")).json()
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")
    assert "/debug/rounds" not in page["paths"]


async def test_the_page_describes_it(log):
    async with visitor(log.page) as client:
        page = (await client.get("/openapi.json")).json()
    assert "401" in page["paths"]["/debug/rounds"]["get"]["responses"]


@pytest.mark.parametrize("path", ["/debug/rounds", "/debug", "/debug/nothing"])
async def test_it_asks_for_the_key(log, path):
    async with visitor(log.page, "first", "second") as client:
        for headers in ({}, {"authorization": "Bearer third"}):
            answer = await client.get(path, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        answer = await client.get(path, headers={"authorization": "Bearer second"})
        assert answer.status_code == (200 if path == "/debug/rounds" else 404)
        assert (await client.get("/debugger")).status_code == 404


async def test_the_setting_is_a_number_of_rounds():
    assert load_settings({}).debug_rounds is None
    assert load_settings({"debug_rounds": "200"}).debug_rounds == 200
    for wrong in ("0", "-1", "10001", "many"):
        with pytest.raises(SettingsError, match=f"debug_rounds={wrong}"):
            load_settings({"debug_rounds": wrong})
