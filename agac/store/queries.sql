-- Every statement that agac runs, by name. `(:many)` stands for as many placeholders as there are values.

-- name: lease_read
-- Who holds a workflow.
SELECT token, holder, heartbeat_at FROM lease WHERE workflow = ?;

-- name: leases
-- Every workflow that is held.
SELECT workflow, holder, heartbeat_at FROM lease WHERE holder <> '';

-- name: lease_take
-- Takes a lease, raising its fencing token; the caller looked first, inside the same transaction.
INSERT INTO lease (workflow, token, holder, heartbeat_at) VALUES (:workflow, 1, :holder, :now)
ON CONFLICT (workflow) DO UPDATE SET token = token + 1, holder = :holder, heartbeat_at = :now
RETURNING token;

-- name: lease_beat
-- Proves inside a commit that the lease is still ours, and says that we live. No row changed: it was taken over.
UPDATE lease SET heartbeat_at = ? WHERE workflow = ? AND token = ?;

-- name: lease_free
-- Gives a lease back.
UPDATE lease SET holder = '' WHERE workflow = ? AND token = ?;

-- name: definition_keep
-- Remembers a resolved workflow once.
INSERT INTO definition (hash, workflow, body, created_at) VALUES (?, ?, ?, ?) ON CONFLICT (hash) DO NOTHING;

-- name: definition_body
-- The resolved workflow of a run.
SELECT d.body FROM run r JOIN definition d ON d.hash = r.definition_hash WHERE r.id = ?;

-- name: run_newest
-- The newest run with the same identity: the one that `agac run` continues.
SELECT id FROM run WHERE workflow = ? AND definition_hash = ? AND selection = ? ORDER BY id DESC LIMIT 1;

-- name: run_make
-- A new run, with a number that no run had before, dropped ones included.
INSERT INTO run (id, workflow, definition_hash, selection, output_dir, include_input, outputs, fresh_since, created_at)
VALUES (1 + max(coalesce((SELECT max(id) FROM run), 0),
    coalesce((SELECT max(json_extract(body, '$.last_run')) FROM event WHERE kind = 'gc'), 0)), ?, ?, ?, ?, ?, ?, ?, ?);

-- name: run_retarget
-- Where the outputs go is not part of a run's identity: the last invocation decides.
UPDATE run SET output_dir = :dir, include_input = :include, outputs = :outputs, exported_revision = NULL
WHERE id = :run AND (output_dir <> :dir OR include_input <> :include OR outputs <> :outputs);

-- name: run_read
-- A run with its last invocation.
SELECT r.id, r.workflow, r.selection, r.output_dir, r.include_input, r.outputs, r.fresh_since, r.created_at, r.finished_at,
       r.revision, r.exported_revision, r.exported_files, e.id, e.at, e.ended_at, e.exit_code, e.body
FROM run r LEFT JOIN event e ON e.id = (SELECT max(id) FROM event WHERE run_id = r.id AND kind = 'invocation')
WHERE r.id = ?;

-- name: run_ids
-- All runs, the one last worked on first.
SELECT r.id FROM run r LEFT JOIN event e ON e.run_id = r.id GROUP BY r.id ORDER BY max(e.id) DESC, r.id DESC;

-- name: runs_at_a_glance
-- Number and workflow of all runs, the one last worked on first.
SELECT r.id, r.workflow FROM run r LEFT JOIN event e ON e.run_id = r.id GROUP BY r.id ORDER BY max(e.id) DESC, r.id DESC;

-- name: run_ids_of_workflow
-- The runs of one workflow, the one last worked on first.
SELECT r.id FROM run r LEFT JOIN event e ON e.run_id = r.id WHERE r.workflow = ?
GROUP BY r.id ORDER BY max(e.id) DESC, r.id DESC;

-- name: run_exporting
-- The files in this run's output folder are about to be replaced: no run that wrote there is shown any longer.
UPDATE run SET exported_revision = NULL WHERE output_dir = (SELECT output_dir FROM run WHERE id = ?);

-- name: run_files
-- What was written into an output folder, by whichever run, and whether it is what stands there.
SELECT id, exported_revision IS NOT NULL, exported_files FROM run WHERE output_dir = ? AND exported_files IS NOT NULL;

-- name: run_exported
-- The files in the output folder now show this revision.
UPDATE run SET exported_revision = ?, exported_files = ? WHERE id = ?;

-- name: run_revise
-- An export would now differ from the last one, and the run is not finished until its invocation says so.
UPDATE run SET revision = revision + 1, finished_at = NULL WHERE id = ?;

-- name: run_finish
-- Every row of the input is settled, which an export shows too. The time stays as it is where nothing was written.
UPDATE run SET revision = revision + (finished_at IS NULL), finished_at = coalesce(finished_at, ?) WHERE id = ?;

-- name: event_make
-- Something worth telling begins.
INSERT INTO event (run_id, kind, at, body) VALUES (?, ?, ?, ?);

-- name: event_end
-- And ends.
UPDATE event SET ended_at = ?, exit_code = ?, body = ? WHERE id = ?;

