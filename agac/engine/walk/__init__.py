"""Rows on their way through the stages: those of the input, of the store, and derived ones."""
