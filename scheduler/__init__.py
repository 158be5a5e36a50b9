"""Fencepost's engine: scheduling, exact verification and fenced commits."""
