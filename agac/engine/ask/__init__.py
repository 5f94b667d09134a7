"""One task is asked: who answers it, over which connection, how often, and within which limits."""
