"""The prompt box over the real server: tokens by origin, their p and q, stop, compare, errors."""

import json

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.steps import detail, ended, facts, fill, generate, spans

PROMPT = "What does os.path.join do?"
BEGINNING = "Return the name of the"
ASKED = {"temperature": 1, "max_tokens": 80, "seed": 7}


def told(server_url, mode, *, k=4, **changes):
    """What the API itself says to the same call, not streamed: text and tokens."""
    body = ASKED | {
        "return_provenance": True,
        "return_token_ids": True,
        "logprobs": True if mode == "chat" else 0,
        "speculation": {"k": k, "verifier": "token"},
    }
    if mode == "chat":
        path, body["messages"] = "chat/completions", [{"role": "user", "content": PROMPT}]
    else:
        path, body["prompt"] = "completions", BEGINNING
    answer = httpx.post(f"{server_url}/v1/{path}", json=body | changes, timeout=60)
    assert answer.status_code == 200
    return answer.json()


def text_of(choice):
    return choice["message"]["content"] if "message" in choice else choice["text"]


@pytest.mark.parametrize(("mode", "label"), [("chat", "Chat"), ("completion", "Completion")])
def test_every_token_shows_its_origin(page, server_url, mode, label):
    prompt = PROMPT if mode == "chat" else BEGINNING
    fill(page, mode=label, prompt=prompt, k="4", verifier="token", **ASKED)
    generate(page)
    said = told(server_url, mode)
    choice = said["choices"][0]
    shown = spans(page)
    assert "".join(text for text, _, _ in shown) == text_of(choice)
    origins = [origin for _, origin, _ in shown]
    assert origins == [each["origin"] for each in choice["provenance"]]
    assert {"draft", "correction", "bonus", "plain"} == set(origins)
    named = facts(page)
    drafts = said["metrics"]["speculative_decoding"]
    assert named["acceptance length"] == f"{drafts['mean_acceptance_length']:.2f}"
    accepted, drafted = drafts["num_accepted_draft_tokens"], drafts["num_draft_tokens"]
    assert named["drafts accepted"].endswith(f"{accepted} of {drafted}")
    share = 100 * origins.count("draft") / len(origins)
    assert named["accepted draft"] == f"{origins.count('draft')} {share:.0f} %"
    assert named["tokens"].startswith(f"{len(origins)} ")
    assert float(named["tokens/s"].replace(",", "")) > 0
    assert named["first token"].endswith(" ms")
    assert named["seed"] == "7"


def test_origins_differ_by_more_than_colour(page):
    fill(page, prompt=PROMPT, k="4", verifier="token", **ASKED)
    generate(page)
    styles = {}
    for origin in ("draft", "correction", "bonus", "plain"):
        token = page.locator(f".run .token[data-origin={origin}]").first
        styles[origin] = token.evaluate(
            """one => { const style = getComputedStyle(one);
                       return [style.borderBottomStyle, style.backgroundColor]; }"""
        )
    assert len({line for line, _ in styles.values()}) == 4
    assert len({colour for _, colour in styles.values()}) == 4


def test_a_token_tells_its_p_and_q(page, server_url):
    fill(page, prompt=PROMPT, k="4", verifier="token", **ASKED)
    generate(page)
    choice = told(server_url, "chat")["choices"][0]
    origins = [each["origin"] for each in choice["provenance"]]
    drafts = [at for at, origin in enumerate(origins) if origin == "draft"]
    # The draft of which the two models think most differently: p and q cannot be mistaken.
    apart = max(drafts, key=lambda at: distance(choice["provenance"][at]))
    for origin, at in (("draft", apart), ("correction", origins.index("correction"))):
        page.locator(".run .token").nth(at).hover()
        quote, rows = detail(page)
        known = choice["provenance"][at]
        assert quote == json.dumps(choice["logprobs"]["content"][at]["token"])
        assert rows["token id"] == str(choice["token_ids"][at])
        assert rows["position"].startswith(f"{known['position']},")
        if origin == "draft":
            assert float(rows["p (target)"]) == pytest.approx(known["p"], rel=0.05, abs=5e-4)
            assert float(rows["q (draft)"]) == pytest.approx(known["q"], rel=0.05, abs=5e-4)
        else:
            assert rows["q (draft)"] == "not drafted"
    page.locator("h1").hover()
    expect(page.locator("#detail")).to_be_hidden()


