"""The command line: parse flags, call one function of `agac.api`, render what comes back."""
