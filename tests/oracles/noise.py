"""Exact joint law of shared-noise rounds over two tokens, for any policy, by enumeration.

Of two tokens a race looks at the difference of their noise only, which is standard logistic; the
field holds its uniform U = 1 / (1 + exp(g_0 - g_1)), and token 0 wins on a law p while U <= p_0.
Keys are absolute positions: what one round has looked at and given up is met again by the next, so
a branch remembers it.
"""

import numpy as np
import torch

from scheduler.sampling.draw import race
from scheduler.sampling.rng import CounterRandomness, DrawKey, Stream, noise_key
from scheduler.sampling.verify import DraftBatch, verify_match
from tests.oracles import splitmix
from tests.oracles.enumeration import Enumeration, padded
from tests.oracles.rows import CPU
from tests.oracles.scenario import Drawn


class NoiseEnumeration(Enumeration):
    """All branches of a scenario whose drafts and target race on one noise."""

    def _noise_key(self, branch, r, place):
        case = self._cases[r]
        return noise_key(case.seed, case.choice, len(branch.tokens[r]) + place)

    def _proposal_key(self, branch, r, place):
        return self._noise_key(branch, r, place)

    def _tossed(self, r, length):
        """A coin of the noise stream is the noise of the next token itself."""
        if self._s.policy.tossed is Stream.POLICY:
            return super()._tossed(r, length)
        return noise_key(self._cases[r].seed, self._cases[r].choice, length)

    def _draw(self, rows, values):
        """The product's race."""
        if rows.shape[1] != 2:
            raise ValueError("only races of two tokens have one uniform each")
        noise = torch.stack([torch.zeros_like(values), torch.logit(values)], dim=1)
        return race(rows.log(), noise)

    def _tested(self, branch, r):
        """Split on the target's race at every place up to the first difference."""
        if self._laws.done(r, branch.tokens[r]):
            return [branch]
        drafts = branch.drafts[r]
        pieces, found = [branch], []
        for place in range(len(drafts) + 1):
            row = self._cases[r].target.expected(branch.tokens[r] + drafts[:place])
            key = self._noise_key(branch, r, place)
            parts = [part for piece in pieces for part in piece.split(key, (row[0],))]
            chosen = [int(part.value(key, self._at) >= row[0]) for part in parts]
            goes_on = [place < len(drafts) and token == drafts[place] for token in chosen]
            pieces = [part for part, on in zip(parts, goes_on, strict=True) if on]
            found += [part for part, on in zip(parts, goes_on, strict=True) if not on]
        return found

    def _verdict(self, work):
        rows, values, first = [], [], []
        for branch, r in work:
            drafts = branch.drafts[r]
            first.append(len(values))
            places = range(len(drafts) + 1)
            prefixes = [branch.tokens[r] + drafts[:place] for place in places]
            rows.append(self._cases[r].target.rows(prefixes))
            keys = [self._noise_key(branch, r, place) for place in places]
            values += [branch.value(key, self._at) for key in keys]
        batch = DraftBatch(
            drafts=padded([branch.drafts[r] for branch, r in work], torch.int64),
            k=torch.tensor([len(branch.drafts[r]) for branch, r in work]),
            target_row=torch.tensor(first),
            draft_row=torch.zeros(len(work), dtype=torch.int64),
        )
        choices = self._draw(torch.cat(rows), torch.tensor(values, dtype=torch.float64))
        return verify_match(batch, choices)

    def _remembered(self, branch):
        """What is known of positions that are still to come."""
        lengths = {
            (case.seed, case.choice): len(tokens)
            for case, tokens in zip(self._cases, branch.tokens, strict=True)
        }
        return {
            key: interval
            for key, interval in branch.field.items()
            if key.stream is Stream.NOISE and key.position >= lengths[key.seed, key.choice]
        }


def played(setting, seed):
    """The texts of a scenario on the product's own noise of one seed, by its races; any number of
    tokens. Runs are cut at the horizon and at stop ids."""
    texts = [case.prompt for case in setting.cases]
    traces = [() for _ in texts]
    while not all(map(_done, [setting] * len(texts), setting.cases, texts)):
        drawn = [_drafts(setting, r, texts[r], traces[r], seed) for r in range(len(texts))]
        kept = setting.policy.trim(drawn)
        for r, case in enumerate(setting.cases):
            drafts = [each.token for each in drawn[r][: kept[r]]]
            accepted, run = _verified(case, texts[r], drafts, seed)
            traces[r] = ((len(drafts), accepted),)
            for token in run:
                if not _done(setting, case, texts[r]):
                    texts[r] = (*texts[r], token)
    return texts


def serial(setting, seed):
    """The texts that the serial sampler gives on the same noise, in plain Python."""
    texts = [case.prompt for case in setting.cases]
    for r, case in enumerate(setting.cases):
        while not _done(setting, case, texts[r]):
            row = case.target.expected(texts[r])
            key = _own_key(seed, case.choice, len(texts[r]))
            scores = {
                v: np.log(row[v]) - np.log(-np.log(splitmix.open_uniform(key, v)))
                for v in np.flatnonzero(row).tolist()
            }
            texts[r] = (*texts[r], max(scores, key=scores.get))
    return texts


def _own_key(seed, choice, position):
    """The key that the contract gives the token at a position, not by the product's function."""
    return DrawKey(seed=seed, choice=choice, stream=Stream.NOISE, position=position, offset=0)


def _done(setting, case, text):
    output = len(text) - len(case.prompt)
    return output >= setting.horizon or (output > 0 and text[-1] in case.stop)


def _race(rows, seed, choice, positions):
    keys = [noise_key(seed, choice, position) for position in positions]
    noise = CounterRandomness().gumbel(keys, rows.shape[1], CPU)
    return race(rows.log(), noise)


def _drafts(setting, r, text, trace, seed):
    """What one request drafts, with the rows that a policy may see."""
    case, policy = setting.cases[r], setting.policy
    if _done(setting, case, text):
        return []
    length = policy.length(r, text, trace)
    if policy.coin is not None:
        # A whim that looks at the noise of the next token.
        noise = CounterRandomness().open_uniforms([noise_key(seed, case.choice, len(text))], 2, CPU)
        length = int(np.searchsorted(np.cumsum(policy.coin(r, text, trace)), noise[0, 0].item()))
    drawn = []
    while len(drawn) < length:
        prefix = text + tuple(each.token for each in drawn)
        row = case.draft.expected(prefix)
        if not policy.goes_on(row):
            break
        token = _race(case.draft.rows([prefix]), seed, case.choice, [len(prefix)]).item()
        drawn.append(Drawn(token=token, row=row))
    return drawn


def _verified(case, text, drafts, seed):
    """(accepted, tokens) of one verification by the product."""
    prefixes = [(*text, *drafts[:place]) for place in range(len(drafts) + 1)]
    choices = _race(case.target.rows(prefixes), seed, case.choice, map(len, prefixes))
    batch = DraftBatch(
        drafts=torch.tensor([drafts], dtype=torch.int64),
        k=torch.tensor([len(drafts)]),
        target_row=torch.tensor([0]),
        draft_row=torch.tensor([0]),
    )
    verdict = verify_match(batch, choices)
    accepted = int(verdict.accepted)
    return accepted, (*drafts[:accepted], int(verdict.terminal))
