-- What somebody is to be told of runs, as it is sent: a line is written with what it tells of, and sent afterwards, by
-- whichever command comes to it. It holds no row's data, and no secret: those of its target stand there as `${VAR}`.

CREATE TABLE notification (
    id       TEXT PRIMARY KEY,          -- also in the message: who gets it twice knows it by this
    workflow TEXT NOT NULL,
    run_id   INTEGER NOT NULL,
    event_id INTEGER NOT NULL,          -- the invocation that wrote it
    kind     TEXT NOT NULL,             -- finished, failed, limit, stuck, review, batch_ended
    body     TEXT NOT NULL,             -- the message: JSON
    target   TEXT NOT NULL,             -- whom to tell, as written in agac.yml or the workflow: JSON
    attempts INTEGER NOT NULL DEFAULT 0, -- begun ones
    next_at  REAL,                      -- not sent before; null: sent, or given up
    sent_at  REAL,
    error    TEXT                       -- of the last attempt
);
CREATE INDEX notification_due ON notification (next_at) WHERE next_at IS NOT NULL;
