"""What a person does on the page, and what they read there."""

from playwright.sync_api import expect


def fill(page, **values):
    """Set fields of the form by name."""
    for name, value in values.items():
        field = page.locator(f"#form [name={name}]")
        if name == "mode":
            page.get_by_text(value, exact=True).click()
        elif name in {"k", "verifier", "proposer"}:
            field.select_option(value)
        else:
            field.fill(str(value))


def generate(page):
    """Ask, and wait for the end."""
    page.locator("#generate").click()
    ended(page)


def ended(page):
    expect(page.locator("#generate")).to_be_enabled()


def spans(page, run=0):
    """The tokens of a run: text, origin and sign of each."""
    return (
        page.locator(".run")
        .nth(run)
        .locator(".token")
        .evaluate_all(
            "all => all.map(one => [one.textContent, one.dataset.origin, one.dataset.sign ?? ''])"
        )
    )


def facts(page, run=0):
    """The figures of a run by name."""
    rows = page.locator(".run").nth(run).locator(".facts > div")
    return dict(
        rows.evaluate_all("all => all.map(one => [...one.children].map(x => x.textContent))")
    )


def detail(page):
    """The card beside a token: its heading and its rows by name."""
    card = page.locator("#detail")
    expect(card).to_be_visible()
    names, values = card.locator("dt").all_inner_texts(), card.locator("dd").all_inner_texts()
    return card.locator(".quote").inner_text(), dict(zip(names, values, strict=True))
