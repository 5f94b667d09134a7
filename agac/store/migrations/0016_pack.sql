-- Packs of answers that were pulled from a remote, and which answers came with them.

CREATE TABLE pack (
    id     INTEGER PRIMARY KEY,
    writer TEXT NOT NULL,               -- whose it is, as the remote says
    name   TEXT NOT NULL,               -- the hash of its content
    UNIQUE (writer, name)
);
ALTER TABLE result ADD COLUMN pack_id INTEGER REFERENCES pack (id); -- null: an own answer; else `created_at` is when its writer got it
