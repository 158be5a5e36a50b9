// What a run is told by environment variables (`k6 run -e NAME=VALUE`). Throws on what makes no
// sense, so that a misspelt number stops the run. Knows no metric and makes no call.

function number(name, fallback, least = 0) {
  const value = __ENV[name] ? Number(__ENV[name]) : fallback;
  if (!Number.isFinite(value) || value < least) {
    throw new Error(`${name}=${__ENV[name]}: not a number of at least ${least}`);
  }
  return value;
}

function count(name, fallback) {
  const value = number(name, fallback, 1);
  if (!Number.isInteger(value)) throw new Error(`${name}=${__ENV[name]}: not a whole number`);
  return value;
}

function rates(name, fallback) {
  const values = (__ENV[name] || fallback).split(',').map(Number);
  if (!values.every((value, i) => value > (values[i - 1] || 0))) {
    throw new Error(`${name}=${__ENV[name]}: not rising numbers`);
  }
  return values;
}

function speculation(text) {
  if (text === 'on' || text === 'off') return { enabled: text === 'on' };
  if (/^\d+$/.test(text)) return { k: Number(text) };
  throw new Error(`SPECULATION=${text}: not on, off or a draft length`);
}

function flag(name, fallback) {
  const text = __ENV[name] || fallback;
  if (text !== 'on' && text !== 'off') throw new Error(`${name}=${text}: not on or off`);
  return text === 'on';
}

const named = __ENV.SPECULATION || 'on';

// Times in milliseconds where the name says ms, else in seconds; rates in requests per second.
export const settings = Object.freeze({
  url: (__ENV.BASE_URL || 'http://127.0.0.1:8000').replace(/\/+$/, ''),
  model: __ENV.MODEL || null, // null: the server's own
  apiKey: __ENV.API_KEY || null,
  speculation: named,
  drafting: speculation(named),
  temperature: number('TEMPERATURE', 1),
  maxTokens: count('MAX_TOKENS', 64),
  ignoreEos: flag('IGNORE_EOS', 'on'), // answers of equal length make runs comparable
  seed: number('SEED', 1),
  ttftMs: number('TTFT_MS', 250),
  tpotMs: number('TPOT_MS', 25),
  sloShare: number('SLO_SHARE', 0.95),
  timeout: number('TIMEOUT', 60),
  readySeconds: number('READY_SECONDS', 60),
  summary: __ENV.SUMMARY || null, // file that gets the summary as JSON
  rate: number('RATE', 2, 1 / 60),
  rates: rates('RATES', '2,4,6,8,10,12'),
  step: number('STEP', 15, 1),
  rest: number('REST', 3),
  duration: __ENV.DURATION || null,
  vus: count('VUS', 4),
  maxVus: count('MAX_VUS', 64),
  iterations: count('ITERATIONS', 10),
  cancelMs: number('CANCEL_MS', 400, 4),
  drainSeconds: number('DRAIN_SECONDS', 10),
  memoryRatio: number('MEMORY_RATIO', 1.25, 1),
});
