"""Writes a few real samples of the target, as completion and as chat."""

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

__all__ = ["write_samples"]

_NEW_TOKENS = 96
_COMPLETIONS = (
    "def read_lines(path):\n",
    ":mod:`collections` --- Container datatypes\n",
    "import os\n\nclass Config:\n",
)
_QUESTIONS = (
    "What is a decorator?",
    "What does os.path.join do?",
    "Write a Python function `add(a, b)` that returns the sum of a and b.",
)


def write_samples(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int
) -> list[dict[str, str]]:
    """Continue fixed prompts at temperature 0 and 1; one record per sample."""
    records = []
    prompts = [("completion", text, f"<s>{text}") for text in _COMPLETIONS]
    prompts += [("chat", text, _chat_prompt(tokenizer, text)) for text in _QUESTIONS]
    for kind, shown, prompt in prompts:
        for temperature in (0.0, 1.0):
            torch.manual_seed(seed)
            text = _continue(model, tokenizer, prompt, temperature)
            record = {"kind": kind, "prompt": shown, "temperature": str(temperature)}
            records.append(record | {"text": text})
    return records


def _chat_prompt(tokenizer: PreTrainedTokenizerFast, question: str) -> str:
    message = {"role": "user", "content": question}
    return str(tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True))


@torch.inference_mode()
def _continue(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: str, temperature: float
) -> str:
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    choice: dict[str, bool | float] = {"do_sample": False}
    if temperature > 0:
        choice = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    batch = torch.tensor([ids])
    output = model.generate(
        batch, attention_mask=torch.ones_like(batch), max_new_tokens=_NEW_TOKENS, **choice
    )
    return str(tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True))
