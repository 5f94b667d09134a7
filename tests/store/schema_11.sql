-- table definition
CREATE TABLE definition (
    hash       BLOB PRIMARY KEY,
    workflow   TEXT NOT NULL,
    body       TEXT NOT NULL,
    created_at REAL NOT NULL
);

-- table endpoint
CREATE TABLE endpoint (
    id         INTEGER PRIMARY KEY,
    provider   TEXT NOT NULL,
    base_url   TEXT NOT NULL,
    model      TEXT NOT NULL,
    simulated  INTEGER NOT NULL,
    UNIQUE (provider, base_url, model, simulated)
);

-- table run
CREATE TABLE run (
    id                INTEGER PRIMARY KEY,
    workflow          TEXT NOT NULL,
    definition_hash   BLOB NOT NULL REFERENCES definition (hash),
    selection         TEXT NOT NULL,
    output_dir        TEXT NOT NULL,
    include_input     INTEGER NOT NULL,
    fresh_since       REAL,
    created_at        REAL NOT NULL,
    finished_at       REAL,
    revision          INTEGER NOT NULL DEFAULT 0,
    exported_revision INTEGER,
    exported_files    TEXT
, outputs TEXT NOT NULL DEFAULT '{}', read_at REAL, manner TEXT);

-- index run_identity
CREATE INDEX run_identity ON run (workflow, definition_hash, selection);

-- table event
CREATE TABLE event (
    id        INTEGER PRIMARY KEY,
    run_id    INTEGER NOT NULL REFERENCES run (id),
    kind      TEXT NOT NULL,
    at        REAL NOT NULL,
    ended_at  REAL,
    exit_code INTEGER,
    body      TEXT NOT NULL
);

-- index event_run
CREATE INDEX event_run ON event (run_id, id);

-- table row
CREATE TABLE row (
    key           INTEGER PRIMARY KEY,
    run_id        INTEGER NOT NULL REFERENCES run (id),
    id            NOT NULL,
    occurrence    INTEGER NOT NULL,
    ordinal       INTEGER,
    hash          BLOB NOT NULL,
    data          TEXT NOT NULL,
    state         INTEGER NOT NULL,
    result_id     INTEGER,
    error_stage   TEXT,
    error_type    TEXT,
    error_message TEXT,
    seen          INTEGER NOT NULL
, parent_key INTEGER REFERENCES row (key), origin INTEGER, place INTEGER);

-- index row_id
CREATE UNIQUE INDEX row_id ON row (run_id, id, occurrence);

-- index row_ordinal
CREATE INDEX row_ordinal ON row (run_id, ordinal);

-- index row_failed
CREATE INDEX row_failed ON row (run_id, error_type, error_stage, ordinal) WHERE state = 2;

-- table task
CREATE TABLE task (
    row_key       INTEGER NOT NULL REFERENCES row (key),
    stage         INTEGER NOT NULL,
    replica       INTEGER NOT NULL,
    fingerprint   BLOB,
    outcome       TEXT NOT NULL,
    result_id     INTEGER,
    error_type    TEXT,
    error_message TEXT,
    failures      INTEGER NOT NULL,
    settled_at    REAL NOT NULL, note TEXT,
    PRIMARY KEY (row_key, stage, replica)
) WITHOUT ROWID;

-- table result
CREATE TABLE result (
    id          INTEGER PRIMARY KEY,
    fingerprint BLOB NOT NULL,
    value       TEXT NOT NULL,
    endpoint_id INTEGER NOT NULL REFERENCES endpoint (id),
    created_at  REAL NOT NULL
, how TEXT NOT NULL DEFAULT '');

-- index result_fingerprint
CREATE INDEX result_fingerprint ON result (fingerprint);

-- table attempt
CREATE TABLE attempt (
    id               INTEGER PRIMARY KEY,
    row_key          INTEGER NOT NULL REFERENCES row (key),
    stage            INTEGER NOT NULL,
    replica          INTEGER NOT NULL,
    event_id         INTEGER NOT NULL REFERENCES event (id),
    number           INTEGER NOT NULL,
    fingerprint      BLOB NOT NULL,
    endpoint_id      INTEGER NOT NULL REFERENCES endpoint (id),
    purpose          TEXT NOT NULL,
    started_at       REAL NOT NULL,
    duration         REAL NOT NULL,
    status           INTEGER,
    error_type       TEXT,
    error_message    TEXT,
    ambiguous        INTEGER NOT NULL,
    input_tokens     INTEGER,
    cached_tokens    INTEGER,
    output_tokens    INTEGER,
    reasoning_tokens INTEGER,
    cost             REAL,
    reply            BLOB
, ttft REAL, time_to_response REAL, service_tier TEXT);

