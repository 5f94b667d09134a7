-- Batches: provider-side jobs that hold many tasks each, and what became of every step of theirs.

CREATE TABLE project (
    token TEXT NOT NULL                 -- minted once: keeps the names of this project's batches apart from those of others
);
INSERT INTO project (token) VALUES (lower(hex(randomblob(16))));

ALTER TABLE run ADD COLUMN read_at REAL;    -- when the input was last read to its end; null while a pass over it goes on

CREATE TABLE batch (
    id             INTEGER PRIMARY KEY,
    run_id         INTEGER NOT NULL REFERENCES run (id),
    event_id       INTEGER NOT NULL REFERENCES event (id),   -- the invocation that planned it
    stage          INTEGER NOT NULL,        -- position of the stage in the run's definition
    position       INTEGER NOT NULL,        -- which of the stage's models, from 0: those from 1 are fallbacks
    provider       TEXT NOT NULL,
    base_url       TEXT NOT NULL,
    model          TEXT NOT NULL,
    account        TEXT NOT NULL,           -- keys.account_mark of the address and the key: nothing secret
    state          TEXT NOT NULL,           -- engine.batch.states.BatchStep
    intent         TEXT NOT NULL,           -- keys.batch_intent: in every custom_id, in the file's name
    attempt        INTEGER NOT NULL,        -- from 1: how often it was to be created
    file           TEXT NOT NULL,           -- name of the spool file in .agac/batches/
    tasks          INTEGER NOT NULL,
    bytes          INTEGER NOT NULL,
    tokens         INTEGER NOT NULL,        -- what it counts for against the account's enqueued tokens, estimated
    sha256         TEXT,                    -- of the spool file, set with BUILT
    window         TEXT,                    -- completion window asked for
    held_usd       REAL NOT NULL,           -- worst case set aside until it is ingested; 0 where no price is known
    held_tokens    INTEGER NOT NULL,
    priced         INTEGER NOT NULL,        -- whether held_usd is known
    file_id        TEXT,                    -- of the uploaded input
    provider_id    TEXT,                    -- of the batch
    status         TEXT,                    -- providers.batches.BatchState as last seen
    word           TEXT,                    -- the provider's own word for it
    total          INTEGER,                 -- counts as last seen; null where they are not told
    done           INTEGER,
    failed         INTEGER,
    planned_at     REAL NOT NULL,
    created_after  REAL,                    -- when the intent to create it was committed
    submitted_at   REAL,
    seen_at        REAL,                    -- when the provider was last asked for it
    moved_at       REAL,                    -- when a count or its state last changed
    ended_at       REAL,                    -- as the provider says
    expires_at     REAL,                    -- when the provider gives up
    results_until  REAL,                    -- when the provider deletes its results
    ingested_at    REAL,
    cleaned_at     REAL,
    cancel_at      REAL,                    -- when its cancellation was decided
    then_do        TEXT,                    -- what becomes of its unfinished tasks after a cancellation: run | sync
    try_at         REAL,                    -- not to be created before this
    deadline       REAL,                    -- when what is not finished is cancelled
    outputs        TEXT,                    -- JSON: downloaded result files, [name, bytes, sha256] each
    counts         TEXT,                    -- JSON: what its lines came to, by outcome, set with INGESTED
    cost           REAL,                    -- USD of its answers; null: nothing ingested, or no price
    foreign_ids    TEXT,                    -- JSON: ids of batches at the provider that were looked at and are not ours
    note           TEXT                     -- why it waits, was refused or needs a human, in words
);
CREATE INDEX batch_open ON batch (run_id, state) WHERE state NOT IN ('CLEANED', 'NOT_CREATED', 'REJECTED');
CREATE INDEX batch_run ON batch (run_id);
CREATE INDEX batch_provider_id ON batch (provider_id);

-- A task that waits for a batch, or is in one. Those of one question are enrolled once; the others wait for it.
CREATE TABLE batch_task (
    id            INTEGER PRIMARY KEY,
    run_id        INTEGER NOT NULL,
    batch_id      INTEGER,                  -- null: it waits for an equal task
    place         INTEGER,                  -- its line in the batch, from 0
    row_key       INTEGER NOT NULL,
    stage         INTEGER NOT NULL,
    replica       INTEGER NOT NULL,
    fingerprint   BLOB NOT NULL,
    state         INTEGER NOT NULL,         -- store.batches.TaskState
    round         INTEGER NOT NULL,         -- from 1: how often its model was asked this question
    position      INTEGER NOT NULL,         -- which of the stage's models is asked, from 0
    repairs       INTEGER NOT NULL,         -- how often a reply of the wrong form was quoted to it
    then_do       TEXT,                     -- null: it is answered or has failed; else batch, repair, fallback, sync, run
    error_type    TEXT,
    error_message TEXT
);
CREATE UNIQUE INDEX batch_task_place ON batch_task (batch_id, place) WHERE batch_id IS NOT NULL;
CREATE INDEX batch_task_live ON batch_task (fingerprint) WHERE state < 2;
CREATE INDEX batch_task_row ON batch_task (row_key, stage, replica) WHERE state < 3;
CREATE INDEX batch_task_ready ON batch_task (run_id, row_key) WHERE state = 2;

-- What a lane showed of its account's limit on enqueued tokens, and how long its batches took.
CREATE TABLE batch_lane (
    provider   TEXT NOT NULL,
    account    TEXT NOT NULL,
    model      TEXT NOT NULL,
    cap        INTEGER,                     -- enqueued tokens that fit; null: never refused
    shown_at   REAL,
    PRIMARY KEY (provider, account, model)
) WITHOUT ROWID;
