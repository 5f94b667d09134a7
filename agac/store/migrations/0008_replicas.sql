-- The views again, since stages may ask a row several times, and make rows of others.
DROP VIEW v_results;
DROP VIEW v_attempts;

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