def test_the_keyboard_reaches_every_token(page):
    fill(page, prompt=PROMPT, k="4", max_tokens=20, temperature=0)
    generate(page)
    tokens = page.locator(".run .token")
    assert page.locator(".run .token[tabindex='0']").count() == 1
    tokens.first.focus()
    first, _ = detail(page)
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(1)).to_be_focused()
    assert detail(page)[0] != first
    page.keyboard.press("End")
    expect(tokens.last).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(tokens.last).to_be_focused()
    page.keyboard.press("Home")
    expect(tokens.first).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#detail")).to_be_hidden()


def test_the_end_of_the_text_is_a_token_without_text(page, server_url):
    # The end token is made certain, which no chance can change.
    end = 1
    said = told(server_url, "chat", seed=3, max_tokens=200, logit_bias={str(end): 12})
    assert said["choices"][0]["finish_reason"] == "stop"
    page.route("**/v1/chat/completions", biased(end))
    fill(page, prompt=PROMPT, k="4", verifier="token", temperature=1, max_tokens=200, seed=3)
    generate(page)
    shown = spans(page)
    assert shown[-1][0] == ""
    assert shown[-1][2] == "end"
    assert "".join(text for text, _, _ in shown) == text_of(said["choices"][0])
    assert facts(page)["tokens"].endswith(" stop")


def distance(known):
    return abs(known["p"] - known["q"])


def biased(token):
    def pass_on(route):
        body = route.request.post_data_json | {"logit_bias": {str(token): 12}}
        route.continue_(post_data=json.dumps(body))

    return pass_on


STOP_AT_SIX_TOKENS = """
new MutationObserver((_, observer) => {
  if (document.querySelectorAll(".run .token").length < 6) return
  observer.disconnect()
  document.querySelector("#stop").click()
}).observe(document.body, {childList: true, subtree: true})
"""


def test_stop_ends_the_call(page):
    fill(page, prompt=PROMPT, temperature=0, max_tokens=900, k="0")
    # Clicked from within the page: for a click from here the answer may be over.
    page.evaluate(STOP_AT_SIX_TOKENS)
    page.locator("#generate").click()
    expect(page.locator(".run .state")).to_have_text("stopped")
    ended(page)
    assert 5 < len(spans(page)) < 900
    expect(page.locator("#problem")).to_be_hidden()
    expect(page.locator("#load")).to_have_text("0 / 0")


@pytest.mark.parametrize(
    ("temperature", "verifier", "note"),
    [
        (1, "shared-noise", ", as they must be."),
        (0, "", ", as they must be."),
        (1, "token", "two samples of one law"),
    ],
)
def test_two_runs_are_compared(page, temperature, verifier, note):
    fill(page, prompt=PROMPT, temperature=temperature, max_tokens=40, seed=11)
    fill(page, verifier=verifier, k="4")
    page.locator("#compare").click()
    ended(page)
    expect(page.locator("#verdict")).to_contain_text(note)
    expect(page.locator("#verdict")).to_contain_text(" tokens/s against ")
    expect(page.locator(".run h3")).to_have_count(2)
    drafted, plain = spans(page, 0), spans(page, 1)
    assert {origin for _, origin, _ in plain} == {"plain"}
    assert "draft" in {origin for _, origin, _ in drafted}
    same = [text for text, _, _ in drafted] == [text for text, _, _ in plain]
    assert same == (verifier != "token")
    assert page.locator(".token.parts").count() == (0 if same else 2)


def test_an_error_is_shown_with_its_field(page):
    page.complaints.expected = ("status of 400",)
    fill(page, temperature=3)
    generate(page)
    problem = page.locator("#problem")
    expect(problem).to_contain_text("Error 400")
    expect(problem).to_contain_text("less than or equal to 2")
    expect(problem).to_contain_text("field temperature")
    field = page.locator("[name=temperature]")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.locator(".run")).to_have_count(0)
    fill(page, temperature=1, max_tokens=2)
    generate(page)
    expect(problem).to_be_hidden()
    assert field.get_attribute("aria-invalid") is None


def test_a_stream_that_breaks_is_an_error(page):
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=200, content_type="text/event-stream", body=""),
    )
    generate(page)
    expect(page.locator("#problem")).to_contain_text("broke off")
    expect(page.locator("#generate")).to_be_enabled()


def test_a_server_that_cannot_be_reached_is_an_error(page):
    page.complaints.expected = ("net::ERR_FAILED",)
    page.route("**/v1/chat/completions", lambda route: route.abort())
    generate(page)
    expect(page.locator("#problem")).to_contain_text("cannot be reached")
