// What one call looks like on the page: its tokens as they come, and its figures. Sends nothing.

import { count, made, measure, ORIGINS, percent } from "./words.js";

const AT_BOTTOM_PX = 30;

/** A heading, the coloured tokens, shares and facts. `detail` shows what a token is. */
export class RunView {
  constructor(template, title, detail) {
    this.element = template.content.cloneNode(true).firstElementChild;
    this.detail = detail;
    this.tokens = [];
    this.spans = [];
    this.records = new WeakMap();
    this.box = this.element.querySelector(".tokens");
    this.box.setAttribute("aria-label", `Tokens, ${title}`);
    this.element.querySelector("h3").textContent = title;
    this.listen();
  }

  get text() {
    return this.spans.map((span) => span.textContent).join("");
  }

  say(state) {
    this.element.querySelector(".state").textContent = state;
  }

  append(tokens) {
    const follow = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < AT_BOTTOM_PX;
    const spans = tokens.map((token) => this.spanOf(token));
    this.tokens.push(...tokens);
    this.spans.push(...spans);
    this.box.append(...spans);
    if (follow) this.box.scrollTop = this.box.scrollHeight;
  }

  /** Text that belongs to no token of its own: the sign for a character left unfinished. */
  appendTail(text) {
    this.spans.findLast((span) => !this.records.get(span).isEnd)?.append(text);
  }

  spanOf(token) {
    const span = made("span", "token", token.text);
    span.dataset.origin = token.origin;
    const sign = signOf(token);
    if (sign) Object.assign(span.dataset, { sign });
    span.setAttribute("role", "option");
    span.setAttribute("aria-selected", "false");
    // Only one token is a stop of the Tab key; arrows go on from there.
    span.tabIndex = this.spans.length || this.box.firstChild ? -1 : 0;
    if (token.text.trim() === "") span.setAttribute("aria-label", sign || "blank");
    this.records.set(span, token);
    return span;
  }

  listen() {
    const pointed = (event) => event.target.closest(".token");
    this.box.addEventListener("pointerover", (event) => pointed(event) && this.show(pointed(event)));
    this.box.addEventListener("pointerleave", () => this.hide());
    this.box.addEventListener("focusin", (event) => pointed(event) && this.focus(pointed(event)));
    this.box.addEventListener("focusout", () => this.hide());
    this.box.addEventListener("scroll", () => this.hide(), { passive: true });
    this.box.addEventListener("keydown", (event) => this.move(event));
  }

  focus(span) {
    for (const one of this.box.querySelectorAll('[tabindex="0"]')) one.tabIndex = -1;
    span.tabIndex = 0;
    this.show(span);
    span.setAttribute("aria-selected", "true");
  }

  move(event) {
    const at = this.spans.indexOf(document.activeElement);
    const last = this.spans.length - 1;
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last }[event.key];
    if (at < 0 || next === undefined) return;
    event.preventDefault();
    this.spans[Math.min(Math.max(next, 0), last)].focus();
  }

  /** The card of a token, and a shade over all tokens that were published with it. */
  show(span) {
    this.hide();
    const token = this.records.get(span);
    for (const one of this.spans) {
      one.classList.toggle("alike", this.records.get(one).round === token.round);
    }
    this.detail.show(span, token);
  }

  hide() {
    this.detail.hide();
    for (const one of this.box.querySelectorAll(".alike")) one.classList.remove("alike");
    const selected = this.box.querySelectorAll('[aria-selected="true"]');
    for (const one of selected) one.setAttribute("aria-selected", "false");
  }

  /** Mark the token from which on two runs differ. */
  markParting(index) {
    this.spans[index]?.classList.add("parts");
  }

  /** `facts` as [term, value, note] each, after the counts by origin. */
  showFacts(facts) {
    const shares = this.shares();
    this.element.querySelector(".shares").replaceChildren(...shares.map(shareBar));
    const counted = shares.map(({ origin, times, share }) => [ORIGINS[origin].name, count(times), percent(share)]);
    const list = this.element.querySelector(".facts");
    list.replaceChildren(...[...facts, ...counted].map(factRow));
  }

  shares() {
    return Object.keys(ORIGINS)
      .map((origin) => ({ origin, times: this.tokens.filter((token) => token.origin === origin).length }))
      .filter(({ times }) => times > 0)
      .map((one) => ({ ...one, share: one.times / this.tokens.length }));
  }
}

/** A sign for a token that would not be seen: line breaks, a part of a character, the end. */
function signOf(token) {
  if (token.isEnd) return "end";
  if (token.text === "") return "◦";
  return token.text.trim() === "" ? "↵".repeat(token.text.split("\n").length - 1) : "";
}

function shareBar({ origin, share }) {
  const bar = made("i");
  bar.dataset.origin = origin;
  bar.style.setProperty("--share", share);
  return bar;
}

function factRow([term, value, note]) {
  const row = made("div");
  const shown = made("dd", "", value);
  if (note) shown.append(" ", made("small", "", note));
  row.append(made("dt", "", term), shown);
  return row;
}

/** Facts of a call that goes on: by this page's clock, from its first token. */
export function runningFacts(tokens, waited, seconds) {
  return [
    ["tokens", count(tokens), ""],
    ["tokens/s", seconds > 0 ? measure((tokens - 1) / seconds) : "–", "so far"],
    ["first token", waited === null ? "–" : `${measure(waited * 1000)} ms`, "seen here"],
  ];
}

/** Facts of a call that ended, by the server's own account. */
export function finalFacts(end, seed) {
  const { metrics, usage } = end;
  const drafts = metrics.speculative_decoding;
  const facts = [
    ["tokens", count(usage.completion_tokens), end.finish],
    ["tokens/s", measure(metrics.tokens_per_second), ""],
    ["first token", `${measure(metrics.time_to_first_token_ms)} ms`, ""],
  ];
  if (drafts) facts.push(...draftFacts(drafts));
  return [...facts, ["seed", String(seed), ""]];
}

function draftFacts(drafts) {
  if (!drafts.num_spec_steps) return [["acceptance length", "–", "no drafts"]];
  const note = `${count(drafts.num_accepted_draft_tokens)} of ${count(drafts.num_draft_tokens)}`;
  return [
    ["acceptance length", drafts.mean_acceptance_length.toFixed(2), ""],
    ["drafts accepted", percent(drafts.draft_acceptance_rate), note],
  ];
}
