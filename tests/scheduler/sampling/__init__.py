"""Tests of the exact sampling mathematics."""
