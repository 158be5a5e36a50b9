"""A real server process with the embedded pair, and a headless Chromium that must stay content."""

import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.oracles.tools import find_tool

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_MS = 20_000
# Batch-invariant, so that two runs of one text are equal to the bit and not only almost always.
SERVE = (
    *("serve", "--port", "0", "--threads", "1", "--batch-invariant"),
    *("--profile-seconds", "1", "--cost-cache", "none", "--log-level", "warning"),
)
WIDE = {"width": 1320, "height": 960}


@pytest.fixture(scope="session")
def server_url():
    """The address of a server process."""
    command = [sys.executable, "-m", "server.cli", *SERVE]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            announced = process.stdout.readline()
            assert " at http://" in announced
            yield announced.split()[-1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


# Not for the session: while it lives, its event loop counts as running in this thread, and other
# tests could start none.
@pytest.fixture(scope="package")
def chromium():
    path = find_tool("chromium")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


class Complaints:
    """What a page said on its console, what broke, and what it wanted from elsewhere."""

    def __init__(self, origin):
        self.origin = origin
        self.found = []
        self.expected = ()

    def watch(self, page):
        page.on("console", lambda said: self._note(said.type, said.text))
        page.on("pageerror", lambda problem: self._note("broke", str(problem)))
        page.on("request", lambda asked: self._asked(asked.url))

    def _note(self, kind, text):
        if kind in {"error", "warning", "broke"}:
            self.found.append(f"{kind}: {text}")

    def _asked(self, url):
        if not url.startswith(f"{self.origin}/"):
            self.found.append(f"asked for {url}")

    def unexpected(self):
        return [each for each in self.found if not any(part in each for part in self.expected)]


@pytest.fixture
def visit(chromium):
    """Opens the page of a server; afterwards nothing may have gone wrong but what was expected."""

    @contextmanager
    def open_page(url, **options):
        context = chromium.new_context(**({"viewport": WIDE} | options))
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.complaints = Complaints(url)
        page.complaints.watch(page)
        try:
            page.goto(url)
            yield page
            assert page.complaints.unexpected() == []
        finally:
            context.close()

    return open_page


@pytest.fixture
def page(visit, server_url):
    """The page of the real server, once it shows the server's figures."""
    with visit(server_url) as page:
        expect(page.locator("#pulse")).to_have_text("live")
        yield page
