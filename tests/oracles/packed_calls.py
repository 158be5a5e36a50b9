"""Random sequences over scattered blocks, called in packed rows, and the unmodified model on each.

The oracle is transformers, eager and uncached, on one request's whole sequence. Float32 rows are
judged one by one; 16-bit ones by how far they are from float32 sums over the same weights,
together, beside transformers' own.
"""

import random

import torch
from transformers import AutoModelForCausalLM

from scheduler.runtime.rows import Segment, pack

# Largest difference of float32 logits over the largest logit of the request.
RELATIVE = 2e-5
# What two equally good roundings differ in by chance: rms of some hundred rows, and choices, two
# deviations of them where one in 30 is as good as a tie.
CHANCE = 1.05
SPREAD = 0.5


class Oracle:
    """Next-token logits of every position of one sequence, in float32."""

    def __init__(self, folder, weights=torch.float32, sums=torch.float32):
        self._model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=weights, attn_implementation="eager"
        )
        self._model.eval().to(sums)

    @torch.inference_mode()
    def logits(self, tokens, first=0):
        """Logits [n - first, V] of `tokens` [n] from position `first` on."""
        output = self._model(input_ids=torch.tensor([tokens]), use_cache=False)
        return output.logits[0, first:].float()


class ExactJudge:
    """Every row within rounding of the model's, and the same choice wherever that decides it."""

    def __init__(self, folder):
        self._oracle = Oracle(folder)
        self.worst = 0.0
        self.rows = self.decided = 0

    def see(self, found, tokens, first):
        """Note logits `found` of the last rows of `tokens`, from position `first` on."""
        wanted = self._oracle.logits(tokens, first)
        assert found.dtype is torch.float32
        assert found.shape == wanted.shape
        scale = wanted.abs().max().item()
        self.worst = max(self.worst, (found - wanted).abs().max().item() / scale)
        best = wanted.topk(2, dim=-1).values
        clear = best[:, 0] - best[:, 1] > 2 * RELATIVE * scale
        assert torch.equal(found.argmax(-1)[clear], wanted.argmax(-1)[clear])
        self.rows += len(found)
        self.decided += int(clear.sum())

    def decide(self):
        """Raise when what was seen is not what the model gives."""
        print(f"{self.rows} rows, relative {self.worst:.2g}")
        assert self.worst <= RELATIVE
        assert self.decided > 0.9 * self.rows > 0


class RoundedJudge:
    """Rows of 16 bits: rms and share of equal choices no worse than transformers' own."""

    def __init__(self, folder):
        self._exact = Oracle(folder, torch.bfloat16, torch.float32)
        self._theirs = Oracle(folder, torch.bfloat16, torch.bfloat16)
        self._seen = []

    def see(self, found, tokens, first):
        """Note logits `found` of the last rows of `tokens`, from position `first` on."""
        assert found.dtype is torch.float32
        # Logits of 16 bits would tie in a few per cent of rows.
        assert (found.bfloat16() != found).float().mean() > 0.9
        theirs, exact = (each.logits(tokens, first) for each in (self._theirs, self._exact))
        assert found.shape == exact.shape
        self._seen.append((found, theirs, exact))

    def decide(self):
        """Raise when what was seen is further off than transformers' own rows."""
        found, theirs, exact = (torch.cat(rows) for rows in zip(*self._seen, strict=True))
        ours, limit = ((rows - exact).square().mean().sqrt().item() for rows in (found, theirs))
        agreed, least = (
            int((rows.argmax(-1) == exact.argmax(-1)).sum()) for rows in (found, theirs)
        )
        print(f"rms {ours:.3g} ({limit:.3g}), choices {agreed} ({least}) of {len(exact)}")
        assert ours <= CHANCE * limit
        assert agreed >= least - SPREAD * len(exact) ** 0.5


def judge(kind, folder):
    """The judge for forwards of a kind over the checkpoint in `folder`."""
    return ExactJudge(folder) if kind.exact else RoundedJudge(folder)


class Requests:
    """Random sequences of given lengths over scattered blocks of one forward."""

    def __init__(self, forward, lengths, seed=0):
        self.forward = forward
        chance = random.Random(seed)
        self.tokens = [[chance.randrange(forward.vocabulary) for _ in range(n)] for n in lengths]
        size = forward.block_size
        blocks = list(range(sum(-(-n // size) for n in lengths)))
        chance.shuffle(blocks)
        self.tables = [tuple(blocks.pop() for _ in range(-(-n // size))) for n in lengths]

    def call(self, spans):
        """Logits of rows `first` to `last` of each request {number: (first, last)}, in one call."""
        counts = [last - first for first, last in spans.values()]
        parts = self.forward.logits(self._hidden(spans)).cpu().split(counts)
        return dict(zip(spans, parts, strict=True))

    def last_rows(self, spans):
        """The same call, but logits [1, V] of the last row of each request, the others unasked."""
        ends = torch.tensor([last - first for first, last in spans.values()]).cumsum(0) - 1
        # Last request first: rows come in the order that is asked for.
        hidden = self._hidden(spans, ends.flip(0).to(self.forward.device))
        return dict(zip(reversed(spans), self.forward.logits(hidden).cpu().split(1), strict=True))

    def write(self, spans):
        """The same call for its K/V rows alone."""
        hidden = self._hidden(spans, torch.zeros(0, dtype=torch.int64, device=self.forward.device))
        assert len(hidden) == 0

    def _hidden(self, spans, wanted=None):
        segments, ids = [], []
        for number, (first, last) in spans.items():
            segments.append(Segment(start=first, rows=last - first, blocks=self.tables[number]))
            ids += self.tokens[number][first:last]
        device = self.forward.device
        rows = pack(segments, self.forward.block_size, device)
        return self.forward.hidden(torch.tensor(ids, device=device), rows, wanted)
