"""The single source of truth: one SQLite database, its statements by name, its migrations by
number."""
