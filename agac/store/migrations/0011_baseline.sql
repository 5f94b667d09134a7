-- The schema of the database: tables with their columns, the triggers that count rows, and the views for people.
-- Later changes are migrations of their own, from number 12 on. (A semicolon at the end of a line ends a statement.)

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
    exported_files    TEXT,             -- what they were then, JSON: name → [bytes, mtime in ns]
    outputs           TEXT NOT NULL DEFAULT '{}',  -- canonical JSON: formats, to, merge, csv_safe where set
    read_at           REAL,             -- when the input was last read to its end; null while a pass over it goes on
    manner            TEXT              -- JSON of plan.manner; null: a run made before there were batches
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
    seen          INTEGER NOT NULL,     -- event id of the invocation that last placed the row
    parent_key    INTEGER REFERENCES row (key),  -- the row that it is a child of; null: of none
    origin        INTEGER,              -- position of the stage that made it; null: a row of the input
    place         INTEGER               -- from 0, among the children of its parent
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
    note          TEXT,                 -- JSON: the guard that passed it over, or how its replicas voted
    PRIMARY KEY (row_key, stage, replica)
) WITHOUT ROWID;  -- keys grow, so this costs no more than a rowid table and saves an index

CREATE TABLE result (
    id          INTEGER PRIMARY KEY,
    fingerprint BLOB NOT NULL,
    value       TEXT NOT NULL,          -- JSON
    endpoint_id INTEGER NOT NULL REFERENCES endpoint (id),
    created_at  REAL NOT NULL,
    how         TEXT NOT NULL DEFAULT ''
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
    reply            BLOB,              -- raw body: TEXT as it came, BLOB when zlib made it smaller
    ttft             REAL,              -- seconds until the first token; null: not streamed
    time_to_response REAL,                  -- seconds until the first token of the answer itself; null: the same
    service_tier     TEXT               -- the tier that really served it, as the provider says
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
    held_cost        REAL NOT NULL DEFAULT 0,  -- USD at most, of ambiguous calls
    held_tokens      INTEGER NOT NULL DEFAULT 0,  -- tokens at most, of ambiguous calls
    PRIMARY KEY (run_id, stage, outcome, error_type, model)
) WITHOUT ROWID;

CREATE TABLE lease (
    workflow     TEXT PRIMARY KEY,
    token        INTEGER NOT NULL,      -- fencing token: raised by every taking, checked by every commit
    holder       TEXT NOT NULL,         -- host, boot and process of the holder; '' when free
    heartbeat_at REAL NOT NULL
);

-- How long calls took, from which summaries read p50 and p95: a histogram for each run, stage and measure, kept by the
-- settle transaction. The upper bounds of its buckets grow by a fixed ratio, so it stays small whatever is counted.
CREATE TABLE timing (
    run_id  INTEGER NOT NULL,
    stage   TEXT NOT NULL,
    measure TEXT NOT NULL,              -- duration, ttft or time_to_response
    bucket  INTEGER NOT NULL,           -- engine.quantiles.bucket_of the seconds
    count   INTEGER NOT NULL,
    PRIMARY KEY (run_id, stage, measure, bucket)
) WITHOUT ROWID;
CREATE INDEX row_parent ON row (parent_key, place) WHERE parent_key IS NOT NULL;
CREATE INDEX row_origin ON row (run_id, origin, key) WHERE origin IS NOT NULL;

-- Which rows a group is made of.
CREATE TABLE member (
    group_key INTEGER NOT NULL REFERENCES row (key),
    sort      INTEGER NOT NULL,         -- keys.member_hash of the row's id, by which large groups are cut
    row_key   INTEGER NOT NULL REFERENCES row (key),
    size      INTEGER NOT NULL,         -- estimated tokens of what the row gives to the group
    failed    INTEGER NOT NULL DEFAULT 0,   -- 1: the row failed before it came to the group, which lacks it
    PRIMARY KEY (group_key, sort, row_key)
) WITHOUT ROWID;
CREATE INDEX member_row ON member (row_key, group_key);

-- Views for people: names in place of numbers, times as text. The comment above a view says what a line of it is, the
-- comment beside a column what it means: `agac sql` and the reference show both.

