-- forget_runs: let the oldest jobs of a schedule's runs expire soon, beyond those that it keeps. Their packages stay.
--
-- keys: schedule_runs ended staged staging_index
-- args: keep soon job_keys submit_key
--
-- soon: seconds until they expire. job_keys: the keys of the job '\0' (JSON). submit_key: that of the key '\0'
-- Answers how many
local over, time = {}, now()
for _, job in ipairs(redis.call('ZRANGE', keys.schedule_runs, 0, -(tonumber(args.keep) + 1))) do
    if #over == 100 then break end
    over[#over + 1] = job
end
local templates, at = cjson.decode(args.job_keys), time + tonumber(args.soon)
for _, job in ipairs(over) do
    local record = string.gsub(templates[1], '%z', job)
    local status, key, chain = unpack(redis.call('HMGET', record, 'status', 'key', 'chain_key'))
    if not status or terminal(status) then
        for _, template in ipairs(templates) do
            redis.call('EXPIRE', (string.gsub(template, '%z', job)), args.soon, 'LT')
        end
        for _, name in pairs({key, chain}) do
            local escaped = name and string.gsub(name, '%%', '%%%%')
            if name then redis.call('EXPIRE', (string.gsub(args.submit_key, '%z', escaped)), args.soon, 'LT') end
        end
        redis.call('ZADD', keys.ended, 'XX', 'LT', stamp(at), job)
        local staged = redis.call('HGET', keys.staged, job)
        if staged then
            local known = cjson.decode(staged)
            known.forget_at = math.min(known.forget_at, at)
            redis.call('HSET', keys.staged, job, cjson.encode(known))
            redis.call('ZADD', keys.staging_index, 'XX', 'LT', stamp(at), job)
        end
        redis.call('ZREM', keys.schedule_runs, job)
    end
end
return #over
