"""The monitor in the browser: pages of what the store says, served on loopback to everybody who
has the address."""