-- name: invocation_last
-- The newest invocation of a workflow: if it has no end, it was killed.
SELECT e.run_id, e.id, e.at, e.ended_at, e.exit_code, e.body FROM event e JOIN run r ON r.id = e.run_id
WHERE r.workflow = ? AND e.kind = 'invocation' ORDER BY e.id DESC LIMIT 1;

-- name: run_was_read
-- An invocation that came to its end over the input, and not over rows of the store.
SELECT id FROM event
WHERE run_id = ? AND kind = 'invocation' AND exit_code = 0 AND json_extract(body, '$.retry') IS NULL LIMIT 1;

-- name: lost_calls
-- What was lost with a run's killed invocations (twice the concurrency of one never buried) and cut off by Ctrl-C twice.
SELECT sum(coalesce(json_extract(body, '$.lost'), 0) + coalesce(json_extract(body, '$.given_up'), 0)
    + CASE WHEN ended_at IS NULL THEN 2 * json_extract(body, '$.concurrency') ELSE 0 END) FROM event
WHERE run_id = ? AND kind = 'invocation' AND id <> ?;

-- name: endpoint_find
-- The number of an endpoint.
SELECT id FROM endpoint WHERE provider = ? AND base_url = ? AND model = ? AND simulated = ?;

-- name: endpoint_make
-- A new endpoint.
INSERT INTO endpoint (provider, base_url, model, simulated) VALUES (?, ?, ?, ?);

-- name: rows_at
-- The stored rows at a range of positions (and, after an interrupted reordering, strays that share a position).
SELECT key, id, occurrence, ordinal, hash, state, error_type, error_message, error_stage, seen, result_id FROM row
WHERE run_id = ? AND ordinal BETWEEN ? AND ? ORDER BY ordinal;

-- name: rows_by_id
-- The stored rows with these ids, every repetition.
SELECT key, id, occurrence, ordinal, hash, state, error_type, error_message, error_stage, seen, result_id FROM row
WHERE run_id = ? AND id IN (:many) AND origin IS NULL;

-- name: rows_of_id
-- Some repetitions of one id, and its first row.
SELECT key, id, occurrence, ordinal, hash, state, error_type, error_message, error_stage, seen, result_id FROM row
WHERE run_id = ? AND id = ? AND origin IS NULL AND (occurrence = 0 OR occurrence BETWEEN ? AND ?);

-- name: row_key_max
-- The last row key; the next ones are made inside the transaction that inserts them.
SELECT coalesce(max(key), 0) FROM row;

-- name: row_insert
-- A row enters the window, with its snapshot.
INSERT INTO row (key, run_id, id, occurrence, ordinal, hash, data, state, error_type, error_message, seen)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: row_change
-- A row came back with other content, or goes round again: everything about its end is forgotten.
UPDATE row SET ordinal = ?, hash = ?, data = ?, state = ?, result_id = NULL, error_stage = NULL, error_type = ?,
    error_message = ?, seen = ? WHERE key = ?;

-- name: row_place
-- A row came back unchanged at another position, or in a pass that moves rows.
UPDATE row SET ordinal = ?, seen = ? WHERE key = ?;

-- name: row_settle
-- A row reached its end.
UPDATE row SET state = ?, result_id = ?, error_stage = ?, error_type = ?, error_message = ? WHERE key = ?;

-- name: rows_leaving
-- Rows that left the input: past its end, or not met in a pass that moved rows from :shifted on.
SELECT key, state, error_type FROM row
WHERE run_id = :run AND (ordinal > :last OR (ordinal >= :shifted AND seen <> :event)) LIMIT :limit;

-- name: row_leave
-- A row left the input. Its results stay for reuse.
UPDATE row SET ordinal = NULL, state = 0 WHERE key = ?;

-- name: rows_export
-- Rows in input order with their results, a range at a time.
SELECT r.ordinal, r.id, r.state, r.data, v.value, r.error_type, r.error_message, r.key
FROM row r LEFT JOIN result v ON v.id = r.result_id
WHERE r.run_id = ? AND r.ordinal > ? ORDER BY r.ordinal, r.key LIMIT ?;

-- name: results_of_rows
-- The results of these rows' stages, and which stages were skipped.
SELECT t.row_key, t.stage, v.value, t.outcome = 'skipped' FROM task t LEFT JOIN result v ON v.id = t.result_id
WHERE t.row_key IN (:many) AND t.replica = 0;

-- name: rows_filtered
-- The first stage that made each of these rows leave, and why.
SELECT row_key, min(stage), note FROM task WHERE row_key IN (:many) AND outcome = 'dropped' GROUP BY row_key;

-- name: row_examples
-- The first failed row of each kind of error.
SELECT error_type, id, min(ordinal), error_message, error_stage, count(*) FROM row
WHERE run_id = ? AND state = 2 AND ordinal IS NOT NULL GROUP BY error_type, error_stage;

