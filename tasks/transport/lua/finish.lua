-- finish: the outcome onto the attempt record, the report onto the stream and the job due, together.
--
-- keys: job attempts reports due answer held
-- args: job group epoch nonce claimant outcome kind event finishes schema_version kept
--
-- finishes: how many attempts this caller finished, this one included.
-- answer: the key that holds the caller's last answer, for `kept` seconds. outcome: JSON.
-- Answers APPLIED | DUPLICATE | STALE | UNKNOWN_JOB
return finish_attempt()
