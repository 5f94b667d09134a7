-- Rows that stages make of others: the children of a row, and groups of rows. Their `ordinal` is null: only rows of the
-- input have a place in it.
ALTER TABLE row ADD COLUMN parent_key INTEGER REFERENCES row (key);  -- the row that it is a child of; null: of none
ALTER TABLE row ADD COLUMN origin INTEGER;      -- position of the stage that made it; null: a row of the input
ALTER TABLE row ADD COLUMN place INTEGER;       -- from 0, among the children of its parent
CREATE INDEX row_parent ON row (parent_key, place) WHERE parent_key IS NOT NULL;
CREATE INDEX row_origin ON row (run_id, origin, key) WHERE origin IS NOT NULL;

-- Which rows a group is made of.
CREATE TABLE member (
    group_key INTEGER NOT NULL REFERENCES row (key),
    sort      INTEGER NOT NULL,         -- keys.member_hash of the row's id, by which large groups are cut
    row_key   INTEGER NOT NULL REFERENCES row (key),
    size      INTEGER NOT NULL,         -- estimated tokens of what the row gives to the group
    PRIMARY KEY (group_key, sort, row_key)
) WITHOUT ROWID;
CREATE INDEX member_row ON member (row_key, group_key);

-- Why a stage was passed over for a row (`when`): JSON with the guard and the values that it looked at.
ALTER TABLE task ADD COLUMN note TEXT;
