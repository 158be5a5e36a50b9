// Turns the bytes of tokens into the text that each of them shows. Knows no model and no page.

const ESCAPED = /\\x([0-9a-f]{2})/g;

/** The bytes of a token as the completions endpoint spells it: its text, or `bytes:\xNN...`. */
export function spelledBytes(spelled) {
  if (!spelled.startsWith("bytes:\\x")) return new TextEncoder().encode(spelled);
  return Uint8Array.from(spelled.matchAll(ESCAPED), ([, hex]) => parseInt(hex, 16));
}

/** Gives each token the characters that its bytes complete: a character which is split over tokens
 * shows at the one that ends it, those before show nothing of it. */
export class PieceReader {
  constructor() {
    this.decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  }

  /** The text of the next token. */
  next(bytes) {
    return this.decoder.decode(bytes, { stream: true });
  }

  /** What is left at the end: a sign for a character that was never finished, or nothing. */
  end() {
    return this.decoder.decode();
  }
}
