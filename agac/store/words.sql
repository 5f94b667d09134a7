-- The index of the words in the rows of one run: a file of its own, made of the database alone. A row is in it again, as
-- a further version, once it changed; only the last version that still fits the row is shown.
CREATE VIRTUAL TABLE IF NOT EXISTS words.entry USING fts5 (     -- rowid: key of the row + version << 40
    text, content = '', detail = none, columnsize = 0, tokenize = "unicode61 remove_diacritics 0"
);
CREATE TABLE IF NOT EXISTS words.stamp (        -- what a row was when it was indexed
    key       INTEGER PRIMARY KEY,
    version   INTEGER NOT NULL,
    hash      BLOB NOT NULL,            -- the first bytes of the row's
    result_id INTEGER,
    message   TEXT
);
CREATE TABLE IF NOT EXISTS words.later (        -- rows that were open when the walk came by
    key INTEGER PRIMARY KEY
);
CREATE TABLE IF NOT EXISTS words.about (        -- one line
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    made    REAL NOT NULL,              -- when the run was made: another store may have one with its number
    upto    INTEGER NOT NULL,           -- the last row key that any walk came to
    mark    TEXT,                       -- how the run was when the last walk that ended began
    walking TEXT,                       -- and the one that is under way, or was killed; null: none
    walked  INTEGER NOT NULL            -- the last row key that this walk came to
);
