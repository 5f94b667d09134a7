-- How rows that stages made stand, counted exactly by what writes them, whoever that is: rows of the input have roll-ups
-- in `counter`. Parts of a large group (place -1) are no rows of their own, and neither is what is no longer made.
CREATE TABLE made (
    run_id      INTEGER NOT NULL,
    origin      INTEGER NOT NULL,       -- position of the stage that made the rows
    state       INTEGER NOT NULL,       -- store.rows.State
    error_stage TEXT NOT NULL,          -- '' for none
    error_type  TEXT NOT NULL,          -- '' for none
    count       INTEGER NOT NULL,
    PRIMARY KEY (run_id, origin, state, error_stage, error_type)
) WITHOUT ROWID;

-- (A semicolon at the end of a line would end the statement.)
CREATE TRIGGER row_made AFTER INSERT ON row
WHEN new.origin IS NOT NULL AND new.place >= 0 AND new.state <> 6
BEGIN
    INSERT INTO made
    VALUES (new.run_id, new.origin, new.state, coalesce(new.error_stage, ''), coalesce(new.error_type, ''), 1)
    ON CONFLICT DO UPDATE SET count = count + 1; END;

CREATE TRIGGER row_remade AFTER UPDATE OF state, error_stage, error_type ON row
WHEN new.origin IS NOT NULL AND new.place >= 0
BEGIN
    UPDATE made SET count = count - 1
    WHERE run_id = old.run_id AND origin = old.origin AND state = old.state
        AND error_stage = coalesce(old.error_stage, '') AND error_type = coalesce(old.error_type, ''); INSERT INTO made
    SELECT new.run_id, new.origin, new.state, coalesce(new.error_stage, ''), coalesce(new.error_type, ''), 1
    WHERE new.state <> 6
    ON CONFLICT DO UPDATE SET count = count + 1; END;

CREATE TRIGGER row_unmade AFTER DELETE ON row
WHEN old.origin IS NOT NULL AND old.place >= 0 AND old.state <> 6
BEGIN
    UPDATE made SET count = count - 1
    WHERE run_id = old.run_id AND origin = old.origin AND state = old.state
        AND error_stage = coalesce(old.error_stage, '') AND error_type = coalesce(old.error_type, ''); END;

-- Rows that came to a stage that keeps the first of equal ones.
CREATE TABLE alike (
    run_id  INTEGER NOT NULL,
    origin  INTEGER NOT NULL,           -- position of the stage
    hash    BLOB NOT NULL,              -- of the values that are to differ
    row_key INTEGER NOT NULL REFERENCES row (key),
    content BLOB NOT NULL,              -- of all that the stages after it see of the row
    state   INTEGER NOT NULL,           -- in which the row came to the stage
    PRIMARY KEY (run_id, origin, hash, row_key)
) WITHOUT ROWID;
CREATE INDEX alike_row ON alike (row_key, origin);

-- Members of groups that failed are known as such, so that a group can say how many it lacks.
ALTER TABLE member ADD COLUMN failed INTEGER NOT NULL DEFAULT 0;
