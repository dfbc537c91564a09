-- index_jobs: jobs back into the indexes that have lost them: what is due, the lists, and what they are forgotten by.
--
-- keys: due jobs ended summary retries
-- args: change
--
-- change: {jobs: {job: its line of the list, or ''}, job, status} (JSON); job: the key of the record of the job '\0';
-- status: how the key of a status index begins
-- Answers {how many entries were missing, job, …}: the jobs without a line in the list, whose line was not given
--
-- What stands already stays as it is. A record without a status is due, so that a coordinator halts it.
local change, lineless, time, missing = cjson.decode(args.change), {}, now(), 0
local function add(index, score, job) missing = missing + redis.call('ZADD', index, 'NX', score, job) end

for job, line in pairs(change.jobs) do
    local record = string.gsub(change.job, '%z', job)
    local status, submitted_at, ended_at, retry_of =
        unpack(redis.call('HMGET', record, 'status', 'submitted_at', 'ended_at', 'retry_of'))
    local left = redis.call('PTTL', record)
    if left >= 0 then
        add(keys.ended, stamp(time + left / 1000), job)
    elseif left == -1 and not (status and terminal(status)) and not ended_at then
        add(keys.due, stamp(time), job)
    end
    if left ~= -2 then
        submitted_at = tonumber(submitted_at) and submitted_at or '0'
        add(keys.jobs, submitted_at, job)
        if status then add(change.status .. status, submitted_at, job) end
        if retry_of then missing = missing + redis.call('HSETNX', keys.retries, job, retry_of) end
        if line ~= '' then
            redis.call('HSETNX', keys.summary, job, line)
        elseif redis.call('HEXISTS', keys.summary, job) == 0 then
            lineless[#lineless + 1] = job
        end
    end
end
return {missing + #lineless, unpack(lineless)}
