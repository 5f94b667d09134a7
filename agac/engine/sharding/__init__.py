"""Shards: one run as several processes, which share a folder of a remote."""
