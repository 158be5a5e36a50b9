// From the form to the body of a call, and from an error to the field that it names.

const PATHS = { chat: "v1/chat/completions", completion: "v1/completions" };
const LARGEST_SEED = 2 ** 31;
const FIELDS = {
  temperature: "temperature", max_tokens: "max_tokens", seed: "seed", prompt: "prompt", messages: "prompt",
  "speculation.k": "k", "speculation.verifier": "verifier", "speculation.proposer": "proposer",
};

/** What the form asks for: {path, body}. A blank number is left to the server; a blank seed is drawn
 * here, so that an answer can be had again. */
export function asked(form) {
  const values = Object.fromEntries(new FormData(form));
  const body = {
    ...content(values),
    temperature: numeric(values.temperature),
    max_tokens: numeric(values.max_tokens),
    seed: numeric(values.seed) ?? Math.floor(Math.random() * LARGEST_SEED),
    speculation: speculation(values),
    stream: true,
    stream_options: { include_usage: true },
    return_provenance: true,
    return_token_ids: true,
    // So that the bytes of the tokens are the text, to the last one.
    skip_special_tokens: false,
    // The rows of log-probabilities hold each token's bytes.
    logprobs: values.mode === "chat" ? true : 0,
  };
  return { path: PATHS[values.mode], body };
}

/** The same call without drafts; the verifier stays, as it names the randomness that is used. */
export function withoutDrafts({ path, body }) {
  const speculation = { enabled: false };
  if (body.speculation.verifier) speculation.verifier = body.speculation.verifier;
  return { path, body: { ...body, speculation } };
}

function content({ mode, prompt }) {
  return mode === "chat" ? { messages: [{ role: "user", content: prompt }] } : { prompt };
}

function speculation({ k, verifier, proposer }) {
  const asks = k === "off" ? { enabled: false } : { k: k === "auto" ? "auto" : Number(k), proposer };
  return verifier ? { ...asks, verifier } : asks;
}

function numeric(text) {
  return text.trim() === "" ? undefined : Number(text);
}

/** How a call is called on the page. */
export function titleOf({ body }) {
  const { enabled = true, k, verifier, proposer } = body.speculation;
  if (!enabled) return "Speculation off";
  const drafter = { auto: "", draft_model: ", draft model", ngram: ", n-grams" }[proposer];
  return `K ${k}${verifier ? `, ${verifier}` : ""}${drafter}`;
}

/** Draft lengths up to the server's longest, between auto and off; what was chosen stays. */
export function offerLengths(select, longest) {
  if (select.options.length === longest + 3) return;
  const chosen = select.value;
  const lengths = Array.from({ length: longest + 1 }, (_, k) => String(k));
  select.replaceChildren(...["auto", ...lengths, "off"].map((value) => new Option(value, value)));
  select.value = chosen;
  if (select.selectedIndex < 0) select.value = "auto";
}

/** Mark the field that an error names, if it is one of the form's. */
export function blame(form, param) {
  for (const field of form.elements) field.removeAttribute("aria-invalid");
  // A path such as messages[0].content blames the whole field.
  const name = FIELDS[param] ?? FIELDS[/^\w+/.exec(param ?? "")?.[0]];
  if (name) form.elements[name].setAttribute("aria-invalid", "true");
}