-- name: number_last
-- The last row number that was ever an id, of rows that left the input too. Only for runs whose ids are row numbers.
SELECT max(id) FROM row WHERE run_id = ? AND origin IS NULL;

-- name: tasks_of_rows
-- What became of these rows' tasks before.
SELECT row_key, stage, fingerprint, outcome, result_id, error_type, error_message, failures,
    json_extract(note, '$.agreement')
FROM task WHERE row_key IN (:many) AND replica = 0;

-- name: task_put
-- What became of a task. A replica that was asked here stays `done` when its answer is found again.
INSERT INTO task (row_key, stage, replica, fingerprint, outcome, result_id, error_type, error_message, failures,
    settled_at, note)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (row_key, stage, replica) DO UPDATE SET fingerprint = excluded.fingerprint, outcome = excluded.outcome,
    result_id = excluded.result_id, error_type = excluded.error_type, error_message = excluded.error_message,
    failures = excluded.failures, settled_at = excluded.settled_at, note = excluded.note
WHERE excluded.replica = 0 OR excluded.outcome <> 'reused' OR task.result_id IS NOT excluded.result_id;

-- name: task_forget
-- A changed row no longer gets as far as this stage.
DELETE FROM task WHERE row_key = ? AND stage = ?;

-- name: replicas_forget
-- The stage is not asked any more: what its replicas said was of an earlier row.
DELETE FROM task WHERE row_key = ? AND stage = ? AND replica > 0;

-- name: result_endpoint
-- Who gave a result.
SELECT endpoint_id FROM result WHERE id = ?;

-- name: result_id_max
-- The last result; the next ones are made inside the transaction that inserts them.
SELECT coalesce(max(id), 0) FROM result;

-- name: result_insert
-- A result is kept.
INSERT INTO result (id, fingerprint, value, endpoint_id, created_at, how) VALUES (?, ?, ?, ?, ?, ?);

-- name: results_by_fingerprint
-- Earlier results for these fingerprints; the newest comes last and wins.
SELECT fingerprint, id, value FROM result WHERE created_at >= ? AND fingerprint IN (:many) ORDER BY id;

-- name: attempt_insert
-- What one call cost and brought.
INSERT INTO attempt (row_key, stage, replica, event_id, number, fingerprint, endpoint_id, purpose, started_at, duration,
    status, error_type, error_message, ambiguous, input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost, reply,
    ttft, time_to_response, service_tier)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: counter_add
-- Moves a roll-up by what a commit changed.
INSERT INTO counter (run_id, stage, outcome, error_type, model, count, input_tokens, cached_tokens, output_tokens,
    reasoning_tokens, cost, unpriced, simulated, held_cost, held_tokens)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run_id, stage, outcome, error_type, model) DO UPDATE SET count = count + excluded.count,
    input_tokens = input_tokens + excluded.input_tokens, cached_tokens = cached_tokens + excluded.cached_tokens,
    output_tokens = output_tokens + excluded.output_tokens, reasoning_tokens = reasoning_tokens + excluded.reasoning_tokens,
    cost = cost + excluded.cost, unpriced = unpriced + excluded.unpriced, simulated = simulated + excluded.simulated,
    held_cost = held_cost + excluded.held_cost, held_tokens = held_tokens + excluded.held_tokens;

-- name: counters
-- The roll-ups of a run.
SELECT stage, outcome, error_type, model, count, input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost,
    unpriced, simulated, held_cost, held_tokens FROM counter WHERE run_id = ? AND count <> 0;

-- name: timing_add
-- Moves a histogram by what a commit counted.
INSERT INTO timing (run_id, stage, measure, bucket, count) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (run_id, stage, measure, bucket) DO UPDATE SET count = count + excluded.count;

-- name: timings
-- The histograms of a run.
SELECT stage, measure, bucket, count FROM timing WHERE run_id = ?;

-- name: telemetry_upto
-- Where a range of some rows ends that begins after a position.
SELECT max(ordinal) FROM (SELECT ordinal FROM row WHERE run_id = ? AND ordinal > ? ORDER BY ordinal LIMIT ?);

-- name: telemetry_attempts
-- Every call that was made for the rows at a range of positions, row by row, stage by stage, the earliest first.
SELECT r.key, r.ordinal, r.id, r.state, a.stage, a.event_id, a.number, a.purpose, a.endpoint_id, a.status, a.error_type,
    a.started_at, a.duration, a.ttft, a.time_to_response, a.input_tokens, a.cached_tokens, a.output_tokens,
    a.reasoning_tokens, a.cost, a.service_tier, a.replica
FROM row r CROSS JOIN attempt a ON a.row_key = r.key
WHERE r.run_id = :run AND r.ordinal > :after AND r.ordinal <= :upto ORDER BY r.ordinal, r.key, a.stage, a.id;

-- name: telemetry_made_upto
-- Where a range of some rows ends that a stage made, beginning after a key.
SELECT max(key) FROM (SELECT key FROM row WHERE run_id = ? AND origin = ? AND key > ? ORDER BY key LIMIT ?);

