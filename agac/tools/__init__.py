"""Functions of the project that rows are given to: imported, called beside the event loop, their results checked."""
