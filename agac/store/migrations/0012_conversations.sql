-- Conversations of tasks with tools: each reply and each call of a tool as it came, so that a conversation that was
-- broken off goes on from its last stored turn.

CREATE TABLE agent_turn (
    workflow     TEXT NOT NULL,         -- whose conversations these are: nobody else goes on with them
    fingerprint  BLOB NOT NULL,         -- of the task, or of what a child agent was asked
    number       INTEGER NOT NULL,      -- from 1, over all conversations of the task: it names the turn for ever
    conversation INTEGER NOT NULL,      -- number of the first turn of its conversation
    model        TEXT NOT NULL,         -- provider/model that is asked
    agent        TEXT NOT NULL,         -- name of the child agent, '' for the stage's own
    row_key      INTEGER NOT NULL REFERENCES row (key),
    stage        INTEGER NOT NULL,      -- position of the stage in the run's definition
    event_id     INTEGER NOT NULL REFERENCES event (id),
    attempt      INTEGER NOT NULL,      -- number of the attempt that brought it, in this invocation
    at           REAL NOT NULL,
    status       INTEGER NOT NULL,      -- HTTP
    reply        BLOB NOT NULL,         -- raw body: TEXT as it came, BLOB when zlib made it smaller
    ended        TEXT,                  -- done, failed or lost: the conversation ended with this turn; null: it goes on
    PRIMARY KEY (fingerprint, number, workflow)
);
CREATE INDEX agent_turn_row ON agent_turn (row_key, stage);

CREATE TABLE tool_call (
    workflow    TEXT NOT NULL,          -- with fingerprint and turn: the turn that asks for it
    fingerprint BLOB NOT NULL,
    turn        INTEGER NOT NULL,       -- number of the turn
    place       INTEGER NOT NULL,       -- from 0, among the calls of the turn
    row_key     INTEGER NOT NULL REFERENCES row (key),
    stage       INTEGER NOT NULL,       -- position of the stage in the run's definition
    event_id    INTEGER NOT NULL REFERENCES event (id),
    call_id     TEXT NOT NULL,          -- the provider's
    name        TEXT NOT NULL,          -- of the tool
    arguments   TEXT NOT NULL,          -- JSON, as the model wrote it
    state       TEXT NOT NULL,          -- intent (begun, end not known), done, error, refused (not run), unknown, lost
    result      TEXT,                   -- what the model is told; null: nothing yet
    how         TEXT NOT NULL,          -- '' run for this call; else coalesced, cached, stub or replayed
    started_at  REAL NOT NULL,
    duration    REAL,                   -- seconds; null: no end
    PRIMARY KEY (fingerprint, turn, place, workflow)
);
CREATE INDEX tool_call_row ON tool_call (row_key, stage);

ALTER TABLE attempt ADD COLUMN cache_write_tokens INTEGER;  -- of the input tokens, written to a cache; null: not said
ALTER TABLE attempt ADD COLUMN server_tools TEXT;           -- JSON: how often each of the provider's own tools ran
ALTER TABLE counter ADD COLUMN cache_write_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE counter ADD COLUMN server_tools INTEGER NOT NULL DEFAULT 0;  -- uses of the provider's own tools

-- Every turn of conversations with tools: a line for each reply of a model, the stage's own or that of an agent it calls.
CREATE VIEW v_turns AS
SELECT
    run.id AS run,                                      -- number of the run
    run.workflow AS workflow,                           -- name of the workflow
    row.id AS row_id,                                   -- id of the row
    max(row.occurrence, 0) AS occurrence,               -- 0, or which repetition of the id this is
    v_stages.stage AS stage,                            -- name of the stage
    agent_turn.agent AS agent,                          -- name of the agent that was asked; '' for the stage's own
    agent_turn.conversation AS conversation,            -- number of its first turn
    agent_turn.number AS turn,                          -- from 1, over all conversations of the task
    agent_turn.model AS model,                          -- provider/model that was asked
    agent_turn.ended AS ended,                          -- done, failed or lost where the conversation ended with it
    attempt.input_tokens AS input_tokens,               -- null: not said
    attempt.cached_tokens AS cached_tokens,             -- of the input tokens
    attempt.output_tokens AS output_tokens,             -- null: not said
    attempt.cost AS cost_usd,                           -- null: unknown price, or tokens not said
    attempt.duration AS duration,                       -- seconds that the model took
    (SELECT count(*) FROM tool_call AS c
     WHERE c.fingerprint = agent_turn.fingerprint AND c.turn = agent_turn.number
         AND c.workflow = agent_turn.workflow) AS calls,    -- of tools that it asked for
    strftime('%Y-%m-%dT%H:%M:%SZ', agent_turn.at, 'unixepoch') AS at,   -- UTC, when the reply was there
    agent_turn.at AS at_seconds,                        -- the same in seconds since 1970
    lower(hex(agent_turn.fingerprint)) AS fingerprint   -- of the question
FROM run
JOIN row ON row.run_id = run.id
JOIN agent_turn ON agent_turn.row_key = row.key
JOIN v_stages ON v_stages.definition_hash = run.definition_hash AND v_stages.position = agent_turn.stage
LEFT JOIN attempt ON attempt.row_key = row.key AND attempt.stage = agent_turn.stage
    AND attempt.event_id = agent_turn.event_id AND attempt.fingerprint = agent_turn.fingerprint
    AND attempt.number = agent_turn.attempt;

-- Every call of a tool that a model asked for.
CREATE VIEW v_tool_calls AS
SELECT
    run.id AS run,                                      -- number of the run
    run.workflow AS workflow,                           -- name of the workflow
    row.id AS row_id,                                   -- id of the row
    max(row.occurrence, 0) AS occurrence,               -- 0, or which repetition of the id this is
    v_stages.stage AS stage,                            -- name of the stage
    tool_call.turn AS turn,                             -- number of the turn that asked for it
    tool_call.place AS place,                           -- from 0, among the calls of the turn
    tool_call.name AS tool,                             -- its name
    tool_call.arguments AS arguments,                   -- JSON, as the model wrote it
    tool_call.state AS state,                           -- intent (begun, end not known), done, error, refused (not run), unknown, lost
    tool_call.how AS how,                               -- '' run for this call; else coalesced, cached, stub or replayed
    tool_call.result AS result,                         -- what the model was told; null: nothing yet
    strftime('%Y-%m-%dT%H:%M:%SZ', tool_call.started_at, 'unixepoch') AS started_at,  -- UTC
    tool_call.started_at AS started_seconds,            -- the same in seconds since 1970
    tool_call.duration AS duration,                     -- seconds; null: no end
    lower(hex(tool_call.fingerprint)) AS fingerprint    -- of the question
FROM run
JOIN row ON row.run_id = run.id
JOIN tool_call ON tool_call.row_key = row.key
JOIN v_stages ON v_stages.definition_hash = run.definition_hash AND v_stages.position = tool_call.stage;