-- name: telemetry_made
-- Every call that was made for a range of rows that a stage made, each with the position of the input's row behind it.
SELECT r.key, (
        WITH RECURSIVE above (ordinal, parent_key) AS (
            SELECT r.ordinal, r.parent_key
            UNION ALL
            SELECT p.ordinal, p.parent_key FROM above JOIN row p ON p.key = above.parent_key
        )
        SELECT max(ordinal) FROM above
    ), r.id, r.state, a.stage, a.event_id, a.number, a.purpose, a.endpoint_id, a.status, a.error_type, a.started_at,
    a.duration, a.ttft, a.time_to_response, a.input_tokens, a.cached_tokens, a.output_tokens, a.reasoning_tokens, a.cost,
    a.service_tier, a.replica
FROM row r CROSS JOIN attempt a ON a.row_key = r.key
WHERE r.run_id = :run AND r.origin = :origin AND r.key > :after AND r.key <= :upto AND r.state <> 6
ORDER BY r.key, a.stage, a.id;

-- name: agreements
-- How many replicas agreed in the votes of these rows.
SELECT row_key, stage, json_extract(note, '$.agreement') FROM task
WHERE row_key IN (:many) AND replica = 0 AND json_extract(note, '$.agreement') IS NOT NULL;

-- name: endpoints_read
-- Every endpoint.
SELECT id, provider, model, simulated FROM endpoint;

-- name: ids_scan_make
-- A scratch table for `on_duplicate_id: last`, which has to know the whole input first.
CREATE TEMP TABLE last_position (id PRIMARY KEY, ordinal INTEGER NOT NULL) WITHOUT ROWID;

-- name: ids_scan_put
-- The last position of an id so far.
INSERT INTO last_position (id, ordinal) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET ordinal = excluded.ordinal;

-- name: ids_scan_read
-- The last positions of these ids.
SELECT id, ordinal FROM last_position WHERE id IN (:many);

-- name: run_lines
-- The runs of one workflow, or of all, with what tells them apart; the one last worked on first.
SELECT r.id, r.workflow, r.definition_hash, r.fresh_since, coalesce(e.ended_at, e.at, r.created_at), r.selection <> '{}'
FROM run r LEFT JOIN event e ON e.id = (SELECT max(id) FROM event WHERE run_id = r.id AND kind = 'invocation')
WHERE :workflow IS NULL OR r.workflow = :workflow ORDER BY e.id DESC, r.id DESC;

-- name: workflows_run
-- The workflows that have runs.
SELECT DISTINCT workflow FROM run ORDER BY workflow;

-- name: definitions_read
-- Resolved workflows by hash.
SELECT hash, body FROM definition WHERE hash IN (:many);

-- name: invocations_read
-- The last invocations of a run.
SELECT id, at, ended_at, exit_code, body FROM event WHERE run_id = ? AND kind = 'invocation' ORDER BY id DESC LIMIT ?;

-- name: rows_look
-- The rows with these ids, with their snapshots, for looking at them: of the input, and what stages made.
SELECT key, id, occurrence, ordinal, data, state, error_stage, error_type, error_message, origin, parent_key, place FROM row
WHERE run_id = ? AND id IN (:many) AND state <> 6;

-- name: row_above
-- The row of which a row was made.
SELECT p.key, p.id, p.occurrence, p.ordinal, p.data, p.state, p.error_stage, p.error_type, p.error_message, p.origin,
    p.parent_key, p.place FROM row r JOIN row p ON p.key = r.parent_key WHERE r.key = ?;

-- name: parts_look
-- The parts into which a large group is cut.
SELECT key, id, occurrence, ordinal, data, state, error_stage, error_type, error_message, origin, parent_key, place FROM row
WHERE parent_key = ? AND place < 0 AND state <> 6;

-- name: rows_below
-- How many rows stages made of a row, by stage and state; parts of a large group apart.
SELECT origin, place < 0, state, count(*) FROM row WHERE parent_key = ? AND state <> 6 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;

-- name: ids_below
-- The ids of some rows that a stage made of a row, in their order; or of the parts of a large group, the highest first.
SELECT id FROM row WHERE parent_key = ? AND origin = ? AND (place < 0) = ? AND state <> 6 ORDER BY place, key LIMIT ?;

-- name: member_ids
-- Some members of a group by their ids: those that failed before they came to it, or the others.
SELECT r.id FROM member m JOIN row r ON r.key = m.row_key WHERE m.group_key = ? AND m.failed = ? ORDER BY r.id LIMIT ?;

-- name: ids_from
-- The ids at some positions of the input.
SELECT id FROM row WHERE run_id = ? AND ordinal >= ? ORDER BY ordinal LIMIT ?;

-- name: tasks_look
-- A row's tasks with their results, and who gave them.
SELECT t.stage, t.fingerprint, t.outcome, t.error_type, t.error_message, t.failures, t.settled_at, t.result_id,
    v.value, v.how, v.created_at, e.provider, e.base_url, e.model, e.simulated, t.note, t.replica
