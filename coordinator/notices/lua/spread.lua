-- spread: moves notices from the outbox into the queues of their targets, each whole and once.
--
-- keys: outbox notices notices_due dead counters
-- args: time most waiting
--
-- waiting: what the keys of the queues begin with.
-- Answers {entries moved, the targets that are due, …}
local entries = redis.call('XRANGE', keys.outbox, '-', '+', 'COUNT', args.most)
for _, entry in ipairs(entries) do
    local text = fields_of(entry).notice or ''
    local readable, notice = pcall(cjson.decode, text)
    if readable and type(notice) == 'table' and notice.id and notice.problem and type(notice.to) == 'table' then
        for _, target in ipairs(notice.to) do
            add_notice(args.waiting, target, notice.problem, notice.id, text, args.time)
        end
    else
        redis.call('XADD', keys.dead, '*', 'reason', 'UNREADABLE: the notice cannot be read', 'notice', text)
        redis.call('HINCRBY', keys.counters, 'NOTICE_DEAD', 1)
    end
    redis.call('XDEL', keys.outbox, entry[1])
end
return {#entries, unpack(redis.call('ZRANGEBYSCORE', keys.notices_due, '-inf', args.time, 'LIMIT', 0, 1000))}
