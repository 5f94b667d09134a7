"""Decisions that a run and the dry run of `agac plan` share. Every function is pure: it reads no
file, no database and no clock, and waits for nothing."""
