"""A Plan at work: rows walk through stages, calls are made, outcomes are settled."""
