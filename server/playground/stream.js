// One call of the API: sends a body, reads the stream, gives tokens. Knows no page.

import { PieceReader, spelledBytes } from "./pieces.js";

/** What the server, or the way to it, said instead of an answer. */
export class CallError extends Error {
  constructor(message, { status = null, param = null, code = null } = {}) {
    super(message);
    Object.assign(this, { status, param, code });
  }
}

/** Events of one call: {tokens} for each publication, then {tail, end}. `tail` is text that the last
 * token leaves unfinished, `end` has `finish`, `usage` and `metrics` of the last chunks.
 *
 * Throws CallError; an abort by `signal` throws AbortError. Leaving the loop closes the call. */
export async function* call({ path, body, key, signal }) {
  const response = await opened(path, body, key, signal);
  const reader = new TokenReader();
  const end = { finish: null, usage: null, metrics: null, done: false };
  for await (const data of eventsOf(response.body)) {
    // Read on to the very end: leaving now would look like a client that gave up.
    end.done ||= data === "[DONE]";
    if (end.done) continue;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new CallError(chunk.error.message, chunk.error);
    note(end, chunk);
    const choice = chunk.choices[0];
    if (choice) yield { tokens: reader.tokens(choice) };
  }
  if (!end.done) throw new CallError("The stream broke off before its end.");
  yield { tail: reader.tail(), end };
}

async function opened(path, body, key, signal) {
  const headers = { "content-type": "application/json" };
  if (key) headers.authorization = `Bearer ${key}`;
  const request = { method: "POST", headers, body: JSON.stringify(body), signal };
  const response = await reached(path, request);
  if (response.ok) return response;
  // A proxy in between answers in its own words.
  const said = (await response.json().catch(() => ({}))).error ?? {};
  const message = said.message ?? `The server answered ${response.status}.`;
  throw new CallError(message, { ...said, status: response.status });
}

async function reached(path, request) {
  try {
    return await fetch(path, request);
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new CallError("The server cannot be reached.");
  }
}

function note(end, chunk) {
  end.finish = chunk.choices[0]?.finish_reason ?? end.finish;
  end.usage = chunk.usage ?? end.usage;
  end.metrics = chunk.metrics ?? end.metrics;
}

/** The data of each server-sent event. A chunk of bytes may end anywhere, also inside a character. */
async function* eventsOf(stream) {
  let held = "";
  for await (const text of textsOf(stream)) {
    const events = (held + text).split("\n\n");
    held = events.pop();
    for (const event of events) if (event.startsWith("data: ")) yield event.slice("data: ".length);
  }
}

// Not every browser can loop over a stream of a response.
async function* textsOf(stream) {
  const decoder = new TextDecoder();
  const reader = stream.getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield decoder.decode(value, { stream: true });
    }
  } finally {
    // After an abort there is nothing left to cancel, and that is no news.
    reader.cancel().catch(() => {});
  }
}

/** Tokens of one choice, from its chunks in order. A chunk is what one round published. */
class TokenReader {
  constructor() {
    this.pieces = new PieceReader();
    this.round = 0;
  }

  tokens(choice) {
    const ids = choice.token_ids ?? [];
    const ends = choice.finish_reason === "stop" && choice.stop_reason === null;
    const tokens = ids.map((id, index) => this.token(choice, id, index, ends && index === ids.length - 1));
    if (ids.length) this.round += 1;
    return tokens;
  }

  token(choice, id, index, isEnd) {
    const { bytes, logprob } = spelling(choice.logprobs, index);
    // The end token is no part of the text, so that its name must not go into it.
    const text = isEnd ? "" : this.pieces.next(bytes);
    const place = { round: this.round, place: index, published: choice.token_ids.length };
    return { id, bytes, text, isEnd, logprob, ...place, ...choice.provenance[index] };
  }

  tail() {
    return this.pieces.end();
  }
}

/** Bytes and log-probability of one token, from chat's rows or the columns of completions. */
function spelling(logprobs, index) {
  if (logprobs.content) {
    const row = logprobs.content[index];
    return { bytes: Uint8Array.from(row.bytes), logprob: row.logprob };
  }
  return { bytes: spelledBytes(logprobs.tokens[index]), logprob: logprobs.token_logprobs[index] };
}
