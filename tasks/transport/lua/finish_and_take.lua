-- finish_and_take: a runner ends one attempt and claims the next, in one round trip.
--
-- calls: finish take
-- keys: job attempts reports due answer turn polled pools pool_slots lanes
-- args: job group epoch nonce claimant outcome kind event finishes schema_version kept taking takes
--
-- Answers as `finish`, and then as `take`: {APPLIED, CLAIMED, offer, …}. Each of them knows its own repeats.
local word = finish()
return {word, unpack(take())}
