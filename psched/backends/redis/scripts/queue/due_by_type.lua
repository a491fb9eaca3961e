-- Returns each type that has rows which are not retired, followed by the milliseconds until its earliest row is due.
-- A run that has ended, of whatever type, may have kept others of its user from running: acquiring tells.
local ended = call('ZRANGE', T .. 'leases:', 0, 0, 'WITHSCORES')[2]
return due_by_type({'later:', 'leases:'}, 'turn:', ended and tonumber(ended) <= now)
