-- acknowledge_reports: a decision that changed nothing still acks its reports, counts them and sets the job due.
--
-- calls: functions/add_offers
-- keys: due reports counters events job turn turns lanes
-- args: job change consumer_group
--
-- change: {due, due_seen, offers, lanes, acks: [], counts: {}, refused: {}} (JSON); offers, lanes: as in `add_offers`
-- Answers OK
local change = cjson.decode(args.change)
acknowledge(change)
add_offers(change)
if change.due == cjson.null then
    -- It had ended when it was read; a store that was rolled back since may hold a job that goes on.
    local status = redis.call('HGET', keys.job, 'status')
    if not status or terminal(status) then redis.call('ZREM', keys.due, args.job) end
elseif redis.call('ZSCORE', keys.due, args.job) then
    set_due(change, now())
end
return 'OK'
