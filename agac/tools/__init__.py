"""Functions of the project that are called for rows: imported, run outside the event loop, their
results checked."""