-- The stages of each definition by position, which is how tables name them.
CREATE VIEW v_stages AS
SELECT DISTINCT                                         -- so that it is read once a query, not once a row
    definition.hash AS definition_hash,                 -- of the definition, as in the table `run`
    CAST(part.key AS INTEGER) AS position,              -- from 0, as `stage` of the tables `task` and `attempt`
    json_extract(part.value, '$.name') AS stage         -- name of the stage
FROM definition
JOIN json_each(definition.body, '$.stages') AS part;

-- What calls took: a line for each run, stage and model. From roll-ups, so it is as quick for a million rows.
CREATE VIEW v_costs AS
SELECT
    counter.run_id AS run,                              -- number of the run
    run.workflow AS workflow,                           -- name of the workflow
    counter.stage AS stage,                             -- name of the stage
    counter.model AS model,                             -- who answered: provider/model
    sum(counter.count) AS calls,                        -- attempts, also those that failed
    sum(counter.input_tokens) AS input_tokens,          -- what providers said
    sum(counter.cached_tokens) AS cached_tokens,        -- of the input tokens
    sum(counter.output_tokens) AS output_tokens,        -- what providers said
    sum(counter.reasoning_tokens) AS reasoning_tokens,  -- of the output tokens
    round(sum(counter.cost), 9) AS cost_usd,            -- of the calls with a known price
    sum(counter.unpriced) AS unpriced,                  -- calls whose price is not known
    sum(counter.simulated) AS simulated,                -- calls that the simulator answered: their cost is not paid
    round(sum(counter.held_cost), 9) AS held_usd        -- at most, of calls of which no answer came
FROM counter
JOIN run ON run.id = counter.run_id
WHERE counter.outcome = 'call'
GROUP BY counter.run_id, counter.stage, counter.model;

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

-- What became of each row at each stage: a line for each task, and of a stage with replicas one more for each of these.
-- Where rows are counted, `replica = 0` leaves one line for each.
CREATE VIEW v_results AS
SELECT
    run.id AS run,                                      -- number of the run
    run.workflow AS workflow,                           -- name of the workflow
    row.id AS row_id,                                   -- id of the row: text, or a number where the input has no id_field
    max(row.occurrence, 0) AS occurrence,               -- 0, or which repetition of the id this is
    iif(row.parent_key IS NULL, row.ordinal, (
        WITH RECURSIVE above (ordinal, parent_key) AS (
            SELECT row.ordinal, row.parent_key
            UNION ALL
            SELECT parent.ordinal, parent.parent_key FROM above JOIN row AS parent ON parent.key = above.parent_key
        )
        SELECT max(ordinal) FROM above
    )) AS row_number,                                   -- position in the input, from 1, of the row that it is or comes from; null once that left the input, and for groups
    v_stages.stage AS stage,                            -- name of the stage
    task.replica AS replica,                            -- 0: the task; from 1: one of the answers of which its result is made
    task.outcome AS outcome,                            -- done, reused, failed, skipped or dropped
    result.value AS result,                             -- JSON text; null without a result
    endpoint.provider || '/' || endpoint.model AS model,    -- who gave the result
    endpoint.simulated AS simulated,                    -- 1: the simulator gave the result
    result.how AS how,                                  -- '' as the model gave it; else repair, json_repair, fallback
    task.error_type AS error_type,                      -- null without an error
    task.error_message AS error_message,                -- null without an error
    task.note AS note,                                  -- JSON: why a guard passed it over, or how its replicas voted
    json_extract(task.note, '$.agreement') AS agreement,    -- how many replicas said what the vote decided, as 2/3
    (SELECT count(*) FROM attempt AS a
     WHERE a.row_key = task.row_key AND a.stage = task.stage AND a.replica = task.replica) AS calls,  -- all that were made for it in this run; those of replicas are on their own lines
    (SELECT sum(a.input_tokens) FROM attempt AS a
     WHERE a.row_key = task.row_key AND a.stage = task.stage AND a.replica = task.replica) AS input_tokens,  -- of those calls
    (SELECT sum(a.output_tokens) FROM attempt AS a
     WHERE a.row_key = task.row_key AND a.stage = task.stage AND a.replica = task.replica) AS output_tokens,  -- of those calls
    (SELECT round(sum(a.cost), 9) FROM attempt AS a
     WHERE a.row_key = task.row_key AND a.stage = task.stage AND a.replica = task.replica) AS cost_usd,  -- of those calls; null where none has a known price
    strftime('%Y-%m-%dT%H:%M:%SZ', task.settled_at, 'unixepoch') AS settled_at,  -- UTC
    task.settled_at AS settled_seconds,                 -- the same in seconds since 1970
    lower(hex(task.fingerprint)) AS fingerprint         -- of the question; '' where none could be made
