// The same few users for a long time: all answers whole and in time, and memory that stays.

import { Gauge } from 'k6/metrics';
import { ask, common, everyAnswerWhole, ready, scrape, withinSlo } from './client.js';
import { settings } from './settings.js';
import { summaryOf } from './summary.js';

const grown = new Gauge('llm_server_memory_ratio');
const MEMORY = 'process_resident_memory_bytes';

export const options = {
  ...common,
  scenarios: {
    soak: {
      executor: 'constant-vus',
      vus: settings.vus,
      duration: settings.duration || '10m',
      gracefulStop: '60s',
    },
  },
  thresholds: {
    ...everyAnswerWhole,
    ...withinSlo,
    llm_server_memory_ratio: [`value<${settings.memoryRatio}`],
  },
};

export function setup() {
  ready();
  return { before: scrape(MEMORY) };
}

export default ask;

export function teardown({ before }) {
  if (before) grown.add(scrape(MEMORY) / before);
}

export const handleSummary = summaryOf('soak', ['vus', 'duration', 'memoryRatio']);
