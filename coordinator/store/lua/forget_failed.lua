-- forget_failed: jobs that leave the store, out of the index of failed jobs.
--
-- keys: failed
-- args: jobs
--
-- jobs: their ids (JSON)
local leaving = {}
for _, job in ipairs(cjson.decode(args.jobs)) do leaving[job] = true end
local entries = redis.call('HGETALL', keys.failed)
for i = 1, #entries, 2 do
    if leaving[entries[i + 1]] then redis.call('HDEL', keys.failed, entries[i]) end
end
