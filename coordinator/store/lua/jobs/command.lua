-- command: what a user asks of a job, onto the record. The only script that writes the intent.
--
-- keys: job events due reports plans
-- args: job change
--
-- change: {id, expect, job: {}, plans: {}, event} (JSON); event: JSON text without its time
-- Answers APPLIED | CONFLICT | MISSING
--
-- A command is a commit: it takes the compare-and-set on the last commit, so that no decision made before it can be
-- written after it. One that finds its own id is APPLIED: its first reply was lost, and another commit may have
-- followed.
local change = cjson.decode(args.change)
local commit, commanded = unpack(redis.call('HMGET', keys.job, 'commit', 'commanded'))
commit = commit or (redis.call('EXISTS', keys.job) == 1 and '')  -- as in commit
if not commit then return 'MISSING' end
if commanded == change.id then return 'APPLIED' end
if commit ~= change.expect then return 'CONFLICT' end
local time = now()
change.job.commit, change.job.commanded = change.id, change.id
if change.job.intent then change.job.intent_at = stamp(time) end
write_record(change.job)
set_all(keys.plans, change.plans)
log_event(at_time(change.event, time))
redis.call('ZADD', keys.due, 'LT', stamp(time), args.job)
wake_coordinators()
return 'APPLIED'
