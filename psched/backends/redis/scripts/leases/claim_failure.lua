-- Returns a failure that nobody is telling of, and lets no other caller have it for a while; nothing when there is none.
-- ARGV: for how many milliseconds.
for _, name in ipairs(call('ZRANGEBYSCORE', T .. 'untold', '-inf', whole(now), 'LIMIT', 0, 20)) do
  local told = call('HGET', T .. 'failures', name)
  if told then
    call('ZADD', T .. 'untold', whole(now + tonumber(ARGV[1])), name)
    return told
  end
  call('ZREM', T .. 'untold', name)
end
return false
