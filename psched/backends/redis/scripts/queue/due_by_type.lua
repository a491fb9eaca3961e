-- Returns each type that has rows which are not retired, followed by the milliseconds until its earliest row is due.
-- A run that has ended, of whatever type, may have kept others of its user from running: acquiring tells.
local ENDED = 1000  -- runs that have ended, of which users' rows are looked for

local ended = call('ZRANGEBYSCORE', T .. 'leases:', '-inf', whole(now), 'LIMIT', 0, ENDED)
local found = due_by_type({'later:', 'leases:'}, 'turn:', #ended > 0)

-- Rows that are parked behind such a run are in no set of their type that is looked at.
local told = {['']=true}
for place = 1, #found, 2 do
  told[found[place]] = true
end
for _, key in ipairs(ended) do
  local user = redis.pcall('HGET', row_of(key), 'user')
  local parked = type(user) == 'string' and call('SMEMBERS', T .. 'parked:' .. user) or {}
  for _, kind in ipairs(parked) do
    if not told[kind] then
      told[kind] = true
      found[#found + 1], found[#found + 2] = kind, '0'
    end
  end
end
return found