-- index attempt_task
CREATE INDEX attempt_task ON attempt (row_key, stage);

-- table counter
CREATE TABLE counter (
    run_id           INTEGER NOT NULL,
    stage            TEXT NOT NULL,
    outcome          TEXT NOT NULL,
    error_type       TEXT NOT NULL,
    model            TEXT NOT NULL,
    count            INTEGER NOT NULL,
    input_tokens     INTEGER NOT NULL,
    cached_tokens    INTEGER NOT NULL,
    output_tokens    INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    cost             REAL NOT NULL,
    unpriced         INTEGER NOT NULL,
    simulated        INTEGER NOT NULL, held_cost REAL NOT NULL DEFAULT 0, held_tokens INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, stage, outcome, error_type, model)
) WITHOUT ROWID;

-- table lease
CREATE TABLE lease (
    workflow     TEXT PRIMARY KEY,
    token        INTEGER NOT NULL,
    holder       TEXT NOT NULL,
    heartbeat_at REAL NOT NULL
);

-- table timing
CREATE TABLE timing (
    run_id  INTEGER NOT NULL,
    stage   TEXT NOT NULL,
    measure TEXT NOT NULL,
    bucket  INTEGER NOT NULL,
    count   INTEGER NOT NULL,
    PRIMARY KEY (run_id, stage, measure, bucket)
) WITHOUT ROWID;

-- index row_parent
CREATE INDEX row_parent ON row (parent_key, place) WHERE parent_key IS NOT NULL;

-- index row_origin
CREATE INDEX row_origin ON row (run_id, origin, key) WHERE origin IS NOT NULL;

-- table member
CREATE TABLE member (
    group_key INTEGER NOT NULL REFERENCES row (key),
    sort      INTEGER NOT NULL,
    row_key   INTEGER NOT NULL REFERENCES row (key),
    size      INTEGER NOT NULL, failed INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (group_key, sort, row_key)
) WITHOUT ROWID;

-- index member_row
CREATE INDEX member_row ON member (row_key, group_key);

-- view v_stages
CREATE VIEW v_stages AS
SELECT DISTINCT
    definition.hash AS definition_hash,
    CAST(part.key AS INTEGER) AS position,
    json_extract(part.value, '$.name') AS stage
FROM definition
JOIN json_each(definition.body, '$.stages') AS part;

-- view v_costs
CREATE VIEW v_costs AS
SELECT
    counter.run_id AS run,
    run.workflow AS workflow,
    counter.stage AS stage,
    counter.model AS model,
    sum(counter.count) AS calls,
    sum(counter.input_tokens) AS input_tokens,
    sum(counter.cached_tokens) AS cached_tokens,
    sum(counter.output_tokens) AS output_tokens,
    sum(counter.reasoning_tokens) AS reasoning_tokens,
    round(sum(counter.cost), 9) AS cost_usd,
    sum(counter.unpriced) AS unpriced,
    sum(counter.simulated) AS simulated,
    round(sum(counter.held_cost), 9) AS held_usd
FROM counter
JOIN run ON run.id = counter.run_id
WHERE counter.outcome = 'call'
GROUP BY counter.run_id, counter.stage, counter.model;

-- table made
CREATE TABLE made (
    run_id      INTEGER NOT NULL,
    origin      INTEGER NOT NULL,
    state       INTEGER NOT NULL,
    error_stage TEXT NOT NULL,
    error_type  TEXT NOT NULL,
    count       INTEGER NOT NULL,
    PRIMARY KEY (run_id, origin, state, error_stage, error_type)
) WITHOUT ROWID;

-- trigger row_made
CREATE TRIGGER row_made AFTER INSERT ON row
WHEN new.origin IS NOT NULL AND new.place >= 0 AND new.state <> 6
BEGIN
    INSERT INTO made
    VALUES (new.run_id, new.origin, new.state, coalesce(new.error_stage, ''), coalesce(new.error_type, ''), 1)
    ON CONFLICT DO UPDATE SET count = count + 1; END;

-- trigger row_remade
CREATE TRIGGER row_remade AFTER UPDATE OF state, error_stage, error_type ON row
WHEN new.origin IS NOT NULL AND new.place >= 0
BEGIN
    UPDATE made SET count = count - 1
    WHERE run_id = old.run_id AND origin = old.origin AND state = old.state
        AND error_stage = coalesce(old.error_stage, '') AND error_type = coalesce(old.error_type, ''); INSERT INTO made
    SELECT new.run_id, new.origin, new.state, coalesce(new.error_stage, ''), coalesce(new.error_type, ''), 1
    WHERE new.state <> 6
    ON CONFLICT DO UPDATE SET count = count + 1; END;

