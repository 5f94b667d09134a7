-- How the outputs look beyond their folder. It is no part of a run's identity: the last invocation decides.
ALTER TABLE run ADD COLUMN outputs TEXT NOT NULL DEFAULT '{}';  -- canonical JSON: formats, to, merge, csv_safe where set
