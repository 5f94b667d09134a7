-- How much of a workflow's control state in the remote this database knows.

CREATE TABLE control (
    workflow TEXT PRIMARY KEY,
    number   INTEGER NOT NULL           -- of the last entry of its log that is in here, read or written
) WITHOUT ROWID;
