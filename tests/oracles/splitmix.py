"""SplitMix64 in plain Python integers: the reference of the counter randomness."""

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def mix(word):
    """The finaliser of SplitMix64 (Stafford's variant 13)."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def state(key):
    """A key's fields folded into one word."""
    word = 0
    for field in (key.seed, key.choice, int(key.stream), key.position, key.offset):
        word = mix(((word ^ (field & MASK)) + GAMMA) & MASK)
    return word


def output(key, step):
    """The `step`-th output (from 1 on) of the sequence that starts at the key's state."""
    return mix((state(key) + step * GAMMA) & MASK)


def uniform(key):
    """53 bits in [0, 1)."""
    return (output(key, 1) >> 11) * 2.0**-53


def open_uniform(key, token):
    """52 bits and a half in (0, 1)."""
    return ((output(key, token + 1) >> 12) + 0.5) * 2.0**-52
