"""The endpoints, one module a subject."""
