"""A provider that costs nothing: real HTTP on loopback, replies by schema and seed."""
