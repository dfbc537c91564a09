-- resolve_dead_letter: a report goes back onto its stream, or a notice into the queue of its target, or away for good.
--
-- keys: dead reports resolved counters job events notices notices_due
-- args: letter what by kept waiting
--
-- resolved: the key that holds what became of the letter, for `kept` seconds, so that a repeat changes nothing.
-- letter: its id on the dead stream. what: replayed | dropped. waiting: what the keys of the queues begin with.
-- Answers {DONE} | {ALREADY, what became of it} | {GONE} | {UNKNOWN_JOB}
local before = redis.call('GET', keys.resolved)
if before then return {'ALREADY', before} end
local entry = redis.call('XRANGE', keys.dead, args.letter, args.letter)[1]
if not entry then return {'GONE'} end
local letter = fields_of(entry)
if args.what == 'replayed' then
    if letter.notice then
        local notice = cjson.decode(letter.notice)
        add_notice(args.waiting, letter.to, notice.problem, notice.id, letter.notice, stamp(now()))
    else
        -- Without its job the report would be a dead letter again at once.
        if redis.call('EXISTS', keys.job) == 0 then return {'UNKNOWN_JOB'} end
        report(cjson.decode(letter.report))
        redis.call('HINCRBY', keys.counters, 'REPLAYED', 1)
    end
end
redis.call('XDEL', keys.dead, args.letter)
redis.call('SET', keys.resolved, args.what .. ' before, by ' .. args.by, 'EX', args.kept)
local text = 'dead letter ' .. args.letter .. ': ' .. (letter.reason or '')
local kinds = letter.notice and {'NOTICE_REPLAYED', 'NOTICE_DROPPED'} or {'REPORT_REPLAYED', 'REPORT_DROPPED'}
local kind = kinds[args.what == 'replayed' and 1 or 2]
log_late_event(cjson.encode({kind = kind, at = now(), by = args.by, text = text}))
return {'DONE'}
