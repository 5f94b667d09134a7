-- The view again, now that stages make rows: what is no longer made is not in it.
DROP VIEW v_lineage;

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
