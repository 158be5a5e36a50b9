// The card beside a token: what it is, where it came from, and both models' probability of it.

import { made, ORIGINS, probability } from "./words.js";

const GAP = 6;

/** One card for the whole page; it moves to the token that is pointed at or has the focus. */
export class Detail {
  constructor(element) {
    this.element = element;
    this.owner = null;
  }

  show(span, token) {
    this.hide();
    this.owner = span;
    span.setAttribute("aria-describedby", this.element.id);
    span.classList.add("shown");
    this.element.replaceChildren(...content(token));
    this.element.hidden = false;
    this.place(span.getClientRects()[0] ?? span.getBoundingClientRect());
  }

  hide() {
    this.element.hidden = true;
    this.owner?.classList.remove("shown");
    this.owner?.removeAttribute("aria-describedby");
    this.owner = null;
  }

  /** Below the token, or above it where there is no room; always inside the window. */
  place(anchor) {
    const { width, height } = this.element.getBoundingClientRect();
    const below = anchor.bottom + GAP;
    const fits = below + height <= window.innerHeight - GAP;
    const top = fits ? below : Math.max(GAP, anchor.top - GAP - height);
    const left = Math.min(Math.max(GAP, anchor.left), Math.max(GAP, window.innerWidth - width - GAP));
    this.element.style.setProperty("--x", `${left}px`);
    this.element.style.setProperty("--y", `${top}px`);
  }
}

function content(token) {
  const { name, what } = ORIGINS[token.origin];
  const facts = made("dl");
  for (const [term, value] of factsOf(token)) facts.append(made("dt", "", term), made("dd", "", value));
  return [made("div", "quote", quoted(token)), made("div", "what", `${name}. ${what}`), facts];
}

function factsOf(token) {
  const drafted = token.p !== null;
  return [
    ["token id", String(token.id)],
    ["position", `${token.position}, with the prompt`],
    ["p (target)", drafted ? probability(token.p) : "not tested: the target drew it"],
    ["q (draft)", drafted ? probability(token.q) : "not drafted"],
    ...(drafted && token.q > 0 ? [["p / q", (token.p / token.q).toPrecision(3)]] : []),
    ["model's own", `${probability(Math.exp(token.logprob))}, before temperature`],
    ["publication", `${token.round + 1}, token ${token.place + 1} of ${token.published}`],
  ];
}

function quoted(token) {
  if (token.isEnd) return "end of the text";
  if (token.text === "") return `part of a character: bytes ${hex(token.bytes)}`;
  return JSON.stringify(token.text);
}

function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
}
