-- Returns in how many milliseconds the earliest row is due, nothing when there is none. ARGV: types (counted; -1: any).
local types, earliest = counted(1), nil
for _, type in ipairs(ARGV[1] == '-1' and {''} or types) do
  local head = call('ZRANGE', T .. 'due:' .. type, 0, 0, 'WITHSCORES')
  if head[1] then
    earliest = math.min(earliest or math.huge, tonumber(head[2]))
  end
end
return earliest and whole(math.max(0, earliest - now)) or false
