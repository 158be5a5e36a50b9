"""GET / and /page: headers, kinds, off by a flag, and files that need nothing from elsewhere."""

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

import server
from server.api import Api, ApiOptions
from server.app import create_app
from server.backend import Backend
from server.cli import _parser
from server.main import _Process
from server.settings import load_settings
from tests.server.world import metrics_page

pytestmark = pytest.mark.anyio

FOLDER = Path(server.__file__).parent / "playground"
FILES = sorted(file.name for file in FOLDER.iterdir())
TEXTS = {name: (FOLDER / name).read_text(encoding="utf-8") for name in FILES}
PATHS = {name: "/" if name == "index.html" else f"/page/{name}" for name in FILES}
KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def visitor(app):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")


def application(*, page=True, keys=()):
    return create_app(
        Api(backend=Backend(), options=ApiOptions(api_keys=keys)),
        metrics=metrics_page,
        outcomes=SimpleNamespace(call=lambda _: None),
        page=page,
    )


@pytest.mark.parametrize("name", FILES)
async def test_every_file_is_served_as_what_it_is(name):
    async with visitor(application()) as client:
        answer = await client.get(PATHS[name])
    assert answer.status_code == 200
    assert answer.headers["content-type"] == KINDS[name.rpartition(".")[2]]
    assert answer.content == (FOLDER / name).read_bytes()


@pytest.mark.parametrize("name", FILES)
async def test_head_says_the_same_headers(name):
    async with visitor(application()) as client:
        got, head = await client.get(PATHS[name]), await client.head(PATHS[name])
    assert head.status_code == 200
    for header in ("content-type", "content-length", "etag", "cache-control"):
        assert head.headers[header] == got.headers[header]


@pytest.mark.parametrize("name", FILES)
async def test_the_policy_lets_nothing_in_from_elsewhere(name):
    async with visitor(application()) as client:
        headers = (await client.get(PATHS[name])).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert set(policy.values()) == {"'none'", "'self'"}
    assert {"base-uri", "form-action", "frame-ancestors"} <= set(policy)  # no default for these
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


async def test_a_browser_that_has_a_file_is_told_so():
    async with visitor(application()) as client:
        first = await client.get("/")
        assert first.headers["cache-control"] == "no-cache"
        tag = first.headers["etag"]
        for known in (tag, f'"other", W/{tag}'):
            again = await client.get("/", headers={"if-none-match": known})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == tag
            assert again.headers["content-security-policy"]
        for known in ('"other"', tag[1:-1]):
            other = await client.get("/", headers={"if-none-match": known})
            assert (other.status_code, other.content) == (200, first.content)


@pytest.mark.parametrize("path", ["/", "/page/main.js"])
async def test_without_the_setting_there_is_no_such_route(path):
    async with visitor(application(page=False)) as client:
        answer = await client.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


@pytest.mark.parametrize(
    "path", ["/page", "/page/", "/page/index.html", "/page/../settings.py", "/page/%2e%2e/app.py"]
)
async def test_no_other_file_is_served(path):
    async with visitor(application()) as client:
        assert (await client.get(path)).status_code == 404


async def test_other_methods_are_refused():
    async with visitor(application()) as client:
        answer = await client.post("/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_supported")


async def test_the_page_of_the_api_is_the_same_with_and_without_it():
    pages = []
    for page in (True, False):
        async with visitor(application(page=page)) as client:
            pages.append((await client.get("/openapi.json")).json())
    assert pages[0] == pages[1]


async def test_it_is_open_where_the_api_asks_for_a_key():
    async with visitor(application(keys=("secret",))) as client:
        assert (await client.get("/v1/models")).status_code == 401
        for path in PATHS.values():
            assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize(("flags", "status"), [([], 200), (["--page"], 200), (["--no-page"], 404)])
async def test_a_flag_turns_it_off(flags, status):
    parsed = vars(_parser().parse_args(["serve", *flags]))
    del parsed["command"]
    process = _Process(load_settings(parsed))
    async with visitor(process._uvicorn_config().app) as client:
        assert (await client.get("/")).status_code == status


# ---- the files ---------------------------------------------------------------------------------


def test_what_the_files_name_is_there():
    html = TEXTS["index.html"]
    named = set(re.findall(r'(?:href|src)="page/([^"]+)"', html))
    assert {"main.js", "page.css", "icon.svg"} <= named
    for name in FILES:
        if name.endswith(".js"):
            named |= set(re.findall(r'from "\./([^"]+)"', TEXTS[name]))
    assert named | {"index.html"} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_nothing_comes_from_elsewhere(name):
    # The one address is a name that XML gives to SVG; nobody fetches it.
    text = TEXTS[name].replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"""https?://|@import|url\(|["'(]//""", text)


@pytest.mark.parametrize("name", ["index.html", "icon.svg"])
def test_nothing_stands_inline_that_the_policy_forbids(name):
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", TEXTS[name])
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", TEXTS[name], re.DOTALL)
    assert all("src=" in attributes and not inline for attributes, inline in scripts)


def test_ids_that_scripts_look_for_exist_once():
    ids = re.findall(r'\sid="([^"]+)"', TEXTS["index.html"])
    assert len(ids) == len(set(ids))
    wanted = set()
    for name in FILES:
        wanted |= set(re.findall(r'(?:byId|getElementById)\("([^"]+)"\)', TEXTS[name]))
    assert wanted
    assert wanted <= set(ids)


def test_an_installed_package_brings_every_file():
    root = FOLDER.parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["server"]
    assert {f"**/*{Path(name).suffix}" for name in FILES} <= set(patterns)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_scripts_keep_to_the_sizes_of_the_house(name):
    text = TEXTS[name]
    assert len(text.splitlines()) <= 400
    assert text.startswith("// ")
    starts = re.finditer(r"(?m)^ {0,2}[\w *]*\w+\(.*\{$", text)
    for start in starts:
        indent = re.match(" *", start[0])[0]
        body = text[start.start() :].split(f"\n{indent}}}\n")[0]
        assert len(body.splitlines()) <= 40, start[0]
