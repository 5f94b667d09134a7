-- What people are asked about results, and what they said.

-- An answer that somebody is to look at, known again by its content: the same answer of the same row is one line, whichever
-- run came to it. What it shows is kept as it was shown.
CREATE TABLE review (
    key      BLOB PRIMARY KEY,        -- keys.review_key
    workflow TEXT NOT NULL,
    stage    TEXT NOT NULL,           -- name of the review stage
    row_id   NOT NULL,                -- no affinity, as in `row`
    run_id   INTEGER NOT NULL,        -- the run that came to it last
    row_key  INTEGER NOT NULL,        -- its row there
    seen     TEXT NOT NULL,           -- JSON: `shown` by name, and the `answer`
    why      TEXT NOT NULL,           -- JSON: `when` with the `values` that it read, `sample`; {}: every row is asked for
    blind    INTEGER NOT NULL,        -- 1: the answer is not shown
    state    TEXT NOT NULL,           -- waiting, conflict, decided (not applied yet), applied, stale
    sure     REAL NOT NULL,           -- 0 to 1: who is least sure comes first
    due      REAL,                    -- from when on nobody is waited for; null: never
    alone    INTEGER NOT NULL,        -- 1: its row waits for nothing else but people
    at       REAL NOT NULL
);
CREATE INDEX review_queue ON review (state, workflow, stage, sure, key, run_id);
CREATE INDEX review_row ON review (row_key);
CREATE INDEX review_of ON review (workflow, stage, row_id);

-- All that was decided, by people or in their place; a line is never changed. Written without the lease.
CREATE TABLE decision (
    id       INTEGER PRIMARY KEY,
    key      BLOB,                    -- of the review, or of the task that was fixed; null: every one of the workflow
    workflow TEXT NOT NULL,
    stage    TEXT NOT NULL,
    row_id,
    choice   TEXT NOT NULL,           -- approve, edit, reject; discard: what was decided before does not count any more
    value    TEXT,                    -- JSON, of an edit
    reason   TEXT NOT NULL,
    reviewer TEXT NOT NULL,
    at       REAL NOT NULL,
    source   TEXT NOT NULL,           -- terminal, file, monitor, api, fix, timeout
    forced   INTEGER NOT NULL         -- 1: it overrides those of others
);
CREATE UNIQUE INDEX decision_key ON decision (key, at, reviewer, choice, value);
CREATE INDEX decision_stage ON decision (workflow, stage, id);
