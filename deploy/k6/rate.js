// Requests arrive at one rate, however slow the answers are: a gate on the share within SLO.

import { ask, common, everyAnswerWhole, ready, withinSlo } from './client.js';
import { settings } from './settings.js';
import { summaryOf } from './summary.js';

export const options = {
  ...common,
  scenarios: {
    rate: {
      executor: 'constant-arrival-rate',
      // k6 takes whole numbers only; by the minute, half a request a second is one.
      rate: Math.round(settings.rate * 60),
      timeUnit: '1m',
      duration: settings.duration || '60s',
      preAllocatedVUs: settings.maxVus,
    },
  },
  thresholds: { ...everyAnswerWhole, ...withinSlo, dropped_iterations: ['count==0'] },
};

export const setup = ready;
export default ask;
export const handleSummary = summaryOf('rate', ['rate', 'duration', 'maxVus']);
