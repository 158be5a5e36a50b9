"""Model execution behind the engine's `ModelRunner` protocol."""
