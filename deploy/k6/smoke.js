// A few answers, a few at once: all whole and within the promised times.

import { ask, common, everyAnswerWhole, ready, withinSlo } from './client.js';
import { settings } from './settings.js';
import { summaryOf } from './summary.js';

export const options = {
  ...common,
  scenarios: {
    smoke: {
      executor: 'per-vu-iterations',
      vus: settings.vus,
      iterations: settings.iterations,
      maxDuration: '5m',
    },
  },
  thresholds: { ...everyAnswerWhole, ...withinSlo },
};

export const setup = ready;
export default ask;
export const handleSummary = summaryOf('smoke', ['vus', 'iterations']);
