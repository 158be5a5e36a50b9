"""Makes short question-and-answer conversations out of the corpus documents."""

import ast
import inspect
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from deploy.pair.corpus import Document

__all__ = ["Conversation", "Turn", "conversations"]

Turn = dict[str, str]
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

_MAX_ANSWER = 700
_MAX_CODE = 900
_SHARE_WITH_SYSTEM = 0.15
_SHARE_OF_TWO_TURNS = 0.2
_SYSTEM_LINES = (
    "You are a helpful assistant.",
    "You are a helpful assistant that knows Python.",
    "Answer questions about Python briefly.",
    "You explain Python code.",
)
_WHAT_ASKS = (
    "What does {name} do?",
    "What is {name}?",
    "Explain {name}.",
    "Describe {name} in Python.",
    "How does {name} work?",
    "Tell me about {name}.",
    "What is {name} for?",
)
_CODE_ASKS = (
    "Write a Python {kind} `{call}` that does this: {purpose}",
    "Write a Python {kind} `{call}`. {purpose}",
    "Implement `{call}` in Python. {purpose}",
    "Show me the code of `{call}`. {purpose}",
)
_TERM_ASKS = (
    "What is {article} {term}?",
    "What does {term} mean in Python?",
    "Define {term}.",
    "Explain the term {term}.",
    "What is {article} {term} in Python?",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Turns in the chat template's form; `name` begins with the source document's name."""

    name: str
    heldout: bool
    messages: tuple[Turn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    ask: str
    answer: str


def conversations(documents: list[Document], seed: int) -> list[Conversation]:
    """Make the conversations of all `documents`; the same input and seed give the same list."""
    return [talk for document in documents for talk in _of_document(document, seed)]


def _of_document(document: Document, seed: int) -> Iterator[Conversation]:
    # A generator of its own per document: a subset of the corpus gives a subset of the talks.
    rng = random.Random(f"{seed}:{document.name}")
    pairs = list(_pairs(document, rng))
    rng.shuffle(pairs)
    index = 0
    while index < len(pairs):
        count = 2 if rng.random() < _SHARE_OF_TWO_TURNS else 1
        yield Conversation(
            name=f"{document.name}#{index}",
            heldout=document.heldout,
            messages=_messages(pairs[index : index + count], rng),
        )
        index += count


def _messages(pairs: list[_Pair], rng: random.Random) -> tuple[Turn, ...]:
    messages: list[Turn] = []
    if rng.random() < _SHARE_WITH_SYSTEM:
        messages.append({"role": "system", "content": rng.choice(_SYSTEM_LINES)})
    for pair in pairs:
        messages.append({"role": "user", "content": pair.ask})
        messages.append({"role": "assistant", "content": pair.answer})
    return tuple(messages)


def _pairs(document: Document, rng: random.Random) -> Iterator[_Pair]:
    if document.name.endswith("glossary.rst.txt"):
        yield from _glossary_pairs(document.text, rng)
    elif document.name.endswith(".rst.txt"):
        yield from _directive_pairs(document.text, rng)
    elif document.name.endswith(".py"):
        yield from _code_pairs(document, rng)


def _glossary_pairs(text: str, rng: random.Random) -> Iterator[_Pair]:
    pattern = r"^   (\S[^\n]*)\n((?:      [^\n]*\n|\n(?=      ))+)"
    for found in re.finditer(pattern, text, re.MULTILINE):
        term, body = found.group(1), inspect.cleandoc(found.group(2))
        answer = _short(_plain(body))
        article = "an" if term[0].lower() in "aeiou" else "a"
        # Every phrasing once: terms are the questions a visitor is most likely to try.
        for ask in rng.sample(_TERM_ASKS, len(_TERM_ASKS)):
            yield _Pair(ask=ask.format(term=term, article=article), answer=answer)


def _directive_pairs(text: str, rng: random.Random) -> Iterator[_Pair]:
    pattern = r"^\.\. (?:function|class|method|data|exception):: ([^\n]+)\n((?:   [^\n]*\n|\n)+)"
    for found in re.finditer(pattern, text, re.MULTILINE):
        signature, body = found.group(1), inspect.cleandoc(found.group(2))
        name = signature.split("(")[0].strip()
        paragraphs = [part for part in body.split("\n\n") if not part.startswith((":", ".."))]
        answer = _short(_plain("\n\n".join(paragraphs)))
        if len(answer) > 30 and " " not in name:
            yield _Pair(ask=rng.choice(_WHAT_ASKS).format(name=name), answer=answer)


def _code_pairs(document: Document, rng: random.Random) -> Iterator[_Pair]:
    try:
        tree = ast.parse(document.text)
    except SyntaxError:
        return
    lines = document.text.split("\n")
    for name, node in _definitions(tree, _module_name(document.name)):
        docstring = ast.get_docstring(node)
        if docstring is None or len(docstring) < 20:
            continue
        asked = f"`{name}`" if rng.random() < 0.3 else name
        yield _Pair(ask=rng.choice(_WHAT_ASKS).format(name=asked), answer=_short(docstring))
        code = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        if len(code) <= _MAX_CODE and rng.random() < 0.5:
            yield _write_pair(node, code, _first_sentence(docstring), rng)


def _definitions(tree: ast.Module, module: str) -> Iterator[tuple[str, _Definition]]:
    for node in tree.body:
        if not isinstance(node, _Definition):
            continue
        name = f"{module}.{node.name}"
        yield name, node
        if isinstance(node, ast.ClassDef):
            for child in node.body:
                if isinstance(child, _Definition) and not child.name.startswith("__"):
                    yield f"{name}.{child.name}", child


def _write_pair(node: _Definition, code: str, purpose: str, rng: random.Random) -> _Pair:
    if isinstance(node, ast.ClassDef):
        kind, call = "class", node.name
    else:
        kind, call = "function", f"{node.name}({ast.unparse(node.args)})"
    ask = rng.choice(_CODE_ASKS).format(kind=kind, call=call, purpose=purpose)
    return _Pair(ask=ask, answer=f"```python\n{_dedent(code)}\n```")


def _dedent(code: str) -> str:
    indent = len(code) - len(code.lstrip(" "))
    return "\n".join(line[min(indent, len(line)) :] for line in code.split("\n")).strip()


def _module_name(name: str) -> str:
    parts = name.removesuffix(".py").split("/")
    # The standard library's own folder is no package; the others' name is the package.
    parts = parts[1:] if parts[0] == "cpython-stdlib" else parts
    return ".".join(part for part in parts if part != "__init__")


def _first_sentence(docstring: str) -> str:
    paragraph = " ".join(docstring.split("\n\n", maxsplit=1)[0].split())
    return re.split(r"(?<=[.!?]) ", paragraph)[0][:200]


def _short(text: str) -> str:
    """Keep the first paragraphs of `text` that fit an answer, at least one."""
    kept = ""
    for paragraph in text.strip().split("\n\n")[:3]:
        if kept and len(kept) + len(paragraph) > _MAX_ANSWER:
            break
        kept = f"{kept}\n\n{paragraph}" if kept else paragraph[:_MAX_ANSWER]
    return kept.strip()


def _plain(markup: str) -> str:
    """Drop reStructuredText roles: ``:func:`len` `` becomes ``len``."""
    without_roles = re.sub(r":[\w:+-]+:`[!~]?([^`<]+?)(?: <[^`]*>)?`", r"\1", markup)
    return re.sub(r"``([^`]+)``", r"`\1`", without_roles)
