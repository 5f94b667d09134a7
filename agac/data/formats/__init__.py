"""One module a format: each turns a file into `Record`s, streamed."""
