// Compares the answers with and without drafts. Knows no page.

/** {text, tone, parting}: `parting` is the first place at which the tokens differ, null if nowhere.
 *
 * `body` is the call with drafts; each run has `tokens` and, once it ended, `end`. */
export function compared(body, drafted, plain) {
  const parting = partingOf(drafted.tokens, plain.tokens);
  const exact = body.temperature === 0 || body.speculation.verifier === "shared-noise";
  const { text, tone } = parting === null ? equal(exact, drafted.tokens.length) : different(exact, parting);
  return { text: `${text} ${speeds(drafted, plain)}`, tone, parting };
}

function partingOf(some, others) {
  const longest = Math.max(some.length, others.length);
  for (let index = 0; index < longest; index += 1) {
    if (some[index]?.id !== others[index]?.id) return index;
  }
  return null;
}

function equal(exact, tokens) {
  const why = exact ? ", as they must be" : "";
  return { text: `Equal texts, ${tokens} tokens of ${tokens}${why}.`, tone: "good" };
}

function different(exact, parting) {
  const where = `The texts part at token ${parting + 1}`;
  if (!exact) {
    const law = "two samples of one law; temperature 0 or the shared-noise verifier give equal texts";
    return { text: `${where}: ${law}.`, tone: "plain" };
  }
  const rounding = "there two tokens are as close as rounding, which a server with --batch-invariant rules out";
  return { text: `${where}: ${rounding}.`, tone: "bad" };
}

function speeds(drafted, plain) {
  const [fast, slow] = [drafted, plain].map((run) => run.end.metrics.tokens_per_second);
  if (!slow) return "";
  const gain = (fast / slow).toFixed(2);
  const pair = `${fast.toFixed(0)} tokens/s against ${slow.toFixed(0)} without`;
  return `Speculation gave ${pair}: ×${gain}, in this one pair of runs.`;
}
