-- resolve_dead_letter: a dead letter goes back onto the report stream, or away for good, because a person said so.
--
-- keys: dead reports resolved counters job events
-- args: letter what by kept
--
-- resolved: the key that holds what became of the letter, for `kept` seconds, so that a repeat changes nothing.
-- letter: its id on the dead stream. what: replayed | dropped
-- Answers {DONE} | {ALREADY, what became of it} | {GONE} | {UNKNOWN_JOB}
local before = redis.call('GET', keys.resolved)
if before then return {'ALREADY', before} end
local entry = redis.call('XRANGE', keys.dead, args.letter, args.letter)[1]
if not entry then return {'GONE'} end
local letter = fields_of(entry)
if args.what == 'replayed' then
    -- Without its job the report would be a dead letter again at once.
    if redis.call('EXISTS', keys.job) == 0 then return {'UNKNOWN_JOB'} end
    report(cjson.decode(letter.report))
    redis.call('HINCRBY', keys.counters, 'REPLAYED', 1)
end
redis.call('XDEL', keys.dead, args.letter)
redis.call('SET', keys.resolved, args.what .. ' before, by ' .. args.by, 'EX', args.kept)
local text = 'dead letter ' .. args.letter .. ': ' .. (letter.reason or '')
local kind = args.what == 'replayed' and 'REPORT_REPLAYED' or 'REPORT_DROPPED'
log_late_event(cjson.encode({kind = kind, at = now(), by = args.by, text = text}))
return {'DONE'}
