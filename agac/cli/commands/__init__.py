"""One module a command; each has a `command`."""
