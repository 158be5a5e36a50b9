"""The controller simulator: controllers against a virtual engine on a virtual clock, no model."""
