-- note_expected: what was judged of a name that is expected, with its notices. Compare-and-set on what stood before.
--
-- keys: expected expected_state outbox
-- args: name before after notices
--
-- before, after: its state, '' if there is none. notices: a list of notices (JSON), each of them JSON. Where `after` is
-- '' the name is not expected any more.
-- Answers APPLIED | CONFLICT
if (redis.call('HGET', keys.expected_state, args.name) or '') ~= args.before then return 'CONFLICT' end
if args.after == '' then
    redis.call('HDEL', keys.expected, args.name)
    redis.call('HDEL', keys.expected_state, args.name)
else
    redis.call('HSET', keys.expected_state, args.name, args.after)
end
for _, notice in ipairs(cjson.decode(args.notices)) do tell(notice) end
return 'APPLIED'
