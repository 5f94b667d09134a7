"""Batches: the life of each, from its first task until its files are deleted."""
