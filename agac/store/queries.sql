-- Every statement that agac runs, by name. `(:many)` stands for as many placeholders as there are values, a name in braces
-- for a part that several statements share. Several under one name are run one after the other, with the same values.

-- part: row
-- A `StoredRow`, as far as an unchanged one is looked at.
key, id, occurrence, ordinal, hash, state, error_type, error_message, error_stage, seen, result_id

-- part: whole_row
-- A `StoredRow` with its snapshot and where it comes from.
{row}, data, origin, parent_key, place

-- part: retried
-- Whether a retry chooses a row: one that failed so, or that the same retry opened and left.
((state = 2 AND (:stage IS NULL OR error_stage = :stage) AND (:error IS NULL OR error_type = :error))
    OR (state = 0 AND seen IN (SELECT id FROM event WHERE run_id = :run AND at >= :since)))

-- part: input_ordinal
-- Where the row of the input stands that a row `r` descends from; null: a group does.
(
    WITH RECURSIVE above (ordinal, parent_key) AS (
        SELECT r.ordinal, r.parent_key
        UNION ALL
        SELECT p.ordinal, p.parent_key FROM above JOIN row p ON p.key = above.parent_key
    )
    SELECT max(ordinal) FROM above
) AS ordinal

-- part: matches
-- Whether a row `r` is one of those that are looked for: `states` has a bit for each state, `position` is that of a stage
-- and `outcome` what its task came to there; '' for any, 'open' for none yet.
CASE WHEN r.origin IS NOT :origin OR r.place < 0 OR coalesce(r.ordinal, r.origin) IS NULL OR r.state = 6
    OR NOT (1 << r.state) & :states OR (:error <> '' AND r.error_type IS NOT :error) THEN 0
WHEN :position IS NOT NULL AND coalesce((SELECT iif(:outcome = '', '', t.outcome) FROM task t
    WHERE t.row_key = r.key AND t.stage = :position AND t.replica = 0), 'open') <> :outcome THEN 0
