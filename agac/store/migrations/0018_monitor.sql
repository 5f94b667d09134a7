-- What the monitor reads: roll-ups by minute, what lanes did, and what it asks of the process that is at work.

-- Roll-ups by the minute of the commit, kept by it like those in `counter`, of which the sums here are the whole. A task
-- that is settled again counts once: in that minute its earlier outcome is taken back, so that a number may be below 0.
CREATE TABLE minute (
    run_id        INTEGER NOT NULL,
    minute        INTEGER NOT NULL,     -- since 1970, UTC
    stage         TEXT NOT NULL,        -- '' for rows of the input
    model         TEXT NOT NULL,        -- provider/model of calls, '' for tasks and rows
    done          INTEGER NOT NULL,     -- tasks, or rows, by outcome
    reused        INTEGER NOT NULL,
    failed        INTEGER NOT NULL,
    skipped       INTEGER NOT NULL,
    dropped       INTEGER NOT NULL,
    calls         INTEGER NOT NULL,     -- that ended, failed ones too
    failed_calls  INTEGER NOT NULL,
    input_tokens  INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,     -- of the input tokens
    output_tokens INTEGER NOT NULL,
    cost          REAL NOT NULL,        -- USD of the calls with a known price
    PRIMARY KEY (run_id, minute, stage, model)
) WITHOUT ROWID;

-- How long answered calls took, by minute: the histograms of `timing`, with four of their buckets in one.
CREATE TABLE minute_timing (
    run_id INTEGER NOT NULL,
    minute INTEGER NOT NULL,            -- since 1970, UTC
    stage  TEXT NOT NULL,
    bucket INTEGER NOT NULL,            -- a quarter of a bucket's number in `timing`, rounded down
    count  INTEGER NOT NULL,
    PRIMARY KEY (run_id, minute, stage, bucket)
) WITHOUT ROWID;

-- How the lane of a model was, every two seconds while calls are made or wait. `agac gc` drops those of a week ago.
CREATE TABLE lane_sample (
    run_id       INTEGER NOT NULL,
    at           REAL NOT NULL,
    lane         TEXT NOT NULL,         -- provider/model, with the address after @ where it has several
    in_flight    INTEGER NOT NULL,      -- calls under way
    bound        INTEGER NOT NULL,      -- how many may be at a time, as found so far
    most         INTEGER NOT NULL,      -- how many may ever be at a time
    waiting      INTEGER NOT NULL,      -- calls that wait for their turn
    held_by      TEXT NOT NULL,         -- what the first of them waits for: pause, limit, headers, pace; '' for nothing
    paused_until REAL,                  -- no call goes before; null: it is not paused
    waited       REAL NOT NULL,         -- seconds that calls let in since the last sample had waited, together
    refused      INTEGER NOT NULL,      -- calls refused by rate since the last sample
    PRIMARY KEY (run_id, at, lane)
) WITHOUT ROWID;

-- What others ask of the process that works on a workflow. It is added without the lease; who holds that applies each
-- line once, in the commit that says so.
CREATE TABLE inbox (
    id         INTEGER PRIMARY KEY,
    workflow   TEXT NOT NULL,
    run_id     INTEGER NOT NULL,
    event_id   INTEGER,                 -- the invocation that is to stop: no later one is stopped by it
    kind       TEXT NOT NULL,           -- stop, or cancel_batch
    body       TEXT NOT NULL,           -- JSON: {"batch": number} of cancel_batch
    at         REAL NOT NULL,
    applied_at REAL,                    -- null: nobody looked at it yet
    outcome    TEXT                     -- what came of it, in words
);
CREATE INDEX inbox_open ON inbox (workflow, id) WHERE applied_at IS NULL;
