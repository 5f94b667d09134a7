"""Results as tables and lines: one module a format, and what all of them share about columns."""
