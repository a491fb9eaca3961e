-- Takes rows that are not running out of the runs of a user, who may have room then. ARGV: user, keys. Without a user nobody
-- has these runs any more, and they are forgotten.
local user = ARGV[1]
for place = 2, #ARGV do
  local key = ARGV[place]
  if call('EXISTS', row_of(key)) == 0 then
    call('ZREM', T .. 'keys', key)
  end
  if redis.pcall('HGET', row_of(key), 'status') ~= 'running' then
    call('ZREM', T .. 'leases:', key)
    call('ZREM', T .. 'run:' .. user, key)
  end
end
unpark(user)
