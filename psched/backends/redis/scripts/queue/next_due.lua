-- Returns in how many milliseconds the earliest row is due, nothing when there is none. ARGV: types (counted; -1: any).
local types, earliest = counted(1), nil
-- A run that has ended, of whatever type, may have kept others of its user from running: acquiring tells.
local ended = call('ZRANGE', T .. 'leases:', 0, 0, 'WITHSCORES')[2]
if ended and tonumber(ended) <= now then
  return '0'
end
for _, type in ipairs(ARGV[1] == '-1' and {''} or types) do
  if call('EXISTS', T .. 'turn:' .. type) == 1 then
    return '0'
  end
  for _, name in ipairs({'later:', 'leases:'}) do
    local head = call('ZRANGE', T .. name .. type, 0, 0, 'WITHSCORES')
    if head[1] then
      earliest = math.min(earliest or math.huge, tonumber(head[2]))
    end
  end
end
return earliest and whole(math.max(0, earliest - now)) or false
