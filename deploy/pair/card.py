"""Renders the model card from the measured record; states nothing that is not in it."""

from typing import Any

__all__ = ["render_card"]

_HEADER = """# Fencepost's embedded model pair

A *target* and a *draft* for exact speculative decoding: both `LlamaForCausalLM`, one shared
byte-level BPE tokenizer of 4096 entries, bfloat16 weights in Hugging Face layout
(`weights/target`, `weights/draft`). The target was trained from random weights on the text
listed below; the draft was distilled from it. This card is written by
`python -m deploy.pair` from `evaluation.json`.
"""

_LIMITS = """## Limits

These are tiny models, made so that a server can be run and measured anywhere without fetching
anything. They write text that looks like Python documentation and Python code; what it says is
mostly wrong or meaningless. They are not useful assistants, know no other subject or language,
have had no safety training, and can repeat pieces of their training text. Positions beyond 2048
were not trained.
"""

_TRAINING = """## Training

Muon for the hidden matrices, AdamW for the rest, all in float32 on a CPU. The rates rise
linearly, stay, and fall linearly to 0. The target learns by cross-entropy. The draft starts from
the target's embeddings, first layer and last norm; its loss is the chance of refusal,
1 - sum over x of min(p(x), q(x)), plus a quarter of KL(target || draft). The same recipe on the
same software gives the same models up to the order of floating-point sums, which depends on the
number of threads.

"""


def render_card(figures: dict[str, Any]) -> str:
    """Give the card's Markdown for a record made by `record.measure`."""
    parts = (
        _HEADER,
        _architecture(figures["parameters"], figures["recipes"]),
        _corpus(figures["corpus"]),
        _training(figures["recipes"]),
        _quality(figures["heldout"], figures["sampled"]),
        _cost(figures),
        _LIMITS,
        _samples(figures["samples"]),
    )
    return "\n".join(parts)


def _table(header: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def _architecture(parameters: dict[str, Any], recipes: dict[str, Any]) -> str:
    rows: list[tuple[object, ...]] = []
    for name in ("target", "draft"):
        counts, layers = parameters[name], recipes[name]["layers"]
        row = (counts["total"], counts["embedding"], counts["non_embedding"])
        rows.append((name, layers, *(f"{count:,}" for count in row)))
    header = ("model", "layers", "parameters", "embedding", "non-embedding")
    return (
        "## Architecture\n\nHidden size 192, 6 heads of 32, 2 key-value heads, intermediate size "
        "576, tied embeddings,\nRoPE theta 10000, 2048 positions, RMSNorm epsilon 1e-5.\n\n"
        + _table(header, rows)
        + f"\nNon-embedding ratio: {parameters['non_embedding_ratio']}.\n"
    )


def _corpus(corpus: dict[str, Any]) -> str:
    keys = ("name", "version", "licence", "documents", "characters", "tokens")
    rows = [tuple(source[key] for key in keys) for source in corpus["sources"]]
    return (
        "## Corpus\n\n"
        + _table(keys, rows)
        + f"\nQuestion-and-answer conversations made from the same documents (docstrings, short\n"
        f"functions, glossary entries) add {corpus['conversation_tokens']:,} tokens. About 2% of "
        f"the documents, chosen by a\nhash of their names, are held out with their conversations: "
        f"{corpus['train_tokens']:,} tokens train,\n{corpus['heldout_tokens']:,} tokens are held "
        "out. `heldout.txt` holds excerpts of held-out documents under\nthe licences above.\n"
    )


def _training(recipes: dict[str, Any]) -> str:
    target, draft = recipes["target"], recipes["draft"]
    rows: list[tuple[object, ...]] = [
        (key.replace("_", " "), _shown(target[key]), _shown(draft[key])) for key in target
    ]
    return _TRAINING + _table(("", "target", "draft"), rows)


def _shown(value: object) -> object:
    # A shape is a tuple when measured and a list when read back; the card must not tell.
    return " x ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _quality(heldout: dict[str, Any], sampled: dict[str, Any]) -> str:
    rows: list[tuple[object, ...]] = [
        (key.replace("_", " "), heldout[key], sampled[key]) for key in heldout
    ]
    return (
        "## Agreement\n\nMeasured with the bfloat16-rounded weights in float32. Losses are in "
        "nats per token; acceptance is\nthe mean of sum over x of min(p(x), q(x)) at temperature "
        "1, teacher-forced. *Sampled*: along\n256-token continuations by the target at "
        "temperature 1 of 64-token held-out prompts.\n\n"
        + _table(("", "held-out text", "sampled text"), rows)
    )


def _cost(figures: dict[str, Any]) -> str:
    rows: list[tuple[object, ...]] = [
        (threads, cost["target_ms"], cost["draft_ms"], cost["c"])
        for threads, cost in figures["row_cost"].items()
    ]
    return (
        "## Cost of a row\n\nMedian of one-token forwards by transformers with 200 cached tokens; "
        "c = draft / target.\n"
        f"Load average during the measurement: {figures['load_average_1min']}. "
        f"{figures['conditions']}\n\n"
        + _table(("torch threads", "target (ms)", "draft (ms)", "c"), rows)
    )


def _samples(samples: list[dict[str, str]]) -> str:
    parts = ["## Samples of the target\n"]
    for sample in samples:
        title = f"{sample['kind'].capitalize()}, temperature {sample['temperature']}"
        body = f"{sample['prompt']}\n=> {sample['text']}"
        parts.append(f"### {title}\n\n~~~~text\n{body}\n~~~~\n")
    return "\n".join(parts)