FROM task t LEFT JOIN result v ON v.id = t.result_id LEFT JOIN endpoint e ON e.id = v.endpoint_id
WHERE t.row_key = ? ORDER BY t.stage, t.replica;

-- name: attempts_look
-- Every call that was made for a row.
SELECT a.stage, a.event_id, a.number, a.fingerprint, a.purpose, a.started_at, a.duration, a.status, a.error_type,
    a.error_message, a.ambiguous, a.input_tokens, a.cached_tokens, a.output_tokens, a.reasoning_tokens, a.cost, a.reply,
    e.provider, e.base_url, e.model, e.simulated, a.service_tier, a.ttft, a.time_to_response, a.replica
FROM attempt a JOIN endpoint e ON e.id = a.endpoint_id WHERE a.row_key = ? ORDER BY a.stage, a.id;

-- name: call_last
-- Whether the last call of an invocation brought no answer, and why. It is looked for among the newest ones only.
SELECT status IS NULL OR status = 429 OR status >= 500, error_type, error_message FROM attempt
WHERE event_id = ? AND id > (SELECT max(id) - 1000 FROM attempt) ORDER BY id DESC LIMIT 1;

-- name: results_asked
-- Where these results were asked. A pass over all tasks: nothing else ever needs an index for it.
SELECT t.result_id, r.run_id, r.id, r.key FROM task t JOIN row r ON r.key = t.row_key
WHERE t.outcome = 'done' AND t.result_id IN (:many);

-- name: run_number_last
-- The last number that a run ever had, dropped ones too.
SELECT max(coalesce((SELECT max(id) FROM run), 0),
    coalesce((SELECT max(json_extract(body, '$.last_run')) FROM event WHERE kind = 'gc'), 0));

-- name: lease_holders
-- Every workflow that somebody holds.
SELECT workflow, holder FROM lease WHERE holder <> '';

-- name: leases_known
-- Every workflow that was ever held or run.
SELECT workflow FROM lease UNION SELECT workflow FROM run;

-- name: gc_events_drop
-- Of dropping runs only the last time is on record: it holds the last number that a run ever had.
DELETE FROM event WHERE kind = 'gc';

-- name: gc_event_newest
-- The newest event of all: ours, while nobody began to work.
SELECT max(id) FROM event;

-- name: gc_roots
-- Some rows of a run that is dropped, of those that are no children: of the input, the last ones first, and groups then.
SELECT key FROM row WHERE run_id = ? AND parent_key IS NULL ORDER BY ordinal DESC, key DESC LIMIT ?;

-- name: gc_tree
-- A row and all that is made of it, the last generation first.
WITH RECURSIVE tree (key) AS (
    VALUES (?) UNION ALL SELECT row.key FROM tree JOIN row ON row.parent_key = tree.key
)
SELECT r.key, r.ordinal, r.place, r.state, r.error_type FROM tree JOIN row r ON r.key = tree.key ORDER BY r.key DESC;

-- name: gc_left_rows
-- Some rows that left the input of a run, or are no longer made, before a key: what is made of a row before the row.
SELECT key, ordinal, place, state, error_type FROM row
WHERE run_id = ? AND ordinal IS NULL AND (origin IS NULL OR state = 6) AND key < ? ORDER BY key DESC LIMIT ?;

-- name: gc_row_count
-- How many rows a run has, how many of them left the input, and how many are no longer made. Parts of groups are none.
SELECT count(*), coalesce(sum(ordinal IS NULL AND origin IS NULL), 0), coalesce(sum(state = 6), 0) FROM row
WHERE run_id = ? AND (place IS NULL OR place >= 0);

-- name: gc_members_drop
-- What a group was made of.
DELETE FROM member WHERE group_key = ?;

-- name: gc_made_drop
-- The counts of rows that stages made in a run without rows.
DELETE FROM made WHERE run_id = ?;

-- name: gc_tasks_drop
-- The tasks of a row.
DELETE FROM task WHERE row_key = ?;

-- name: gc_attempts_drop
-- The attempts of a row.
DELETE FROM attempt WHERE row_key = ?;

-- name: gc_row_drop
-- A row whose tasks and attempts are gone.
DELETE FROM row WHERE key = ?;

-- name: gc_counters_drop
-- The roll-ups of a run without rows.
DELETE FROM counter WHERE run_id = ?;

-- name: gc_timings_drop
-- The histograms of a run without rows.
DELETE FROM timing WHERE run_id = ?;

-- name: gc_run_events_drop
-- The invocations of a run without rows.
DELETE FROM event WHERE run_id = ?;

-- name: gc_run_drop
-- A run of which nothing else is left.
DELETE FROM run WHERE id = ?;

-- name: gc_ends
-- The last row key, result and attempt.
SELECT (SELECT coalesce(max(key), 0) FROM row), (SELECT coalesce(max(id), 0) FROM result),
    (SELECT coalesce(max(id), 0) FROM attempt);

