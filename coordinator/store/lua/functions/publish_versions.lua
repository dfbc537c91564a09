-- publish_versions: new versions of datasets are known, and schedules that run after them are due; `commit` and `note_published` call it.
--
-- keys: published schedules_due
-- Called with {dataset@warehouse: [dataset, rows]}, 'version time', and the key of the followers of the dataset ''.
--
-- A job that ends once more after a rollback, and a restore that is repeated, change nothing.
local datasets, version, after = ...
for name, one in pairs(datasets) do
    local known, rows = string.match(redis.call('HGET', keys.published, name) or '0 0 0', '^(%d+) %S+ ?(%d*)')
    if tonumber(string.match(version, '^%d+')) > tonumber(known or 0) then
        local all_rows = (tonumber(rows) or 0) + one[2]
        redis.call('HSET', keys.published, name, string.format('%s %.0f', version, all_rows))
        for _, follower in ipairs(redis.call('SMEMBERS', after .. one[1])) do
            redis.call('ZADD', keys.schedules_due, 'XX', 'LT', stamp(now()), follower)
        end
    end
end
