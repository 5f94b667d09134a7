-- What calls may have cost of which no answer came: a budget counts it as spent.
ALTER TABLE counter ADD COLUMN held_cost REAL NOT NULL DEFAULT 0;       -- USD at most, of ambiguous calls
ALTER TABLE counter ADD COLUMN held_tokens INTEGER NOT NULL DEFAULT 0;  -- tokens at most, of ambiguous calls

-- How a result came about: '' as the model gave it at once; else some of repair, json_repair, fallback, with commas.
ALTER TABLE result ADD COLUMN how TEXT NOT NULL DEFAULT '';
