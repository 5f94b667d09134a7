"""Calls and functions carried out by processes on other machines: what is given to them, and how
it comes back."""
