// Reads the text of /metrics and says what happened between two readings. Knows no page and no time.

const PREFIX = "fencepost_";
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** The few families that the page draws, as [name without prefix, labels, value] each. */
function* samples(text) {
  for (const line of text.split("\n")) {
    const end = line.search(/[{ ]/);
    const name = line.slice(PREFIX.length, end);
    if (!line.startsWith(PREFIX) || !Object.hasOwn(TAKERS, name)) continue;
    // A label's value may hold a brace or a blank: the number is what follows the last of them.
    const value = Number(line.slice(line.lastIndexOf(" ") + 1));
    yield [name, labelsOf(line.slice(end, line.lastIndexOf("}") + 1)), value];
  }
}

function labelsOf(text) {
  const labels = {};
  for (const [, name, value] of text.matchAll(LABEL)) {
    labels[name] = value.replace(/\\(.)/g, (_, char) => (char === "n" ? "\n" : char));
  }
  return labels;
}

/** One reading of /metrics: counters as they stand, summed over labels that nothing here tells
 * apart. What the server does not have stays null. */
export function readMetrics(text) {
  const reading = emptyReading();
  for (const [name, labels, value] of samples(text)) TAKERS[name](reading, labels, value);
  reading.chosen = perLength(reading.chosenUpTo);
  return reading;
}

function emptyReading() {
  return {
    model: null, version: null, running: null, waiting: null, usage: null,
    committed: null, goodput: null, slo: {},
    reached: [], accepted: [],
    lengthSum: 0, lengthCount: 0, chosenUpTo: [], chosen: [],
    plainSeconds: 0, roundSeconds: 0,
  };
}

/** What a sample adds to a reading, by the family it is of. */
const TAKERS = {
  build_info: (reading, { model, version }) => Object.assign(reading, { model, version }),
  requests_running: (reading, _, value) => { reading.running = value; },
  requests_waiting: (reading, _, value) => { reading.waiting = value; },
  kv_cache_usage_ratio: (reading, _, value) => { reading.usage = value; },
  tokens_committed_total: (reading, _, value) => { reading.committed += value; },
  tokens_goodput_total: (reading, _, value) => { reading.goodput += value; },
  request_slo_total: (reading, { outcome }, value) => add(reading.slo, outcome, value),
  spec_reached_total: (reading, { position }, value) => add(reading.reached, Number(position), value),
  spec_accepted_total: (reading, { position }, value) => add(reading.accepted, Number(position), value),
  controller_k_sum: (reading, _, value) => { reading.lengthSum += value; },
  controller_k_count: (reading, _, value) => { reading.lengthCount += value; },
  controller_k_bucket: (reading, { le }, value) => {
    if (le !== "+Inf") reading.chosenUpTo.push([Number(le), value]);
  },
  controller_plain_seconds_total: (reading, _, value) => { reading.plainSeconds += value; },
  controller_round_seconds_total: (reading, _, value) => { reading.roundSeconds += value; },
};

function add(sums, key, value) {
  sums[key] = (sums[key] ?? 0) + value;
}

/** How often each K was chosen, from a histogram's running sums. */
function perLength(upTo) {
  const sorted = [...upTo].sort(([a], [b]) => a - b);
  return sorted.map(([, value], index) => value - (index ? sorted[index - 1][1] : 0));
}

/** What happened from reading `before` to `now`, `seconds` later. A ratio without events is null. */
export function between(before, now, seconds) {
  const committed = now.committed - before.committed;
  const met = gained(before.slo, now.slo);
  const requests = Object.values(met).reduce((sum, value) => sum + value, 0);
  const rounds = now.lengthCount - before.lengthCount;
  return {
    speed: seconds > 0 ? committed / seconds : null,
    committed,
    length: ratio(now.lengthSum - before.lengthSum, rounds),
    rounds,
    lengths: minus(now.chosen, before.chosen),
    gain: ratio(now.plainSeconds - before.plainSeconds, now.roundSeconds - before.roundSeconds),
    requests,
    goodRequests: ratio(met.met ?? 0, requests),
    positions: positions(minus(now.reached, before.reached), minus(now.accepted, before.accepted)),
  };
}

function gained(before, now) {
  return Object.fromEntries(Object.entries(now).map(([key, value]) => [key, value - (before[key] ?? 0)]));
}

function minus(now, before) {
  return Array.from(now, (value, index) => (value ?? 0) - (before[index] ?? 0));
}

function ratio(part, whole) {
  return whole > 0 ? part / whole : null;
}

/** Acceptance among what was reached, by position, and survival: the product up to there. */
function positions(reached, accepted) {
  let survival = 1;
  return reached.map((count, index) => {
    const alpha = ratio(accepted[index], count);
    survival = alpha === null || survival === null ? null : survival * alpha;
    return { reached: count, alpha, survival };
  });
}

/** The readings of the last minute. `at` is in seconds on any steady clock. */
export class History {
  constructor(span = 60) {
    this.span = span;
    this.entries = [];
  }

  /** Take a reading in. One whose counters went back is another server's: the past is dropped. */
  add(at, reading) {
    const last = this.last;
    if (last && reading.committed < last.reading.committed) this.entries = [];
    this.entries.push({ at, reading });
    // One reading from before the span stays, so that the whole of it is covered.
    while (this.entries.length > 2 && this.entries[1].at <= at - this.span) this.entries.shift();
  }

  get last() {
    return this.entries.at(-1);
  }

  /** What happened since the reading `back` entries ago, over all entries by default; null before
   * there are two. */
  since(back = this.entries.length - 1) {
    if (this.entries.length < 2) return null;
    const first = this.entries.at(-1 - Math.min(back, this.entries.length - 1));
    return between(first.reading, this.last.reading, this.last.at - first.at);
  }

  /** One point a step between readings: [seconds ago, what happened in it]. */
  steps() {
    return this.entries.slice(1).map((entry, index) => {
      const before = this.entries[index];
      return [this.last.at - entry.at, between(before.reading, entry.reading, entry.at - before.at)];
    });
  }
}
