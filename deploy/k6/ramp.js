// Rising rates, one step after the other: the knee is the last one that keeps the SLO.
//
// Between two steps nothing arrives for a moment, so that a step does not inherit a queue. Rates
// past the knee are expected to miss; the first one has to keep the SLO.

import exec from 'k6/execution';
import { ask, common, ready } from './client.js';
import { settings } from './settings.js';
import { keptByStep, summaryOf } from './summary.js';

const { rates, step, rest, sloShare } = settings;
const byTheMinute = (rate) => Math.round(rate * 60);

const stairs = rates.flatMap((rate) => [
  { target: byTheMinute(rate), duration: '0s' },
  { target: byTheMinute(rate), duration: `${step}s` },
  { target: 0, duration: '0s' },
  { target: 0, duration: `${rest}s` },
]);

export const options = {
  ...common,
  scenarios: {
    ramp: {
      executor: 'ramping-arrival-rate',
      startRate: byTheMinute(rates[0]),
      timeUnit: '1m',
      stages: stairs,
      preAllocatedVUs: settings.maxVus,
    },
  },
  thresholds: {
    ...Object.assign({}, ...rates.map(keptByStep)),
    [`llm_slo_good{offered:${rates[0]}}`]: [`rate>=${sloShare}`],
    llm_truncated: ['rate==0'],
  },
};

export const setup = ready;

export default function () {
  const elapsed = (Date.now() - exec.scenario.startTime) / 1000;
  const now = Math.min(Math.floor(elapsed / (step + rest)), rates.length - 1);
  exec.vu.metrics.tags.offered = String(rates[now]);
  ask();
}

export const handleSummary = summaryOf('ramp', ['rates', 'step', 'rest', 'maxVus']);