-- trigger row_unmade
CREATE TRIGGER row_unmade AFTER DELETE ON row
WHEN old.origin IS NOT NULL AND old.place >= 0 AND old.state <> 6
BEGIN
    UPDATE made SET count = count - 1
    WHERE run_id = old.run_id AND origin = old.origin AND state = old.state
        AND error_stage = coalesce(old.error_stage, '') AND error_type = coalesce(old.error_type, ''); END;

-- table alike
CREATE TABLE alike (
    run_id  INTEGER NOT NULL,
    origin  INTEGER NOT NULL,
    hash    BLOB NOT NULL,
    row_key INTEGER NOT NULL REFERENCES row (key),
    content BLOB NOT NULL,
    state   INTEGER NOT NULL,
    PRIMARY KEY (run_id, origin, hash, row_key)
) WITHOUT ROWID;

-- index alike_row
CREATE INDEX alike_row ON alike (row_key, origin);

-- view v_results
CREATE VIEW v_results AS
SELECT
    run.id AS run,
    run.workflow AS workflow,
    row.id AS row_id,
    max(row.occurrence, 0) AS occurrence,
    iif(row.parent_key IS NULL, row.ordinal, (
        WITH RECURSIVE above (ordinal, parent_key) AS (
            SELECT row.ordinal, row.parent_key
            UNION ALL
            SELECT parent.ordinal, parent.parent_key FROM above JOIN row AS parent ON parent.key = above.parent_key
        )
        SELECT max(ordinal) FROM above
    )) AS row_number,
    v_stages.stage AS stage,
    task.replica AS replica,
    task.outcome AS outcome,
    result.value AS result,
    endpoint.provider || '/' || endpoint.model AS model,
    endpoint.simulated AS simulated,
    result.how AS how,
    task.error_type AS error_type,
    task.error_message AS error_message,
    task.note AS note,
    json_extract(task.note, '$.agreement') AS agreement,
    (SELECT count(*) FROM attempt AS a
     WHERE a.row_key = task.row_key AND a.stage = task.stage AND a.replica = task.replica) AS calls,
    (SELECT sum(a.input_tokens) FROM attempt AS a
     WHERE a.row_key = task.row_key AND a.stage = task.stage AND a.replica = task.replica) AS input_tokens,
    (SELECT sum(a.output_tokens) FROM attempt AS a
     WHERE a.row_key = task.row_key AND a.stage = task.stage AND a.replica = task.replica) AS output_tokens,
    (SELECT round(sum(a.cost), 9) FROM attempt AS a
     WHERE a.row_key = task.row_key AND a.stage = task.stage AND a.replica = task.replica) AS cost_usd,
    strftime('%Y-%m-%dT%H:%M:%SZ', task.settled_at, 'unixepoch') AS settled_at,
    task.settled_at AS settled_seconds,
    lower(hex(task.fingerprint)) AS fingerprint
FROM run
JOIN row ON row.run_id = run.id
JOIN task ON task.row_key = row.key
JOIN v_stages ON v_stages.definition_hash = run.definition_hash AND v_stages.position = task.stage
LEFT JOIN result ON result.id = task.result_id
LEFT JOIN endpoint ON endpoint.id = result.endpoint_id;

-- view v_attempts
CREATE VIEW v_attempts AS
SELECT
    run.id AS run,
    run.workflow AS workflow,
    row.id AS row_id,
    max(row.occurrence, 0) AS occurrence,
    iif(row.parent_key IS NULL, row.ordinal, (
        WITH RECURSIVE above (ordinal, parent_key) AS (
            SELECT row.ordinal, row.parent_key
            UNION ALL
            SELECT parent.ordinal, parent.parent_key FROM above JOIN row AS parent ON parent.key = above.parent_key
        )
        SELECT max(ordinal) FROM above
    )) AS row_number,
    v_stages.stage AS stage,
    attempt.replica AS replica,
    attempt.event_id AS invocation,
    attempt.number AS attempt,
    attempt.purpose AS purpose,
    endpoint.provider || '/' || endpoint.model AS model,
    endpoint.base_url AS base_url,
    endpoint.simulated AS simulated,
    attempt.status AS status,
    attempt.service_tier AS service_tier,
    attempt.error_type AS error_type,
    attempt.error_message AS error_message,
    attempt.ambiguous AS ambiguous,
    attempt.input_tokens AS input_tokens,
    attempt.cached_tokens AS cached_tokens,
    attempt.output_tokens AS output_tokens,
    attempt.reasoning_tokens AS reasoning_tokens,
    attempt.cost AS cost_usd,
    strftime('%Y-%m-%dT%H:%M:%SZ', attempt.started_at, 'unixepoch') AS started_at,
    attempt.started_at AS started_seconds,
    attempt.duration AS duration,
    attempt.ttft AS ttft,
    attempt.time_to_response AS time_to_response,
    attempt.id AS attempt_id
