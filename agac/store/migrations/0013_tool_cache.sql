-- Results of tools that are kept for later runs (`cache: persist`).

CREATE TABLE tool_cache (
    key     BLOB PRIMARY KEY,    -- of equal calls: the tool, its version, who may see the result, the arguments
    name    TEXT NOT NULL,       -- of the tool
    result  TEXT NOT NULL,       -- what models are told
    at      REAL NOT NULL,       -- when it was kept, in seconds since 1970
    expires REAL                 -- until when it is taken; null: for ever
) WITHOUT ROWID;
