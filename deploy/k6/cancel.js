// Many callers hang up early. Neighbours must not notice, and nothing may stay behind: afterwards
// the server's gauges are back at 0 and it answers.

import exec from 'k6/execution';
import { check, sleep } from 'k6';
import { answer, ask, common, everyAnswerWhole, hangUp, ready, scrape } from './client.js';
import { settings } from './settings.js';
import { summaryOf } from './summary.js';

const { vus, iterations, cancelMs, drainSeconds } = settings;
const GAUGES = ['fencepost_requests_running', 'fencepost_requests_waiting'];
const LONG = 1024; // tokens; nobody waits for them

export const options = {
  ...common,
  teardownTimeout: `${drainSeconds + settings.timeout}s`,
  scenarios: {
    storm: { executor: 'per-vu-iterations', exec: 'storm', vus: 4 * vus, iterations },
    neighbours: { executor: 'per-vu-iterations', exec: 'neighbour', vus: 1, iterations: 5 },
  },
  thresholds: { ...everyAnswerWhole, llm_cancelled: ['count>0'], checks: ['rate==1'] },
};

export function setup() {
  ready();
  return { aborted: aborted() };
}

// At moments spread evenly up to CANCEL_MS: in the queue, in the prefill, and while decoding.
export function storm() {
  const turn = exec.scenario.iterationInTest;
  hangUp((cancelMs * (1 + (turn % 16))) / 16, LONG);
}

export const neighbour = ask;

export function teardown({ aborted: before }) {
  const end = Date.now() + drainSeconds * 1000;
  while (busy() && Date.now() < end) sleep(0.1);
  check(null, {
    'running and waiting are back at 0': () => !busy(),
    'the server counted hang-ups': () => aborted() > before,
    'a request after the storm is answered': () => answer(0),
  });
}

function busy() {
  return GAUGES.some((name) => scrape(name) !== 0);
}

function aborted() {
  return scrape('fencepost_requests_total', 'outcome="abort"');
}

export const handleSummary = summaryOf('cancel', ['vus', 'iterations', 'cancelMs']);
