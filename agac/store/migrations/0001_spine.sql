-- One line for each thing that is written once and shared by many runs.
CREATE TABLE definition (
    hash       BLOB PRIMARY KEY,        -- keys.definition_hash of body
    workflow   TEXT NOT NULL,
    body       TEXT NOT NULL,           -- the resolved workflow, canonical JSON: prompts are rebuilt from it and the row
    created_at REAL NOT NULL            -- seconds since 1970, UTC, as every time in this database
);

CREATE TABLE endpoint (
    id         INTEGER PRIMARY KEY,
    provider   TEXT NOT NULL,
    base_url   TEXT NOT NULL,
    model      TEXT NOT NULL,           -- the model that answered, which may be more exact than the one asked for
    simulated  INTEGER NOT NULL,
    UNIQUE (provider, base_url, model, simulated)
);

CREATE TABLE run (
    id                INTEGER PRIMARY KEY,
    workflow          TEXT NOT NULL,
    definition_hash   BLOB NOT NULL REFERENCES definition (hash),
    selection         TEXT NOT NULL,    -- canonical JSON; with workflow and definition_hash the run's identity
    output_dir        TEXT NOT NULL,    -- relative to the project root
    include_input     INTEGER NOT NULL,
    fresh_since       REAL,             -- only results newer than this are reused; null: any
    created_at        REAL NOT NULL,
    finished_at       REAL,             -- set when an invocation ended with every row of the input settled
    revision          INTEGER NOT NULL DEFAULT 0,   -- raised by every commit that changes what an export would write
    exported_revision INTEGER,          -- revision that the files in output_dir show
    exported_files    TEXT              -- what they were then, JSON: name → [bytes, mtime in ns]
);
CREATE INDEX run_identity ON run (workflow, definition_hash, selection);

-- One invocation of `agac run` (kind 'invocation'), or another thing worth telling.
CREATE TABLE event (
    id        INTEGER PRIMARY KEY,
    run_id    INTEGER NOT NULL REFERENCES run (id),
    kind      TEXT NOT NULL,
    at        REAL NOT NULL,
    ended_at  REAL,                     -- null: still going, or killed
    exit_code INTEGER,
    body      TEXT NOT NULL             -- JSON: concurrency, counts
);
CREATE INDEX event_run ON event (run_id, id);

CREATE TABLE row (
    key           INTEGER PRIMARY KEY,
    run_id        INTEGER NOT NULL REFERENCES run (id),
    id            NOT NULL,             -- no affinity: 1 and '1' are different ids
    occurrence    INTEGER NOT NULL,     -- 0, or which repetition of the id this is
    ordinal       INTEGER,              -- position in the input from 1; null once the row left the input
    hash          BLOB NOT NULL,        -- keys.row_hash of data
    data          TEXT NOT NULL,        -- the snapshot, JSON; null literal for a record that could not be parsed
    state         INTEGER NOT NULL,     -- store.rows.State
    result_id     INTEGER,              -- the last stage's result
    error_stage   TEXT,                 -- null for an error of the input itself
    error_type    TEXT,
    error_message TEXT,
    seen          INTEGER NOT NULL      -- event id of the invocation that last placed the row
);
CREATE UNIQUE INDEX row_id ON row (run_id, id, occurrence);
CREATE INDEX row_ordinal ON row (run_id, ordinal);
CREATE INDEX row_failed ON row (run_id, error_type, error_stage, ordinal) WHERE state = 2;  -- for examples of errors

CREATE TABLE task (
    row_key       INTEGER NOT NULL REFERENCES row (key),
    stage         INTEGER NOT NULL,     -- position of the stage in the run's definition
    replica       INTEGER NOT NULL,
    fingerprint   BLOB,                 -- null where nothing could be rendered
    outcome       TEXT NOT NULL,        -- core.types.Outcome
    result_id     INTEGER,
    error_type    TEXT,
    error_message TEXT,
    failures      INTEGER NOT NULL,     -- invocations in a row in which the answer itself failed
    settled_at    REAL NOT NULL,
    PRIMARY KEY (row_key, stage, replica)
) WITHOUT ROWID;                        -- keys grow, so this costs no more than a rowid table and saves an index

CREATE TABLE result (
    id          INTEGER PRIMARY KEY,
    fingerprint BLOB NOT NULL,
    value       TEXT NOT NULL,          -- JSON
    endpoint_id INTEGER NOT NULL REFERENCES endpoint (id),
    created_at  REAL NOT NULL
);
CREATE INDEX result_fingerprint ON result (fingerprint);

CREATE TABLE attempt (
    id               INTEGER PRIMARY KEY,
    row_key          INTEGER NOT NULL REFERENCES row (key),
    stage            INTEGER NOT NULL,
    replica          INTEGER NOT NULL,
    event_id         INTEGER NOT NULL REFERENCES event (id),
    number           INTEGER NOT NULL,  -- from 1 within the task and the invocation
    fingerprint      BLOB NOT NULL,
    endpoint_id      INTEGER NOT NULL REFERENCES endpoint (id),
    purpose          TEXT NOT NULL,     -- ask, or repair
    started_at       REAL NOT NULL,
    duration         REAL NOT NULL,     -- seconds
    status           INTEGER,           -- HTTP
    error_type       TEXT,
    error_message    TEXT,
    ambiguous        INTEGER NOT NULL,  -- nothing came back, yet the provider may have billed it
    input_tokens     INTEGER,
    cached_tokens    INTEGER,
    output_tokens    INTEGER,
    reasoning_tokens INTEGER,
    cost             REAL,              -- USD; null: unknown price or no usage
    reply            BLOB               -- raw body: TEXT as it came, BLOB when zlib made it smaller
);
CREATE INDEX attempt_task ON attempt (row_key, stage);

-- Roll-ups kept by the settle transaction: progress, status and summaries read these, never the tables above.
CREATE TABLE counter (
    run_id           INTEGER NOT NULL,
    stage            TEXT NOT NULL,     -- '' for rows
    outcome          TEXT NOT NULL,     -- an Outcome, or 'call' for attempts
    error_type       TEXT NOT NULL,     -- '' for none
    model            TEXT NOT NULL,     -- provider/model, '' where none was asked
    count            INTEGER NOT NULL,
    input_tokens     INTEGER NOT NULL,
    cached_tokens    INTEGER NOT NULL,
    output_tokens    INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    cost             REAL NOT NULL,
    unpriced         INTEGER NOT NULL,  -- calls whose price is not known
    simulated        INTEGER NOT NULL,  -- calls that the simulator answered
    PRIMARY KEY (run_id, stage, outcome, error_type, model)
) WITHOUT ROWID;

CREATE TABLE lease (
    workflow     TEXT PRIMARY KEY,
    token        INTEGER NOT NULL,      -- fencing token: raised by every taking, checked by every commit
    holder       TEXT NOT NULL,         -- host, boot and process of the holder; '' when free
    heartbeat_at REAL NOT NULL
);
