-- readmit: reports that waited for a newer coordinator go back onto the report stream, and leave their own, together.
--
-- keys: reports waiting counters
-- args: most
--
-- waiting: the stream of a schema that is known by now; at most `most` of its entries go back.
-- Answers how many went back; 0: the stream is empty, and gone.
local entries = redis.call('XRANGE', keys.waiting, '-', '+', 'COUNT', args.most)
for _, entry in ipairs(entries) do
    local fields = fields_of(entry)
    local readable, found = pcall(cjson.decode, fields.report or '')
    -- An entry that holds no report goes back as it stands, and becomes a dead letter when it is read.
    report(readable and type(found) == 'table' and found.v and found or fields)
    redis.call('XDEL', keys.waiting, entry[1])
end
if #entries > 0 then
    redis.call('HINCRBY', keys.counters, 'READMITTED', #entries)
else
    redis.call('DEL', keys.waiting)
end
return #entries
