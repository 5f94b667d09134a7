"""Files of a project, read strictly into frozen models. Knows files only: no provider, no row."""
