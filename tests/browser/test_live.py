"""The live figures: they read /metrics as it is, and move with what the server does."""

import httpx
import pytest
from playwright.sync_api import expect
from prometheus_client.parser import text_string_to_metric_families

from tests.browser.conftest import WIDE
from tests.browser.steps import fill, generate

DASH = "\N{EN DASH}"


def counters(text, name):
    """Samples of a counter as [labels, value], by the client library's own parser."""
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    ]


def read(page, *texts):
    """Readings of metric pages by the page's own code; what happened between the first two too."""
    return page.evaluate(
        """async (texts) => {
          const { between, readMetrics } = await import("/page/metrics.js");
          const readings = texts.map(readMetrics);
          return readings.length > 1 ? [readings, between(...readings, 2)] : [readings, null];
        }""",
        list(texts),
    )


def test_figures_move_with_traffic(page):
    longest = page.locator("#k option")
    expect(longest).to_have_count(11)  # auto, 0 to 8, off
    fill(page, temperature=0, max_tokens=120, k="4")
    generate(page)
    expect(page.locator("#speed-minute")).to_contain_text("last minute")
    expect(page.locator("#k-minute")).to_contain_text("last minute")
    expect(page.locator("#alpha li")).to_have_count(8)
    expect(page.locator("#ks li")).to_have_count(9)
    expect(page.locator("#alpha li .value").first).not_to_have_text(DASH)
    expect(page.locator("#alpha li .value").nth(7)).to_have_text(DASH)
    expect(page.locator("#goodput")).to_contain_text("%")
    expect(page.locator("#speed-spark polyline")).not_to_have_count(0)
    share = page.locator("#alpha li .fill").first
    before = share.evaluate("one => one.clientHeight")
    assert 0 < before <= share.evaluate("one => one.parentElement.clientHeight")
    reached = page.locator("#alpha li .count").first.inner_text()
    generate(page)
    expect(page.locator("#alpha li .count").first).not_to_have_text(reached)


def test_the_text_format_is_read_as_the_client_library_reads_it(page, server_url):
    before = httpx.get(f"{server_url}/metrics").text
    fill(page, temperature=1, max_tokens=60, k="3")
    generate(page)
    after = httpx.get(f"{server_url}/metrics").text
    (first, second), passed = read(page, before, after)
    for text, reading in ((before, first), (after, second)):
        for key in ("reached", "accepted"):
            sums = [0.0] * 8
            for labels, value in counters(text, f"fencepost_spec_{key}_total"):
                sums[int(labels["position"])] += value
            assert reading[key] == sums
        committed = sum(v for _, v in counters(text, "fencepost_tokens_committed_total"))
        assert reading["committed"] == committed
        rounds = sum(v for _, v in counters(text, "fencepost_controller_k_count"))
        assert sum(reading["chosen"]) == reading["lengthCount"] == rounds
        met = {labels["outcome"]: v for labels, v in counters(text, "fencepost_request_slo_total")}
        assert reading["slo"] == met
    assert passed["committed"] == second["committed"] - first["committed"] > 0
    assert passed["speed"] == passed["committed"] / 2
    assert passed["requests"] == 1
    reached = [b - a for a, b in zip(first["reached"], second["reached"], strict=True)]
    accepted = [b - a for a, b in zip(first["accepted"], second["accepted"], strict=True)]
    survival = 1
    for position in range(3):
        alpha = accepted[position] / reached[position]
        survival *= alpha
        assert passed["positions"][position]["alpha"] == pytest.approx(alpha)
        assert passed["positions"][position]["survival"] == pytest.approx(survival)
    assert passed["positions"][3] == {"reached": 0, "alpha": None, "survival": None}


def test_labels_may_hold_anything(page):
    text = (
        "# HELP fencepost_build_info what\n"
        'fencepost_build_info{model="a \\"b\\" {c} \\\\ d\\ne",version="1 2"} 1.0\n'
        "fencepost_kv_cache_usage_ratio 0.25\nother_kv_cache_usage_ratio 1\n"
    )
    (reading,), _ = read(page, text)
    assert reading["model"] == 'a "b" {c} \\ d\ne'
    assert reading["version"] == "1 2"
    assert reading["usage"] == 0.25


def test_a_page_of_nothing_gives_no_figures(page):
    (empty, _), passed = read(page, "", "")
    assert empty["committed"] is None
    assert passed["gain"] is None
    assert passed["length"] is None
    assert passed["goodRequests"] is None
    assert passed["positions"] == []


def test_the_past_of_another_server_is_dropped_and_a_minute_is_kept(page):
    kept = page.evaluate(
        """async () => {
          const { History, readMetrics } = await import("/page/metrics.js");
          const reading = (tokens) => readMetrics(`fencepost_tokens_committed_total ${tokens}\\n`);
          const history = new History(60);
          const seen = [history.since()];
          for (let at = 0; at < 100; at += 1) history.add(at, reading(10 * at));
          seen.push(history.since().committed, history.since(1).committed, history.steps().length);
          history.add(100, reading(5));
          seen.push(history.since());
          history.add(101, reading(25));
          seen.push(history.since().speed);
          return seen;
        }"""
    )
    assert kept == [None, 600, 10, 60, None, 20]


def test_a_server_that_is_gone_is_said_so(page):
    page.complaints.expected = ("net::ERR_FAILED",)
    page.route("**/metrics", lambda route: route.abort())
    expect(page.locator("#pulse")).to_have_attribute("data-state", "lost")
    expect(page.locator("main")).to_have_class("stale")
    page.unroute("**/metrics")
    expect(page.locator("#pulse")).to_have_text("live")


# ---- looks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [320, 390, 768, 1320])
def test_no_width_scrolls_sideways(visit, server_url, width):
    with visit(server_url, viewport={"width": width, "height": 800}) as page:
        fill(page, max_tokens=60, k="4")
        generate(page)
        expect(page.locator("#alpha li")).to_have_count(8)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(visit, server_url, scheme):
    with visit(server_url, viewport=WIDE, color_scheme=scheme) as page:
        fill(page, max_tokens=80, k="4", seed=7, temperature=1)
        generate(page)
        page.locator(".run .token").nth(2).hover()
        found = page.locator(
            "h1, h2, .aside, .figure, label, .token, button:enabled, .facts *, .detail *"
        ).evaluate_all(
            """all => all.filter(one => one.textContent.trim()).map(one => {
              let ground = one;
              const clear = (each) => getComputedStyle(each).backgroundColor === "rgba(0, 0, 0, 0)";
              while (clear(ground)) ground = ground.parentElement;
              return [one.className || one.tagName, getComputedStyle(one).color,
                      getComputedStyle(ground).backgroundColor];
            })"""
        )
    assert len(found) > 50
    assert [each for each in found if contrast(*each[1:]) < 4.5] == []


def contrast(*colours):
    """The ratio of WCAG 2.2 between two colours as CSS writes them."""
    low, high = sorted(map(luminance, colours))
    return (high + 0.05) / (low + 0.05)


def luminance(colour):
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