-- name: gc_references
-- The results to which some rows and their tasks refer. Rows that are no longer made refer to none.
SELECT r.run_id, r.ordinal IS NULL AND r.origin IS NULL, t.result_id FROM row r JOIN task t ON t.row_key = r.key
WHERE r.key > :after AND r.key <= :upto AND t.result_id IS NOT NULL
UNION ALL
SELECT run_id, ordinal IS NULL AND origin IS NULL, result_id FROM row WHERE key > :after AND key <= :upto AND result_id IS NOT NULL;

-- name: gc_asked_elsewhere
-- The results of what some attempts asked for rows of other workflows than this one.
SELECT v.id FROM attempt a JOIN row r ON r.key = a.row_key JOIN run u ON u.id = r.run_id
JOIN result v ON v.fingerprint = a.fingerprint
WHERE a.id > :after AND a.id <= :upto AND u.workflow <> :workflow;

-- name: gc_results
-- Some results.
SELECT id FROM result WHERE id > :after AND id <= :upto;

-- name: gc_result_drop
-- A result to which nothing refers.
DELETE FROM result WHERE id = ?;

-- name: gc_result_endpoints
-- The endpoints that some results name.
SELECT DISTINCT endpoint_id FROM result WHERE id > :after AND id <= :upto;

-- name: gc_attempt_endpoints
-- The endpoints that some attempts name.
SELECT DISTINCT endpoint_id FROM attempt WHERE id > :after AND id <= :upto;

-- name: gc_endpoints
-- All endpoints.
SELECT id FROM endpoint;

-- name: gc_endpoint_drop
-- An endpoint that nothing names.
DELETE FROM endpoint WHERE id = ?;

-- name: gc_definitions_drop
-- Definitions that no run has.
DELETE FROM definition WHERE hash NOT IN (SELECT definition_hash FROM run);

-- name: leases_free
-- In a copy of the database nobody is at work.
UPDATE lease SET holder = '';

-- name: rows_chosen
-- Rows to take up again, a range at a time: failed ones, those that the same retry opened and left, or all (done_too).
SELECT key, id, occurrence, ordinal, hash, data, state, error_type, error_message, error_stage, result_id FROM row
WHERE run_id = :run AND ordinal > :after AND state <> 3 AND NOT (state = 2 AND error_stage IS NULL)
    AND (:done_too
        OR (state = 2 AND (:stage IS NULL OR error_stage = :stage) AND (:error IS NULL OR error_type = :error))
        OR (state = 0 AND seen IN (SELECT id FROM event WHERE run_id = :run AND at >= :since)))
ORDER BY ordinal, key LIMIT :limit;

-- name: rows_chosen_count
-- How many these are, and how many of those that stages made, by where and how they failed; '' stands for open ones.
SELECT CASE state WHEN 0 THEN '' ELSE error_stage END AS failed_at, error_type, count(*) FROM row
WHERE run_id = :run AND (ordinal IS NOT NULL OR place >= 0) AND state NOT IN (3, 6)
    AND NOT (state = 2 AND error_stage IS NULL)
    AND ((:done_too AND origin IS NULL)
        OR (state = 2 AND (:stage IS NULL OR error_stage = :stage) AND (:error IS NULL OR error_type = :error))
        OR (state = 0 AND seen IN (SELECT id FROM event WHERE run_id = :run AND at >= :since)))
GROUP BY failed_at, error_type;

-- name: row_chosen_count
-- The same among the rows of one id and those that were made of it, whose ids begin with it and a slash.
SELECT CASE state WHEN 0 THEN '' ELSE error_stage END AS failed_at, error_type, count(*) FROM row
WHERE run_id = :run AND (id = :id OR (id > :id || '/' AND id < :id || '0' AND origin IS NOT NULL))
    AND (ordinal IS NOT NULL OR place >= 0) AND state NOT IN (3, 6)
    AND NOT (state = 2 AND error_stage IS NULL)
    AND ((:done_too AND (origin IS NULL OR id = :id))
        OR (state = 2 AND (:stage IS NULL OR error_stage = :stage) AND (:error IS NULL OR error_type = :error))
        OR (state = 0 AND seen IN (SELECT id FROM event WHERE run_id = :run AND at >= :since)))
GROUP BY failed_at, error_type;

-- name: first_event_since
-- The first invocation of a run from a time on.
SELECT min(id) FROM event WHERE run_id = ? AND at >= ?;

-- name: rows_aged
-- Which of these rows have a result of a stage that is older than it may be.
SELECT DISTINCT t.row_key FROM task t JOIN result v ON v.id = t.result_id
WHERE t.stage = ? AND v.created_at < ? AND t.row_key IN (:many);

-- name: task_of_row
-- A row of a run by its id, with what became of its task at a stage; of several the one that came to the stage.
SELECT r.run_id, r.key, r.data, t.fingerprint, t.outcome, t.error_type, t.error_message, t.settled_at,
    v.how, v.created_at, e.provider, e.model
