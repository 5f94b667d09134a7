-- What the stages of a run were expected to take by what was known before it: what came is in `counter`, so that a plan
-- can say how far earlier estimates were off, and learn from it.
CREATE TABLE estimate (
    run_id        INTEGER NOT NULL,
    stage         TEXT NOT NULL,        -- its name
    lane          TEXT NOT NULL,        -- provider/model
    basis         TEXT NOT NULL,        -- history, or guess
    tasks         INTEGER NOT NULL,     -- for so many, which the first invocation asked
    characters    REAL,                 -- of a request, schema included, in the mean; null: of conversations, which grow
    calls         INTEGER NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    usd           REAL,                 -- null: no price is known
    low           REAL,                 -- eight of ten times it costs at least this,
    high          REAL,                 -- and at most this
    PRIMARY KEY (run_id, stage)
) WITHOUT ROWID;
CREATE INDEX estimate_lane ON estimate (lane, run_id);
