// Puts the page together: the form starts runs, runs fill views, the live figures look after themselves.

import { Detail } from "./detail.js";
import { asked, blame, offerLengths, titleOf, withoutDrafts } from "./form.js";
import { startLive } from "./live.js";
import { finalFacts, runningFacts, RunView } from "./run.js";
import { call, CallError } from "./stream.js";
import { compared } from "./verdict.js";

const USUAL_LONGEST = 8;

/** Everything of the document that the prompt side touches. */
function pageParts() {
  const ids = ["form", "runs", "problem", "verdict", "generate", "compare", "stop", "k", "key", "announcer"];
  const parts = Object.fromEntries(ids.map((id) => [id, document.getElementById(id)]));
  parts.keyRow = document.getElementById("key-row");
  parts.template = document.getElementById("run-template");
  parts.detail = new Detail(document.getElementById("detail"));
  return parts;
}

/** Runs at most one job at a time. A job may be stopped. */
class Desk {
  constructor(parts) {
    this.parts = parts;
    this.stopper = null;
  }

  async work(job) {
    if (this.stopper) return;
    this.stopper = new AbortController();
    this.setBusy(true);
    this.clear();
    try {
      await job(this.stopper.signal);
    } catch (problem) {
      if (problem.name !== "AbortError") this.showProblem(problem);
    } finally {
      this.stopper = null;
      this.setBusy(false);
    }
  }

  stop() {
    this.stopper?.abort();
  }

  setBusy(busy) {
    const { generate, compare, stop, runs } = this.parts;
    // The focus must not fall to the ground with the button that loses its use.
    const leaving = busy ? [generate, compare] : [stop];
    const hadFocus = leaving.includes(document.activeElement);
    generate.disabled = compare.disabled = busy;
    stop.disabled = !busy;
    runs.setAttribute("aria-busy", String(busy));
    if (hadFocus) (busy ? stop : generate).focus();
  }

  clear() {
    const { runs, verdict, problem, detail, form } = this.parts;
    detail.hide();
    runs.replaceChildren();
    verdict.hidden = problem.hidden = true;
    blame(form, null);
  }

  showProblem(problem) {
    if (!(problem instanceof CallError)) console.error(problem);
    const own = { message: "This page made a mistake; the console has it." };
    const said = problem instanceof CallError ? problem : own;
    const { problem: box, form, keyRow, key } = this.parts;
    const title = document.createElement("strong");
    title.textContent = said.status ? `Error ${said.status}` : "Error";
    box.replaceChildren(title, said.message, ...named(said.param, "field"), ...named(said.code, "code"));
    box.hidden = false;
    blame(form, said.param);
    if (said.status === 401) {
      keyRow.hidden = false;
      key.focus();
    }
  }

  showVerdict({ text, tone }) {
    const { verdict } = this.parts;
    verdict.textContent = text;
    verdict.dataset.tone = tone;
    verdict.hidden = false;
  }
}

function named(value, kind) {
  if (!value) return [];
  const code = document.createElement("code");
  code.textContent = `${kind} ${value}`;
  return [code];
}

/** Run one call into a view of its own; {tokens, end} once it ended. */
async function run(parts, request, signal) {
  const view = new RunView(parts.template, titleOf(request), parts.detail);
  view.say("waiting for the first token");
  parts.runs.append(view.element);
  try {
    const end = await follow(parts, view, request, signal);
    view.say("");
    return { view, tokens: view.tokens, end };
  } catch (problem) {
    view.say(problem.name === "AbortError" ? "stopped" : "failed");
    if (!view.tokens.length) view.element.remove();
    throw problem;
  }
}

async function follow(parts, view, request, signal) {
  const sent = performance.now();
  let first = null;
  for await (const event of call({ ...request, key: parts.key.value, signal })) {
    if (event.end) {
      view.appendTail(event.tail);
      view.showFacts(finalFacts(event.end, request.body.seed));
      return event.end;
    }
    first ??= performance.now();
    view.say("streaming");
    view.append(event.tokens);
    const seconds = (performance.now() - first) / 1000;
    view.showFacts(runningFacts(view.tokens.length, (first - sent) / 1000, seconds));
  }
  throw new CallError("The stream broke off before its end.");
}

async function generate(desk, parts, signal) {
  const { view, tokens } = await run(parts, asked(parts.form), signal);
  parts.announcer.textContent = `The answer has ${tokens.length} tokens: ${view.text}`;
}

/** The same call twice, one after the other: at once they would share the machine. */
async function compare(desk, parts, signal) {
  const request = asked(parts.form);
  const drafted = await run(parts, request, signal);
  const plain = await run(parts, withoutDrafts(request), signal);
  const found = compared(request.body, drafted, plain);
  if (found.parting !== null) for (const { view } of [drafted, plain]) view.markParting(found.parting);
  desk.showVerdict(found);
}

function start() {
  const parts = pageParts();
  const desk = new Desk(parts);
  const begin = (job) => desk.work((signal) => job(desk, parts, signal));
  parts.form.addEventListener("submit", (event) => {
    event.preventDefault();
    begin(generate);
  });
  parts.compare.addEventListener("click", () => begin(compare));
  parts.stop.addEventListener("click", () => desk.stop());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") parts.detail.owner ? parts.detail.hide() : desk.stop();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) begin(generate);
  });
  // What servers allow by default, until this one has said what it does.
  offerLengths(parts.k, USUAL_LONGEST);
  startLive((reading) => {
    if (reading.reached.length) offerLengths(parts.k, reading.reached.length);
  });
}

start();
