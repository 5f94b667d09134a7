"""Batches: the life of each, from the first task that is written into it until nothing of it is left."""
