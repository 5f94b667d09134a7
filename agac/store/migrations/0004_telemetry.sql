-- What telemetry tells of a call beside what was known of it before.
ALTER TABLE attempt ADD COLUMN ttft REAL;               -- seconds until the first token; null: not streamed
ALTER TABLE attempt ADD COLUMN time_to_response REAL;   -- seconds until the first token of the answer itself; null: the same
ALTER TABLE attempt ADD COLUMN service_tier TEXT;       -- the tier that really served it, as the provider says

-- How long calls took, from which summaries read p50 and p95: a histogram for each run, stage and measure, kept by the
-- settle transaction. The upper bounds of its buckets grow by a fixed ratio, so it stays small whatever is counted.
CREATE TABLE timing (
    run_id  INTEGER NOT NULL,
    stage   TEXT NOT NULL,
    measure TEXT NOT NULL,              -- duration, ttft or time_to_response
    bucket  INTEGER NOT NULL,           -- engine.quantiles.bucket_of the seconds
    count   INTEGER NOT NULL,
    PRIMARY KEY (run_id, stage, measure, bucket)
) WITHOUT ROWID;
