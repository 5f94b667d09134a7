-- The sources of searches that providers ran while they answered, kept with the answer.

ALTER TABLE result ADD COLUMN sources TEXT;  -- JSON, a list of core.types.WebSource; null: the answer has none
