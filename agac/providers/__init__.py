"""Providers as rows of data, dialects as pairs of `build` and `parse`, and the one sender they
share."""
