-- How a run goes about its definition, so that it can go on without the project's files.

ALTER TABLE run ADD COLUMN manner TEXT;     -- JSON of plan.manner; null: a run of before there were batches
