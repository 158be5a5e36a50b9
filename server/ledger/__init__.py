"""`fencepost ledger`: prices speculation on paper, before or beside a running server."""
