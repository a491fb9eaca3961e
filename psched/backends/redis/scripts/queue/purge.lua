-- Deletes rows whose retention is over. ARGV: the most rows. Returns how many.
local keys = call('ZRANGEBYSCORE', T .. 'purge', '-inf', whole(now), 'LIMIT', 0, tonumber(ARGV[1]))
for _, key in ipairs(keys) do
  remove(key)
end
return #keys
