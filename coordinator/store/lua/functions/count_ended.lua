-- count_ended: a job has ended: by its name, how it did and how long it ran, for the metrics; `commit` calls it.
--
-- keys: totals totals_names
-- Called with {ended: {name, most, job: {amount by what is counted}, publishing: {…}}, expire} (JSON), and the time
--
-- At most so many names are counted by themselves. A new one takes the place of one of which no job has ended for the
-- retention; if there is none, it counts among the others, whose name is empty.
local change, time = ...
local ended = change.ended

-- pcall: what is only shown must fail no commit, however it is damaged.
local function add(field, amounts)
    local text = redis.pcall('HGET', keys.totals, field)
    local readable, totals = pcall(cjson.decode, text or '{}')
    if not readable or type(totals) ~= 'table' then totals = {} end
    for what, amount in pairs(amounts) do totals[what] = (tonumber(totals[what]) or 0) + amount end
    redis.pcall('HSET', keys.totals, field, cjson.encode(totals))
end

local name = ended.name
local known = redis.pcall('ZSCORE', keys.totals_names, name)
if not known and tonumber(redis.pcall('ZCARD', keys.totals_names)) >= ended.most then
    local oldest = redis.call('ZRANGE', keys.totals_names, 0, 0, 'WITHSCORES')
    if tonumber(oldest[2]) < time - change.expire then
        redis.call('ZREM', keys.totals_names, oldest[1])
        redis.pcall('HDEL', keys.totals, 'job ' .. oldest[1])
    else
        name = ''
    end
end
if name ~= '' then redis.pcall('ZADD', keys.totals_names, stamp(time), name) end
add('job ' .. name, ended.job)
if next(ended.publishing) then add('publishing', ended.publishing) end
