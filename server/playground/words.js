// The words and number forms that several parts of the page share.

export const ORIGINS = {
  draft: { name: "accepted draft", what: "Drafted, and kept by the target's test." },
  correction: { name: "correction", what: "The target's own draw where it refused a draft." },
  bonus: { name: "bonus", what: "The target's own draw after all drafts were kept." },
  plain: { name: "plain", what: "Ordinary decoding: nothing was drafted here." },
};

/** A whole number with separators; a dash for what is unknown. */
export function count(value) {
  return value === null ? "–" : value.toLocaleString("en", { maximumFractionDigits: 0 });
}

/** A speed or another measure, with a decimal while it is small. */
export function measure(value) {
  return value === null ? "–" : value.toLocaleString("en", { maximumFractionDigits: value < 100 ? 1 : 0 });
}

export function short(value) {
  return value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 });
}

export function percent(share, digits = 0) {
  return `${(100 * share).toFixed(digits)} %`;
}

/** A probability: three digits that say something, also where it is tiny. */
export function probability(value) {
  if (value === null) return "–";
  return value !== 0 && value < 0.001 ? value.toExponential(1) : value.toFixed(3);
}

/** A new element with a class and text. */
export function made(tag, name = "", text = "") {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.textContent = text;
  return element;
}
