"""From token ids to what a client reads: bytes, characters, stop strings."""