FROM row r LEFT JOIN task t ON t.row_key = r.key AND t.stage = ? AND t.replica = 0
LEFT JOIN result v ON v.id = t.result_id LEFT JOIN endpoint e ON e.id = v.endpoint_id
WHERE r.run_id = ? AND r.id = ? AND r.state <> 6 ORDER BY t.stage IS NULL, r.origin, r.occurrence LIMIT 1;

-- name: runs_with_row_before
-- Earlier runs of the same workflow that have a row of this id.
SELECT DISTINCT r.id FROM run r JOIN row w ON w.run_id = r.id AND w.occurrence <= 0
WHERE r.workflow = (SELECT workflow FROM run WHERE id = ?) AND r.id < ? AND w.id = ? ORDER BY r.id DESC;

-- name: askings_of_row
-- When a row's stages were asked, by question and invocation, whether that brought an answer, and of which retry.
SELECT a.stage, a.fingerprint, max(a.started_at), max(a.error_type IS NULL), json_extract(e.body, '$.retry'), a.replica
FROM attempt a JOIN event e ON e.id = a.event_id WHERE a.row_key = ?
GROUP BY a.stage, a.fingerprint, a.event_id ORDER BY max(a.id);

-- name: relations
-- Every table and view with its columns: what a query could have meant.
SELECT s.name, c.name
FROM sqlite_master AS s, pragma_table_info(s.name) AS c
WHERE s.type IN ('table', 'view') AND s.name NOT LIKE 'sqlite_%'
ORDER BY s.type DESC, s.name, c.cid;

-- name: origins_of_children
-- The stages that made children of a row, by position.
SELECT DISTINCT origin FROM row WHERE parent_key = ? AND place >= 0;

-- name: children_of
-- What a stage made of a row before.
SELECT place, key, hash, state FROM row WHERE parent_key = ? AND origin = ? AND place >= 0;

-- name: children_of_rows
-- All rows that are made of these, parts of large groups too.
SELECT key FROM row WHERE parent_key IN (:many) AND state <> 6;

-- name: child_put
-- A row that a stage makes, and a part of a large group.
INSERT INTO row (key, run_id, id, occurrence, hash, data, state, seen, parent_key, origin, place)
VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?);

-- name: child_change
-- A row that a stage makes again, of other content.
UPDATE row SET hash = ?, data = ?, state = 0, result_id = NULL, error_stage = NULL, error_type = NULL, error_message = NULL,
    seen = ? WHERE key = ?;

-- name: row_gone
-- A row that is no longer made.
UPDATE row SET state = 6, result_id = NULL, error_stage = NULL, error_type = NULL, error_message = NULL WHERE key = ?;

-- name: tasks_counted
-- What the roll-ups hold of these rows' tasks.
SELECT t.stage, t.outcome, t.error_type, r.place < 0, json_extract(t.note, '$.agreement') FROM task t JOIN row r ON r.key = t.row_key
WHERE t.row_key IN (:many) AND t.replica = 0;

-- name: tasks_drop
-- The tasks of a row that is gone.
DELETE FROM task WHERE row_key = ?;

-- name: groups_of
-- The groups that a row is in.
SELECT m.group_key, g.origin, g.id FROM member m JOIN row g ON g.key = m.group_key WHERE m.row_key = ?;

-- name: memberships
-- Which of these rows is in which group.
SELECT row_key, group_key FROM member WHERE row_key IN (:many);

-- name: member_put
-- A row is in a group.
INSERT INTO member (group_key, sort, row_key, size, failed) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (group_key, sort, row_key) DO UPDATE SET size = excluded.size, failed = excluded.failed;

-- name: member_drop
-- A row is no longer in a group.
DELETE FROM member WHERE row_key = ? AND group_key = ?;

-- name: group_find
-- A group by its id.
SELECT key FROM row WHERE run_id = ? AND id = ? AND occurrence = ?;

-- name: alike_put
-- A row came to a stage that keeps the first of equal ones.
INSERT INTO alike (run_id, origin, hash, row_key, content, state) VALUES (?, ?, ?, ?, ?, ?);

-- name: alike_drop
-- A row comes to no such stage any longer.
DELETE FROM alike WHERE row_key = ?;

-- name: alike_page
-- Some rows of a stage that keeps the first of equal ones: equal ones side by side.
SELECT a.hash, a.row_key, a.content, a.state, r.state, r.id, r.origin, r.result_id, c.hash, c.state
FROM alike a JOIN row r ON r.key = a.row_key
LEFT JOIN row c ON c.parent_key = a.row_key AND c.origin = a.origin AND c.place = 0
WHERE a.run_id = ? AND a.origin = ? AND (a.hash, a.row_key) > (?, ?) ORDER BY a.hash, a.row_key LIMIT ?;

-- name: made_rows
-- Rows that a stage made and that need work: open ones, failed ones, or all (done_too). A parent's state comes along.
SELECT r.key, r.id, r.hash, r.data, r.state, r.error_type, r.error_message, r.error_stage, r.result_id, r.parent_key, r.place,
    r.seen, p.state FROM row r LEFT JOIN row p ON p.key = r.parent_key
