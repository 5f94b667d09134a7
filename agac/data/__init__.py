"""Rows in and results out: sources and sinks, one module a format."""
