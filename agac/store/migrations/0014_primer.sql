ALTER TABLE batch ADD COLUMN primer INTEGER; -- the batch that first brings what its requests begin with into a cache
