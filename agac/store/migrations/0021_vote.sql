-- Replies of replicas that are no results, and yet count as asked: nobody is to pay for them twice.

CREATE INDEX task_replica_failed ON task (fingerprint) WHERE replica > 0 AND outcome = 'failed';
