"""Shared noise: the text is the serial sampler's own, whatever is drafted (contract section 2)."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.sampling.draw import race
from scheduler.sampling.processors import filtered, row_settings
from scheduler.sampling.rng import CounterRandomness, noise_key
from scheduler.sampling.verify import DraftBatch, verify_match
from tests.oracles import splitmix
from tests.oracles.rows import CPU, Processing, random_logits, survivors

field = CounterRandomness()
VOCABULARY = 4


def kept_rows(logits, chosen):
    n = len(logits)
    rows = row_settings(
        temperature=[chosen.temperature] * n,
        top_k=[chosen.top_k] * n,
        top_p=[chosen.top_p] * n,
        min_p=[chosen.min_p] * n,
        vocabulary=logits.shape[1],
        device=CPU,
    )
    return filtered(torch.from_numpy(logits), rows)


def raced(table, chosen, seed, sequences):
    """The product's race for the token after each sequence."""
    logits = np.stack([table(tuple(sequence)) for sequence in sequences])
    noise = field.gumbel([noise_key(seed, 0, len(s)) for s in sequences], VOCABULARY, CPU)
    return race(kept_rows(logits, chosen), noise)


def serial(table, chosen, seed, length):
    """One token at a time, in plain Python over the reference noise."""
    text = [0]
    while len(text) < length:
        logits = table(tuple(text))
        legal = survivors(logits, chosen) > 0
        key = noise_key(seed, 0, len(text))
        best = None
        for v in np.flatnonzero(legal):
            noise = -np.log(-np.log(splitmix.open_uniform(key, int(v))))
            score = logits[v] / chosen.temperature + noise if chosen.temperature > 0 else 0.0
            if best is None or score > best[0]:
                best = (score, int(v))
        text.append(best[1])
    return text


def drafted(source, chosen, seed, text, k):
    """Drafts by the race on the draft's logits, or arbitrary ones."""
    run = list(text)
    for _ in range(k):
        if isinstance(source, list):
            run.append(source[len(run) % len(source)])
        else:
            run.append(raced(source, chosen, seed, [run]).item())
    return run[len(text) :]


def speculative(target, source, chosen, seed, length, lengths):
    text, rounds = [0], 0
    while len(text) < length:
        k = lengths[rounds % len(lengths)]
        drafts = drafted(source, chosen, seed, text, k)
        choices = raced(target, chosen, seed, [text + drafts[:i] for i in range(k + 1)])
        verdict = verify_match(
            DraftBatch(
                drafts=torch.tensor([drafts], dtype=torch.int64),
                k=torch.tensor([k]),
                target_row=torch.tensor([0]),
                draft_row=torch.tensor([0]),
            ),
            choices,
        )
        text += [*drafts[: verdict.accepted.item()], verdict.terminal.item()]
        rounds += 1
    return text[:length]


settings_of_requests = st.builds(
    Processing,
    temperature=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    top_k=st.sampled_from([None, 2, 3]),
    top_p=st.sampled_from([1.0, 0.83]),
    min_p=st.sampled_from([0.0, 0.11]),
)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 1000),
    st.one_of(st.lists(st.integers(0, VOCABULARY - 1), min_size=1), st.integers(0, 1000)),
    st.lists(st.integers(0, 4), min_size=1, max_size=5),
    settings_of_requests,
)
def test_any_draft_and_any_lengths_give_the_serial_text(seed, table, source, lengths, chosen):
    target = random_logits(table, VOCABULARY)
    draft = source if isinstance(source, list) else random_logits(source, VOCABULARY)
    found = speculative(target, draft, chosen, seed, 7, lengths)
    assert found == serial(target, chosen, seed, 7)


def test_the_race_draws_from_the_softmax():
    n = 40_000
    law = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    noise = field.gumbel([noise_key(7, 0, t) for t in range(n)], 5, CPU)
    counts = np.bincount(race(torch.from_numpy(np.log(law)).expand(n, 5), noise).numpy())
    expected = n * law
    # With 4 degrees of freedom a chi-square exceeds 28.5 with probability 1e-5.
    assert ((counts - expected) ** 2 / expected).sum() < 28.5


def test_races_at_neighbouring_positions_are_independent():
    n = 40_000
    noise = field.gumbel([noise_key(8, 0, t) for t in range(n + 1)], 2, CPU)
    ids = race(torch.zeros(n + 1, 2), noise).numpy()
    counts = np.bincount(2 * ids[:-1] + ids[1:], minlength=4)
    # With 3 degrees of freedom a chi-square exceeds 26 with probability 1e-5.
    assert ((counts - n / 4) ** 2 / (n / 4)).sum() < 26


def test_agreement_of_two_races_has_its_closed_form():
    n = 40_000
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])
    agreement = sum(1 / np.maximum(p / p[i], q / q[i]).sum() for i in range(3))
    noise = field.gumbel([noise_key(9, 0, t) for t in range(n)], 3, CPU)
    ids = [race(torch.from_numpy(np.log(row)).expand(n, 3), noise) for row in (p, q)]
    found = (ids[0] == ids[1]).to(torch.float64).mean().item()
    assert abs(found - agreement) < 4.5 * np.sqrt(agreement * (1 - agreement) / n)
    overlap = np.minimum(p, q).sum()
    assert overlap / (2 - overlap) <= agreement <= overlap