WHEN :text IS NULL THEN 1
ELSE coalesce(r.data LIKE :text ESCAPE '\', 0) OR coalesce(r.error_message LIKE :text ESCAPE '\', 0)
    OR coalesce((SELECT v.value LIKE :text ESCAPE '\' FROM result v WHERE v.id = r.result_id), 0) END AS shown

-- part: call
-- A `CallRecord` but for its reply and its row, of an attempt `a` and its endpoint `e`.
a.stage, a.replica, a.event_id AS invocation, a.number, a.purpose, a.fingerprint, e.provider, e.model, e.base_url,
    e.simulated, a.started_at, a.duration, a.ttft, a.time_to_response, a.status, a.service_tier, a.input_tokens,
    a.cached_tokens, a.output_tokens, a.reasoning_tokens, a.cost, a.ambiguous, a.error_type, a.error_message

-- part: closed
-- Final steps of a batch.
('INGESTED', 'CLEANED', 'NOT_CREATED', 'REJECTED')

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
UPDATE run SET output_dir = ?1, include_input = ?2, outputs = ?3, exported_revision = NULL
WHERE id = ?4 AND (output_dir <> ?1 OR include_input <> ?2 OR outputs <> ?3);

-- name: run_manner
-- How a run goes about its definition; the last invocation decides.
UPDATE run SET manner = ? WHERE id = ?;

-- name: run_manner_read
-- How a run goes about its definition.
SELECT manner FROM run WHERE id = ?;

-- name: run_read
-- A run with its last invocation.
SELECT r.id, r.workflow, r.selection, r.output_dir, r.include_input, r.outputs, r.fresh_since, r.created_at, r.read_at,
       r.finished_at, r.revision, r.exported_revision, ifnull(r.exported_files, '{}') AS exported_files, e.id AS invocation_id,
       e.at AS invocation_at, e.ended_at AS invocation_ended_at, e.exit_code AS invocation_exit_code,
       e.body AS invocation_body
FROM run r LEFT JOIN event e ON e.id = (SELECT max(id) FROM event WHERE run_id = r.id AND kind = 'invocation')
WHERE r.id = ?;

-- name: run_superseded_by
-- The run of the same workflow, rows, variables and output folder that was worked on after this one, and has a task.
WITH worked AS (
    SELECT r.*, json_extract(d.body, '$.input.path') AS path, json_extract(d.body, '$.vars') AS vars, (
        SELECT max(id) FROM event
        WHERE run_id = r.id AND kind = 'invocation' AND json_extract(body, '$.retrieves') IS NULL
    ) AS last FROM run r JOIN definition d ON d.hash = r.definition_hash
)
SELECT n.id FROM worked o JOIN worked n ON (n.workflow, n.selection, n.output_dir, n.path, n.vars)
    = (o.workflow, o.selection, o.output_dir, o.path, o.vars) AND n.last > o.last
WHERE o.id = ? AND EXISTS (
    SELECT 1 FROM counter WHERE run_id = n.id AND stage <> '' AND count > 0
    AND outcome IN ('done', 'reused', 'failed', 'skipped', 'dropped')
) ORDER BY n.last DESC LIMIT 1;

-- name: run_exporting
-- The files in this run's output folder are about to be replaced: no run that wrote there is shown any longer.
UPDATE run SET exported_revision = NULL WHERE output_dir = (SELECT output_dir FROM run WHERE id = ?);

-- name: run_files
-- What was written into an output folder, by whichever run, and whether it is what stands there.
SELECT id AS run, exported_revision IS NOT NULL AS shown, exported_files AS files FROM run WHERE output_dir = ? AND exported_files IS NOT NULL;

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

-- name: event_fill
-- Makes the record of an invocation longer, for a moment: white space after it changes nothing.
UPDATE event SET body = body || ? WHERE id = ?;

-- name: event_note
-- What is known of an invocation, while it goes on.
UPDATE event SET body = ? WHERE id = ?;

-- name: event_say
-- Something else, JSON, is to be said in the record of an invocation, at this path.
UPDATE event SET body = json_set(body, ?, json(?)) WHERE id = ?;

-- name: event_end
-- And ends.
UPDATE event SET ended_at = ?, exit_code = ?, body = ? WHERE id = ?;

-- name: store_accepted
-- How many invocations went on with this store though a summary told of another one, or of a newer one, by this mark.
SELECT count(*) FROM event WHERE kind = 'invocation' AND json_extract(body, '$.accepted') = ?;

-- name: invocation_last
-- The newest invocation of a workflow: if it has no end, it was killed.
SELECT e.run_id AS run, e.id AS invocation_id, e.at AS invocation_at, e.ended_at AS invocation_ended_at,
    e.exit_code AS invocation_exit_code, e.body AS invocation_body FROM event e JOIN run r ON r.id = e.run_id
WHERE r.workflow = ? AND e.kind = 'invocation' ORDER BY e.id DESC LIMIT 1;

-- name: run_serving
-- How well caches and slots were used, by each invocation that made calls and came to its end.
SELECT json_extract(body, '$.serving') FROM event
WHERE run_id = ? AND kind = 'invocation' AND json_extract(body, '$.serving') IS NOT NULL ORDER BY id;

-- name: run_short
-- How many records of the input had fewer fields than its header, as the last invocation that read some of it found.
SELECT coalesce(json_extract(body, '$.rows_short'), 0) FROM event
WHERE run_id = ? AND kind = 'invocation' AND json_extract(body, '$.rows_seen') > 0 ORDER BY id DESC LIMIT 1;

-- name: run_was_read
-- An invocation that came to its end over the input, and not over rows of the store.
SELECT id FROM event
WHERE run_id = ? AND kind = 'invocation' AND exit_code = 0 AND json_extract(body, '$.retry') IS NULL
AND json_extract(body, '$.retrieves') IS NULL LIMIT 1;

-- name: run_reading
-- When the input was read to its end; null: a pass over it begins.
UPDATE run SET read_at = ? WHERE id = ?;

-- name: lost_calls
-- What was lost with a run's killed invocations (twice the concurrency of one never buried) and cut off by Ctrl-C twice.
SELECT sum(coalesce(json_extract(body, '$.lost'), 0) + coalesce(json_extract(body, '$.given_up'), 0)
    + CASE WHEN ended_at IS NULL THEN 2 * json_extract(body, '$.concurrency') ELSE 0 END) FROM event
WHERE run_id = ? AND kind = 'invocation' AND id <> ?;

-- name: endpoint_put
-- The number of an endpoint, which is new or there.
INSERT INTO endpoint (provider, base_url, model, simulated) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET model = excluded.model RETURNING id;

-- name: rows_at
-- The stored rows at a range of positions (and, after an interrupted reordering, strays that share a position).
SELECT {row} FROM row WHERE run_id = ? AND ordinal BETWEEN ? AND ? ORDER BY ordinal;

-- name: rows_by_id
-- The stored rows with these ids, every repetition.
SELECT {row} FROM row WHERE run_id = ? AND id IN (:many) AND origin IS NULL;

-- name: rows_with_results
-- How many rows of the input with these ids have a result, or had one: those that changed and those that left count too.
SELECT count(*) FROM row WHERE run_id = ? AND id IN (:many) AND origin IS NULL AND (state NOT IN (2, 3, 4)
    OR EXISTS (SELECT 1 FROM task WHERE row_key = row.key AND outcome IN ('done', 'reused')));

-- name: rows_of_id
-- Some repetitions of one id, and its first row.
SELECT {row} FROM row
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
-- Rows that left the input: past its end, or not met in a pass that moved rows from a position on.
SELECT key, state, error_type FROM row
WHERE run_id = ?1 AND (ordinal > ?2 OR (ordinal >= ?3 AND seen <> ?4)) LIMIT ?5;

-- name: row_leave
-- A row left the input. Its results stay for reuse.
UPDATE row SET ordinal = NULL, state = 0 WHERE key = ?;

-- name: rows_export
-- Rows in input order with their results, a range at a time.
SELECT r.ordinal, r.id, r.state, r.data, v.value, r.error_type, r.error_message, r.key
FROM row r LEFT JOIN result v ON v.id = r.result_id
WHERE r.run_id = :run AND r.ordinal > :after ORDER BY r.ordinal, r.key LIMIT :limit;

-- name: row_export
-- Rows of the input (-1) or rows that the stage at this position made, with their results.
SELECT r.ordinal, r.id, r.state, r.data, v.value, r.error_type, r.error_message, r.key, NULL AS form, r.origin IS NOT NULL AS made
FROM row r LEFT JOIN result v ON v.id = r.result_id WHERE r.key IN (:many) AND coalesce(r.origin, -1) = ?;

-- name: results_of_rows
-- The results of these rows' stages, and which stages were skipped.
SELECT t.row_key, t.stage, v.value, t.outcome = 'skipped' FROM task t LEFT JOIN result v ON v.id = t.result_id
WHERE t.row_key IN (:many) AND t.replica = 0;

-- name: rows_filtered
-- The first stage that made each of these rows leave, and why.
SELECT row_key, min(stage), note FROM task WHERE row_key IN (:many) AND outcome = 'dropped' GROUP BY row_key;

-- name: rows_repeated
-- How many rows of the input were left out since they repeat an id.
SELECT count(*) FROM row WHERE run_id = ? AND state = 3 AND ordinal IS NOT NULL;

-- name: row_examples
-- The first failed row of each kind of error.
SELECT error_type, id AS row_id, min(ordinal) AS ordinal, error_message AS message, error_stage AS stage, count(*) AS rows
FROM row WHERE run_id = ? AND state = 2 AND ordinal IS NOT NULL GROUP BY error_type, error_stage;

-- name: number_last
-- The last row number that was ever an id, of rows that left the input too. Only for runs whose ids are row numbers.
SELECT max(id) FROM row WHERE run_id = ? AND origin IS NULL;

-- name: tasks_of_rows
-- What became of these rows' tasks before.
SELECT row_key, stage, fingerprint, outcome, result_id, error_type, error_message, failures,
    ifnull(json_extract(note, '$.agreement'), json_extract(note, '$.review')) AS agreement
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
-- A changed row no longer gets as far as this stage; or (from 1) what the stage's replicas said was of an earlier row.
DELETE FROM task WHERE row_key = ? AND stage = ? AND replica >= ?;

-- name: result_endpoint
-- Who gave a result, and with which sources.
SELECT endpoint_id, sources FROM result WHERE id = ?;

-- name: result_id_max
-- The last result; the next ones are made inside the transaction that inserts them.
SELECT coalesce(max(id), 0) FROM result;

-- name: result_insert
-- A result is kept.
INSERT INTO result (id, fingerprint, value, endpoint_id, created_at, how, sources) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: results_by_fingerprint
-- Earlier results for these fingerprints; the newest own one comes last and wins. Adopted ones are of one workflow alone.
SELECT fingerprint, id, value FROM result WHERE fingerprint IN (:many) AND created_at >= ? AND (how <> 'adopted'
    OR endpoint_id IN (SELECT id FROM endpoint WHERE provider = 'adopted' AND base_url = ?)) ORDER BY pack_id IS NULL, id;

-- name: replicas_failed
-- How replicas with these fingerprints failed, by the rows that asked.
SELECT fingerprint, row_key, settled_at, error_type, error_message FROM task
WHERE fingerprint IN (:many) AND replica > 0 AND outcome = 'failed';

-- part: answers_to_push
-- The answers of rows' tasks that may be pushed, each with what its calls came to; of which rows `r` is said after it.
SELECT t.fingerprint, v.value, v.created_at AS at, v.how, e.provider, e.base_url, e.model,
    sum(a.input_tokens) AS input_tokens, sum(a.output_tokens) AS output_tokens, round(sum(a.cost), 9) AS cost, v.sources
FROM row r JOIN task t ON t.row_key = r.key JOIN result v ON v.id = t.result_id JOIN endpoint e ON e.id = v.endpoint_id
JOIN run ON run.id = r.run_id JOIN definition d ON d.hash = run.definition_hash
LEFT JOIN attempt a ON a.row_key = r.key AND a.stage = t.stage AND a.replica = t.replica AND a.fingerprint = t.fingerprint
WHERE t.outcome = 'done' AND t.fingerprint = v.fingerprint AND v.pack_id IS NULL
    AND json_extract(t.note, '$.review') IS NULL AND v.how <> 'adopted' AND NOT e.simulated AND e.base_url <> ''
    AND coalesce(json_extract(d.body, '$.stages[' || t.stage || '].reuse'), '') <> 'never'
    AND coalesce(json_extract(d.body, '$.stages[' || t.stage || '].agent.mode'), 'live') = 'live'

-- name: packable
-- Those of some rows.
{answers_to_push} AND r.key > ? AND r.key <= ? AND v.id > ? GROUP BY t.row_key, t.stage, t.replica;

-- name: packable_since
-- Those of rows with these attempts, as far as their results came after a number.
{answers_to_push} AND r.key IN (SELECT row_key FROM attempt WHERE id > ? AND id <= ?) AND v.id > ?
GROUP BY t.row_key, t.stage, t.replica;

-- name: packs_known
-- The packs that were pushed from here, or taken in.
SELECT writer, name FROM pack;

-- name: pack_put
-- A pack of which answers come.
INSERT INTO pack (writer, name) VALUES (:writer, :pack) ON CONFLICT DO NOTHING;

-- name: answer_pulled
-- An answer of a pack, where none so new is there, and who gave it.
INSERT INTO endpoint (provider, base_url, model, simulated) VALUES (:provider, :base_url, :model, 0) ON CONFLICT DO NOTHING;
INSERT INTO result (fingerprint, value, endpoint_id, created_at, how, sources, pack_id)
SELECT :fingerprint, :value, e.id, :at, :how, :sources, p.id FROM endpoint e JOIN pack p ON p.writer = :writer AND p.name = :pack
WHERE e.provider = :provider AND e.base_url = :base_url AND e.model = :model AND NOT e.simulated
    AND NOT EXISTS (SELECT 1 FROM result v WHERE v.fingerprint = :fingerprint AND v.created_at >= :since);

-- name: results_adopt
-- Results are kept that stood in a file.
-- Of such the workflow stands in the place of the endpoint's address, and the file in that of the model.
INSERT INTO endpoint (provider, base_url, model, simulated) VALUES ('adopted', :workflow, :file, 0) ON CONFLICT DO NOTHING;
INSERT INTO result (fingerprint, value, created_at, how, endpoint_id)
SELECT f.fingerprint, f.value, :at, 'adopted', e.id FROM temp.found f JOIN endpoint e
WHERE f.fingerprint IS NOT NULL AND e.provider = 'adopted' AND e.base_url = :workflow AND e.model = :file ORDER BY f.key;

-- name: found_make
-- What stands in a file and may be adopted, for as long as this connection is open: by the ids of rows, in its order.
-- number: the id where it is a whole number in the file. row_number, input: as the line has them. ordinal: the number of
-- the row of the input with this id. confirmed: whether input is that row, null where it does not tell. refused: why its
-- answer is not taken.
CREATE TEMP TABLE IF NOT EXISTS found (key INTEGER PRIMARY KEY, id TEXT UNIQUE, value TEXT, number INTEGER,
    row_number INTEGER, input TEXT, lines INTEGER, fingerprint BLOB, ordinal INTEGER, confirmed INTEGER, refused TEXT);

-- name: found_put
-- A line of the file; the last one of an id counts.
INSERT INTO temp.found (id, value, number, row_number, input, lines) VALUES (?, ?, ?, ?, ?, 1)
ON CONFLICT (id) DO UPDATE SET value = excluded.value, number = excluded.number, row_number = excluded.row_number,
    input = excluded.input, lines = lines + 1;

-- name: found_input
-- What the answer of this id says of its row.
SELECT input FROM temp.found WHERE id = ? AND value IS NOT NULL;

-- name: found_match
-- A row of the input has this id.
UPDATE temp.found SET fingerprint = ?, ordinal = ?, confirmed = ? WHERE id = ?;

-- name: found_numbers
-- What tells whether ids are row numbers.
-- How many ids, how many of them are whole numbers, how many lines have a row number, at how many it is the id; the least
-- and the greatest number; at how many the row of the input has another number.
SELECT count(*) AS ids, count(number) AS numbers, count(row_number) AS row_numbers,
    count(*) FILTER (WHERE number = row_number) AS equal, min(number) AS least, max(number) AS most,
    count(*) FILTER (WHERE ordinal <> number) AS elsewhere FROM temp.found;

-- name: found_refuse_inputs
-- Answers are refused whose input is not that of the row.
UPDATE temp.found SET refused = 'input', fingerprint = NULL WHERE confirmed = 0;

-- name: found_refuse_numbers
-- Answers are refused that only a number names, which is not the row's.
UPDATE temp.found SET refused = 'number', fingerprint = NULL WHERE fingerprint IS NOT NULL AND confirmed IS NULL;

-- name: found_counts
-- What was found, counted.
-- How many ids there are, answers, answers of rows, lines that another one of the same id follows; answers that are
-- refused for their input, and for their ids.
SELECT count(*) AS ids, count(value) AS answers, count(fingerprint) AS of_rows, ifnull(sum(lines), 0) - count(*) AS repeated,
    count(*) FILTER (WHERE refused = 'input') AS other_input, count(*) FILTER (WHERE refused = 'number') AS row_numbers
FROM temp.found;

-- name: found_common
-- The commonest answers of rows.
SELECT value, count(*) FROM temp.found WHERE fingerprint IS NOT NULL GROUP BY value ORDER BY 2 DESC, 1 LIMIT 3;

-- name: found_first
-- The first answers of rows.
SELECT id, value FROM temp.found WHERE fingerprint IS NOT NULL ORDER BY key LIMIT 3;

-- name: rows_adopted
-- How many rows of a run have a result that its workflow adopted.
SELECT count(*) FROM row r JOIN result v ON v.id = r.result_id
WHERE EXISTS (SELECT 1 FROM endpoint WHERE provider = 'adopted' AND base_url = ?)
    AND r.run_id = ? AND r.ordinal IS NOT NULL AND v.how = 'adopted';

-- name: attempt_insert
-- What one call cost and brought.
INSERT INTO attempt (row_key, stage, replica, event_id, number, fingerprint, endpoint_id, purpose, started_at, duration,
    status, error_type, error_message, ambiguous, input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost, reply,
    ttft, time_to_response, service_tier, cache_write_tokens, server_tools)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: chunk_call_put
-- A call that a worker is about to get; again, where another one gets it.
INSERT OR REPLACE INTO chunk_call (event_id, run_id, number, chunk, worker, stage, row_key, replica, fingerprint, mark, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: chunk_call_end
-- What came of such a call is stored.
DELETE FROM chunk_call WHERE event_id = ? AND number = ?;

-- name: chunk_calls
-- Calls of a workflow that workers had when its last process died; those of rows that are gone have no row.
SELECT c.event_id AS event, c.number, c.chunk, c.run_id AS run, c.stage, c.row_key AS row, c.replica, c.fingerprint,
    c.mark, c.at
FROM chunk_call AS c JOIN run ON run.id = c.run_id WHERE run.workflow = ?;

-- name: turn_put
-- A reply within a conversation.
INSERT INTO agent_turn (workflow, fingerprint, number, conversation, model, agent, row_key, stage, event_id, attempt,
    at, status, reply, ended)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: turn_ended
-- A conversation ended with one of its turns, by what came of its tools.
UPDATE agent_turn SET ended = ? WHERE fingerprint = ? AND number = ? AND workflow = ?;

-- name: tool_call_put
-- A call of a tool: that it is about to be made, and then what came of it.
INSERT INTO tool_call (workflow, fingerprint, turn, place, row_key, stage, event_id, call_id, name, arguments, state,
    result, how, started_at, duration)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (fingerprint, turn, place, workflow) DO UPDATE SET row_key = excluded.row_key, event_id = excluded.event_id,
    state = excluded.state, result = excluded.result, how = excluded.how, started_at = excluded.started_at,
    duration = excluded.duration;

-- name: newest_turns
-- The turns of a task's newest conversation.
SELECT number, conversation, model, at, status, reply, ended FROM agent_turn
WHERE fingerprint = ?1 AND workflow = ?2 AND conversation = (
    SELECT max(conversation) FROM agent_turn WHERE fingerprint = ?1 AND workflow = ?2
) ORDER BY number;

-- name: turns_of_row
-- The turns of a row's conversations, stage by stage, those of child agents too, each with the calls that it asked for.
SELECT t.stage, json_object(
    'number', t.number, 'conversation', t.conversation, 'agent', t.agent, 'model', t.model, 'invocation', t.event_id,
    'attempt', t.attempt, 'fingerprint', lower(hex(t.fingerprint)), 'at', strftime('%Y-%m-%dT%H:%M:%SZ', t.at, 'unixepoch'), 'ended', t.ended,
    'calls', (SELECT json_group_array(json_object(
        'name', c.name, 'arguments', c.arguments, 'state', c.state, 'how', c.how, 'result', c.result,
        'started_at', strftime('%Y-%m-%dT%H:%M:%SZ', c.started_at, 'unixepoch'), 'duration_s', round(c.duration, 4)))
    FROM (SELECT * FROM tool_call WHERE fingerprint = t.fingerprint AND turn = t.number AND workflow = t.workflow
        ORDER BY place) c)) AS turn
FROM agent_turn t WHERE t.row_key = ? ORDER BY t.stage, t.at, t.number;

-- name: spans_of_row
-- What was done for a row when, as JSON: its calls of models and of tools, by their begin. What did not end took nothing.
SELECT json_object('invocation', s.invocation, 'stage', v.stage, 'replica', s.replica, 'kind', s.kind, 'name', s.name,
    'started_at', s.started_at, 'duration', s.duration, 'error_type', s.error_type, 'cost', s.cost, 'simulated', s.simulated)
FROM (
    SELECT a.row_key, a.event_id AS invocation, a.stage, a.replica, a.purpose AS kind,
        e.provider || '/' || e.model AS name, a.started_at, a.duration, a.error_type, a.cost, e.simulated
    FROM attempt a JOIN endpoint e ON e.id = a.endpoint_id WHERE a.row_key = ?1
    UNION ALL
    SELECT row_key, event_id, stage, 0, 'tool', name, started_at, duration, iif(state = 'done', NULL, state), NULL, 0
    FROM tool_call WHERE row_key = ?1
) s
JOIN row r ON r.key = s.row_key JOIN run ON run.id = r.run_id
JOIN v_stages v ON v.definition_hash = run.definition_hash AND v.position = s.stage
ORDER BY s.invocation, s.started_at LIMIT ?2;

-- name: rows_all
-- Every row of a run, those that stages made too, a range at a time; of what other shards have none.
SELECT {whole_row} FROM row WHERE run_id = :run AND key > :after AND coalesce(place, 0) > -1048576 ORDER BY key LIMIT :limit;

-- name: last_turns
-- The last turn of each of some tasks of a workflow, and the first one of its conversation.
SELECT fingerprint, max(number) AS number, max(conversation) AS conversation FROM agent_turn
WHERE fingerprint IN (:many) AND workflow = ? GROUP BY fingerprint;

-- name: calls_since
-- The calls of tools that a task's turns from this one on asked for.
SELECT turn, place, name, arguments, state, result FROM tool_call
WHERE fingerprint = ? AND workflow = ? AND turn >= ? ORDER BY turn, place;

-- name: turns_used
-- A row's turns by stage, and the calls in them, from the beginning of the conversation that gave its result or goes on.
SELECT t.stage, count(*), sum((SELECT count(*) FROM tool_call c WHERE c.fingerprint = t.fingerprint
    AND c.turn = t.number AND c.workflow = t.workflow AND c.state <> 'refused'))
FROM agent_turn t WHERE t.row_key = ?1 AND t.at >= (
    SELECT min(f.at) FROM agent_turn f WHERE f.workflow = t.workflow AND f.fingerprint IN (
        SELECT ?2 UNION SELECT fingerprint FROM task WHERE row_key = ?1 AND stage = t.stage AND outcome <> 'failed')
    AND f.number = (SELECT max(conversation) FROM agent_turn WHERE fingerprint = f.fingerprint AND workflow = f.workflow)
) GROUP BY t.stage;

-- name: recorded_calls
-- The calls of tools that answered a task of a run (an earlier run's where that had the answer), or those of an :agent.
WITH asked AS (
    SELECT run.workflow, task.fingerprint FROM run JOIN row ON row.run_id = run.id
    JOIN definition d ON d.hash = run.definition_hash JOIN json_each(d.body, '$.stages') s ON s.value ->> 'name' = :stage
    JOIN task ON task.row_key = row.key AND task.stage = s.key
    WHERE run.id = :run AND row.id = :id AND row.occurrence = :occurrence AND (task.replica = :replica OR :agent <> '')
), calls AS (
    SELECT DISTINCT c.*, row.run_id FROM asked JOIN agent_turn a USING (workflow, fingerprint)
    JOIN agent_turn t ON t.row_key = a.row_key AND t.stage = a.stage AND t.workflow = a.workflow AND t.agent = :agent
    JOIN tool_call c ON c.fingerprint = t.fingerprint AND c.turn = t.number AND c.workflow = t.workflow
    JOIN row ON row.key = c.row_key
    WHERE (t.fingerprint = a.fingerprint OR :agent <> '') AND row.run_id <= :run AND c.state IN ('done', 'error')
)
SELECT name, arguments, result, state = 'error' AS error FROM calls
WHERE run_id = (SELECT max(run_id) FROM calls) ORDER BY event_id, fingerprint, turn, place;

-- name: tool_cache_get
-- The result of an equal call, kept since then and not out of date.
SELECT result FROM tool_cache WHERE key = ? AND at >= ? AND (expires IS NULL OR expires > ?);

-- name: tool_cache_put
-- Keeps a result for later runs.
INSERT OR REPLACE INTO tool_cache (key, name, result, at, expires) VALUES (?, ?, ?, ?, ?);

-- name: counter_add
-- Moves a roll-up by what a commit changed.
INSERT INTO counter (run_id, stage, outcome, error_type, model, count, input_tokens, cached_tokens, output_tokens,
    reasoning_tokens, cost, unpriced, simulated, held_cost, held_tokens, cache_write_tokens, server_tools)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run_id, stage, outcome, error_type, model) DO UPDATE SET count = count + excluded.count,
    input_tokens = input_tokens + excluded.input_tokens, cached_tokens = cached_tokens + excluded.cached_tokens,
    output_tokens = output_tokens + excluded.output_tokens, reasoning_tokens = reasoning_tokens + excluded.reasoning_tokens,
    cost = cost + excluded.cost, unpriced = unpriced + excluded.unpriced, simulated = simulated + excluded.simulated,
    held_cost = held_cost + excluded.held_cost, held_tokens = held_tokens + excluded.held_tokens,
    cache_write_tokens = cache_write_tokens + excluded.cache_write_tokens, server_tools = server_tools + excluded.server_tools;

-- name: counters
-- The roll-ups of a run.
SELECT stage, outcome, error_type, model, count AS tasks, input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost,
    unpriced, simulated, held_cost, held_tokens, cache_write_tokens, server_tools FROM counter WHERE run_id = ? AND count <> 0;

-- name: estimate_keep
-- What a stage of a run was expected to take; what is kept of it stays.
INSERT INTO estimate (run_id, stage, lane, basis, tasks, characters, calls, input_tokens, output_tokens, usd)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: estimates
-- What the stages of a run were expected to take.
SELECT stage, lane, tasks, characters, usd FROM estimate WHERE run_id = ?;

-- name: lane_lengths
-- Characters and counted tokens of requests in the mean, of the newest stages that a lane was asked at.
-- Where other calls have a price, a call without one is a call whose tokens were not counted.
SELECT e.characters, sum(c.input_tokens) * 1.0 / sum(CASE WHEN c.cost > 0 THEN c.count - c.unpriced ELSE c.count END)
FROM (SELECT * FROM estimate WHERE lane = ? AND characters > 0 ORDER BY run_id DESC LIMIT 20) e
JOIN counter c ON c.run_id = e.run_id AND c.stage = e.stage AND c.outcome = 'call' AND c.output_tokens > 0
GROUP BY e.run_id, e.stage;

-- name: timing_add
-- Moves a histogram by what a commit counted.
INSERT INTO timing (run_id, stage, measure, bucket, count) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (run_id, stage, measure, bucket) DO UPDATE SET count = count + excluded.count;

-- name: minute_add
-- Moves the roll-ups of a minute by what a commit changed.
INSERT INTO minute VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run_id, minute, stage, model) DO UPDATE SET done = done + excluded.done, reused = reused + excluded.reused,
    failed = failed + excluded.failed, skipped = skipped + excluded.skipped, dropped = dropped + excluded.dropped,
    calls = calls + excluded.calls, failed_calls = failed_calls + excluded.failed_calls,
    input_tokens = input_tokens + excluded.input_tokens, cached_tokens = cached_tokens + excluded.cached_tokens,
    output_tokens = output_tokens + excluded.output_tokens, cost = cost + excluded.cost;

-- name: minute_timing_add
-- Moves a histogram of a minute by what a commit counted.
INSERT INTO minute_timing VALUES (?, ?, ?, ?, ?)
ON CONFLICT (run_id, minute, stage, bucket) DO UPDATE SET count = count + excluded.count;

-- name: lane_sampled
-- How a lane is.
INSERT OR REPLACE INTO lane_sample VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: minutes_lately
-- What the stages of a run came to since a minute ('': its rows): how many were settled, their calls, tokens and USD.
SELECT stage, sum(done + reused + failed + skipped + dropped) AS settled, sum(calls) AS calls,
    sum(input_tokens + output_tokens) AS tokens, sum(cost) AS usd
FROM minute WHERE run_id = ? AND minute >= ? GROUP BY stage;

-- name: minutes_of
-- The roll-ups of a run by so many minutes and stage: both, and `api.monitor.COLUMNS`: rows of the input, and calls.
SELECT minute / :step, stage, sum(iif(stage = '', done, 0)), sum(iif(stage = '', reused, 0)), sum(iif(stage = '', failed, 0)),
    sum(iif(stage = '', skipped, 0)), sum(iif(stage = '', dropped, 0)), sum(calls), sum(failed_calls),
    sum(input_tokens), sum(output_tokens), sum(cost)
FROM minute WHERE run_id = :run AND minute >= :since GROUP BY 1, 2;

-- name: minute_timings_of
-- The histograms of a run: those of the last minute with any, of so many minutes at a time.
WITH RECURSIVE step (since) AS (
    SELECT :since UNION ALL SELECT since + :step FROM step WHERE since + :step < :until
)
SELECT since / :step, bucket, count
FROM step CROSS JOIN minute_timing ON run_id = :run AND minute = (
    SELECT max(minute) FROM minute_timing WHERE run_id = :run AND minute >= since AND minute < since + :step
);

-- name: minute_first
-- The first minute of a run.
SELECT minute FROM minute WHERE run_id = ? ORDER BY minute LIMIT 1;

-- name: lanes_of
-- How the lanes of a run were, by so many seconds: the last sample of each lane, among the last hundred of all of them.
WITH RECURSIVE step (since) AS (
    SELECT :since UNION ALL SELECT since + :step FROM step WHERE since + :step < :until
)
SELECT max(at) AS at, lane, in_flight, bound, most, waiting, held_by, paused_until, waited, refused
FROM step CROSS JOIN lane_sample ON run_id = :run AND at < since + :step AND at >= max(since, coalesce((
    SELECT at FROM lane_sample WHERE run_id = :run AND at < since + :step ORDER BY at DESC LIMIT 1 OFFSET 99
), since)) GROUP BY since, lane ORDER BY 1, lane;

-- name: rows_by_place
-- Some rows of the input in its order: (key, where it stands as two values, whether it is shown).
SELECT r.key, r.ordinal, r.key, {matches} FROM row r
WHERE r.run_id = :run AND (r.ordinal, r.key) > (:first, :second) ORDER BY r.ordinal, r.key LIMIT :look;

-- name: rows_by_place_back
-- The same from the last one on: rows that are open are among the last ones that were read.
SELECT r.key, r.ordinal, r.key, {matches} FROM row r
WHERE r.run_id = :run AND (r.ordinal, r.key) < (:first, :second) ORDER BY r.ordinal DESC, r.key DESC LIMIT :look;

-- name: rows_in_id_order
-- Some rows in the order of their ids, below one: the same.
SELECT r.key, r.id, r.occurrence, {matches} FROM row r
WHERE r.run_id = :run AND (r.id, r.occurrence) > (:first, :second) AND r.id < :below ORDER BY r.id, r.occurrence LIMIT :look;

-- name: rows_made_by
-- Some rows that a stage made, in the order in which it made them: the same.
SELECT r.key, r.key, 0, {matches} FROM row r
WHERE r.run_id = :run AND r.origin = :origin AND r.key > :first ORDER BY r.key LIMIT :look;

-- name: rows_failed_so
-- Some rows of the input that failed at a stage (null: before any) with a kind of error: the same.
SELECT r.key, r.ordinal, r.key, {matches} FROM row r
WHERE r.run_id = :run AND r.state = 2 AND r.error_type = :kind AND r.error_stage IS :failed_at
    AND (r.ordinal, r.key) > (:first, :second) ORDER BY r.ordinal, r.key LIMIT :look;

-- name: rows_made_failed_so
-- Some of those that stages made: the same.
SELECT r.key, r.key, 0, {matches} FROM row r
WHERE r.run_id = :run AND r.state = 2 AND r.error_type = :kind AND r.error_stage IS :failed_at
    AND r.ordinal IS NULL AND r.key > :first ORDER BY r.key LIMIT :look;

-- name: rows_shown
-- Rows as lists show them, with what all their calls in this run took.
SELECT r.key, json_object(
    'key', r.key, 'id', r.id, 'occurrence', max(r.occurrence, 0), 'number', r.ordinal, 'stage', r.error_stage,
    'state', CASE r.state WHEN 0 THEN 'open' WHEN 1 THEN 'done' WHEN 2 THEN 'failed' WHEN 5 THEN 'skipped' ELSE 'dropped' END,
    'error', r.error_type, 'message', substr(r.error_message, 1, 160), 'input', substr(r.data, 1, 160),
    'result', substr(v.value, 1, 160), 'calls', count(a.id), 'cost_usd', round(sum(a.cost), 9),
    'cost_is_simulated', json(iif(coalesce(max(e.simulated), 0), 'true', 'false')),
    'duration_s', round(sum(a.duration), 4), 'input_tokens', sum(a.input_tokens), 'output_tokens', sum(a.output_tokens))
FROM row r LEFT JOIN result v ON v.id = r.result_id LEFT JOIN attempt a ON a.row_key = r.key
    LEFT JOIN endpoint e ON e.id = a.endpoint_id
WHERE r.key IN (:many) GROUP BY r.key;

-- name: failures_like
-- Some rows that failed in the same way, the input's after those that stages made.
SELECT id, substr(error_message, 1, 400) FROM row
WHERE run_id = ? AND state = 2 AND error_type = ? AND error_stage IS ? ORDER BY ordinal, key LIMIT ?;

-- name: made_failures
-- How the rows failed that stages made: by which stage, where, why, and how many.
SELECT origin, error_stage, error_type, count FROM made WHERE run_id = ? AND state = 2 AND count > 0;

-- name: inbox_put
-- Something is asked of the process that works on a workflow.
INSERT INTO inbox (workflow, run_id, event_id, kind, body, at) VALUES (?, ?, ?, ?, ?, ?);

-- name: inbox_of
-- What was last asked for a run.
SELECT json_object('id', id, 'kind', kind, 'body', json(body), 'at', at, 'applied_at', applied_at, 'outcome', outcome)
FROM inbox WHERE run_id = ? ORDER BY id DESC LIMIT 10;

-- name: inbox_waiting
-- What is asked of whoever works on a workflow, and nobody looked at yet.
SELECT id, event_id AS event, kind, body FROM inbox WHERE workflow = ? AND applied_at IS NULL ORDER BY id;

-- name: inbox_applied
-- What came of it.
UPDATE inbox SET applied_at = ?, outcome = ? WHERE id = ?;

-- name: inbox_cancel
-- The monitor's user decided to end an open batch, unless it waits for another decision, or may not be ours.
UPDATE batch SET cancel_at = :now, then_do = 'run'
WHERE id = :batch AND cancel_at IS NULL AND state NOT IN {closed} AND state <> 'NEEDS_HUMAN' AND note IS NOT :unsure
    AND run_id IN (SELECT id FROM run WHERE workflow = :workflow);

-- name: timings
-- The histograms of a run.
SELECT stage, measure, bucket, count FROM timing WHERE run_id = ?;

-- name: telemetry_upto
-- Where a range of some rows ends that begins after a position.
SELECT max(ordinal) FROM (SELECT ordinal FROM row WHERE run_id = ? AND ordinal > ? ORDER BY ordinal LIMIT ?);

-- name: telemetry_attempts
-- Every call that was made for the rows at a range of positions, row by row, stage by stage, the earliest first.
SELECT {call}, r.key AS row_key, r.ordinal, r.id AS row_id, r.state
FROM row r CROSS JOIN attempt a ON a.row_key = r.key CROSS JOIN endpoint e ON e.id = a.endpoint_id
WHERE r.run_id = :run AND r.ordinal > :after AND r.ordinal <= :upto ORDER BY r.ordinal, r.key, a.stage, a.id;

-- name: telemetry_uncalled
-- The rows at a range of positions that failed before a call was made for them.
SELECT r.key AS row_key, r.ordinal, r.id AS row_id, r.state FROM row r
WHERE r.run_id = :run AND r.ordinal > :after AND r.ordinal <= :upto AND r.state = 2
    AND NOT EXISTS (SELECT 1 FROM attempt a WHERE a.row_key = r.key) ORDER BY r.ordinal, r.key;

-- name: telemetry_made_upto
-- Where a range of some rows ends that a stage made, beginning after a key.
SELECT max(key) FROM (SELECT key FROM row WHERE run_id = ? AND origin = ? AND key > ? ORDER BY key LIMIT ?);

-- name: telemetry_made
-- Every call that was made for a range of rows that a stage made, each with the position of the input's row behind it.
SELECT {call}, r.key AS row_key, {input_ordinal}, r.id AS row_id, r.state
FROM row r CROSS JOIN attempt a ON a.row_key = r.key CROSS JOIN endpoint e ON e.id = a.endpoint_id
WHERE r.run_id = :run AND r.origin = :origin AND r.key > :after AND r.key <= :upto AND r.state <> 6
ORDER BY r.key, a.stage, a.id;

-- name: telemetry_made_uncalled
-- The rows of a range that a stage made, and that failed before a call was made for them.
SELECT r.key AS row_key, {input_ordinal}, r.id AS row_id, r.state FROM row r
WHERE r.run_id = :run AND r.origin = :origin AND r.key > :after AND r.key <= :upto AND r.state = 2
    AND NOT EXISTS (SELECT 1 FROM attempt a WHERE a.row_key = r.key) ORDER BY r.key;

-- name: agreements
-- How many replicas agreed in the votes of these rows.
SELECT row_key, stage, json_extract(note, '$.agreement') FROM task
WHERE row_key IN (:many) AND replica = 0 AND json_extract(note, '$.agreement') IS NOT NULL;

-- name: endpoints_read
-- Every endpoint.
SELECT id, provider, base_url, model, simulated FROM endpoint;

-- name: run_lines
-- The runs of one workflow, or of all, with what tells them apart; the one last worked on first.
SELECT r.id, r.workflow, r.definition_hash, r.fresh_since, coalesce(e.ended_at, e.at, r.created_at) AS last_at,
    r.selection <> '{}' AS partial
FROM run r LEFT JOIN event e ON e.id = (SELECT max(id) FROM event WHERE run_id = r.id AND kind = 'invocation')
WHERE ?1 IS NULL OR r.workflow = ?1 ORDER BY e.id DESC, r.id DESC;

-- name: definitions_read
-- Resolved workflows by hash.
SELECT hash, body FROM definition WHERE hash IN (:many);

-- name: invocations_read
-- The last invocations of a run.
SELECT id, at, ended_at, exit_code, body FROM event WHERE run_id = ? AND kind = 'invocation' ORDER BY id DESC LIMIT ?;

-- name: run_duration
-- Seconds that the invocations of a run which have an end took, together, until it was finished.
SELECT coalesce(sum(e.ended_at - e.at), 0.0) FROM event e JOIN run r ON r.id = e.run_id
WHERE r.id = ? AND e.kind = 'invocation' AND (r.finished_at IS NULL OR e.at <= r.finished_at);

-- name: rows_look
-- The rows with these ids, with their snapshots, for looking at them: of the input, and what stages made.
SELECT {whole_row} FROM row WHERE run_id = ? AND id IN (:many) AND state <> 6 AND coalesce(place, 0) > -1048576
ORDER BY ordinal IS NULL, ordinal, key;

-- name: parts_look
-- The parts into which a large group is cut.
SELECT {whole_row} FROM row WHERE parent_key = ? AND place < 0 AND state <> 6;

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
    v.value, v.how, v.created_at, e.provider, e.base_url, e.model, e.simulated, t.note, t.replica, v.sources
FROM task t LEFT JOIN result v ON v.id = t.result_id LEFT JOIN endpoint e ON e.id = v.endpoint_id
WHERE t.row_key = ? ORDER BY t.stage, t.replica;

-- name: calls_of_row
-- Every call that was made for a row.
SELECT {call},
    coalesce(a.reply, (SELECT t.reply FROM agent_turn t WHERE t.row_key = a.row_key AND t.stage = a.stage
        AND t.fingerprint = a.fingerprint AND t.event_id = a.event_id AND t.attempt = a.number)) AS reply
FROM attempt a JOIN endpoint e ON e.id = a.endpoint_id WHERE a.row_key = ? ORDER BY a.stage, a.id;

-- name: rows_usage
-- What the calls for these rows came to: how many were answered, their tokens, and their price as far as it is known.
SELECT row_key, sum(status < 400), sum(input_tokens), sum(output_tokens), sum(cached_tokens), sum(reasoning_tokens), sum(cost)
FROM attempt WHERE row_key IN (:many) GROUP BY row_key;

-- name: rows_paired
-- The rows of two runs beside one another, by id or by a field of their data: (that, key in the first, in the second).
WITH named AS (
    SELECT CASE WHEN :field IS NULL THEN id
        ELSE (SELECT CAST(value AS TEXT) FROM json_each(row.data) AS own WHERE own.key = :field) END AS name,
        run_id = :second AS side, row.key AS row_key, occurrence
    FROM row WHERE run_id IN (:first, :second) AND state NOT IN (3, 6)
        AND coalesce(ordinal, origin) IS NOT NULL AND coalesce(place, 0) >= 0
), counted AS (
    SELECT *, row_number() OVER (PARTITION BY name, side ORDER BY occurrence, row_key) AS number
    FROM named WHERE name IS NOT NULL
)
SELECT name, max(iif(side, NULL, row_key)), max(iif(side, row_key, NULL)) FROM counted GROUP BY name, number;

-- name: rows_beside
-- Some rows of two runs beside one another, by their ids and repetitions: as `rows_paired`, but no more is read.
WITH one AS (
    SELECT id, occurrence, key FROM row WHERE run_id = :first AND (id, occurrence) > (:after, :more)
        AND state NOT IN (3, 6) AND coalesce(ordinal, origin) IS NOT NULL AND coalesce(place, 0) >= 0
    ORDER BY id, occurrence LIMIT :most
), other AS (
    SELECT id, occurrence, key FROM row WHERE run_id = :second AND (id, occurrence) > (:after, :more)
        AND state NOT IN (3, 6) AND coalesce(ordinal, origin) IS NOT NULL AND coalesce(place, 0) >= 0
    ORDER BY id, occurrence LIMIT :most
)
SELECT id, occurrence AS repetition, max(one) AS first, max(other) AS second FROM (
    SELECT id, occurrence, key AS one, NULL AS other FROM one
    UNION ALL SELECT id, occurrence, NULL, key FROM other
) GROUP BY id, occurrence ORDER BY id, occurrence LIMIT :most;

-- name: rows_asked
-- For how many rows of a run calls were made.
SELECT count(*) FROM row WHERE run_id = ? AND EXISTS (SELECT 1 FROM attempt WHERE row_key = row.key);

-- name: stage_took
-- How many tasks gave a stage of a run its answers, those of replicas as one, in any run; their USD and seconds (null: unknown, or in batches).
-- A pass over all calls: nothing else needs an index for it.
SELECT ifnull(sum(replica < 2), 0), iif(sum(unpriced), NULL, sum(usd)), iif(sum(batched), NULL, sum(seconds)) FROM (
    SELECT replica, sum(cost) AS usd, sum(duration) AS seconds, sum(status < 400 AND cost IS NULL) AS unpriced,
        sum(service_tier IS 'batch') AS batched
    FROM attempt WHERE (row_key, stage, replica, event_id) IN (
        SELECT row_key, stage, replica, event_id FROM attempt WHERE fingerprint IN (
            SELECT t.fingerprint FROM row r JOIN task t ON t.row_key = r.key
            WHERE r.run_id = ? AND r.ordinal IS NOT NULL AND t.stage = ?))
    GROUP BY row_key, stage, replica);

-- name: call_last
-- Whether the last call of an invocation brought no answer, and why. It is looked for among the newest ones only.
SELECT status IS NULL OR status = 429 OR status >= 500, error_type, error_message FROM attempt
WHERE event_id = ? AND id > (SELECT max(id) - 1000 FROM attempt) ORDER BY id DESC LIMIT 1;

-- name: results_asked
-- Where these results were asked. A pass over all tasks: nothing else ever needs an index for it.
SELECT t.result_id, r.run_id, r.id FROM task t JOIN row r ON r.key = t.row_key
WHERE t.outcome = 'done' AND t.result_id IN (:many);

-- name: run_number_last
-- The last number that a run ever had, dropped ones too.
SELECT max(coalesce((SELECT max(id) FROM run), 0),
    coalesce((SELECT max(json_extract(body, '$.last_run')) FROM event WHERE kind = 'gc'), 0));

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

-- name: gc_unused_drop
-- Definitions that no run has; results of tools that are out of date, or older than every run; old samples of lanes.
-- Of conversations that belong to no row those that have been answered since, or whose workflow has no run with open or
-- failed rows.
DELETE FROM definition WHERE hash NOT IN (SELECT definition_hash FROM run);
DELETE FROM agent_turn WHERE row_key < 0 AND (EXISTS (SELECT 1 FROM result v WHERE v.fingerprint = agent_turn.fingerprint)
    OR workflow NOT IN (SELECT r.workflow FROM run r WHERE r.finished_at IS NULL
        OR EXISTS (SELECT 1 FROM row WHERE run_id = r.id AND state = 2)));
DELETE FROM tool_call WHERE row_key < 0 AND NOT EXISTS (SELECT 1 FROM agent_turn t
    WHERE t.fingerprint = tool_call.fingerprint AND t.number = tool_call.turn AND t.workflow = tool_call.workflow);
DELETE FROM tool_cache WHERE expires < :now OR at < (SELECT min(created_at) FROM run);
DELETE FROM lane_sample WHERE at < :lanes_since;

-- name: gc_row_drop
-- A row, with all that refers to it, but for a review of which somebody said something.
-- Conversations without an answer belong to no row from now on: another run may go on with them.
DELETE FROM member WHERE group_key = ?;
DELETE FROM review WHERE row_key = ? AND NOT EXISTS (SELECT 1 FROM decision WHERE decision.key = review.key);
DELETE FROM alike WHERE row_key = ?;
DELETE FROM agent_turn
WHERE row_key = ?1 AND stage IN (SELECT stage FROM task WHERE row_key = ?1 AND replica = 0 AND outcome <> 'failed');
DELETE FROM tool_call
WHERE row_key = ?1 AND stage IN (SELECT stage FROM task WHERE row_key = ?1 AND replica = 0 AND outcome <> 'failed');
UPDATE agent_turn SET row_key = -row_key WHERE row_key = ?;
UPDATE tool_call SET row_key = -row_key WHERE row_key = ?;
DELETE FROM task WHERE row_key = ?;
DELETE FROM attempt WHERE row_key = ?;
DELETE FROM row WHERE key = ?;

-- name: gc_run_drop
-- A run without rows, with all that is kept of it.
DELETE FROM made WHERE run_id = ?;
DELETE FROM counter WHERE run_id = ?;
DELETE FROM timing WHERE run_id = ?;
DELETE FROM minute WHERE run_id = ?;
DELETE FROM minute_timing WHERE run_id = ?;
DELETE FROM lane_sample WHERE run_id = ?;
DELETE FROM inbox WHERE run_id = ?;
DELETE FROM notification WHERE run_id = ?;
DELETE FROM estimate WHERE run_id = ?;
DELETE FROM batch WHERE run_id = ?;
DELETE FROM event WHERE run_id = ?;
DELETE FROM run WHERE id = ?;

-- name: last_numbers
-- Those of rows, of results, of calls, and of tasks that were in a batch.
SELECT json_object('rows', ifnull((SELECT max(key) FROM row), 0), 'results', ifnull((SELECT max(id) FROM result), 0),
    'attempts', ifnull((SELECT max(id) FROM attempt), 0), 'tasks', ifnull((SELECT max(id) FROM batch_task), 0));

-- name: gc_references
-- The results to which some rows and their tasks refer. Rows that are no longer made refer to none.
SELECT r.run_id, r.ordinal IS NULL AND r.origin IS NULL, t.result_id FROM row r JOIN task t ON t.row_key = r.key
WHERE r.key > :after AND r.key <= :upto AND t.result_id IS NOT NULL
UNION ALL
SELECT run_id, ordinal IS NULL AND origin IS NULL, result_id FROM row WHERE key > :after AND key <= :upto AND result_id IS NOT NULL;

-- name: gc_asked_elsewhere
-- The results of what some attempts asked for rows of other workflows than this one.
SELECT NULL, 0, v.id FROM attempt a JOIN row r ON r.key = a.row_key JOIN run u ON u.id = r.run_id
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

-- name: gc_endpoint_drop
-- An endpoint that nothing names.
DELETE FROM endpoint WHERE id = ?;

-- name: leases_free
-- In a copy of the database nobody is at work.
UPDATE lease SET holder = '';

-- name: rows_of_retry
-- Usable rows of the input, a range at a time: the chosen ones, failed or all (done_too), and others where wanted.
SELECT {whole_row}, NULL AS parent_state, :done_too OR {retried} AS chosen FROM row
WHERE run_id = :run AND ordinal > :after AND state <> 3 AND NOT (state = 2 AND error_stage IS NULL)
    AND (:others OR :done_too OR {retried})
ORDER BY ordinal, key LIMIT :limit;

-- name: rows_chosen_count
-- How many these are, and how many of those that stages made, by where and how they failed; '' stands for open ones.
SELECT CASE state WHEN 0 THEN '' ELSE error_stage END AS failed_at, error_type, count(*) AS rows FROM row
WHERE run_id = :run AND (ordinal IS NOT NULL OR place >= 0) AND state NOT IN (3, 6)
    AND NOT (state = 2 AND error_stage IS NULL)
    AND ((:done_too AND origin IS NULL) OR {retried})
GROUP BY failed_at, error_type;

-- name: row_chosen_count
-- The same among the rows of one id and those that were made of it, whose ids begin with it and a slash.
SELECT CASE state WHEN 0 THEN '' ELSE error_stage END AS failed_at, error_type, count(*) AS rows FROM row
WHERE run_id = :run AND (id = :id OR (id > :id || '/' AND id < :id || '0' AND origin IS NOT NULL))
    AND (ordinal IS NOT NULL OR place >= 0) AND state NOT IN (3, 6)
    AND NOT (state = 2 AND error_stage IS NULL)
    AND ((:done_too AND (origin IS NULL OR id = :id)) OR {retried})
GROUP BY failed_at, error_type;

-- name: first_event_since
-- The first invocation of a run from a time on.
SELECT min(id) FROM event WHERE run_id = ? AND at >= ?;

-- name: rows_aged
-- Which of these rows have a result of a stage that is older than it may be.
SELECT DISTINCT t.row_key FROM task t JOIN result v ON v.id = t.result_id
WHERE t.stage = ? AND v.created_at < ? AND t.row_key IN (:many);

-- name: runs_with_row_before
-- Earlier runs of the same workflow that have a row of this id.
SELECT DISTINCT r.id FROM run r JOIN row w ON w.run_id = r.id AND w.occurrence <= 0
WHERE r.workflow = (SELECT workflow FROM run WHERE id = ?1) AND r.id < ?1 AND w.id = ?2 ORDER BY r.id DESC;

-- name: attempts_by_request
-- When a row's stages made calls, by request and invocation, whether that brought an answer, and of which retry.
-- Turns of a conversation that did not end in their invocation are not there: it went on.
SELECT a.stage, a.fingerprint, max(a.started_at) AS at,
    max(a.error_type IS NULL AND (t.number IS NULL OR t.ended IS 'done')) AS answered,
    json_extract(e.body, '$.retry.from_stage') AS retry_from, a.replica
FROM attempt a JOIN event e ON e.id = a.event_id
LEFT JOIN agent_turn t ON t.row_key = a.row_key AND t.stage = a.stage AND t.fingerprint = a.fingerprint
    AND t.event_id = a.event_id AND t.attempt = a.number
WHERE a.row_key = ? AND a.purpose <> 'child'
GROUP BY a.stage, a.fingerprint, a.event_id HAVING count(t.number) = 0 OR max(t.ended) IS NOT NULL ORDER BY max(a.id);

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
-- A row that is no longer made has no tasks.
DELETE FROM task WHERE row_key = ?;
UPDATE row SET state = 6, result_id = NULL, error_stage = NULL, error_type = NULL, error_message = NULL WHERE key = ?;

-- name: tasks_counted
-- What the roll-ups hold of these rows' tasks.
SELECT t.stage, t.outcome, t.error_type, r.place < 0, ifnull(json_extract(t.note, '$.agreement'), json_extract(t.note, '$.review'))
FROM task t JOIN row r ON r.key = t.row_key
WHERE t.row_key IN (:many) AND t.replica = 0;

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

-- name: alike_put
-- A row came to a stage that keeps the first of equal ones.
INSERT INTO alike (run_id, origin, hash, row_key, content, state) VALUES (?, ?, ?, ?, ?, ?);

-- name: alike_drop
-- A row comes to no such stage any longer.
DELETE FROM alike WHERE row_key = ?;

-- name: alike_firsts
-- Of rows with equal values at such a stage the first: by the input's row behind it, and the places on the way from that.
SELECT a.hash, a.row_key AS key, a.content, a.state AS came_as, r.state, r.id, r.origin, r.result_id, c.hash AS child_hash,
    c.state AS child_state, min((
        WITH RECURSIVE above (parent_key, path) AS (
            SELECT r.parent_key, printf('%019d/%019d', coalesce(r.ordinal, r.place, 0), r.key)
            UNION ALL
            SELECT p.parent_key, printf('%019d', coalesce(p.ordinal, p.place, 0)) || above.path
            FROM above JOIN row p ON p.key = above.parent_key
        )
        SELECT path FROM above WHERE parent_key IS NULL
    ))
FROM alike a JOIN row r ON r.key = a.row_key
LEFT JOIN row c ON c.parent_key = a.row_key AND c.origin = a.origin AND c.place = 0
WHERE a.run_id = ? AND a.origin = ? AND a.hash > ? GROUP BY a.hash ORDER BY a.hash LIMIT ?;

-- name: alike_page
-- Some rows of a stage that keeps the first of equal ones: equal ones side by side.
SELECT a.hash, a.row_key AS key, a.content, a.state AS came_as, r.state, r.id, r.origin, r.result_id, c.hash AS child_hash,
    c.state AS child_state
FROM alike a JOIN row r ON r.key = a.row_key
LEFT JOIN row c ON c.parent_key = a.row_key AND c.origin = a.origin AND c.place = 0
WHERE a.run_id = ? AND a.origin = ? AND (a.hash, a.row_key) > (?, ?) AND a.hash <= ? ORDER BY a.hash, a.row_key LIMIT ?;

-- name: made_rows
-- Rows that a stage made and that need work: open ones, failed ones, or all (done_too). A parent's state comes along.
SELECT {whole_row}, (SELECT state FROM row AS parent WHERE parent.key = row.parent_key) AS parent_state FROM row
WHERE run_id = ?1 AND origin = ?2 AND key > ?3 AND place >= 0 AND state <> 6
    AND (?4 OR state = 0 OR state = 2) ORDER BY key LIMIT ?5;

-- name: children_of_parents
-- Open rows that a stage made of some rows in one invocation: of each parent, [key, place], those from that place on.
WITH wanted AS (SELECT value ->> 0 AS parent, value ->> 1 AS first FROM json_each(:parents))
SELECT {whole_row} FROM wanted CROSS JOIN row ON parent_key = parent AND place >= first AND place < first + :limit
WHERE run_id = :run AND origin = :origin AND seen = :event AND state = 0;

-- name: made_counts
-- How the rows stand that stages made.
SELECT origin, state, count AS rows FROM made WHERE run_id = ? AND count > 0;

-- name: made_by_id
-- Rows that a stage made, by their ids.
SELECT {row} FROM row
WHERE run_id = ? AND occurrence = -1 - ? AND id IN (:many) AND origin IS NOT NULL AND state <> 6;

-- name: made_parents
-- Of how many rows a stage made others.
SELECT count(DISTINCT parent_key) FROM row WHERE run_id = ? AND origin = ? AND place >= 0 AND state <> 6;

-- name: rows_of_keys
-- Some rows, for what was made of them.
SELECT {whole_row} FROM row WHERE key IN (:many);

-- name: group_sizes
-- How many members these groups have, what those come to in tokens, and how many failed.
SELECT group_key, sum(NOT failed), sum(CASE WHEN failed THEN 0 ELSE size END), sum(failed) FROM member
WHERE group_key IN (:many) GROUP BY group_key;

-- name: members_page
-- Some members of a group in the order of their hashes.
SELECT m.sort, m.row_key AS key, m.size, r.id, coalesce(r.origin, -1) AS maker,
    CASE WHEN m.failed THEN '' WHEN r.occurrence < -1048576 THEN r.data END AS text FROM member m JOIN row r ON r.key = m.row_key
WHERE m.group_key = ? AND (m.sort, m.row_key) > (?, ?) AND m.sort <= ? AND (? OR NOT m.failed)
ORDER BY m.sort, m.row_key LIMIT ?;

-- name: away_changed
-- Whether members of a group changed that is in another shard, since that was told of them.
SELECT 1 FROM row WHERE run_id = ? AND origin = ? AND place = -1048576 AND state = 0 LIMIT 1;

-- name: away_told
-- The other shards were told of the members of a stage's groups.
UPDATE row SET state = 1 WHERE run_id = ? AND origin = ? AND place = -1048576 AND state = 0;

-- name: groups_away
-- Groups that are in other shards by their ids, a range at a time.
SELECT NULL AS ordinal, id, state, data, NULL AS value, NULL AS error_type, NULL AS error_message, key FROM row
WHERE run_id = :run AND id > :after AND occurrence = -1 - :origin AND place = -1048576 ORDER BY id LIMIT :limit;

-- name: row_find
-- A group by its id; or a member that is in another shard, and the group that it is in.
SELECT r.key, r.data, m.group_key FROM row r LEFT JOIN member m ON m.row_key = r.key
WHERE r.run_id = ? AND r.id = ? AND r.occurrence = ?;

-- name: distant_left
-- Members that another shard has no longer.
SELECT key FROM row WHERE run_id = ? AND origin = ? AND place = ? AND seen <> ? AND state <> 6 LIMIT 512;

-- name: part_put
-- A part of a large group is to be asked: its place is its height, below zero. Or a member that is in another shard.
INSERT INTO row (key, run_id, id, occurrence, hash, data, state, seen, parent_key, origin, place)
VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?)
ON CONFLICT (run_id, id, occurrence) DO UPDATE SET data = excluded.data, state = 0, result_id = NULL, error_stage = NULL,
    error_type = NULL, error_message = NULL, seen = excluded.seen, place = excluded.place;

-- name: parts_stale
-- The parts of a group that it is no longer cut into.
SELECT key FROM row WHERE parent_key = ? AND place < 0 AND state <> 6 AND seen <> ?;

-- name: parts_open
-- Parts of large groups of one height that are to be asked.
SELECT key, id, data, parent_key AS "group" FROM row
WHERE run_id = ? AND origin = ? AND place = -? AND key > ? AND state = 0 ORDER BY key LIMIT ?;

-- name: part_values
-- What parts of groups came to.
SELECT r.id, v.value FROM row r JOIN result v ON v.id = r.result_id
WHERE r.run_id = ? AND r.occurrence = -1 - ? AND r.state = 1 AND r.id IN (:many);

-- name: parts_waiting
-- Whether one of these parts of groups has no end yet.
SELECT 1 FROM row WHERE run_id = ? AND occurrence = -1 - ? AND state = 0 AND id IN (:many) LIMIT 1;

-- name: parts_failed
-- A part of a group that failed, if any did: of the smallest, since larger ones fail for their sake.
SELECT error_type, error_message, id FROM row WHERE parent_key = ? AND place < 0 AND state = 2 ORDER BY place DESC LIMIT 1;

-- name: made_open
-- A row that a stage made is to be worked on again; a group is when its members changed.
UPDATE row SET state = 0, result_id = NULL, error_stage = NULL, error_type = NULL, error_message = NULL, seen = ? WHERE key = ?;

-- name: groups_export
-- Groups by their ids, with their results, a range at a time.
SELECT NULL AS ordinal, r.id, r.state, r.data, v.value, r.error_type, r.error_message, r.key, NULL AS form, 1 AS made
FROM row r LEFT JOIN result v ON v.id = r.result_id
WHERE r.run_id = :run AND r.id > :after AND r.occurrence = -1 - :origin AND r.place = 0 AND r.state <> 6 ORDER BY r.id LIMIT :limit;

-- name: child_counts
-- How many children stages made of these rows.
SELECT parent_key, origin, count(*) FROM row WHERE parent_key IN (:many) AND place >= 0 AND state <> 6
GROUP BY parent_key, origin;

-- name: partial_replies
-- What came of the replies that were cut, of these rows.
SELECT row_key, json_extract(note, '$.partial') FROM task
WHERE row_key IN (:many) AND json_extract(note, '$.partial') IS NOT NULL;

-- name: children_export
-- The children of these rows in their order, with their results.
SELECT r.parent_key, r.place, NULL, r.id, r.state, r.data, v.value, r.error_type, r.error_message, r.key, NULL, 1
FROM row r LEFT JOIN result v ON v.id = r.result_id
WHERE r.origin = ? AND r.place > ? AND r.state <> 6 AND r.parent_key IN (:many) ORDER BY r.parent_key, r.place LIMIT ?;

-- name: made_failed
-- Failed rows that a stage made by their ids, a range at a time, each with the position of the input's row behind it.
SELECT {input_ordinal}, id, state, data, NULL AS value, error_type, error_message, key, NULL AS form, 1 AS made FROM row r
WHERE run_id = :run AND id > :after AND occurrence = -1 - :origin AND place >= 0 AND state = 2 ORDER BY id LIMIT :limit;

-- name: made_examples
-- The first failed row of each kind of error among those that stages made.
SELECT error_type, id AS row_id, {input_ordinal}, error_message AS message, error_stage AS stage, count(*) AS rows,
    min(key) FROM row r WHERE run_id = ? AND state = 2 AND origin IS NOT NULL AND place >= 0 GROUP BY error_type, error_stage;

-- name: project_token
-- The token that was minted with the database.
SELECT token FROM project;

-- name: intents
-- The names of all batches, and whether their files are still needed.
SELECT intent, state NOT IN ('CLEANED', 'NOT_CREATED', 'REJECTED') FROM batch;

-- name: batch_read
-- One batch.
SELECT batch.* FROM batch WHERE id = ?;

-- name: batches_unfinished
-- Batches of a workflow that have not come to their end.
SELECT batch.* FROM batch JOIN run ON run.id = batch.run_id
WHERE batch.state NOT IN ('CLEANED', 'NOT_CREATED', 'REJECTED') AND run.workflow = ? ORDER BY batch.id;

-- name: batches_of_run
-- All batches of a run.
SELECT batch.* FROM batch WHERE run_id = ? ORDER BY id;

-- name: batch_intents
-- Other batches of an account that are about to be created, or may have been.
SELECT id FROM batch WHERE state = 'CREATE_INTENT' AND account = ? AND id <> ? LIMIT 1;

-- name: batch_newest_at
-- The newest other batch that a provider is known to have.
SELECT provider_id FROM batch WHERE provider = ? AND id <> ? AND provider_id IS NOT NULL ORDER BY id DESC LIMIT 1;

-- name: batch_ids_known
-- Which of a provider's ids are batches of ours.
SELECT provider_id FROM batch WHERE provider_id IN (:many);

-- name: lane_load
-- Enqueued tokens and batches of a lane, batches of its account, and the most tokens that this was seen to take.
SELECT ifnull(sum(tokens) FILTER (WHERE model = ?3), 0) AS tokens, count(*) FILTER (WHERE model = ?3) AS batches,
    count(*) AS of_account,
    (SELECT cap FROM batch_lane WHERE provider = ?1 AND account = ?2 AND model = ?3 AND shown_at > ?4) AS cap
FROM batch WHERE state IN ('CREATE_INTENT', 'SUBMITTED') AND provider = ?1 AND account = ?2;

-- name: lane_cap
-- What an account showed of its limit on enqueued tokens.
INSERT INTO batch_lane (provider, account, model, cap, shown_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET cap = excluded.cap, shown_at = excluded.shown_at;

-- name: key_accept
-- A key was accepted: a lane without a model, which was never refused.
INSERT INTO batch_lane (provider, account, model, cap, shown_at) VALUES (?, ?, '', NULL, ?) ON CONFLICT DO NOTHING;

-- name: key_accepted
-- Whether an account ever answered.
SELECT count(*) > 0 FROM batch_lane WHERE provider = ? AND account = ? AND model = '';

-- name: batch_plan
-- A batch that begins to be filled.
INSERT INTO batch (
    id, run_id, event_id, stage, position, provider, base_url, model, account, state, intent, attempt, file, tasks, bytes,
    tokens, window, held_usd, held_tokens, priced, planned_at
) VALUES (:id, :run, :event, :stage, :position, :provider, :base_url, :model, :account, 'PLANNED', :intent, 1, :file, 0, 0,
    0, :window, 0, 0, :priced, :now);

-- name: batch_id_max
-- The last batch's number.
SELECT ifnull(max(id), 0) FROM batch;

-- name: batch_built
-- Its file is whole and on the disk.
UPDATE batch SET state = 'BUILT', tasks = :tasks, bytes = :bytes, tokens = :tokens, sha256 = :sha256,
    held_usd = :usd, held_tokens = :held_tokens, deadline = :deadline WHERE id = :id AND state = 'PLANNED';

-- name: batch_step
-- One step further, or aside, with the reason.
UPDATE batch SET state = :to, note = :note WHERE id = :id AND state = :before;

-- name: batch_halve
-- Its file was refused, as too large or for what it holds: its tasks go into smaller ones.
UPDATE batch SET state = :to, word = :word, note = :note WHERE id = :id AND state = :before;

-- name: batch_least_refused
-- The smallest file of several tasks that an account refused for its size since a time.
SELECT min(bytes) FROM batch WHERE provider = ? AND account = ? AND state = 'NOT_CREATED' AND word = 'too_large'
AND planned_at > ?;

-- name: batch_uploaded
-- Its input lies at the provider.
UPDATE batch SET state = 'UPLOADED', file_id = :file_id, note = NULL, try_at = NULL
WHERE id = :id AND state = 'UPLOAD_INTENT';

-- name: batch_intend
-- It is about to be created.
UPDATE batch SET state = 'CREATE_INTENT', created_after = :now, account = :account, base_url = :base_url, note = NULL
WHERE id = :id AND state IN ('BUILT', 'UPLOADED');

-- name: batch_defer
-- Nothing was created: it is tried again later, under the next name.
UPDATE batch SET state = :to, attempt = attempt + 1, provider_id = NULL, status = NULL, word = NULL, total = NULL,
    done = NULL, failed = NULL, try_at = :try_at, note = :note WHERE id = :id AND state = :before;

-- name: batch_remark
-- Why it stays where it is, and (else null) before which time it is not to be tried.
UPDATE batch SET try_at = ifnull(:at, try_at), note = :note WHERE id = :id;

-- name: batch_submitted
-- It exists at the provider.
UPDATE batch SET state = 'SUBMITTED', provider_id = :provider_id, submitted_at = :at, moved_at = :at, seen_at = :at,
    deadline = ifnull(deadline, :deadline), try_at = NULL, note = :note
WHERE id = :id AND state IN ('CREATE_INTENT', 'NEEDS_HUMAN');

-- name: batch_seen
-- What its provider said of it; never a step of its life. It `moved` where a count or its state is another than before.
UPDATE batch SET status = iif(status IN ('completed', 'failed', 'expired', 'cancelled')
    AND :status NOT IN ('completed', 'failed', 'expired', 'cancelled'), status, :status),
    word = :word, total = :total, done = :done, failed = :failed, seen_at = :now,
    moved_at = iif((status, word, done, failed) IS (:status, :word, :done, :failed), moved_at, :now),
    expires_at = ifnull(:expires_at, expires_at), results_until = ifnull(:results_until, results_until), ended_at = ifnull(:ended_at, ended_at)
WHERE id = :id AND provider_id = :provider_id AND ingested_at IS NULL;

-- name: batch_not_ours
-- What was taken for it is somebody else's: it is looked for again.
UPDATE batch SET state = 'CREATE_INTENT', foreign_ids = :foreign, provider_id = NULL, submitted_at = NULL,
    status = NULL, word = NULL, note = :note WHERE id = :id AND state IN ('SUBMITTED', 'TERMINAL', 'DOWNLOADED');

-- name: batch_cancel
-- It was decided to end it.
UPDATE batch SET cancel_at = :now, then_do = :then_do WHERE id = :id AND cancel_at IS NULL;

-- name: batch_downloaded
-- Its results lie on this machine.
UPDATE batch SET state = 'DOWNLOADED', outputs = :outputs, note = NULL WHERE id = :id AND state = 'TERMINAL';

-- name: batch_ingested
-- Each of its tasks has an end.
UPDATE batch SET state = 'INGESTED', counts = :counts, cost = :cost, held_usd = 0, held_tokens = 0, ingested_at = :now,
    note = NULL WHERE id = :id AND state = 'DOWNLOADED';

-- name: batch_chunk
-- What a chunk of its answers cost, and what its tasks came to so far.
UPDATE batch SET cost = ifnull(cost, 0) + ?, counts = ifnull(?, counts) WHERE id = ?;

-- name: batches_untidy
-- Batches of a workflow that never ran, with an input that still lies at the provider.
SELECT batch.* FROM batch JOIN run ON run.id = batch.run_id
WHERE batch.state IN ('NOT_CREATED', 'REJECTED') AND batch.file_id IS NOT NULL AND batch.cleaned_at IS NULL
AND run.workflow = ? ORDER BY batch.id;

-- name: batch_late
-- A creation of it was given up, and its provider had it all the same: what it left is in.
UPDATE batch SET foreign_ids = :foreign WHERE id = :id;

-- name: batch_cleaned
-- Nothing of it is left at the provider or on this machine. One that never ran stays what it is.
UPDATE batch SET state = iif(state = 'INGESTED', 'CLEANED', state), cleaned_at = :now
WHERE id = :id AND state IN ('INGESTED', 'NOT_CREATED', 'REJECTED');

-- name: tasks_release
-- The tasks of a batch, and who waits for them, are to be asked as if they had never been: their question was not.
UPDATE batch_task SET state = 2, then_do = :then_do, round = 1, position = 0, repairs = 0
WHERE state = 0 AND state < 2 AND fingerprint IN (SELECT fingerprint FROM batch_task WHERE batch_id = :id);
UPDATE batch_task SET state = 2, then_do = :then_do WHERE batch_id = :id AND state = 1;

-- name: tasks_refused
-- The tasks of a batch were refused with it, and who waits for them goes on as they do.
-- Another round, the next model, or, after `most` rounds of the last one, failure.
UPDATE batch_task SET (state, then_do, error_type, error_message, round, position, repairs) = (
    SELECT 2, CASE WHEN e.round < :most THEN 'batch' WHEN e.position < :last THEN 'fallback' END, 'ProviderError', :note,
        e.round, e.position, e.repairs
    FROM batch_task AS e WHERE e.batch_id = :id AND e.fingerprint = batch_task.fingerprint LIMIT 1
) WHERE state = 0 AND state < 2 AND fingerprint IN (SELECT fingerprint FROM batch_task WHERE batch_id = :id);
UPDATE batch_task SET state = 2, error_type = 'ProviderError', error_message = :note,
    then_do = CASE WHEN round < :most THEN 'batch' WHEN position < :last THEN 'fallback' END
WHERE batch_id = :id AND state = 1;

-- name: task_enrol
-- A task joins a batch.
INSERT INTO batch_task (run_id, batch_id, place, row_key, stage, replica, fingerprint, state, round, position, repairs)
VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?);

-- name: task_wait
-- A task waits for an equal one that is in a batch, unless that is its own.
INSERT INTO batch_task (run_id, row_key, stage, replica, fingerprint, state, round, position, repairs)
SELECT ?1, ?2, ?3, ?4, ?5, 0, 1, 0, 0 WHERE NOT EXISTS (
    SELECT 1 FROM batch_task
    WHERE row_key = ?2 AND stage = ?3 AND replica = ?4 AND fingerprint = ?5
    AND state < 2 AND state < 3
);

-- name: task_used
-- A row was walked with what came of its task.
UPDATE batch_task SET state = 3 WHERE row_key = ? AND stage = ? AND replica = ? AND state = 2 AND state < 3;

-- name: task_ended
-- Something came of a task, and so of those that wait for it.
UPDATE batch_task SET state = 2, then_do = :then_do, error_type = :error_type, error_message = :error_message
WHERE id = :id AND state = 1;
UPDATE batch_task SET state = 2, then_do = :then_do, error_type = :error_type, error_message = :error_message,
    round = :round, position = :position, repairs = :repairs
WHERE fingerprint = :fingerprint AND state = 0 AND state < 2;

-- name: batched
-- Whether a workflow ever had a batch.
SELECT 1 FROM batch JOIN run ON run.id = batch.run_id WHERE run.workflow = ? LIMIT 1;

-- name: tasks_live
-- Tasks of a workflow that are in a batch, each with it and its line there.
SELECT t.fingerprint, t.batch_id AS batch, t.place FROM batch_task AS t JOIN run ON run.id = t.run_id
WHERE t.state = 1 AND t.state < 2 AND t.fingerprint IN (:many) AND run.workflow = ?;

-- name: tasks_ready
-- What came of the tasks of some rows.
SELECT row_key, stage, replica, fingerprint, round, position, repairs, then_do, batch_id IS NOT NULL AS enrolled,
    (SELECT b.bytes FROM batch b WHERE b.id = batch_id AND b.state = 'NOT_CREATED' AND b.word = 'blocked') AS refused_with,
    error_type, ifnull(error_message, '') AS error_message
FROM batch_task WHERE state = 2 AND state < 3 AND row_key IN (:many);

-- name: rows_waiting
-- Rows with a task in a batch, or waiting for one, and the first stage where that is so.
-- Those with a task in a batch that was made before an event, and not sent, are left out.
SELECT row_key, min(stage) FROM batch_task WHERE state < 2 AND state < 3 AND row_key IN (:many)
GROUP BY row_key HAVING ifnull(max(batch_id IN (
    SELECT id FROM batch WHERE event_id < ? AND state IN ('BUILT', 'UPLOAD_INTENT', 'UPLOADED', 'CREATE_INTENT')
)), 0) = 0;

-- name: rows_to_walk
-- Open rows of the input with a task of which something came.
SELECT {row}, data FROM row WHERE key IN (
    SELECT DISTINCT t.row_key FROM batch_task AS t
    WHERE t.run_id = ? AND t.state = 2 AND t.row_key > ? AND t.then_do IS NOT 'run'
    AND EXISTS (SELECT 1 FROM row AS r WHERE r.key = t.row_key AND r.state = 0 AND r.ordinal IS NOT NULL)
    ORDER BY t.row_key LIMIT ?
) ORDER BY key;

-- name: rows_idle
-- Open rows of the input that wait for no batch, in the order of the input.
SELECT {row}, data FROM row WHERE run_id = ? AND ordinal > ? AND state = 0
AND NOT EXISTS (SELECT 1 FROM batch_task AS t WHERE t.row_key = row.key AND t.state < 3)
ORDER BY ordinal LIMIT ?;

-- name: rows_in_batches
-- How many rows of a run wait for batches.
SELECT count(DISTINCT row_key) FROM batch_task INDEXED BY batch_task_row WHERE state < 3 AND state < 2 AND run_id = ?;

-- name: tasks_at
-- The tasks at some places of a batch.
SELECT id, place, row_key, stage, replica, fingerprint, state, round, position, repairs
FROM batch_task WHERE batch_id = ? AND place IN (:many);

-- name: tasks_left
-- Tasks of a batch of which nothing came.
SELECT id, place, row_key, stage, replica, fingerprint, state, round, position, repairs
FROM batch_task WHERE batch_id = ? AND place > ? AND state = 1 ORDER BY place LIMIT ?;

-- name: reply_last
-- The last reply to a question that had the wrong form, or failed a check.
SELECT reply, status, error_type, error_message FROM attempt
WHERE row_key = ? AND stage = ? AND replica = ? AND fingerprint = ? AND error_type IN ('SchemaMismatch', 'CheckFailed')
ORDER BY id DESC LIMIT 1;

-- name: conversations_left
-- How many conversations of a stage go on in batches, and how many were ever in one.
SELECT count(DISTINCT iif(state < 2 OR (state = 2 AND then_do = 'turn'), fingerprint, NULL)), count(DISTINCT fingerprint)
FROM batch_task WHERE run_id = ? AND stage = ?;

-- name: tasks_outdated
-- Tasks in open batches of a run whose row left, or asks something else by now, and for which nobody else waits.
SELECT t.batch_id, count(*) FROM batch_task AS t JOIN row ON row.key = t.row_key
WHERE t.state = 1 AND t.batch_id IN (
    SELECT id FROM batch WHERE run_id = ? AND state NOT IN {closed}
)
AND (row.state = 6 OR (row.ordinal IS NULL AND row.origin IS NULL) OR EXISTS (
    SELECT 1 FROM batch_task AS n WHERE n.row_key = t.row_key AND n.stage = t.stage AND n.replica = t.replica
    AND n.state < 2 AND n.state < 3 AND n.id > t.id AND n.fingerprint <> t.fingerprint
) OR EXISTS (
    SELECT 1 FROM task AS d WHERE d.row_key = t.row_key AND d.stage = t.stage AND d.replica = t.replica
    AND d.fingerprint IS NOT t.fingerprint
))
AND NOT EXISTS (
    SELECT 1 FROM batch_task AS w WHERE w.fingerprint = t.fingerprint AND w.state = 0 AND w.state < 2
) GROUP BY t.batch_id;

-- name: tasks_stale
-- Tasks in batches of other runs of a workflow that nobody in this run waits for.
SELECT t.batch_id, count(*) FROM batch_task AS t
WHERE t.state = 1 AND t.batch_id IN (
    SELECT batch.id FROM batch JOIN run ON run.id = batch.run_id
    WHERE run.workflow = ?2 AND run.id <> ?1
    AND batch.state NOT IN {closed}
)
AND NOT EXISTS (
    SELECT 1 FROM batch_task AS w
    WHERE w.fingerprint = t.fingerprint AND w.state = 0 AND w.state < 2 AND w.run_id = ?1
) GROUP BY t.batch_id;

-- name: batches_look
-- Batches, oldest first: of a run, of a workflow, or named by our number or the provider's; open ones, or all.
WITH numbered AS (
    SELECT id, row_number() OVER (PARTITION BY run_id, stage, event_id ORDER BY id) AS number,
        count(*) OVER (PARTITION BY run_id, stage, event_id) AS among
    FROM batch
)
SELECT b.*, r.workflow, json_extract(d.body, '$.stages[' || b.stage || '].name') AS stage_name, n.number, n.among,
    json_extract(r.manner, '$.stages[' || b.stage || '].batch.stuck_after') AS stuck_after,
    json_extract(r.manner, '$.stages[' || b.stage || '].batch.poll_interval') AS poll_interval
FROM batch b JOIN numbered n ON n.id = b.id JOIN run r ON r.id = b.run_id JOIN definition d ON d.hash = r.definition_hash
WHERE (:run IS NULL OR b.run_id = :run) AND (:workflow IS NULL OR r.workflow = :workflow)
    AND (:named IS NULL OR b.provider_id = :named OR CAST(b.id AS TEXT) = :named)
    AND (:closed OR b.state NOT IN {closed})
ORDER BY b.id;

-- name: batches_runs
-- The runs with batches in the order in which one is taken up.
-- First those with submitted ones that are open (0), then those with tasks of which something came (1), then those with
-- open ones that were not submitted (2), then the others; of equal ones the one that submitted last.
SELECT run_id, CASE
    WHEN state IN {closed} THEN iif(EXISTS (
        SELECT 1 FROM batch_task AS t JOIN row ON row.key = t.row_key
        WHERE t.run_id = batch.run_id AND t.state = 2 AND t.then_do IS NOT 'run' AND row.state = 0
    ), 1, 3 + (submitted_at IS NULL))
    ELSE 2 * (submitted_at IS NULL)
END AS rank FROM batch GROUP BY run_id, rank ORDER BY rank, max(coalesce(submitted_at, planned_at)) DESC, max(id) DESC;

-- name: batches_open
-- The open batches of every run that has any, summed up; those that the provider has not got yet `wait`.
SELECT run_id, count(*), sum(provider_id IS NULL), sum(tasks), coalesce(sum(done), 0), coalesce(sum(failed), 0),
    coalesce(sum(status IN ('completed', 'failed', 'expired', 'cancelled')), 0)
FROM batch WHERE state NOT IN {closed} GROUP BY run_id;

-- name: batches_at_a_glance
-- Number, provider's id and workflow of the open batches, the newest first.
SELECT b.id, b.provider_id, r.workflow FROM batch b JOIN run r ON r.id = b.run_id
WHERE b.state NOT IN {closed} ORDER BY b.id DESC;

-- name: batches_alike
-- The open batches of a run by stage and by their states at the provider, those first that it has not got.
SELECT json_extract(d.body, '$.stages[' || b.stage || '].name') AS stage,
    iif(provider_id IS NULL, 'not submitted', coalesce(status, 'in_progress')) AS status, count(*) AS batches,
    sum(tasks) AS requests, coalesce(sum(done), 0) AS done, coalesce(sum(failed), 0) AS failed
FROM batch b JOIN run r ON r.id = b.run_id JOIN definition d ON d.hash = r.definition_hash
WHERE run_id = ? AND state NOT IN {closed}
GROUP BY b.stage, 2 ORDER BY b.stage, provider_id IS NOT NULL, 2;

-- name: batches_of_row
-- The tasks of a row that are in a batch, or wait for an equal one that is in one, each with that batch.
SELECT t.stage, t.replica, t.fingerprint, t.state = 0 AS waits, t.round, b.id AS batch, b.run_id AS run, b.provider_id,
    b.state AS step, b.submitted_at
FROM batch_task t
LEFT JOIN batch_task e ON t.state = 0 AND e.fingerprint = t.fingerprint AND e.state = 1 AND e.state < 2
JOIN batch b ON b.id = coalesce(t.batch_id, e.batch_id)
WHERE t.row_key = ? AND t.state < 2 AND t.state < 3 ORDER BY t.stage, t.replica;

-- name: batches_waited_for
-- The batches of other runs in which tasks are that a run's tasks wait for.
SELECT DISTINCT b.id AS batch, b.run_id AS run, b.provider_id FROM batch_task w
JOIN batch_task e ON e.fingerprint = w.fingerprint AND e.state = 1 AND e.state < 2 JOIN batch b ON b.id = e.batch_id
WHERE w.run_id = ?1 AND w.state = 0 AND b.run_id <> ?1;

-- name: batches_lane_times
-- How long the batches of a lane took that came to their end by themselves, the shortest first.
SELECT max(ended_at - submitted_at, 0.0) FROM batch  -- providers tell whole seconds
WHERE provider = ? AND account = ? AND model = ? AND ended_at > submitted_at - 1 AND cancel_at IS NULL ORDER BY 1;

-- name: batches_needing
-- The runs that have open batches, or tasks that are in one or wait for one that is.
SELECT run_id FROM batch WHERE state NOT IN {closed}
UNION SELECT run_id FROM batch_task WHERE state < 2;

-- name: batches_results
-- The results of what some tasks asked in batches, to which no row refers yet, with their runs.
SELECT b.run_id, 0, v.id FROM batch_task b JOIN result v ON v.fingerprint = b.fingerprint
WHERE b.id > :after AND b.id <= :upto AND b.state < 3 AND b.then_do IS NOT 'run';

-- name: batches_tasks_drop
-- Tasks of batches, among some, whose row or run is gone.
DELETE FROM batch_task WHERE id > :after AND id <= :upto AND (
    NOT EXISTS (SELECT 1 FROM row WHERE key = batch_task.row_key)
    OR NOT EXISTS (SELECT 1 FROM run WHERE id = batch_task.run_id));

-- name: control_forget
-- Batches of a workflow that were brought to their end elsewhere; where that is not known (NULL), those that were not sent.
-- With them go their tasks, and those that wait for them.
DELETE FROM batch WHERE run_id IN (SELECT id FROM run WHERE workflow = :workflow) AND (:known IS NOT NULL
    OR state IN ('PLANNED', 'BUILT', 'UPLOAD_INTENT', 'UPLOADED')) AND state NOT IN ('CLEANED', 'NOT_CREATED', 'REJECTED');
DELETE FROM batch_task WHERE state < 2 AND NOT EXISTS (SELECT 1 FROM batch JOIN batch_task AS t ON t.batch_id = batch.id
    WHERE t.fingerprint = batch_task.fingerprint AND t.state = 1);

-- name: control_read
-- How much of a workflow's control state is known here.
SELECT number FROM control WHERE workflow = ?;

-- name: control_keep
-- So much of it is known.
INSERT INTO control VALUES (?, ?) ON CONFLICT DO UPDATE SET number = excluded.number;

-- part: review_columns
key, workflow, stage, row_id, run_id, row_key, seen, why, blind, state, sure, due, at

-- part: not_decided_by
(:reviewer = '' OR NOT EXISTS (
    SELECT 1 FROM decision AS said WHERE said.key = review.key AND said.reviewer = :reviewer AND said.at >= ifnull((
        SELECT max(at) FROM decision WHERE choice = 'discard'
        AND (key = review.key OR (key IS NULL AND workflow = review.workflow))
    ), 0)
))

-- name: review_put
-- An answer that waits for people. Where something was decided since the run looked, the next run looks again.
INSERT INTO review (key, workflow, stage, row_id, run_id, row_key, seen, why, blind, state, sure, due, alone, at)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9,
    iif(EXISTS (SELECT 1 FROM decision WHERE key = ?1 AND id > ?10), 'decided', ?11), ?12, ?13, ?14, ?15
WHERE true
ON CONFLICT (key) DO UPDATE SET run_id = excluded.run_id, row_key = excluded.row_key, why = excluded.why,
    blind = excluded.blind, state = excluded.state, sure = excluded.sure, alone = excluded.alone,
    due = iif(state = 'stale', excluded.due, due);

-- name: review_done
-- A review whose decision was taken up, or that is not wanted any more: it passed.
UPDATE review SET run_id = ?2, row_key = ?3,
    state = iif(EXISTS (SELECT 1 FROM decision WHERE key = ?1 AND id > ?4), 'decided', ?5)
WHERE key = ?1;

-- name: review_stale
-- What people were to say of other answers of a row is not asked any more.
UPDATE review SET state = 'stale' WHERE workflow = ? AND stage = ? AND row_id = ? AND key <> ? AND state <> 'stale';

-- name: review_state
-- How a review stands.
UPDATE review SET state = ? WHERE key = ?;

-- name: review_left
-- A row left: nobody is asked about it.
UPDATE review SET state = 'stale' WHERE row_key = ?;

-- name: reviews_outdated
-- A row that waits for people changed: what they are asked about it is seen when it is worked on.
UPDATE review SET state = 'stale' WHERE row_key = ? AND state IN ('waiting', 'conflict');

-- name: reviews_superseded
-- Nobody is asked any more what a run asked whose place another one took.
UPDATE review SET state = 'stale' WHERE state IN ('waiting', 'conflict') AND workflow = ? AND run_id = ?;

-- name: reviews_asked_by
-- The runs of a workflow that want decisions.
SELECT DISTINCT run_id FROM review WHERE state IN ('waiting', 'conflict') AND workflow = ?;

-- name: reviews_wanted
-- How many reviews want a decision; with a reviewer those of which this one has not said anything.
SELECT count(*) FROM review WHERE state IN ('waiting', 'conflict') AND workflow BETWEEN :workflow AND :last_workflow
    AND stage BETWEEN :stage AND :last_stage AND {not_decided_by};

-- name: reviews_open
-- How many reviews of a run want a decision, by stage.
SELECT stage, count(*) FROM review WHERE state IN ('waiting', 'conflict') AND workflow = ? AND run_id = ? GROUP BY stage;

-- name: rows_how
-- How results of these rows came about where people had to do with them: by stage.
SELECT t.row_key, t.stage, ifnull(json_extract(t.note, '$.review'), r.how)
FROM task t LEFT JOIN result r ON r.id = t.result_id
WHERE t.row_key IN (:many) AND t.replica = 0 AND (json_extract(t.note, '$.review') IS NOT NULL OR r.how = 'manual')
ORDER BY t.stage;

-- name: rows_sources
-- The sources of these rows' answers: by the first stage that has each.
SELECT t.row_key, min(t.stage), r.sources FROM task t JOIN result r ON r.id = t.result_id
WHERE t.row_key IN (:many) AND t.replica = 0 AND r.sources IS NOT NULL
GROUP BY t.row_key, t.result_id ORDER BY t.row_key, min(t.stage);

-- name: reviews_of
-- These reviews.
SELECT {review_columns} FROM review WHERE key IN (:many);

-- name: review_page
-- Reviews in one state, in the order in which they are asked, after one of them; of a reviewer those open to that one.
SELECT {review_columns} FROM review
WHERE state = :state AND (workflow, stage, sure, key) > (:workflow, :stage, :sure, :key)
    AND (workflow, stage) <= (:last_workflow, :last_stage) AND {not_decided_by}
ORDER BY workflow, stage, sure, key LIMIT :limit;

-- name: review_counts
-- How many reviews of some workflows stand in each state.
SELECT workflow, stage, state, count(*) FROM review WHERE workflow BETWEEN :workflow AND :last_workflow
GROUP BY workflow, stage, state;

-- name: reviews_waiting
-- Those of these rows that wait for people alone, of whom none said anything since, and whose time is not over.
SELECT row_key, max(stage) FROM review
WHERE row_key IN (:many) AND state <> 'stale'
GROUP BY row_key
HAVING max(state IN ('waiting', 'conflict')) AND min(alone) AND NOT max(state = 'decided')
    AND ifnull(min(iif(state IN ('waiting', 'conflict'), due, NULL)), 9e99) > ?;

-- name: reviews_decided
-- Those of these rows of which something was decided that no run has taken up.
SELECT DISTINCT row_key FROM review JOIN row ON row.key = review.row_key
WHERE row_key IN (:many) AND (review.state = 'decided' OR (review.state = 'conflict' AND row.state <> 0));

-- name: reviews_any_decided
-- Whether something was decided of rows that a stage made, which no run has taken up.
SELECT 1 FROM review JOIN row ON row.key = review.row_key
WHERE review.state IN ('decided', 'conflict') AND review.run_id = ? AND row.origin = ? LIMIT 1;

-- name: fixes
-- The last word about each result that was set by hand, or is to be given again, since its decisions were discarded.
SELECT key, id, workflow, stage, row_id, choice, iif(choice <> 'discard' AND at >= ifnull((
    SELECT max(at) FROM decision WHERE key IS NULL AND workflow = ?1 AND choice = 'discard'
), 0), value, NULL) AS value, reason, reviewer, at, source, forced FROM decision
WHERE id IN (
    SELECT first_value(id) OVER (PARTITION BY key ORDER BY at DESC, id DESC) FROM decision
    WHERE workflow = ?1 AND source = ?2 AND key IS NOT NULL
);

-- name: fixable
-- The tasks of the rows of a run with these ids, each with what its result stands under, and the result.
SELECT row.key, row.id, task.stage, task.fingerprint, result.fingerprint, result.value
FROM row JOIN task ON task.row_key = row.key AND task.replica = 0 LEFT JOIN result ON result.id = task.result_id
WHERE row.run_id = ? AND row.id IN (:many) AND row.state <> 6 AND task.fingerprint IS NOT NULL;

-- name: scores
-- How many rows of a run have each number in a place (the path) of what some stages (a list of positions) came to.
-- Of several that a row has been through the last one counts.
SELECT score, count(*) FROM (
    SELECT max(task.stage), json_extract(result.value, ?1) AS score, json_type(result.value, ?1) AS kind
    FROM row JOIN task ON task.row_key = row.key AND task.replica = 0 JOIN result ON result.id = task.result_id
    WHERE row.run_id = ?2 AND row.state <> 6 AND (row.ordinal IS NOT NULL OR row.origin IS NOT NULL)
        AND task.stage IN (SELECT value FROM json_each(?3))
    GROUP BY row.key
) WHERE kind IN ('integer', 'real') GROUP BY score;

-- name: judged
-- What a run asked people at a review stage.
-- Why, how each passed (auto, approved or manual; rejected; decided: no run went on; null: it waits), the answer of the last of some stages that the row has been through, and what the review came to.
SELECT review.why,
    CASE review.state WHEN 'applied' THEN ifnull(json_extract(task.note, '$.review'), 'rejected') WHEN 'decided' THEN 'decided' END,
    (SELECT result.value FROM task AS given JOIN result ON result.id = given.result_id
     WHERE given.row_key = review.row_key AND given.replica = 0 AND given.stage IN (SELECT value FROM json_each(?4))
     ORDER BY given.stage DESC LIMIT 1),
    result.value
FROM review LEFT JOIN task ON task.row_key = review.row_key AND task.stage = ?3 AND task.replica = 0
LEFT JOIN result ON result.id = task.result_id
WHERE review.run_id = ?1 AND review.stage = ?2 AND review.state <> 'stale';

-- name: decision_put
-- What somebody decided.
INSERT OR IGNORE INTO decision (key, workflow, stage, row_id, choice, value, reason, reviewer, at, source, forced)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: decisions_of
-- Every decision about these, the oldest first.
SELECT key, id, workflow, stage, row_id, choice, value, reason, reviewer, at, source, forced FROM decision
WHERE key IN (:many) ORDER BY at, id;

-- name: decisions_discarded
-- From when on decisions of a workflow count.
SELECT max(at) FROM decision WHERE key IS NULL AND workflow = ? AND choice = 'discard';

-- name: notification_put
-- Something to be told; told twice it is there once.
INSERT INTO notification (id, workflow, run_id, event_id, kind, body, target, next_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING;

-- name: notifications_due
-- What may be sent now, oldest first.
SELECT id, body, target, attempts, error FROM notification WHERE next_at <= ? ORDER BY next_at LIMIT 16;

-- name: notifications_left
-- How many wait, since when the first of them may be sent, and why the last attempt at one failed.
SELECT count(*), min(next_at), max(error) FROM notification WHERE next_at IS NOT NULL;

-- name: notification_targets
-- Whom messages wait for, and how many: by workflow and target.
SELECT workflow, target, count(*) FROM notification WHERE next_at IS NOT NULL GROUP BY workflow, target;

-- name: notifications_dropped
-- No attempt is made any more at the messages of a workflow to a target.
UPDATE notification SET next_at = NULL, error = ? WHERE next_at IS NOT NULL AND workflow = ? AND target = ?;

-- name: notification_claim
-- One attempt, by whoever is first; nobody else begins one before the given time.
UPDATE notification SET attempts = attempts + 1, next_at = ?1 WHERE id = ?2 AND next_at <= ?3;

-- name: notification_ended
-- What came of an attempt: when the next one is made (null: none), when it arrived, or why it did not.
UPDATE notification SET next_at = ?, sent_at = ?, error = ? WHERE id = ?;

