// One streamed chat completion as a user sees it, and what is measured of it. Knows no scenario.
//
// k6 buffers a streamed body whole, but takes the time of its first and last byte. The server holds
// the headers back until the first token, so these times are those of tokens:
//   TTFT = blocked + sending + waiting     (k6's `blocked` contains connecting and the handshake)
//   TPOT = receiving / (completion_tokens - 1)

import exec from 'k6/execution';
import http from 'k6/http';
import { sleep } from 'k6';
import { Counter, Rate, Trend } from 'k6/metrics';
import { settings } from './settings.js';

// Not declared as times, so that remote write leaves them in milliseconds, as their names say.
const ttft = new Trend('llm_ttft_ms');
const tpot = new Trend('llm_tpot_ms');
const e2e = new Trend('llm_e2e_ms');
const acceptanceLength = new Trend('llm_acceptance_length');
const tokens = new Counter('llm_tokens');
const sloGood = new Rate('llm_slo_good');
const truncated = new Rate('llm_truncated');
const failed = new Rate('llm_failed');
const cancelled = new Counter('llm_cancelled');

const TIMED_OUT = 1050; // k6's error code

const prompts = JSON.parse(open('./prompts.json'));

export const common = {
  summaryTrendStats: ['count', 'avg', 'med', 'p(95)', 'p(99)', 'max'],
  tags: { model: settings.model || 'default', speculation: settings.speculation },
};

export const everyAnswerWhole = {
  http_req_failed: ['rate==0'],
  llm_failed: ['rate==0'],
  llm_truncated: ['rate==0'],
};

export const withinSlo = { llm_slo_good: [`rate>=${settings.sloShare}`] };

// Waits until the server takes requests. For `setup`.
export function ready() {
  const end = Date.now() + settings.readySeconds * 1000;
  while (Date.now() < end) {
    const { status } = http.get(`${settings.url}/v1/models`, unjudged());
    if (status === 200) return;
    if (status !== 0 && status !== 503) throw new Error(`/v1/models answers ${status}`);
    sleep(0.5);
  }
  throw new Error(`${settings.url} did not become ready within ${settings.readySeconds} s`);
}

// Sum of a metric over the series whose labels contain `labels`; 0 where there are none.
export function scrape(name, labels = '') {
  const page = http.get(`${settings.url}/metrics`, unjudged()).body || '';
  return page.split('\n').reduce((sum, line) => {
    const [, series, set, value] = line.match(/^([\w:]+)(\{.*\})? (\S+)$/) || [];
    return series === name && (set || '').includes(labels) ? sum + Number(value) : sum;
  }, 0);
}

// Ask the next question and count the answer. For scenarios.
export function ask() {
  return answer(exec.scenario.iterationInTest);
}

// Ask question `turn` and count the answer. True when it came whole.
export function answer(turn) {
  const response = http.post(...call(turn, settings.maxTokens), {
    headers: headers(),
    timeout: settings.timeout * 1000,
    tags: { name: 'chat' },
  });
  const end = read(response);
  failed.add(!end.whole);
  truncated.add(response.status === 200 && !end.done);
  sloGood.add(end.whole && count(end, response.timings));
  return end.whole;
}

// Ask for a long answer and hang up after `ms`. A cancelled call is nobody's failure.
export function hangUp(ms, maxTokens) {
  const question = call(exec.scenario.iterationInTest, maxTokens);
  const response = http.post(...question, { ...unjudged(ms), headers: headers() });
  if (response.error_code === TIMED_OUT) cancelled.add(1);
}

// Record a whole answer's times and tokens; true when it kept both promises.
function count(end, timings) {
  const first = timings.blocked + timings.sending + timings.waiting;
  const gaps = end.tokens - 1;
  const pace = gaps > 0 ? timings.receiving / gaps : 0;
  ttft.add(first);
  e2e.add(first + timings.receiving);
  tokens.add(end.tokens);
  if (gaps > 0) tpot.add(pace);
  if (end.acceptanceLength) acceptanceLength.add(end.acceptanceLength);
  return first <= settings.ttftMs && pace <= settings.tpotMs;
}

// What stands at the end of the stream: the usage chunk, then [DONE]. An error stands in its place.
function read(response) {
  const events = (response.body || '').trimEnd().split(/\r?\n\r?\n/);
  const done = events.pop() === 'data: [DONE]';
  const last = done && events.length ? parsed(events.pop()) : {};
  const drafts = (last.metrics || {}).speculative_decoding || {};
  return {
    done,
    whole: response.status === 200 && Boolean(last.usage) && !last.error,
    tokens: (last.usage || {}).completion_tokens,
    acceptanceLength: drafts.mean_acceptance_length,
  };
}

function parsed(event) {
  try {
    return JSON.parse(event.replace(/^data: /, '')) || {};
  } catch {
    return {};
  }
}

function call(turn, maxTokens) {
  const body = {
    messages: [{ role: 'user', content: prompts[turn % prompts.length] }],
    max_tokens: maxTokens,
    temperature: settings.temperature,
    seed: settings.seed + turn,
    ignore_eos: settings.ignoreEos,
    stream: true,
    stream_options: { include_usage: true },
    speculation: settings.drafting,
  };
  if (settings.model) body.model = settings.model;
  return [`${settings.url}/v1/chat/completions`, JSON.stringify(body)];
}

function headers() {
  const sent = {
    'Content-Type': 'application/json',
    'x-slo-ttft-ms': String(settings.ttftMs),
    'x-slo-tpot-ms': String(settings.tpotMs),
  };
  if (settings.apiKey) sent.Authorization = `Bearer ${settings.apiKey}`;
  return sent;
}

// Parameters of a call that http_req_failed leaves out.
function unjudged(timeout = 5000) {
  return { responseCallback: null, timeout, headers: settings.apiKey ? headers() : {} };
}
