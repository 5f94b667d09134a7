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

-- What became of each row at each stage: a line for each task.
CREATE VIEW v_results AS
SELECT
    run.id AS run,                                      -- number of the run
    run.workflow AS workflow,                           -- name of the workflow
    row.id AS row_id,                                   -- id of the row: text, or a number where the input has no id_field
    row.occurrence AS occurrence,                       -- 0, or which repetition of the id this is
    row.ordinal AS row_number,                          -- position in the input from 1; null once it left the input
    v_stages.stage AS stage,                            -- name of the stage
    task.replica AS replica,                            -- from 0
    task.outcome AS outcome,                            -- done, reused, failed, skipped or dropped
    result.value AS result,                             -- JSON text; null without a result
    endpoint.provider || '/' || endpoint.model AS model,    -- who gave the result
    endpoint.simulated AS simulated,                    -- 1: the simulator gave the result
    result.how AS how,                                  -- '' as the model gave it; else repair, json_repair, fallback
    task.error_type AS error_type,                      -- null without an error
    task.error_message AS error_message,                -- null without an error
    task.note AS note,                                  -- why a guard passed it over: JSON with the guard and its values
    (SELECT count(*) FROM attempt AS a
     WHERE a.row_key = task.row_key AND a.stage = task.stage AND a.replica = task.replica) AS calls,  -- all that were made for it in this run
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
    row.occurrence AS occurrence,                       -- 0, or which repetition of the id this is
    row.ordinal AS row_number,                          -- position in the input from 1; null once it left the input
    v_stages.stage AS stage,                            -- name of the stage
    attempt.replica AS replica,                         -- from 0
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

-- Where each row came from: a line for each row, and one more for each member of a group.
CREATE VIEW v_lineage AS
SELECT
    run.id AS run,                                      -- number of the run
    run.workflow AS workflow,                           -- name of the workflow
    row.id AS row_id,                                   -- id of the row
    row.occurrence AS occurrence,                       -- 0, or which repetition of the id this is
    row.ordinal AS row_number,                          -- position in the input from 1; null once it left it, and for what stages made
    iif(row.origin IS NULL, 'input', 'group') AS relation,  -- input, child or group, a line a row; member, a line for each row of a group
    v_stages.stage AS stage,                            -- name of the stage that made it; null for the input
    NULL AS from_id,                                    -- id of the parent, or of the member; null for input and group
    NULL AS place,                                      -- from 0, among the children of its parent
    CASE row.state
        WHEN 0 THEN 'pending' WHEN 1 THEN 'done' WHEN 2 THEN 'failed'
        WHEN 3 THEN 'dropped' WHEN 4 THEN 'filtered' WHEN 5 THEN 'skipped'
    END AS state,                                       -- what became of the row
    row.error_stage AS error_stage,                     -- where it failed; null for an error of the input
    row.error_type AS error_type,                       -- null without an error
    row.error_message AS error_message,                 -- null without an error
    row.data AS data                                    -- its own fields, JSON
FROM run
JOIN row ON row.run_id = run.id
LEFT JOIN v_stages ON v_stages.definition_hash = run.definition_hash AND v_stages.position = row.origin
WHERE +row.parent_key IS NULL
UNION ALL
SELECT
    run.id, run.workflow, row.id, row.occurrence, row.ordinal, 'child',
    v_stages.stage, parent.id, row.place,
    CASE row.state
        WHEN 0 THEN 'pending' WHEN 1 THEN 'done' WHEN 2 THEN 'failed'
        WHEN 3 THEN 'dropped' WHEN 4 THEN 'filtered' WHEN 5 THEN 'skipped'
    END,
    row.error_stage, row.error_type, row.error_message, row.data
FROM run
JOIN row ON row.run_id = run.id
JOIN row AS parent ON parent.key = row.parent_key AND parent.run_id = run.id
JOIN v_stages ON v_stages.definition_hash = run.definition_hash AND v_stages.position = row.origin
UNION ALL
SELECT
    run.id, run.workflow, row.id, row.occurrence, row.ordinal, 'member',
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
WHERE +row.origin IS NOT NULL;

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
