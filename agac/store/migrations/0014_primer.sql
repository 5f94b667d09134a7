ALTER TABLE batch ADD COLUMN primer INTEGER; -- of an older version: the batch that filled a provider's cache for this one
