-- spread: moves notices from the outbox into the queues of their targets, each whole and once.
--
-- keys: outbox notices notices_due dead counters
-- args: time most waiting dead_kept
--
-- waiting: what the keys of the queues begin with. dead_kept: about how many dead letters stay.
-- Answers {entries moved, the targets that are due, …}
local function is_notice(notice)
    if type(notice) ~= 'table' or type(notice.id) ~= 'string' or type(notice.problem) ~= 'string' then return false end
    if type(notice.to) ~= 'table' then return false end
    for _, target in ipairs(notice.to) do
        if type(target) ~= 'string' then return false end
    end
    return true
end

local entries = redis.call('XRANGE', keys.outbox, '-', '+', 'COUNT', args.most)
for _, entry in ipairs(entries) do
    local text = fields_of(entry).notice or ''
    local readable, notice = pcall(cjson.decode, text)
    if readable and is_notice(notice) then
        for _, target in ipairs(notice.to) do
            add_notice(args.waiting, target, notice.problem, notice.id, text, args.time)
        end
    else
        redis.call('XADD', keys.dead, 'MAXLEN', '~', args.dead_kept, '*', 'reason', 'UNREADABLE: the notice cannot be read', 'notice', text)
        redis.call('HINCRBY', keys.counters, 'NOTICE_DEAD', 1)
    end
    redis.call('XDEL', keys.outbox, entry[1])
end
local due = redis.call('ZRANGEBYSCORE', keys.notices_due, '-inf', args.time, 'LIMIT', 0, 1000)
-- No wait is as long as 1,000 s: what is due later was noted before the clock was set back.
for _, target in ipairs(redis.call('ZRANGEBYSCORE', keys.notices_due, tonumber(args.time) + 1000, '+inf', 'LIMIT', 0, 1000)) do
    due[#due + 1] = target
end
return {#entries, unpack(due)}
