"""The live display of a run: what its lines say, how wide they are, and how they come onto a terminal."""
