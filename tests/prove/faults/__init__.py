"""Faults to plant, by what they spoil. Tables only."""