FROM run
JOIN row ON row.run_id = run.id
JOIN attempt ON attempt.row_key = row.key
JOIN v_stages ON v_stages.definition_hash = run.definition_hash AND v_stages.position = attempt.stage
LEFT JOIN endpoint ON endpoint.id = attempt.endpoint_id;

-- view v_lineage
CREATE VIEW v_lineage AS
SELECT
    run.id AS run,
    run.workflow AS workflow,
    row.id AS row_id,
    max(row.occurrence, 0) AS occurrence,
    row.ordinal AS row_number,
    iif(row.origin IS NULL, 'input', 'group') AS relation,
    v_stages.stage AS stage,
    NULL AS from_id,
    NULL AS place,
    CASE row.state
        WHEN 0 THEN 'pending' WHEN 1 THEN 'done' WHEN 2 THEN 'failed'
        WHEN 3 THEN 'dropped' WHEN 4 THEN 'filtered' WHEN 5 THEN 'skipped'
    END AS state,
    row.error_stage AS error_stage,
    row.error_type AS error_type,
    row.error_message AS error_message,
    row.data AS data
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

-- table project
CREATE TABLE project (
    token TEXT NOT NULL
);

-- table batch
CREATE TABLE batch (
    id             INTEGER PRIMARY KEY,
    run_id         INTEGER NOT NULL REFERENCES run (id),
    event_id       INTEGER NOT NULL REFERENCES event (id),
    stage          INTEGER NOT NULL,
    position       INTEGER NOT NULL,
    provider       TEXT NOT NULL,
    base_url       TEXT NOT NULL,
    model          TEXT NOT NULL,
    account        TEXT NOT NULL,
    state          TEXT NOT NULL,
    intent         TEXT NOT NULL,
    attempt        INTEGER NOT NULL,
    file           TEXT NOT NULL,
    tasks          INTEGER NOT NULL,
    bytes          INTEGER NOT NULL,
    tokens         INTEGER NOT NULL,
    sha256         TEXT,
    window         TEXT,
    held_usd       REAL NOT NULL,
    held_tokens    INTEGER NOT NULL,
    priced         INTEGER NOT NULL,
    file_id        TEXT,
    provider_id    TEXT,
    status         TEXT,
    word           TEXT,
    total          INTEGER,
    done           INTEGER,
    failed         INTEGER,
    planned_at     REAL NOT NULL,
    created_after  REAL,
    submitted_at   REAL,
    seen_at        REAL,
    moved_at       REAL,
    ended_at       REAL,
    expires_at     REAL,
    results_until  REAL,
    ingested_at    REAL,
    cleaned_at     REAL,
    cancel_at      REAL,
    then_do        TEXT,
    try_at         REAL,
    deadline       REAL,
    outputs        TEXT,
    counts         TEXT,
    cost           REAL,
    foreign_ids    TEXT,
    note           TEXT
);

-- index batch_open
CREATE INDEX batch_open ON batch (run_id, state) WHERE state NOT IN ('CLEANED', 'NOT_CREATED', 'REJECTED');

-- index batch_run
CREATE INDEX batch_run ON batch (run_id);

-- index batch_provider_id
CREATE INDEX batch_provider_id ON batch (provider_id);

-- table batch_task
CREATE TABLE batch_task (
    id            INTEGER PRIMARY KEY,
    run_id        INTEGER NOT NULL,
    batch_id      INTEGER,
    place         INTEGER,
    row_key       INTEGER NOT NULL,
    stage         INTEGER NOT NULL,
    replica       INTEGER NOT NULL,
    fingerprint   BLOB NOT NULL,
    state         INTEGER NOT NULL,
    round         INTEGER NOT NULL,
    position      INTEGER NOT NULL,
    repairs       INTEGER NOT NULL,
    then_do       TEXT,
    error_type    TEXT,
    error_message TEXT
);

-- index batch_task_place
CREATE UNIQUE INDEX batch_task_place ON batch_task (batch_id, place) WHERE batch_id IS NOT NULL;

-- index batch_task_live
CREATE INDEX batch_task_live ON batch_task (fingerprint) WHERE state < 2;

-- index batch_task_row
CREATE INDEX batch_task_row ON batch_task (row_key, stage, replica) WHERE state < 3;

-- index batch_task_ready
CREATE INDEX batch_task_ready ON batch_task (run_id, row_key) WHERE state = 2;

-- table batch_lane
CREATE TABLE batch_lane (
    provider   TEXT NOT NULL,
    account    TEXT NOT NULL,
    model      TEXT NOT NULL,
    cap        INTEGER,
    shown_at   REAL,
    PRIMARY KEY (provider, account, model)
) WITHOUT ROWID;