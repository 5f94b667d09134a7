-- Calls that were given to workers, written before they get them: what is left here after a crash may have been made.

CREATE TABLE chunk_call (
    event_id    INTEGER NOT NULL,       -- the invocation
    number      INTEGER NOT NULL,       -- of the call in it
    run_id      INTEGER NOT NULL,
    chunk       TEXT NOT NULL,          -- what it was given with; its replies are under this name in the remote
    worker      TEXT NOT NULL,
    stage       INTEGER NOT NULL,
    row_key     INTEGER NOT NULL,
    replica     INTEGER NOT NULL,
    fingerprint BLOB NOT NULL,
    mark        BLOB NOT NULL,          -- stands for the request: who is asked, and what
    at          REAL NOT NULL,
    PRIMARY KEY (event_id, number)
) WITHOUT ROWID;
