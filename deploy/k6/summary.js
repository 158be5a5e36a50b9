// What a run leaves behind: a few lines to read, and the same as JSON in the file that SUMMARY
// names. Finds the knee of a ramp. Makes no call.

import { settings } from './settings.js';

const TRENDS = ['llm_ttft_ms', 'llm_tpot_ms', 'llm_e2e_ms', 'llm_acceptance_length'];
const ALWAYS = ['speculation', 'temperature', 'maxTokens', 'ttftMs', 'tpotMs', 'sloShare'];
const MADE_FOR_THE_SUMMARY = />=0$/; // k6 keeps a metric by tag only where a threshold asks for it

// The `handleSummary` of a script with this name, which looks at these settings.
export function summaryOf(script, used) {
  return (data) => {
    const totals = figures(data.metrics);
    // k6 holds a rate of nothing for kept.
    const thresholds = { 'an answer came': totals.answers > 0, ...verdicts(data.metrics) };
    const report = {
      script,
      settings: Object.fromEntries([...ALWAYS, ...used].map((name) => [name, settings[name]])),
      seconds: data.state.testRunDurationMs / 1000,
      ...totals,
      ...(script === 'ramp' ? staircase(data.metrics) : {}),
      thresholds,
      passed: Object.values(thresholds).every(Boolean),
    };
    const files = { stdout: text(report) };
    if (settings.summary) files[settings.summary] = `${JSON.stringify(report, null, 2)}\n`;
    return files;
  };
}

// Thresholds for what `staircase` reads of a step, none of which can be missed.
export function keptByStep(rate) {
  const kept = { llm_slo_good: 'rate', llm_tokens: 'count', llm_ttft_ms: 'max', llm_tpot_ms: 'max' };
  return Object.fromEntries(
    Object.entries(kept).map(([name, value]) => [`${name}{offered:${rate}}`, [`${value}>=0`]]),
  );
}

function figures(metrics) {
  const answers = values(metrics, 'llm_failed');
  return {
    answers: (answers.passes || 0) + (answers.fails || 0),
    failed: answers.passes || 0,
    truncated: values(metrics, 'llm_truncated').passes || 0,
    cancelled: values(metrics, 'llm_cancelled').count || 0,
    dropped: values(metrics, 'dropped_iterations').count || 0,
    tokens: values(metrics, 'llm_tokens').count || 0,
    tokens_per_second: values(metrics, 'llm_tokens').rate || 0,
    slo_share: share(metrics, 'llm_slo_good'),
    ...Object.fromEntries(TRENDS.map((name) => [name, trend(metrics, name)])),
    ...gauges(metrics),
  };
}

function gauges(metrics) {
  const found = Object.entries(metrics).filter(([, metric]) => metric.type === 'gauge');
  return Object.fromEntries(
    found.filter(([name]) => name.startsWith('llm_')).map(([name, { values }]) => [name, values.value]),
  );
}

// Each offered rate, and the knee: the last one before the share within SLO first falls too low.
function staircase(metrics) {
  const steps = settings.rates.map((rate) => {
    const of = (name) => `${name}{offered:${rate}}`;
    const { passes = 0, fails = 0 } = values(metrics, of('llm_slo_good'));
    return {
      rate,
      answers: passes + fails,
      slo_share: share(metrics, of('llm_slo_good')),
      good_per_second: passes / settings.step,
      ttft_p95_ms: p95(metrics, of('llm_ttft_ms')),
      tpot_p95_ms: p95(metrics, of('llm_tpot_ms')),
    };
  });
  const beyond = steps.findIndex(({ slo_share: kept }) => !(kept >= settings.sloShare));
  const last = beyond === -1 ? steps.at(-1) : steps[beyond - 1];
  const knee = last ? { ...last, tokens_per_second: tokensASecond(metrics, last.rate) } : null;
  return { steps, knee, knee_seen: beyond !== -1 };
}

// Tokens of the requests that arrived in a step. Past the knee they are not done within it.
function tokensASecond(metrics, rate) {
  return (values(metrics, `llm_tokens{offered:${rate}}`).count || 0) / settings.step;
}

function p95(metrics, name) {
  const found = trend(metrics, name);
  return found && found['p(95)'];
}

function verdicts(metrics) {
  const found = {};
  for (const [name, metric] of Object.entries(metrics)) {
    for (const [rule, { ok }] of Object.entries(metric.thresholds || {})) {
      if (!MADE_FOR_THE_SUMMARY.test(rule)) found[`${name}: ${rule}`] = ok;
    }
  }
  return found;
}

function values(metrics, name) {
  return metrics[name] ? metrics[name].values : {};
}

function trend(metrics, name) {
  const found = values(metrics, name);
  return found.count ? found : null;
}

function share(metrics, name) {
  const { passes = 0, fails = 0 } = values(metrics, name);
  return passes + fails ? passes / (passes + fails) : null;
}

function text(report) {
  const lines = [
    `${report.script}: ${describe(report.settings)}`,
    `${report.answers} answers in ${report.seconds.toFixed(1)} s, ${report.failed} failed, ` +
      `${report.truncated} truncated, ${report.cancelled} cancelled, ${report.dropped} dropped`,
    `${report.tokens} tokens, ${report.tokens_per_second.toFixed(1)}/s; within SLO ` +
      `${percent(report.slo_share)}`,
    ...TRENDS.filter((name) => report[name]).map((name) => line(name, report[name])),
    ...(report.steps || []).map(stair),
    ...(report.steps ? [kneeLine(report)] : []),
    ...Object.entries(report.thresholds).map(([rule, ok]) => `${ok ? 'kept  ' : 'BROKEN'} ${rule}`),
  ];
  return `${lines.join('\n')}\n`;
}

function describe(used) {
  return Object.entries(used).map(([name, value]) => `${name} ${value}`).join(', ');
}

function line(name, figure) {
  const shown = ['avg', 'med', 'p(95)', 'p(99)', 'max'];
  return `${name.padEnd(22)} ${shown.map((key) => `${key} ${figure[key].toFixed(2)}`).join('  ')}`;
}

function stair(step) {
  return (
    `${String(step.rate).padStart(6)} req/s: within SLO ${percent(step.slo_share)}, ` +
    `${step.good_per_second.toFixed(2)} req/s, p95 TTFT ${rounded(step.ttft_p95_ms)} ms, ` +
    `TPOT ${rounded(step.tpot_p95_ms)} ms`
  );
}

function kneeLine({ knee, knee_seen: seen }) {
  if (!knee) return 'knee: below the first rate';
  const known = seen ? '' : 'not reached, at least ';
  return `knee: ${known}${knee.rate} req/s, ${knee.tokens_per_second.toFixed(1)} tokens/s`;
}

function percent(value) {
  return value === null ? 'none' : `${(100 * value).toFixed(1)} %`;
}

function rounded(value) {
  return value === null ? '-' : value.toFixed(1);
}
