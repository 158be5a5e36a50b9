"""Sources of drafts: the draft model, and n-grams of the request's own text."""