FROM run
JOIN row ON row.run_id = run.id
JOIN task ON task.row_key = row.key
JOIN v_stages ON v_stages.definition_hash = run.definition_hash AND v_stages.position = task.stage
LEFT JOIN result ON result.id = task.result_id
LEFT JOIN endpoint ON endpoint.id = result.endpoint_id;

-- Every call that was made: a line for each attempt, retries, re-asks and fallbacks too.
CREATE VIEW v_attempts AS
SELECT
    run.id AS run,                                      -- number of the run
    run.workflow AS workflow,                           -- name of the workflow
    row.id AS row_id,                                   -- id of the row
    max(row.occurrence, 0) AS occurrence,               -- 0, or which repetition of the id this is
    iif(row.parent_key IS NULL, row.ordinal, (
        WITH RECURSIVE above (ordinal, parent_key) AS (
            SELECT row.ordinal, row.parent_key
            UNION ALL
            SELECT parent.ordinal, parent.parent_key FROM above JOIN row AS parent ON parent.key = above.parent_key
        )
        SELECT max(ordinal) FROM above
    )) AS row_number,                                   -- position in the input, from 1, of the row that it is or comes from; null once that left the input, and for groups
    v_stages.stage AS stage,                            -- name of the stage
    attempt.replica AS replica,                         -- from 1: which of several answers it is for; 0: the only one
    attempt.event_id AS invocation,                     -- number of the invocation, as `agac status RUN` lists them
    attempt.number AS attempt,                          -- from 1 within the task and the invocation
    attempt.purpose AS purpose,                         -- ask, or repair
    endpoint.provider || '/' || endpoint.model AS model,    -- who answered
    endpoint.base_url AS base_url,                      -- where
    endpoint.simulated AS simulated,                    -- 1: the simulator answered
    attempt.status AS status,                           -- of HTTP; null where nothing came back
    attempt.service_tier AS service_tier,               -- that really served it, as the provider says
    attempt.error_type AS error_type,                   -- null without an error
    attempt.error_message AS error_message,             -- null without an error
    attempt.ambiguous AS ambiguous,                     -- 1: nothing came back, yet the provider may have billed it
    attempt.input_tokens AS input_tokens,               -- null: not said
    attempt.cached_tokens AS cached_tokens,             -- of the input tokens
    attempt.output_tokens AS output_tokens,             -- null: not said
    attempt.reasoning_tokens AS reasoning_tokens,       -- of the output tokens
    attempt.cost AS cost_usd,                           -- null: unknown price, or tokens not said
    strftime('%Y-%m-%dT%H:%M:%SZ', attempt.started_at, 'unixepoch') AS started_at,  -- UTC
    attempt.started_at AS started_seconds,              -- the same in seconds since 1970
    attempt.duration AS duration,                       -- seconds
    attempt.ttft AS ttft,                               -- seconds until the first token; null: not streamed
    attempt.time_to_response AS time_to_response,       -- seconds until the first token of the answer itself
    attempt.id AS attempt_id                            -- of the table `attempt`, which has the raw reply
FROM run
JOIN row ON row.run_id = run.id
JOIN attempt ON attempt.row_key = row.key
JOIN v_stages ON v_stages.definition_hash = run.definition_hash AND v_stages.position = attempt.stage
LEFT JOIN endpoint ON endpoint.id = attempt.endpoint_id;

