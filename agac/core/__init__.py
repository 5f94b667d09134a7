"""What everyone shares: errors, value types, ids and events. Imports nothing of agac above it."""