WHERE r.run_id = :run AND r.origin = :origin AND r.key > :after AND r.place >= 0 AND r.state <> 6
    AND (:done_too OR r.state = 0 OR r.state = 2) ORDER BY r.key LIMIT :limit;

-- name: made_counts
-- How the rows stand that stages made.
SELECT origin, state, error_stage, error_type, count FROM made WHERE run_id = ? AND count > 0;

-- name: made_by_id
-- Rows that a stage made, by their ids.
SELECT key, id, occurrence, ordinal, hash, state, error_type, error_message, error_stage, seen, result_id FROM row
WHERE run_id = ? AND occurrence = ? AND id IN (:many) AND origin IS NOT NULL AND state <> 6;

-- name: made_parents
-- Of how many rows a stage made others.
SELECT count(DISTINCT parent_key) FROM row WHERE run_id = ? AND origin = ? AND place >= 0 AND state <> 6;

-- name: rows_of_keys
-- Some rows, for what was made of them.
SELECT key, id, ordinal, data, origin, parent_key, place, state FROM row WHERE key IN (:many);

-- name: group_sizes
-- How many members these groups have, what those come to in tokens, and how many failed.
SELECT group_key, sum(NOT failed), sum(CASE WHEN failed THEN 0 ELSE size END), sum(failed) FROM member
WHERE group_key IN (:many) GROUP BY group_key;

-- name: members_page
-- Some members of a group in the order of their hashes.
SELECT m.sort, m.row_key, m.size, r.id FROM member m JOIN row r ON r.key = m.row_key
WHERE m.group_key = ? AND (m.sort, m.row_key) > (?, ?) AND m.sort <= ? AND NOT m.failed ORDER BY m.sort, m.row_key LIMIT ?;

-- name: part_put
-- A part of a large group is to be asked. Its place is its height, below zero.
INSERT INTO row (key, run_id, id, occurrence, hash, data, state, seen, parent_key, origin, place)
VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?)
ON CONFLICT (run_id, id, occurrence) DO UPDATE SET data = excluded.data, state = 0, result_id = NULL, error_stage = NULL,
    error_type = NULL, error_message = NULL, seen = excluded.seen, place = excluded.place;

-- name: parts_stale
-- The parts of a group that it is no longer cut into.
SELECT key FROM row WHERE parent_key = ? AND place < 0 AND state <> 6 AND seen <> ?;

-- name: parts_open
-- Parts of large groups of one height that are to be asked.
SELECT key, id, data, parent_key FROM row
WHERE run_id = ? AND origin = ? AND place = ? AND key > ? AND state = 0 ORDER BY key LIMIT ?;

-- name: part_values
-- What parts of groups came to.
SELECT r.id, v.value FROM row r JOIN result v ON v.id = r.result_id
WHERE r.run_id = ? AND r.occurrence = ? AND r.state = 1 AND r.id IN (:many);

-- name: parts_failed
-- A part of a group that failed, if any did: of the smallest, since larger ones fail for their sake.
SELECT error_type, error_message, id FROM row WHERE parent_key = ? AND place < 0 AND state = 2 ORDER BY place DESC LIMIT 1;

-- name: made_open
-- A row that a stage made is to be worked on again; a group is when its members changed.
UPDATE row SET state = 0, result_id = NULL, error_stage = NULL, error_type = NULL, error_message = NULL, seen = ? WHERE key = ?;

-- name: groups_export
-- Groups by their ids, with their results, a range at a time.
SELECT NULL, r.id, r.state, r.data, v.value, r.error_type, r.error_message, r.key
FROM row r LEFT JOIN result v ON v.id = r.result_id
WHERE r.run_id = ? AND r.id > ? AND r.occurrence = ? AND r.place = 0 AND r.state <> 6 ORDER BY r.id LIMIT ?;

-- name: child_counts
-- How many children stages made of these rows.
SELECT parent_key, origin, count(*) FROM row WHERE parent_key IN (:many) AND place >= 0 AND state <> 6
GROUP BY parent_key, origin;

-- name: children_export
-- The children of these rows in their order, with their results.
SELECT r.parent_key, r.place, NULL, r.id, r.state, r.data, v.value, r.error_type, r.error_message, r.key
FROM row r LEFT JOIN result v ON v.id = r.result_id
WHERE r.origin = ? AND r.place > ? AND r.state <> 6 AND r.parent_key IN (:many) ORDER BY r.parent_key, r.place LIMIT ?;

-- name: made_failed
-- Failed rows that a stage made by their ids, a range at a time.
SELECT NULL, id, state, data, NULL, error_type, error_message, key FROM row
WHERE run_id = ? AND id > ? AND occurrence = ? AND place >= 0 AND state = 2 ORDER BY id LIMIT ?;

-- name: made_examples
-- The first failed row of each kind of error among those that stages made.
SELECT error_type, id, NULL, error_message, error_stage, count(*), min(key) FROM row
WHERE run_id = ? AND state = 2 AND origin IS NOT NULL AND place >= 0 GROUP BY error_type, error_stage;