-- Where each row came from: a line for each row and each part of a large group, and one more for each member of a group.
CREATE VIEW v_lineage AS
SELECT
    run.id AS run,                                      -- number of the run
    run.workflow AS workflow,                           -- name of the workflow
    row.id AS row_id,                                   -- id of the row
    max(row.occurrence, 0) AS occurrence,               -- 0, or which repetition of the id this is
    row.ordinal AS row_number,                          -- position in the input, from 1, of the row that it is or comes from; null once that left the input, and for groups
    iif(row.origin IS NULL, 'input', 'group') AS relation,  -- input, child, kept (by dedupe) or group, a line a row; part (of a large group); member, a line for each row of a group
    v_stages.stage AS stage,                            -- name of the stage that made it; null for the input
    NULL AS from_id,                                    -- id of the parent, of the group of a part, or of the member; null for input and group
    NULL AS place,                                      -- from 0, among the children of its parent
    CASE row.state
        WHEN 0 THEN 'pending' WHEN 1 THEN 'done' WHEN 2 THEN 'failed'
        WHEN 3 THEN 'dropped' WHEN 4 THEN 'filtered' WHEN 5 THEN 'skipped'
    END AS state,                                       -- what became of the row
    row.error_stage AS error_stage,                     -- where it failed; null for an error of the input
    row.error_type AS error_type,                       -- null without an error
    row.error_message AS error_message,                 -- null without an error
    row.data AS data                                    -- its own fields, JSON; of a child what it was made of, of a group its fields
FROM run
JOIN row ON row.run_id = run.id
LEFT JOIN v_stages ON v_stages.definition_hash = run.definition_hash AND v_stages.position = row.origin
WHERE +row.parent_key IS NULL AND row.state <> 6
UNION ALL
SELECT
    run.id, run.workflow, row.id, max(row.occurrence, 0),
    iif(row.parent_key IS NULL, row.ordinal, (
        WITH RECURSIVE above (ordinal, parent_key) AS (
            SELECT row.ordinal, row.parent_key
            UNION ALL
            SELECT parent.ordinal, parent.parent_key FROM above JOIN row AS parent ON parent.key = above.parent_key
        )
        SELECT max(ordinal) FROM above
    )),
    iif(row.place < 0, 'part', iif(row.id = parent.id, 'kept', 'child')),
    v_stages.stage, parent.id, iif(row.place < 0 OR row.id = parent.id, NULL, row.place),
    CASE row.state
        WHEN 0 THEN 'pending' WHEN 1 THEN 'done' WHEN 2 THEN 'failed'
        WHEN 3 THEN 'dropped' WHEN 4 THEN 'filtered' WHEN 5 THEN 'skipped'
    END,
    row.error_stage, row.error_type, row.error_message, row.data
FROM run
JOIN row ON row.run_id = run.id
JOIN row AS parent ON parent.key = row.parent_key AND parent.run_id = run.id
JOIN v_stages ON v_stages.definition_hash = run.definition_hash AND v_stages.position = row.origin
WHERE row.state <> 6
UNION ALL
SELECT
    run.id, run.workflow, row.id, max(row.occurrence, 0), NULL, 'member',
    v_stages.stage, other.id, NULL,
    CASE row.state
        WHEN 0 THEN 'pending' WHEN 1 THEN 'done' WHEN 2 THEN 'failed'
        WHEN 3 THEN 'dropped' WHEN 4 THEN 'filtered' WHEN 5 THEN 'skipped'
    END,
    row.error_stage, row.error_type, row.error_message, row.data
FROM run
JOIN row ON row.run_id = run.id
JOIN member ON member.group_key = row.key
JOIN row AS other ON other.key = member.row_key AND other.run_id = run.id
JOIN v_stages ON v_stages.definition_hash = run.definition_hash AND v_stages.position = row.origin
WHERE +row.origin IS NOT NULL AND row.state <> 6;

-- Batches: provider-side jobs that hold many tasks each, and what became of every step of theirs.

CREATE TABLE project (
    token TEXT NOT NULL                 -- minted once: keeps the names of this project's batches apart from those of others
);

INSERT INTO project (token) VALUES (lower(hex(randomblob(16))));

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
